// SPDX-License-Identifier: Apache-2.0
// What flashprime check prints when a kernel is wrong.
#include "cli/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "flashprime/prefill.h"
#include "tests/cases/case_spec.h"

namespace flashprime::cli {
namespace {

using testing::HasSubstr;

// Right until a sequence has nine keys, and then the first LSE of it is wrong.
Status wrong_from_nine_keys(const PrefillProblem& problem, const PrefillArgs& args) {
  if (Status status = prefill(problem, args); !status.ok()) return status;
  const auto* starts_q = static_cast<const int32_t*>(args.cu_seqlens_q.data);
  const auto* starts_k = static_cast<const int32_t*>(args.cu_seqlens_k.data);
  const int64_t row_axis = problem.lse_layout == LseLayout::kHeadsTokens ? 1 : 0;
  for (int64_t s = 0; s + 1 < args.cu_seqlens_q.shape[0]; ++s) {
    if (starts_k[s + 1] - starts_k[s] < 9 || starts_q[s + 1] == starts_q[s]) continue;
    static_cast<float*>(args.lse.data)[starts_q[s] * args.lse.stride[row_axis]] = 1234.0f;
  }
  return ok_status();
}

CheckRequest request_of(const std::string& line) {
  CheckRequest request;
  request.common.seed = 3;
  const StatusOr<cases::Case> one = cases::parse_case_spec(line);
  EXPECT_TRUE(one.ok()) << one.status().to_string();
  request.spec = line;
  request.one_case = *one;
  return request;
}

TEST(Check, PrintsTheSmallestFailingCaseAsACommandThatFailsAgain) {
  Session session;
  const std::string from = "dims=32/16/32,lens=20/50_4/4_7/60,heads=3";
  EXPECT_EQ(run_check(session, request_of(from), wrong_from_nine_keys), kExitCheckFailed);
  EXPECT_THAT(session.out, HasSubstr("FAIL 0/1"));
  EXPECT_THAT(session.out, HasSubstr("minimal after "));
  const std::string repro =
      "repro: flashprime check --case dims=32/16/32,lens=1/9,heads=1 --seed 3\n";
  ASSERT_THAT(session.out, HasSubstr(repro));

  const std::vector<const char*> words = {
      "flashprime", "check", "--case", "dims=32/16/32,lens=1/9,heads=1", "--seed", "3"};
  Session good;
  EXPECT_FALSE(parse_command_line(static_cast<int>(words.size()), words.data(), good).has_value());
  EXPECT_EQ(good.selected(), kExitOk) << good.out;
  Session bad;
  const CheckRequest small = request_of("dims=32/16/32,lens=1/9,heads=1");
  EXPECT_EQ(run_check(bad, small, wrong_from_nine_keys), kExitCheckFailed);
  EXPECT_THAT(bad.out, HasSubstr(repro));
}

TEST(Check, WithoutShrinkingTheCaseIsTheOneThatFailed) {
  Session session;
  CheckRequest request = request_of("dims=32/16/32,lens=20/50,heads=3");
  request.shrink = false;
  EXPECT_EQ(run_check(session, request, wrong_from_nine_keys), kExitCheckFailed);
  EXPECT_THAT(
      session.out,
      HasSubstr("repro: flashprime check --case dims=32/16/32,lens=20/50,heads=3 --seed 3"));
}

TEST(Check, OfAFailingTableCaseReportsTheShrunkOneInJson) {
  Session session;
  session.json = true;
  CheckRequest request;
  request.filter = "dims_16_16_16_causal";
  EXPECT_EQ(run_check(session, request, wrong_from_nine_keys), kExitCheckFailed);
  const Json report = Json::parse(session.out);
  ASSERT_EQ(report["failed"], 1);
  const Json& row = report["reports"][0];
  EXPECT_EQ(row["case"], "dims=16/16/16,lens=1/9,heads=1");
  EXPECT_TRUE(row["minimal"]);
  EXPECT_THAT(row["repro"].get<std::string>(), HasSubstr("--case dims=16/16/16,lens=1/9,heads=1"));
}

}  // namespace
}  // namespace flashprime::cli
