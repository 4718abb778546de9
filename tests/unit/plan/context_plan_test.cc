// SPDX-License-Identifier: Apache-2.0
#include "flashprime/context_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace flashprime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

ContextPlanOptions with_rows(int64_t workspace_rows) {
  ContextPlanOptions options;
  options.workspace_rows = workspace_rows;
  return options;
}

using Slices = std::vector<std::vector<ContextSlice>>;

Slices slices_of(const StatusOr<ContextPlan>& plan) {
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  Slices result;
  if (plan.ok()) {
    for (const ContextChunk& chunk : plan->chunks) result.push_back(chunk.slices);
  }
  return result;
}

TEST(GreedyPlan, PacksSplitsAndStartsAgainAfterARequestWithoutContext) {
  const auto plan = plan_context_greedy({1000, 0, 300, 5000, 200}, with_rows(1024));
  EXPECT_EQ(slices_of(plan), (Slices{{{0, 0, 1000}},
                                     {{2, 0, 300}, {3, 0, 720}},
                                     {{3, 720, 1024}},
                                     {{3, 1744, 1024}},
                                     {{3, 2768, 1024}},
                                     {{3, 3792, 1024}},
                                     {{3, 4816, 184}, {4, 0, 200}}}));
  const ContextChunk& mixed = plan->chunks[1];
  EXPECT_EQ(mixed.index, 1);
  EXPECT_EQ(mixed.request_begin, 2);
  EXPECT_EQ(mixed.request_end, 4);
  EXPECT_EQ(mixed.cu_seqlens_k, (std::vector<int32_t>{0, 300, 1020}));
  EXPECT_EQ(mixed.max_seqlen_k, 720);
  EXPECT_EQ(mixed.num_tokens(), 1020);
  EXPECT_FALSE(mixed.has_empty_slice);
  EXPECT_EQ(plan->context_lens, (std::vector<int64_t>{1000, 0, 300, 5000, 200}));
}

TEST(GreedyPlan, LeavesAtLeastOneTokenForTheNextChunk) {
  EXPECT_EQ(slices_of(plan_context_greedy({1025}, with_rows(1024))),
            (Slices{{{0, 0, 1024}}, {{0, 1024, 1}}}));
  EXPECT_EQ(slices_of(plan_context_greedy({1024}, with_rows(1024))), (Slices{{{0, 0, 1024}}}));
}

TEST(GreedyPlan, StartsANewChunkWhenNoBlockOfTheNextRequestFits) {
  EXPECT_EQ(slices_of(plan_context_greedy({1010, 100}, with_rows(1024))),
            (Slices{{{0, 0, 1010}}, {{1, 0, 100}}}));
}

TEST(GreedyPlan, CountsPaddedRowsPerRankWhenRanksShareTheContext) {
  ContextPlanOptions options = with_rows(1024);
  options.dcp_size = 2;
  options.dcp_interleave = 16;
  EXPECT_EQ(
      slices_of(plan_context_greedy({3000, 100}, options)),
      (Slices{{{0, 0, 1024}}, {{0, 1024, 1024}}, {{0, 2048, 952}, {1, 0, 64}}, {{1, 64, 36}}}));
}

TEST(GreedyPlan, KeepsTheLastTokenOfAContextThatRanksCannotShareEvenly) {
  ContextPlanOptions options = with_rows(4);
  options.block_size = 1;
  options.dcp_size = 2;
  EXPECT_EQ(slices_of(plan_context_greedy({7}, options)), (Slices{{{0, 0, 4}}, {{0, 4, 3}}}));
  options.workspace_rows = 8;
  EXPECT_EQ(slices_of(plan_context_greedy({7}, options)), (Slices{{{0, 0, 7}}}));
}

TEST(GreedyPlan, CutsContextsOfTwoToThe31WithoutMemoryForTheirTokens) {
  const auto plan = plan_context_greedy({kInt32Max, 1, kInt32Max}, with_rows(65536));
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->chunks.size(), 65536u);
  EXPECT_EQ(plan->chunks.back().slices.back().start + plan->chunks.back().slices.back().length,
            kInt32Max);
}

TEST(GreedyPlan, TakesAWorkspaceOfTwoToThe31Less1AndRefusesMoreTokensPerChunk) {
  EXPECT_EQ(slices_of(plan_context_greedy({kInt32Max}, with_rows(kInt32Max))),
            (Slices{{{0, 0, kInt32Max}}}));
  const auto refused = plan_context_greedy({kInt32Max, 1}, with_rows(kInt32Max + 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kRange);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("workspace_rows"), HasSubstr("int32")));
}

