// SPDX-License-Identifier: Apache-2.0
// What --plot draws of a replay: a histogram of the steps' latency and a timeline of the steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/status.h"

namespace flashprime::cli {

// One step, as measured.
struct StepRecord {
  double seconds = 0.0;
  int64_t new_tokens = 0;
  int64_t context_tokens = 0;
};

struct PlotMark {
  std::string label;  // with its value
  double value = 0.0;
};

// One strip of the timeline: values over the steps.
struct PlotStrip {
  std::string label;  // for the legend
  std::string axis;   // with the unit
  std::vector<double> values;
};

struct ReplayPlot {
  std::string subtitle;  // model, device, trace
  std::string time_unit;
  // bin_counts[i] steps took [i, i + 1) * bin_width; the last bin has its end as well.
  double bin_width = 1.0;
  std::vector<int64_t> bin_counts;
  std::vector<PlotMark> marks;
  // Values of the strips are means over so many steps.
  int64_t steps = 0;
  int64_t steps_per_value = 1;
  std::vector<PlotStrip> strips;
};

ReplayPlot make_replay_plot(const std::vector<StepRecord>& steps, std::string_view subtitle);

// An SVG document of its own.
std::string plot_svg(const ReplayPlot& plot);

// Whether plot_png() can work: kDevice, naming what is missing, if there is no python3 with
// matplotlib.
Status check_png_renderer();
// The bytes of a PNG file, drawn by python3 with matplotlib.
StatusOr<std::string> plot_png(const ReplayPlot& plot);

}  // namespace flashprime::cli
