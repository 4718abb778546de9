// SPDX-License-Identifier: Apache-2.0
// Every kernel of this machine on every case of the table.
#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "flashprime/backend.h"
#include "tests/cases/accuracy.h"
#include "tests/cases/suite.h"

namespace flashprime {
namespace {

using cases::Case;

struct KernelCase {
  std::string kernel;
  const Case* c;
};

void PrintTo(const KernelCase& value, std::ostream* out) {
  *out << value.kernel << "_" << value.c->name;
}

// The definition runs in fp64 loops: it judges the long cases row by row, and is itself judged on
// those that it can run whole.
bool affordable(const std::string& kernel, const Case& c) {
  const int64_t work = c.visible_pairs() * (c.dims.nope + c.dims.rope + c.dims.v);
  return kernel != "cpu_reference" || work < 40'000'000;
}

ExecutionOptions execution_of(const KernelInfo& info) {
  ExecutionOptions execution;
  execution.kernel = info.name;
  execution.device.kind = info.device;
  return execution;
}

// CPU kernels take every case; a GPU kernel those that it declares, where there is a GPU.
bool runs_here(const KernelInfo& info, const Case& c) {
  return info.device == DeviceKind::kCpu || explain(c.problem(), execution_of(info)).supported;
}

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> result;
  for (const KernelInfo& info : list_kernels()) {
    for (const Case& c : cases::case_table()) {
      if (affordable(info.name, c) && runs_here(info, c)) result.push_back({info.name, &c});
    }
  }
  return result;
}

class EveryKernel : public testing::TestWithParam<KernelCase> {};

TEST_P(EveryKernel, AgreesWithTheOracle) {
  const auto& [kernel, c] = GetParam();
  ExecutionOptions execution;
  for (const KernelInfo& info : list_kernels()) {
    if (info.name == kernel) execution = execution_of(info);
  }
  ASSERT_TRUE(explain(c->problem(), execution).supported);
  cases::CheckOptions options;
  options.weights = cases::weights_dtype(execution, c->dtype);
  auto checker = cases::CaseChecker::make(*c, options);
  ASSERT_TRUE(checker.ok()) << checker.status().to_string();
  Status status;
  const cases::Implementation implementation = [&](const PrefillProblem& problem,
                                                   const PrefillArgs& args) {
    return status = cases::library_prefill(execution)(problem, args);
  };
  const cases::Verdict verdict = (*checker)->check(implementation);
  if (execution.device.kind == DeviceKind::kCuda &&
      (status.code() == StatusCode::kAlignment || status.code() == StatusCode::kStride)) {
    GTEST_SKIP() << "refused, as GPU kernels do: " << status.message();
  }
  for (const std::string& line : verdict.violations) ADD_FAILURE() << c->name << ": " << line;
  EXPECT_EQ(verdict.metrics.rows_checked > 0, c->total_q() > 0);
}

INSTANTIATE_TEST_SUITE_P(OnTheTable, EveryKernel, testing::ValuesIn(kernel_cases()),
                         [](const auto& param) {
                           return param.param.kernel + "_" + param.param.c->name;
                         });

TEST(CaseTable, NamesAreUniqueAndEveryRowSaysWhy) {
  std::set<std::string> names;
  for (const Case& c : cases::case_table()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_FALSE(c.why.empty()) << c.name;
    EXPECT_EQ(c.q_lens.size(), c.k_lens.size()) << c.name;
    EXPECT_NE(c.suites, 0u) << c.name;
  }
}

TEST(Suites, RunTheSelectedCasesAndCountThem) {
  cases::SuiteOptions options;
  options.filter = "heads_";
  int64_t seen = 0;
  const auto report =
      cases::run_suite("quick", options, [&](const cases::CaseReport&, int64_t index, int64_t) {
        EXPECT_EQ(index, seen++);
        return true;
      });
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->cases, seen);
  EXPECT_GE(report->cases, 5);
  EXPECT_EQ(report->passed, report->cases);
  EXPECT_GT(report->worst_preround_rel_rms, 0.0);
}

TEST(Suites, StopWhenTheProgressCallbackSaysSo) {
  cases::SuiteOptions options;
  options.filter = "heads_";
  const auto report = cases::run_suite(
      "quick", options, [](const cases::CaseReport&, int64_t, int64_t) { return false; });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->cases, 1);
}

TEST(Suites, RefuseUnknownNamesKernelsAndFilters) {
  cases::SuiteOptions options;
  EXPECT_EQ(cases::run_suite("slow", options).status().code(), StatusCode::kUnsupported);
  options.filter = "no case is called this";
  EXPECT_EQ(cases::run_suite("quick", options).status().code(), StatusCode::kUnsupported);
  options.filter = "heads_";
  options.execution.kernel = "gpu_wishful";
  EXPECT_EQ(cases::run_suite("quick", options).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace flashprime