TEST(GreedyPlan, RefusesAWorkspaceThatCannotHoldOneAlignedCut) {
  const auto refused = plan_context_greedy({8, 9}, with_rows(8));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kPlan);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("got 8"), HasSubstr("at least 16"), HasSubstr("request 1 (9")));
  EXPECT_EQ(slices_of(plan_context_greedy({8, 7}, with_rows(8))),
            (Slices{{{0, 0, 8}}, {{1, 0, 7}}}));
}

TEST(GreedyPlan, RefusesAWorkspaceThatRanksCannotShareEvenly) {
  ContextPlanOptions options = with_rows(1023);
  options.dcp_size = 2;
  const auto refused = plan_context_greedy({10}, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kPlan);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("got 1023"), HasSubstr("dcp_size 2")));
}

TEST(EqualSlicesPlan, GivesEveryRequestTheSameShareOfEveryChunk) {
  // 4 requests with context: 1024 / 4 = 256 rows each, a multiple of 16.
  const auto plan = plan_context_equal_slices({1000, 0, 300, 500, 200}, with_rows(1024));
  EXPECT_EQ(slices_of(plan),
            (Slices{{{0, 0, 256}, {1, 0, 0}, {2, 0, 256}, {3, 0, 256}, {4, 0, 200}},
                    {{0, 256, 256}, {1, 0, 0}, {2, 256, 44}, {3, 256, 244}, {4, 200, 0}},
                    {{0, 512, 256}, {1, 0, 0}, {2, 300, 0}, {3, 500, 0}, {4, 200, 0}},
                    {{0, 768, 232}, {1, 0, 0}, {2, 300, 0}, {3, 500, 0}, {4, 200, 0}}}));
  EXPECT_EQ(plan->chunks[1].request_begin, 0);
  EXPECT_EQ(plan->chunks[1].request_end, 5);
  EXPECT_EQ(plan->chunks[1].cu_seqlens_k, (std::vector<int32_t>{0, 256, 256, 300, 544, 544}));
  EXPECT_EQ(plan->chunks[1].max_seqlen_k, 256);
  EXPECT_TRUE(plan->chunks[1].has_empty_slice);
}

TEST(EqualSlicesPlan, HasNoEmptySliceWhenAllContextsReachTheChunk) {
  const auto plan = plan_context_equal_slices({512, 512}, with_rows(1024));
  ASSERT_EQ(slices_of(plan).size(), 1u);
  EXPECT_FALSE(plan->chunks[0].has_empty_slice);
}

TEST(EqualSlicesPlan, RefusesAWorkspaceWithoutABlockForEachRequest) {
  const auto refused = plan_context_equal_slices({100, 100, 0}, with_rows(31));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kPlan);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("workspace_rows: got 31"),
                                                HasSubstr("block of 16"), HasSubstr("2 requests")));
}

TEST(EqualSlicesPlan, RefusesContextThatRanksShare) {
  ContextPlanOptions options = with_rows(1024);
  options.dcp_size = 2;
  const auto refused = plan_context_equal_slices({100}, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kPlan);
  EXPECT_THAT(refused.status().message(), HasSubstr("dcp_size: got 2, wanted 1"));
}

TEST(EqualSlicesPlan, CutsContextsOfTwoToThe31WithoutMemoryForTheirTokens) {
  const auto plan = plan_context_equal_slices({kInt32Max, 7}, with_rows(65536));
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->chunks.size(), 65536u);
  EXPECT_EQ(plan->chunks.back().slices[0].start, kInt32Max - 32767);
}

using Planner = StatusOr<ContextPlan> (*)(const std::vector<int64_t>&, const ContextPlanOptions&);

class BothPlanners : public ::testing::TestWithParam<Planner> {};

TEST_P(BothPlanners, MakeNoChunkWhenNoRequestHasContext) {
  EXPECT_EQ(slices_of(GetParam()({0, 0, 0}, {})), Slices{});
  EXPECT_EQ(slices_of(GetParam()({}, {})), Slices{});
}

struct BadOptions {
  std::vector<int64_t> lens;
  ContextPlanOptions options;
  StatusCode code;
  std::string message;
};

