// SPDX-License-Identifier: Apache-2.0
// What a benchmark measured, as Markdown, CSV and JSON, and against an earlier one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/session.h"

namespace flashprime::cli {

// Seconds of one call over several runs. The spread is half the width of the middle half of the
// runs, so that one run that met another process does not decide it.
struct Timing {
  double median = 0.0;
  double spread = 0.0;
  double fastest = 0.0;
  int64_t runs = 0;
};
Timing summarize(std::vector<double> seconds);

struct BenchRow {
  // What was measured. Rows of two runs are compared if all of these are equal.
  std::string model;  // or dims
  std::string dims;
  int64_t heads = 0;
  std::string dtype;
  std::string mask;
  std::string batch;
  std::string machine;  // processor, SIMD target
  int64_t threads = 0;

  std::string kernel;
  std::string version;
  std::string build;  // compiler and kind
  int64_t seed = 0;
  double flop = 0.0;
  Timing ours;
  int64_t verified_rows = 0;
  std::string failure;  // verification: what was wrong; then nothing was timed

  std::string torch_version;
  std::string torch_route;  // the fastest of torch's; empty: torch was not asked for
  std::string torch_error;  // why it has no time
  Timing torch;
};

std::string bench_markdown(const std::vector<BenchRow>& rows, bool with_torch);
std::string bench_csv(const std::vector<BenchRow>& rows);
Json bench_json(const std::vector<BenchRow>& rows);

// The rows of a file that `bench -o csv` or `-o json` wrote, this version or another: it must have
// what compare() looks at, and any column it has must be of its type. kFormat names what is wrong.
StatusOr<std::vector<BenchRow>> parse_bench(std::string_view text);

struct Guard {
  struct Line {
    std::string batch;
    double before = 0.0;  // medians, seconds
    double now = 0.0;
    double noise = 0.0;  // sum of both spreads
    bool slower = false;
  };
  std::vector<Line> lines;             // rows that both runs have
  std::vector<std::string> unmatched;  // batches of this run that the earlier one lacks

  bool passed() const;
};
// A row is slower if it takes more than `allowed` (0.1 is 10 %) longer than before, and the
// difference is beyond the noise. A guard that found nothing to compare has not passed.
Guard compare(const std::vector<BenchRow>& before, const std::vector<BenchRow>& now,
              double allowed);

}  // namespace flashprime::cli
