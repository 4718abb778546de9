// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr int64_t kBins = 40;
constexpr int64_t kMaxValues = 480;  // of a strip: more would be narrower than two pixels

constexpr double kWidth = 960.0;
constexpr double kHeight = 900.0;
constexpr double kLeft = 90.0;
constexpr double kRight = 930.0;
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73"};  // told apart by anyone

enum class Numbers { kReal, kWhole };

// 1, 2, 2.5 or 5 times a power of ten, so that `range` has at most `count` of it.
double tick_step(double range, int count, Numbers numbers) {
  const double rough = range / count;
  if (numbers == Numbers::kWhole && rough <= 1.0) return 1.0;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor == 2.5 && power < 10.0 && numbers == Numbers::kWhole) continue;
    if (factor * power >= rough * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

std::string tick_text(double value) {
  if (std::abs(value) >= 1000.0) return with_commas(std::llround(value));
  return fmt::format("{:.6g}", value);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : printable(text, 400)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += c;
    }
  }
  return out;
}

class Svg {
 public:
  Svg() {
    body_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        kWidth, kHeight);
  }
  void line(double x1, double y1, double x2, double y2, const char* style) {
    body_ += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" {}/>\n", x1, y1, x2, y2, style);
  }
  void rect(double x, double y, double width, double height, const char* color) {
    body_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y,
        width, height, color);
  }
  void path(const std::string& points, const char* color) {
    body_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                         points, color);
  }
  void text(double x, double y, std::string_view anchor, std::string_view what,
            std::string_view more = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                         anchor, more, escaped(what));
  }
  void vertical_text(double x, double y, std::string_view what) {
    text(x, y, "middle", what, fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y));
  }
  std::string finish() { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

struct Axis {
  std::string label;
  double max;
  double tick;

  // The axis of values ends at a tick, so that the largest has air above it.
  static Axis of_values(std::string label, double largest, int ticks, Numbers numbers) {
    const double range = largest > 0.0 ? largest : 1.0;
    const double tick = tick_step(range, ticks, numbers);
    return {std::move(label), tick * std::ceil(range / tick * (1.0 - 1e-9)), tick};
  }
};

struct Panel {
  double top, bottom;
  Axis across, up;

  double x(double value) const { return kLeft + (kRight - kLeft) * value / across.max; }
  double y(double value) const { return bottom - (bottom - top) * value / up.max; }

  void draw_axes(Svg& svg) const {
    for (int i = 0; i * up.tick <= up.max * (1.0 + 1e-9); ++i) {
      svg.line(kLeft, y(i * up.tick), kRight, y(i * up.tick), "stroke=\"#dddddd\"");
      svg.text(kLeft - 6, y(i * up.tick) + 4, "end", tick_text(i * up.tick));
    }
    for (int i = 0; i * across.tick <= across.max * (1.0 + 1e-9); ++i) {
      svg.line(x(i * across.tick), bottom, x(i * across.tick), bottom + 5, "stroke=\"black\"");
      // The strips above the last share its labels.
      if (across.label.empty()) continue;
      svg.text(x(i * across.tick), bottom + 18, "middle", tick_text(i * across.tick));
    }
    svg.line(kLeft, bottom, kRight, bottom, "stroke=\"black\"");
    svg.line(kLeft, top, kLeft, bottom, "stroke=\"black\"");
    svg.text((kLeft + kRight) / 2, bottom + 36, "middle", across.label);
    svg.vertical_text(24, (top + bottom) / 2, up.label);
  }
};

void draw_titles(Svg& svg, double top, std::string_view title, std::string_view subtitle) {
  svg.text(kLeft, top, "start", title, " font-size=\"16\" font-weight=\"bold\"");
  // A long name of a processor or trace is set smaller, rather than beyond the edge.
  const double size =
      std::min(12.0, (kRight - kLeft) / (0.6 * static_cast<double>(subtitle.size() + 1)));
  svg.text(kLeft, top + 18, "start", subtitle, fmt::format(" font-size=\"{:.1f}\"", size));
}

// Right-aligned, in one row.
void draw_legend(Svg& svg, double y,
                 const std::vector<std::pair<std::string, const char*>>& entries) {
  double width = 0.0;
  for (const auto& entry : entries) width += 7.0 * static_cast<double>(entry.first.size()) + 34.0;
  double x = kRight - width;
  for (const auto& [label, color] : entries) {
    svg.rect(x, y - 9, 14, 9, color);
    svg.text(x + 19, y, "start", label);
    x += 7.0 * static_cast<double>(label.size()) + 34.0;
  }
}

void draw_histogram(Svg& svg, const ReplayPlot& plot) {
  draw_titles(svg, 30, "Latency of a step", plot.subtitle);
  int64_t most = 0;
  for (int64_t count : plot.bin_counts) most = std::max(most, count);
  const double longest =
      plot.bin_width * static_cast<double>(std::max<size_t>(1, plot.bin_counts.size()));
  const Panel panel = {
      90,
      320,
      {fmt::format("time of a step, attention ({})", plot.time_unit), longest,
       tick_step(longest, 8, Numbers::kReal)},
      Axis::of_values("number of steps", static_cast<double>(most), 5, Numbers::kWhole)};
  panel.draw_axes(svg);
  for (size_t i = 0; i < plot.bin_counts.size(); ++i) {
    const double left = panel.x(plot.bin_width * static_cast<double>(i));
    const double right = panel.x(plot.bin_width * static_cast<double>(i + 1));
    const double y = panel.y(static_cast<double>(plot.bin_counts[i]));
    if (plot.bin_counts[i] > 0) {
      svg.rect(left + 0.5, y, right - left - 1.0, panel.bottom - y, kColors[0]);
    }
  }
  constexpr const char* kMarkColors[] = {"#009e73", "#e69f00", "#d55e00"};
  std::vector<std::pair<std::string, const char*>> legend = {{"steps", kColors[0]}};
  for (size_t i = 0; i < plot.marks.size(); ++i) {
    const char* color = kMarkColors[i % std::size(kMarkColors)];
    const double x = panel.x(plot.marks[i].value);
    svg.line(
        x, panel.top, x, panel.bottom,
        fmt::format("stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"6 3\"", color).c_str());
    legend.push_back({plot.marks[i].label, color});
  }
  draw_legend(svg, 78, legend);
}

void draw_timeline(Svg& svg, const ReplayPlot& plot) {
  draw_titles(svg, 400, "Steps over the replay", plot.subtitle);
  std::vector<std::pair<std::string, const char*>> legend;
  for (size_t i = 0; i < plot.strips.size(); ++i) {
    const PlotStrip& strip = plot.strips[i];
    double most = 0.0;
    for (double value : strip.values) most = std::max(most, value);
    const double top = 460.0 + 132.0 * static_cast<double>(i);
    const bool last = i + 1 == plot.strips.size();
    const auto steps = static_cast<double>(std::max<int64_t>(plot.steps, 1));
    const Panel panel = {top,
                         top + 108,
                         {last ? "step" : "", steps, tick_step(steps, 8, Numbers::kWhole)},
                         Axis::of_values(strip.axis, most, 4, Numbers::kReal)};
    panel.draw_axes(svg);
    std::string points;
    for (size_t at = 0; at < strip.values.size(); ++at) {
      const auto begin = static_cast<double>(static_cast<int64_t>(at) * plot.steps_per_value);
      const double end = std::min(begin + static_cast<double>(plot.steps_per_value), steps);
      points += fmt::format("{}{:.1f} {:.1f}H{:.1f}", at == 0 ? 'M' : 'L', panel.x(begin),
                            panel.y(strip.values[at]), panel.x(end));
    }
    if (!points.empty()) svg.path(points, kColors[i % std::size(kColors)]);
    legend.push_back({strip.label, kColors[i % std::size(kColors)]});
  }
  draw_legend(svg, 448, legend);
}

}  // namespace