TEST_P(BothPlanners, RefuseBadLengthsAndOptionsByName) {
  const ContextPlanOptions good = with_rows(64);
  const auto change = [&](auto&& edit) {
    ContextPlanOptions options = good;
    edit(options);
    return options;
  };
  const std::vector<BadOptions> rows = {
      {{5, -1}, good, StatusCode::kShape, "context_lens[1]: got -1, wanted at least 0"},
      {{5}, with_rows(0), StatusCode::kShape, "workspace_rows: got 0, wanted at least 1"},
      {{5}, with_rows(-7), StatusCode::kShape, "workspace_rows: got -7, wanted at least 1"},
      {{5}, change([](auto& o) { o.block_size = 0; }), StatusCode::kShape, "block_size: got 0"},
      {{5}, change([](auto& o) { o.dcp_size = 0; }), StatusCode::kShape, "dcp_size: got 0"},
      {{5},
       change([](auto& o) { o.dcp_interleave = -2; }),
       StatusCode::kShape,
       "dcp_interleave: got -2"},
      {{5},
       change([](auto& o) {
         o.dcp_size = 2;
         o.dcp_interleave = kInt64Max / 2 + 1;
       }),
       StatusCode::kRange,
       "least common multiple"},
      {{kInt64Max}, good, StatusCode::kRange, "workspace_rows: got 64, which cuts"},
      {{kInt32Max * 1024}, good, StatusCode::kRange, "wanted a larger workspace"},
  };
  for (const BadOptions& row : rows) {
    const auto refused = GetParam()(row.lens, row.options);
    ASSERT_FALSE(refused.ok()) << row.message;
    EXPECT_EQ(refused.status().code(), row.code) << refused.status().to_string();
    EXPECT_THAT(refused.status().message(), HasSubstr(row.message));
  }
}

INSTANTIATE_TEST_SUITE_P(ContextPlan, BothPlanners,
                         ::testing::Values(&plan_context_equal_slices, &plan_context_greedy),
                         [](const auto& planner) {
                           return planner.param == &plan_context_greedy ? "Greedy" : "EqualSlices";
                         });

ContextWorkspaceOptions model(int64_t max_model_len, int64_t max_num_seqs) {
  ContextWorkspaceOptions options;
  options.max_model_len = max_model_len;
  options.max_num_seqs = max_num_seqs;
  return options;
}

int64_t rows_of(const ContextWorkspaceOptions& options) {
  const StatusOr<int64_t> rows = context_workspace_rows(options);
  EXPECT_TRUE(rows.ok()) << rows.status().to_string();
  return rows.ok() ? *rows : -1;
}

TEST(WorkspaceRule, TakesTheLargerOfTheTwoNeedsUpToTheCap) {
  EXPECT_EQ(rows_of(model(1000, 4)), 8000);
  EXPECT_EQ(rows_of(model(100, 256)), 4 * 256 * 16);
  EXPECT_EQ(rows_of(model(163840, 256)), 65536);
  // No floor of a block per sequence: 8,192 sequences of 16 stay at the cap.
  EXPECT_EQ(rows_of(model(1000, 8192)), 65536);
}

TEST(WorkspaceRule, RoundsUpToAlignmentAndHoldsAtLeastOneUnit) {
  EXPECT_EQ(rows_of(model(1, 1)), 64);
  ContextWorkspaceOptions odd = model(1000, 1);
  odd.block_size = 48;
  EXPECT_EQ(rows_of(odd), 8016);
  odd.max_model_len = 1 << 20;
  EXPECT_EQ(rows_of(odd), 65568);
  ContextWorkspaceOptions shared = model(1, 1);
  shared.dcp_size = 8;
  shared.dcp_interleave = 24;
  EXPECT_EQ(rows_of(shared), 192);
  shared.dcp_interleave = 16384;
  EXPECT_EQ(rows_of(shared), 131072);
}

TEST(WorkspaceRule, RefusesNonsenseAndOverflowByName) {
  const auto refuse = [](const ContextWorkspaceOptions& options, StatusCode code,
                         const std::string& message) {
    const StatusOr<int64_t> rows = context_workspace_rows(options);
    ASSERT_FALSE(rows.ok()) << message;
    EXPECT_EQ(rows.status().code(), code);
    EXPECT_THAT(rows.status().message(), HasSubstr(message));
  };
  refuse(model(0, 1), StatusCode::kShape, "max_model_len: got 0, wanted at least 1");
  refuse(model(1, 0), StatusCode::kShape, "max_num_seqs: got 0, wanted at least 1");
  refuse(model(kInt64Max / 8 + 1, 1), StatusCode::kRange, "8 * max_model_len");
  refuse(model(1, kInt64Max / 64 + 1), StatusCode::kRange, "4 * max_num_seqs * block_size");
}

}  // namespace
}  // namespace flashprime
