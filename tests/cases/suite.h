// SPDX-License-Identifier: Apache-2.0
// What `flashprime check` runs: a suite of the case table, one report line per case.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/execution.h"
#include "flashprime/status.h"
#include "tests/cases/accuracy.h"
#include "tests/cases/shrink.h"

namespace flashprime::cases {

struct SuiteOptions {
  std::string_view filter;  ///< only cases whose name contains it; empty: all
  uint64_t seed = 1;
  ExecutionOptions execution;  ///< device, kernel, threads under test
  /// What is judged instead of prefill() under `execution`; empty: prefill(). Scenarios, which are
  /// more than one call, always run prefill().
  Implementation implementation;
  /// A case that fails is made smaller within these; no runs: it is left as it is. The seconds are
  /// those of the whole suite: a kernel that fails everywhere is soon known to.
  ShrinkLimits shrink{.runs = 0, .seconds = 0, .stop = {}};
};

enum class Outcome : uint8_t { kPassed, kFailed, kSkipped };

struct CaseReport {
  std::string name;
  std::string why;
  Outcome outcome = Outcome::kPassed;
  Verdict verdict;          ///< metrics are zero for scenarios that are more than one call
  std::string skip_reason;  ///< with kSkipped: what the kernel under test declares it cannot do
  /// With kFailed, for a case: it, or the smaller one found, as case_spec() writes it, and what
  /// that one violates. Empty for scenarios.
  std::string spec;
  std::vector<std::string> spec_violations;
  int64_t shrink_runs = 0;
  bool minimal = false;  ///< nothing can be dropped from `spec` without the failure going too
  double seconds = 0;
};

struct SuiteReport {
  int64_t cases = 0;
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;
  std::vector<CaseReport> reports;
  /// Worst over the cases, each with the case it was seen in.
  double worst_preround_rel_rms = 0;
  std::string worst_preround_case;
  double worst_rms_over_ideal = 0;
  std::string worst_rms_case;
  double worst_lse_over_bound = 0;
  std::string worst_lse_case;
  /// Known-bug rows that no call of the operator can show, and the test that covers each.
  std::vector<std::string> covered_elsewhere;
};

/// Called after each case; false stops the suite (what ran so far is reported).
using Progress = std::function<bool(const CaseReport& report, int64_t index, int64_t total)>;

/// Names that run_suite() knows: "quick", "full", "known-bugs".
const std::vector<std::string_view>& suite_names();

/// Runs a suite. Failed cases are in the report, not in the Status: kUnsupported for an unknown
/// suite name, a filter that matches nothing, or a kernel or device that does not exist.
StatusOr<SuiteReport> run_suite(std::string_view suite, const SuiteOptions& options,
                                const Progress& progress = {});

/// The same for one case, in the table or not.
StatusOr<SuiteReport> run_single(const Case& c, const SuiteOptions& options);

}  // namespace flashprime::cases
