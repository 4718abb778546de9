// SPDX-License-Identifier: Apache-2.0
#include "cli/explain_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flashprime::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code;
  std::string out;
};

Outcome run(SelectorOptions options, std::string_view batch, bool json = false, int32_t heads = 16,
            bool batch_invariant = false) {
  Session session;
  session.json = json;
  PrefillProblem problem;
  problem.num_heads = heads;
  problem.batch_invariant = batch_invariant;
  std::vector<BatchRequest> requests;
  if (!batch.empty()) {
    const auto parsed = parse_batch_spec(batch);
    EXPECT_TRUE(parsed.ok());
    requests = *parsed;
  }
  const int exit_code = explain_selector(session, options, problem, requests);
  return {exit_code, session.out};
}

TEST(explain_selector, shows_new_tokens_and_the_largest_context_chunk) {
  const Outcome outcome = run({"fa4", "sm_100", 0}, "q1s8193", true);
  ASSERT_EQ(outcome.exit_code, kExitOk);
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["sms"], 148);
  ASSERT_EQ(result["calls"].size(), 2u);
  const Json& new_tokens = result["calls"][0];
  EXPECT_EQ(new_tokens["max_seqlen_k"], 1);
  EXPECT_EQ(new_tokens["tile_n"], 128);
  EXPECT_EQ(new_tokens["splits"], 1);
  const Json& context = result["calls"][1];
  EXPECT_EQ(context["max_seqlen_k"], 8192);
  EXPECT_EQ(context["tile_n"], 64);
  EXPECT_EQ(context["q_stage"], 1);
  EXPECT_EQ(context["splits"], 9);
}

TEST(explain_selector, a_batch_without_context_has_one_call) {
  const Outcome outcome = run({"fa3", "sm_90a", 0}, "4q2k");
  EXPECT_EQ(outcome.exit_code, kExitOk);
  EXPECT_THAT(outcome.out, HasSubstr("fa3 on sm_90a with 132 SMs"));
  EXPECT_THAT(outcome.out, HasSubstr("4 x 2,048 on 2,048"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("context")));
}

TEST(explain_selector, a_refusal_is_shown_and_exits_as_unsupported) {
  const Outcome refused = run({"fa4", "sm_120a", 188}, "q512");
  EXPECT_EQ(refused.exit_code, kExitUnsupported);
  EXPECT_THAT(refused.out, HasSubstr("refused: SM120 forward only supports num_splits=1"));
  EXPECT_EQ(run({"fa4", "sm_120a", 188}, "q512", false, 16, true).exit_code, kExitOk);
}

TEST(explain_selector, options_that_make_no_sense_are_usage_errors) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"fa5", "sm_90", 0}, "q1").exit_code, kExitUsage);
  EXPECT_EQ(run({"fa4", "sm_90", 0}, "").exit_code, kExitUsage);
  EXPECT_EQ(run({"fa4", "sm_120", 0}, "q1").exit_code, kExitUsage);
  for (const char* arch : {"", "90", "sm_", "sm_9", "sm_x", "sm_90x", "sm_90aa"}) {
    EXPECT_EQ(run({"fa4", arch, 0}, "q1").exit_code, kExitUsage) << arch;
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("want fa4 or fa3"));
}

TEST(explain_selector, an_arch_is_its_compute_capability) {
  EXPECT_EQ(*parse_arch("sm_90a"), (ComputeCapability{9, 0}));
  EXPECT_EQ(*parse_arch("sm_103f"), (ComputeCapability{10, 3}));
  EXPECT_EQ(*parse_arch("sm_121"), (ComputeCapability{12, 1}));
}

}  // namespace
}  // namespace flashprime::cli
