// SPDX-License-Identifier: Apache-2.0
// flashprime check: accuracy of the kernels over the case table, against fp64.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>

#include "cli/check.h"
#include "cli/text.h"
#include "flashprime/backend.h"
#include "tests/cases/case_spec.h"
#include "tests/cases/suite.h"

namespace flashprime::cli {
namespace {

std::string_view outcome_name(cases::Outcome outcome) {
  switch (outcome) {
    case cases::Outcome::kPassed: return "passed";
    case cases::Outcome::kFailed: return "failed";
    case cases::Outcome::kSkipped: return "skipped";
  }
  return "unknown";
}

std::string join_lines(const std::vector<std::string>& lines, const std::string& indent) {
  std::string text;
  for (const std::string& line : lines) text += indent + line + '\n';
  return text;
}

// The failing case alone, and as small as it was made, as a command.
std::string case_repro(const CheckRequest& request, const cases::CaseReport& report) {
  std::string text = "flashprime check ";
  if (report.spec.empty()) {
    text += "--suite " + request.suite + " --filter '" + report.name + "'";
  } else {
    text += "--case " + report.spec;
  }
  text += " --seed " + std::to_string(request.common.seed);
  if (!request.kernel.empty()) text += " --kernel " + request.kernel;
  if (request.common.device.kind != DeviceKind::kAuto) {
    text += " --device " + device_name(request.common.device);
  }
  if (request.common.threads > 0) text += " --threads " + std::to_string(request.common.threads);
  return text;
}

std::string shrunk_text(const cases::CaseReport& report) {
  if (report.shrink_runs == 0) return {};
  return fmt::format("    {} after {} runs:\n", report.minimal ? "minimal" : "made smaller",
                     report.shrink_runs) +
         join_lines(report.spec_violations, "      ");
}

}  // namespace

int run_check(Session& session, const CheckRequest& request,
              const cases::Implementation& implementation) {
  cases::SuiteOptions suite_options;
  suite_options.filter = request.filter;
  suite_options.seed = static_cast<uint64_t>(request.common.seed);
  suite_options.execution.device = request.common.device;
  if (request.common.device.kind == DeviceKind::kAuto) {
    suite_options.execution.device = {DeviceKind::kCpu, 0};
  }
  suite_options.execution.kernel = request.kernel;
  suite_options.execution.num_threads = static_cast<int32_t>(request.common.threads);
  suite_options.implementation = implementation;
  if (request.shrink) {
    suite_options.shrink = cases::ShrinkLimits{};
    suite_options.shrink.stop = interrupted;
  }

  // A device that cannot run the plainest problem cannot run a suite.
  const Explanation explanation = explain({}, suite_options.execution);
  if (!explanation.supported) {
    std::string reasons;
    for (const KernelVerdict& kernel : explanation.verdicts) {
      for (const std::string& reason : kernel.reasons) {
        reasons += (reasons.empty() ? "" : "; ") + kernel.kernel + ": " + reason;
      }
    }
    return session.fail(kExitUnsupported, "unsupported: " + reasons);
  }

  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  Clock::time_point last_line = start;
  const auto progress = [&](const cases::CaseReport& report, int64_t index, int64_t total) {
    const Clock::time_point now = Clock::now();
    const bool due = now - last_line > std::chrono::milliseconds(on_terminal ? 100 : 5000);
    if (due || (on_terminal && index + 1 == total)) {
      last_line = now;
      std::fprintf(stderr, on_terminal ? "\r[%lld/%lld] %s\x1b[K" : "[%lld/%lld] %s\n",
                   static_cast<long long>(index + 1), static_cast<long long>(total),
                   report.name.c_str());
    }
    return !interrupted();
  };
  const StatusOr<cases::SuiteReport> ran =
      request.spec.empty() ? cases::run_suite(request.suite, suite_options, progress)
                           : cases::run_single(request.one_case, suite_options);
  if (on_terminal) std::fputs("\r\x1b[K", stderr);
  if (!ran.ok()) return session.fail(kExitUsage, ran.status().message());
  const cases::SuiteReport& report = *ran;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  // A suite in which every case was skipped has shown nothing.
  const bool passed = report.failed == 0 && report.passed > 0;
  const int exit_code = passed ? kExitOk : kExitCheckFailed;

  if (session.json) {
    Json rows = Json::array();
    for (const cases::CaseReport& one : report.reports) {
      Json row = {{"name", one.name},
                  {"outcome", outcome_name(one.outcome)},
                  {"seconds", one.seconds},
                  {"rel_rms", one.verdict.metrics.rel_rms},
                  {"preround_rel_rms", one.verdict.metrics.preround_rel_rms},
                  {"lse_error", one.verdict.metrics.lse_error}};
      if (one.outcome == cases::Outcome::kSkipped) row["skip_reason"] = one.skip_reason;
      if (one.outcome == cases::Outcome::kFailed) {
        row["violations"] = one.verdict.violations;
        row["minimal"] = one.minimal;
        row["case"] = one.spec;
        row["case_violations"] = one.spec_violations;
        row["repro"] = case_repro(request, one);
      }
      rows.push_back(std::move(row));
    }
    session.print_json({{"suite", request.spec.empty() ? request.suite : "case"},
                        {"seed", request.common.seed},
                        {"kernel", explanation.kernel},
                        {"numerics_id", numerics_id()},
                        {"cases", report.cases},
                        {"passed", report.passed},
                        {"failed", report.failed},
                        {"skipped", report.skipped},
                        {"interrupted", interrupted()},
                        {"worst_preround_rel_rms", report.worst_preround_rel_rms},
                        {"worst_preround_case", report.worst_preround_case},
                        {"worst_rms_over_ideal", report.worst_rms_over_ideal},
                        {"worst_rms_case", report.worst_rms_case},
                        {"worst_lse_over_bound", report.worst_lse_over_bound},
                        {"worst_lse_case", report.worst_lse_case},
                        {"covered_elsewhere", report.covered_elsewhere},
                        {"seconds", seconds},
                        {"reports", std::move(rows)},
                        {"result", passed ? "PASS" : "FAIL"}});
    return exit_code;
  }

  for (const cases::CaseReport& one : report.reports) {
    if (one.outcome == cases::Outcome::kSkipped) {
      session.out += "skipped  " + one.name + ": " + one.skip_reason + '\n';
    } else if (one.outcome == cases::Outcome::kFailed) {
      session.out += "FAILED   " + one.name + "  (" + one.why + ")\n" +
                     join_lines(one.verdict.violations, "    ") + shrunk_text(one) +
                     "    repro: " + case_repro(request, one) + '\n';
    }
  }
  if (!report.covered_elsewhere.empty()) {
    session.out +=
        "not shown by a call, covered by tests:\n" + join_lines(report.covered_elsewhere, "    ");
  }
  session.out += fmt::format("kernel   {}  {}\n", explanation.kernel, explanation.detail);
  session.out += fmt::format(
      "{} {}/{}{}  worst: out before rounding {:.2g} ({}), stored out {:.3g}x the best possible "
      "({}), lse {:.3g} of its bound ({}); {}\n",
      passed ? "PASS" : "FAIL", report.passed, report.cases - report.skipped,
      interrupted() ? " (interrupted)" : "", report.worst_preround_rel_rms,
      report.worst_preround_case, report.worst_rms_over_ideal, report.worst_rms_case,
      report.worst_lse_over_bound, report.worst_lse_case, duration_text(seconds));
  session.out += "repro: " + session.repro + '\n';
  return exit_code;
}

void add_check(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand("check", "Accuracy over the case table, against fp64");
  auto request = std::make_shared<CheckRequest>();
  request->common.seed = 1;
  app->add_flag("--json", session.json, "JSON on stdout");
  std::vector<std::string> names;
  for (std::string_view name : cases::suite_names()) names.emplace_back(name);
  auto* suite = app->add_option("--suite", request->suite, "Which cases (default quick)")
                    ->check(CLI::IsMember(names));
  auto* filter = app->add_option("--filter", request->filter, "Only cases whose name contains TEXT")
                     ->type_name("TEXT");
  app->add_option_function<std::string>(
         "--case",
         [request](const std::string& text) {
           StatusOr<cases::Case> one = cases::parse_case_spec(text);
           if (!one.ok()) throw CLI::ValidationError("--case", one.status().message());
           request->one_case = std::move(*one);
           request->spec = text;
         },
         "This case alone, as a failing run prints it: dims=128/64/128,lens=17/513,heads=2,...")
      ->type_name("SPEC")
      ->excludes(suite)
      ->excludes(filter);
  app->add_flag_callback(
      "--no-shrink", [request] { request->shrink = false; },
      "Leave a failing case as large as it is");
  app->add_option("--kernel", request->kernel, "Kernel to check (default: the selector's choice)")
      ->type_name("NAME");
  add_integer(*app, "--seed", &request->common.seed, 0, std::numeric_limits<int64_t>::max(),
              "Seed of the random data (default 1)");
  add_device_options(*app, request->common);
  app->callback([&session, request] {
    session.selected = [&session, request] { return run_check(session, *request, {}); };
  });
}

}  // namespace flashprime::cli
