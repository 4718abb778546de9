// SPDX-License-Identifier: Apache-2.0
// The harness is a measuring instrument: it must accept right code and reject wrong code.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cases/accuracy.h"
#include "tests/conformance/faulty_prefill.h"

namespace flashprime {
namespace {

using cases::Case;
using cases::CaseChecker;
using cases::CheckOptions;
using cases::Verdict;

// Cheapest first: most faults show in small cases.
std::vector<const Case*> quick_cases() {
  std::vector<const Case*> result;
  for (const Case& c : cases::case_table()) {
    if (c.suites & cases::kQuick) result.push_back(&c);
  }
  std::stable_sort(result.begin(), result.end(), [](const Case* a, const Case* b) {
    return a->visible_pairs() * (a->dims.nope + a->dims.v) <
           b->visible_pairs() * (b->dims.nope + b->dims.v);
  });
  return result;
}

cases::Implementation with_fault(Fault fault) {
  return [fault](const PrefillProblem& problem, const PrefillArgs& args) {
    return faulty_prefill(problem, args, fault);
  };
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

TEST(Harness, AcceptsATiledImplementationWithoutFaultOnEveryQuickCase) {
  for (const Case* c : quick_cases()) {
    auto checker = CaseChecker::make(*c, CheckOptions{});
    ASSERT_TRUE(checker.ok()) << checker.status().to_string();
    const Verdict verdict = (*checker)->check(with_fault(Fault::kNone));
    EXPECT_TRUE(verdict.passed()) << c->name << joined(verdict.violations);
    EXPECT_GT(verdict.metrics.rows_checked, c->q_lens.empty() ? -1 : 0) << c->name;
  }
}

class SeededFault : public testing::TestWithParam<FaultName> {};

TEST_P(SeededFault, IsRejectedOnSomeQuickCase) {
  for (const Case* c : quick_cases()) {
    auto checker = CaseChecker::make(*c, CheckOptions{});
    ASSERT_TRUE(checker.ok()) << checker.status().to_string();
    const Verdict verdict = (*checker)->check(with_fault(GetParam().fault));
    if (!verdict.passed()) {
      RecordProperty("case", c->name);
      RecordProperty("violation", verdict.violations.front());
      return;
    }
  }
  FAIL() << "every quick case accepts " << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(All, SeededFault, testing::ValuesIn(all_faults()),
                         [](const auto& param) { return std::string(param.param.name); });

// The error-size criteria alone, without the per-element one, see the subtle faults too: what one
// loose element bound could hide, the RMS and the bias do not.
TEST(Harness, SeesTruncatedWeightsInRmsBiasAndStoredOutput) {
  const Case* positive = nullptr;
  for (const Case* c : quick_cases()) {
    if (c->name == "data_positive_v_full") positive = c;
  }
  ASSERT_NE(positive, nullptr);
  auto checker = CaseChecker::make(*positive, CheckOptions{});
  ASSERT_TRUE(checker.ok());
  const Verdict verdict = (*checker)->check(with_fault(Fault::kWeightsTruncatedToBf16));
  const auto violates = [&](const std::string& criterion) {
    return std::any_of(verdict.violations.begin(), verdict.violations.end(),
                       [&](const std::string& line) { return line.rfind(criterion, 0) == 0; });
  };
  EXPECT_TRUE(violates("RMS error:")) << joined(verdict.violations);
  EXPECT_TRUE(violates("RMS error before rounding:")) << joined(verdict.violations);
  EXPECT_TRUE(violates("bias:")) << joined(verdict.violations);
  EXPECT_TRUE(violates("element:")) << joined(verdict.violations);
  EXPECT_LT(verdict.metrics.preround_bias, -1e-3);
}

TEST(Harness, ReportsAnErrorStatusAsAViolation) {
  auto checker = CaseChecker::make(*quick_cases().front(), CheckOptions{});
  ASSERT_TRUE(checker.ok());
  const Verdict verdict = (*checker)->check([](const PrefillProblem&, const PrefillArgs&) {
    return Status(StatusCode::kInternal, "broken on purpose");
  });
  ASSERT_FALSE(verdict.passed());
  EXPECT_NE(verdict.violations.front().find("broken on purpose"), std::string::npos);
}

TEST(Harness, NoticesAChangedInput) {
  auto checker = CaseChecker::make(*quick_cases().back(), CheckOptions{});
  ASSERT_TRUE(checker.ok());
  const Verdict verdict =
      (*checker)->check([](const PrefillProblem& problem, const PrefillArgs& args) {
        const Status status = faulty_prefill(problem, args, Fault::kNone);
        auto* bytes = static_cast<unsigned char*>(const_cast<void*>(args.v.data));
        bytes[0] = static_cast<unsigned char>(bytes[0] ^ 1u);
        return status;
      });
  ASSERT_FALSE(verdict.passed());
  EXPECT_EQ(verdict.violations.front().rfind("changed an input", 0), 0u)
      << joined(verdict.violations);
}

}  // namespace
}  // namespace flashprime
