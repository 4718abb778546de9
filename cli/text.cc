// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace flashprime::cli {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Letters to insert, drop, replace, or swap with their neighbour to make one text the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> costs(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        costs[i][j] = i + j;
        continue;
      }
      const size_t replace = costs[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      costs[i][j] = std::min({replace, costs[i - 1][j] + 1, costs[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        costs[i][j] = std::min(costs[i][j], costs[i - 2][j - 2] + 1);
      }
    }
  }
  return costs[a.size()][b.size()];
}

}  // namespace

StatusOr<int64_t> parse_integer(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (!digits || error != std::errc() || stop != end || value < min || value > max) {
    return Status(StatusCode::kFormat, fmt::format("got '{}', want an integer from {} to {}",
                                                   printable(text), min, max));
  }
  return value;
}

StatusOr<double> parse_decimal(std::string_view text, double min, double max) {
  const auto point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction =
      point == std::string_view::npos ? std::string_view("0") : text.substr(point + 1);
  const bool digits = !whole.empty() && !fraction.empty() && text.size() <= 40 &&
                      std::all_of(whole.begin(), whole.end(), is_digit) &&
                      std::all_of(fraction.begin(), fraction.end(), is_digit);
  double value = 0.0;
  // from_chars ignores the locale; strtod would not.
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!digits || error != std::errc() || stop != text.data() + text.size() || value < min ||
      value > max) {
    return Status(StatusCode::kFormat, fmt::format("got '{}', want a decimal number from {} to {}",
                                                   printable(text), min, max));
  }
  return value;
}

StatusOr<int64_t> parse_bytes(std::string_view text) {
  int shift = 0;
  const size_t unit =
      text.empty() ? std::string_view::npos : std::string_view("KMGT").find(text.back());
  if (unit != std::string_view::npos) {
    shift = 10 * static_cast<int>(unit + 1);
    text.remove_suffix(1);
  }
  const StatusOr<int64_t> count = parse_integer(text, 1, INT64_MAX >> shift);
  if (!count.ok()) {
    return Status(StatusCode::kFormat,
                  fmt::format("got '{}', want bytes, as in 1000000, 512M or 16G", printable(text)));
  }
  return *count << shift;
}

CLI::Option* add_integer(CLI::App& app, const std::string& name, int64_t* target, int64_t min,
                         int64_t max, const std::string& description) {
  return app
      .add_option_function<std::string>(
          name,
          [=](const std::string& text) {
            const StatusOr<int64_t> value = parse_integer(text, min, max);
            if (!value.ok()) throw CLI::ValidationError(name, value.status().message());
            *target = *value;
          },
          description)
      ->type_name("N");
}

CLI::Option* add_decimal(CLI::App& app, const std::string& name, double* target, double min,
                         double max, const std::string& description) {
  return app
      .add_option_function<std::string>(
          name,
          [=](const std::string& text) {
            const StatusOr<double> value = parse_decimal(text, min, max);
            if (!value.ok()) throw CLI::ValidationError(name, value.status().message());
            *target = *value;
          },
          description)
      ->type_name("X");
}

CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t* target,
                       const std::string& description) {
  return app
      .add_option_function<std::string>(
          name,
          [=](const std::string& text) {
            const StatusOr<int64_t> value = parse_bytes(text);
            if (!value.ok()) throw CLI::ValidationError(name, value.status().message());
            *target = *value;
          },
          description)
      ->type_name("BYTES[K|M|G|T]");
}

std::string with_commas(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string with_prefix(double value) {
  constexpr std::array<const char*, 7> prefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t index = 0;
  while (std::abs(value) >= 999.5 && index + 1 < prefixes.size()) {
    value /= 1000.0;
    ++index;
  }
  const int decimals = std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, prefixes[index]);
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0.0)) return "-";
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 60.0) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string printable(std::string_view text, size_t limit) {
  std::string safe;
  for (char c : text.substr(0, limit)) safe += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > limit) safe += "...";
  return safe;
}

std::string closest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongestWord = 40;  // of any verb or option
  if (word.size() > kLongestWord) return {};
  std::string best;
  size_t best_distance = word.size() < 6 ? 2 : 3;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string align_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += fmt::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    text += '|';
    for (const std::string& cell : rows[i]) text += ' ' + cell + " |";
    text += '\n';
    if (i == 0) {
      text += '|';
      for (size_t column = 0; column < rows[i].size(); ++column) text += "---|";
      text += '\n';
    }
  }
  return text;
}

}  // namespace flashprime::cli
