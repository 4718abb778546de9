// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/suite.h"

#include <chrono>
#include <utility>

#include "flashprime/backend.h"
#include "tests/cases/case.h"
#include "tests/cases/case_spec.h"
#include "tests/cases/known_bugs.h"

namespace flashprime::cases {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Why the kernel under test does not take the case; empty if it does.
std::string refusal(const Case& c, const ExecutionOptions& execution) {
  const Explanation explanation = explain(c.problem(), execution);
  if (explanation.supported) return {};
  std::string reasons;
  for (const KernelVerdict& verdict : explanation.verdicts) {
    if (!execution.kernel.empty() && verdict.kernel != execution.kernel) continue;
    for (const std::string& reason : verdict.reasons) {
      if (!reasons.empty()) reasons += "; ";
      reasons += verdict.kernel + ": " + reason;
    }
  }
  return reasons.empty() ? "no kernel takes it" : reasons;
}

CaseReport run_case(const Case& c, const SuiteOptions& options) {
  CaseReport report;
  report.name = c.name;
  report.why = c.why;
  const Clock::time_point start = Clock::now();
  if (std::string reasons = refusal(c, options.execution); !reasons.empty()) {
    report.outcome = Outcome::kSkipped;
    report.skip_reason = std::move(reasons);
    return report;
  }
  CheckOptions check;
  check.seed = options.seed;
  check.weights = weights_dtype(options.execution, c.dtype);
  const Implementation under_test =
      options.implementation ? options.implementation : library_prefill(options.execution);
  // GPU kernels refuse rows that are not aligned; the problem alone does not tell.
  Status refused;
  const Implementation implementation = [&](const PrefillProblem& problem,
                                            const PrefillArgs& args) {
    const Status status = under_test(problem, args);
    if (options.execution.device.kind == DeviceKind::kCuda &&
        (status.code() == StatusCode::kAlignment || status.code() == StatusCode::kStride)) {
      refused = status;
    }
    return status;
  };
  auto checker = CaseChecker::make(c, check);
  if (checker.ok()) {
    report.verdict = (*checker)->check(implementation);
  } else {
    report.verdict.violations.push_back(checker.status().to_string());
  }
  if (!refused.ok()) {
    report.outcome = Outcome::kSkipped;
    report.verdict = {};
    report.skip_reason = refused.message();
    return report;
  }
  report.outcome = report.verdict.passed() ? Outcome::kPassed : Outcome::kFailed;
  if (report.outcome == Outcome::kFailed) {
    const ShrunkCase shrunk = shrink_case(c, report.verdict, check, implementation, options.shrink);
    report.spec = case_spec(shrunk.c);
    report.spec_violations = shrunk.verdict.violations;
    report.shrink_runs = shrunk.runs;
    report.minimal = shrunk.minimal;
  }
  report.seconds = seconds_since(start);
  return report;
}

CaseReport run_scenario(const Scenario& scenario, const SuiteOptions& options) {
  CaseReport report;
  report.name = scenario.name;
  report.why = scenario.why;
  const Clock::time_point start = Clock::now();
  ExecutionOptions execution = options.execution;
  execution.checked = true;  // some pass wrong lengths
  report.verdict.violations = scenario.run(execution, options.seed);
  report.outcome = report.verdict.passed() ? Outcome::kPassed : Outcome::kFailed;
  report.seconds = seconds_since(start);
  return report;
}

Status known_kernel(const std::string& name) {
  if (name.empty()) return {};
  for (const KernelInfo& info : list_kernels()) {
    if (info.name == name) return {};
  }
  return {StatusCode::kUnsupported, "kernel: got '" + name + "', which this library does not have"};
}

void keep_worst(double value, const std::string& name, double& worst, std::string& worst_case) {
  if (value > worst || worst_case.empty()) {
    worst = value;
    worst_case = name;
  }
}

void add(CaseReport report, SuiteReport& suite) {
  ++suite.cases;
  switch (report.outcome) {
    case Outcome::kPassed: ++suite.passed; break;
    case Outcome::kFailed: ++suite.failed; break;
    case Outcome::kSkipped: ++suite.skipped; break;
  }
  const Metrics& metrics = report.verdict.metrics;
  if (metrics.rows_checked > 0) {
    keep_worst(metrics.preround_rel_rms, report.name, suite.worst_preround_rel_rms,
               suite.worst_preround_case);
    if (metrics.ideal_rel_rms > 1e-6) {  // fp32 output has no rounding to compare with
      keep_worst(metrics.rel_rms / metrics.ideal_rel_rms, report.name, suite.worst_rms_over_ideal,
                 suite.worst_rms_case);
    }
    keep_worst(metrics.lse_error_over_bound, report.name, suite.worst_lse_over_bound,
               suite.worst_lse_case);
  }
  suite.reports.push_back(std::move(report));
}

}  // namespace

StatusOr<SuiteReport> run_single(const Case& c, const SuiteOptions& options) {
  if (Status status = known_kernel(options.execution.kernel); !status.ok()) return status;
  SuiteReport report;
  add(run_case(c, options), report);
  return report;
}

const std::vector<std::string_view>& suite_names() {
  static const std::vector<std::string_view> names = {"quick", "full", "known-bugs"};
  return names;
}

StatusOr<SuiteReport> run_suite(std::string_view suite, const SuiteOptions& options,
                                const Progress& progress) {
  uint32_t wanted = 0;
  if (suite == "quick") wanted = kQuick;
  if (suite == "full") wanted = kFull;
  if (suite == "known-bugs") wanted = kKnownBugs;
  if (wanted == 0) {
    return Status(StatusCode::kUnsupported,
                  "suite: got '" + std::string(suite) + "', wanted quick, full or known-bugs");
  }
  if (Status status = known_kernel(options.execution.kernel); !status.ok()) return status;
  const auto selected = [&](const std::string& name) {
    return name.find(options.filter) != std::string::npos;
  };
  std::vector<const Case*> cases;
  for (const Case& c : case_table()) {
    if ((c.suites & wanted) != 0 && selected(c.name)) cases.push_back(&c);
  }
  std::vector<const Scenario*> scenarios;
  SuiteReport report;
  if (wanted == kKnownBugs) {
    for (const Scenario& scenario : known_bug_scenarios()) {
      if (selected(scenario.name)) scenarios.push_back(&scenario);
    }
    report.covered_elsewhere = known_bugs_covered_elsewhere();
  }
  const auto total = static_cast<int64_t>(cases.size() + scenarios.size());
  if (total == 0) {
    return Status(StatusCode::kUnsupported, "filter: no case of suite " + std::string(suite) +
                                                " has '" + std::string(options.filter) +
                                                "' in its name");
  }
  SuiteOptions one = options;
  for (int64_t i = 0; i < total; ++i) {
    const auto index = static_cast<size_t>(i);
    add(index < cases.size() ? run_case(*cases[index], one)
                             : run_scenario(*scenarios[index - cases.size()], one),
        report);
    if (report.reports.back().shrink_runs > 0) one.shrink.seconds -= report.reports.back().seconds;
    if (progress && !progress(report.reports.back(), i, total)) break;
  }
  return report;
}

}  // namespace flashprime::cases
