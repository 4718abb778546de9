// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace flashprime::cli {
namespace {

using testing::HasSubstr;

std::vector<StepRecord> many_steps(int count) {
  std::vector<StepRecord> steps;
  for (int i = 0; i < count; ++i) steps.push_back({0.001 * (i % 100 + 1), 8192 - i % 7, 512 * i});
  return steps;
}

size_t occurrences(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Elements are closed and nested as XML wants it; no character that it forbids.
bool is_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos || occurrences(tag, "\"") % 2 != 0) return false;
    if (tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return false;
    } else {
      open.pop_back();
    }
  }
  for (unsigned char c : svg) {
    if (c != '\n' && (c < ' ' || c > '~')) return false;
  }
  return open.empty();
}

TEST(ReplayPlot, EveryStepIsInTheHistogramOnce) {
  for (int count : {1, 2, 99, 1000}) {
    const ReplayPlot plot = make_replay_plot(many_steps(count), "");
    EXPECT_EQ(std::accumulate(plot.bin_counts.begin(), plot.bin_counts.end(), int64_t{0}), count);
  }
  // Equal and zero times too.
  const ReplayPlot zeros = make_replay_plot({{0, 1, 0}, {0, 1, 0}}, "");
  EXPECT_EQ(zeros.bin_counts.front(), 2);
}

TEST(ReplayPlot, MarksAreNearestRankPercentilesInTheUnitOfTheAxis) {
  const ReplayPlot plot = make_replay_plot(many_steps(100), "");  // 1 ms to 100 ms
  EXPECT_EQ(plot.time_unit, "ms");
  ASSERT_EQ(plot.marks.size(), 3u);
  EXPECT_NEAR(plot.marks[0].value, 50.0, 1e-9);
  EXPECT_NEAR(plot.marks[1].value, 90.0, 1e-9);
  EXPECT_NEAR(plot.marks[2].value, 99.0, 1e-9);
  EXPECT_EQ(plot.marks[1].label, "p90 90 ms");
  EXPECT_EQ(make_replay_plot({{2.0, 1, 0}}, "").time_unit, "s");
  EXPECT_EQ(make_replay_plot({{2e-5, 1, 0}}, "").time_unit, "us");
}

TEST(ReplayPlot, TheTimelineKeepsShortRunsAndAveragesLongOnes) {
  const ReplayPlot few = make_replay_plot(many_steps(480), "");
  EXPECT_EQ(few.steps_per_value, 1);
  EXPECT_EQ(few.strips[0].values.size(), 480u);
  EXPECT_EQ(few.strips[1].values[3], 512.0 * 3);
  EXPECT_EQ(few.strips[0].label, "new tokens");
  const ReplayPlot many = make_replay_plot(many_steps(481), "");
  EXPECT_EQ(many.steps_per_value, 2);
  ASSERT_EQ(many.strips[1].values.size(), 241u);
  EXPECT_EQ(many.strips[1].values[1], 512.0 * 2.5);
  EXPECT_EQ(many.strips[1].values[240], 512.0 * 480);  // the last one alone
  EXPECT_EQ(many.strips[2].label, "time (mean of 2 steps)");
}

TEST(ReplayPlot, TheSvgHasTitlesUnitsAndLegendsInBothPlots) {
  const std::string svg =
      plot_svg(make_replay_plot(many_steps(1000), "deepseek-v3, Some CPU, conv.csv"));
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_EQ(occurrences(svg, "deepseek-v3, Some CPU, conv.csv"), 2u);
  for (const char* part :
       {">Latency of a step<", ">time of a step, attention (ms)<", ">number of steps<", ">steps<",
        ">p50 50 ms<", ">p99 99 ms<", ">Steps over the replay<", ">new (tokens)<",
        ">context (tokens)<", ">time (ms)<", ">step<", ">new tokens (mean of 3 steps)<",
        ">context (mean of 3 steps)<"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
}

TEST(ReplayPlot, TheSvgOfNothingOneStepOrNoContextIsWellFormedAndFinite) {
  for (const std::vector<StepRecord>& steps :
       {std::vector<StepRecord>{}, std::vector<StepRecord>{{0.5, 100, 0}},
        std::vector<StepRecord>{{0, 0, 0}},
        std::vector<StepRecord>{{1e9, 1 << 30, int64_t{1} << 50}}}) {
    const std::string svg = plot_svg(make_replay_plot(steps, "x"));
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
    EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
  }
}

TEST(ReplayPlot, ANameOfATraceCannotBreakTheSvg) {
  const std::string svg =
      plot_svg(make_replay_plot(many_steps(3), "</text><script>&amp;\x1b\xff\n\"'"));
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp;amp;"));
}

TEST(ReplayPlot, TheSvgStaysSmall) {
  EXPECT_LT(plot_svg(make_replay_plot(many_steps(100'000), "x")).size(), 60'000u);
}

}  // namespace
}  // namespace flashprime::cli