ReplayPlot make_replay_plot(const std::vector<StepRecord>& steps, std::string_view subtitle) {
  ReplayPlot plot;
  plot.subtitle = subtitle;
  plot.steps = static_cast<int64_t>(steps.size());
  std::vector<double> sorted;
  for (const StepRecord& step : steps) sorted.push_back(step.seconds);
  std::sort(sorted.begin(), sorted.end());
  const double longest = sorted.empty() ? 0.0 : sorted.back();
  const double unit = longest >= 1.0 ? 1.0 : longest >= 1e-3 ? 1e-3 : 1e-6;
  plot.time_unit = unit == 1.0 ? "s" : unit == 1e-3 ? "ms" : "us";

  if (!sorted.empty()) {
    plot.bin_width = std::max(longest / unit / static_cast<double>(kBins), 1e-9);
    plot.bin_counts.assign(static_cast<size_t>(kBins), 0);
    for (double seconds : sorted) {
      const auto bin = static_cast<int64_t>(seconds / unit / plot.bin_width);
      ++plot.bin_counts[static_cast<size_t>(std::clamp<int64_t>(bin, 0, kBins - 1))];
    }
    for (int p : {50, 90, 99}) {
      const auto rank = (sorted.size() * static_cast<size_t>(p) + 99) / 100;
      const double value = sorted[rank - 1];
      plot.marks.push_back({fmt::format("p{} {}", p, duration_text(value)), value / unit});
    }
  }

  plot.steps_per_value = std::max<int64_t>(1, (plot.steps + kMaxValues - 1) / kMaxValues);
  const std::string mean =
      plot.steps_per_value > 1 ? fmt::format(" (mean of {} steps)", plot.steps_per_value) : "";
  plot.strips = {{"new tokens" + mean, "new (tokens)", {}},
                 {"context" + mean, "context (tokens)", {}},
                 {"time" + mean, fmt::format("time ({})", plot.time_unit), {}}};
  for (int64_t begin = 0; begin < plot.steps; begin += plot.steps_per_value) {
    const int64_t end = std::min(begin + plot.steps_per_value, plot.steps);
    double sums[3] = {};
    for (int64_t i = begin; i < end; ++i) {
      const StepRecord& step = steps[static_cast<size_t>(i)];
      sums[0] += static_cast<double>(step.new_tokens);
      sums[1] += static_cast<double>(step.context_tokens);
      sums[2] += step.seconds / unit;
    }
    for (size_t i = 0; i < 3; ++i) {
      plot.strips[i].values.push_back(sums[i] / static_cast<double>(end - begin));
    }
  }
  return plot;
}

std::string plot_svg(const ReplayPlot& plot) {
  Svg svg;
  draw_histogram(svg, plot);
  draw_timeline(svg, plot);
  return svg.finish();
}

}  // namespace flashprime::cli
