// SPDX-License-Identifier: Apache-2.0
#include "cli/run_slices.h"

#include <gtest/gtest.h>

#include <cstring>

#include "flashprime/random.h"

namespace flashprime::cli {
namespace {

// A call with memory of its own: k in parts, lengths with empty sequences, some queries blind.
struct Call {
  explicit Call(LseLayout layout) {
    problem.dims = {.nope = 12, .rope = 4, .v = 8};
    problem.num_heads = 3;
    problem.dtype = problem.out_dtype = Dtype::kFp32;
    problem.return_lse = true;
    problem.lse_layout = layout;
    const int64_t t = cu_q.back(), tk = cu_k.back();
    args.q = random(1, {t, 3, 16});
    args.k_nope = random(2, {tk, 3, 12});
    args.k_pe = random(3, {tk, 4});
    args.v = random(4, {tk, 3, 8});
    args.cu_seqlens_q = TensorView::contiguous(cu_q.data(), Dtype::kInt32, {7});
    args.cu_seqlens_k = TensorView::contiguous(cu_k.data(), Dtype::kInt32, {7});
    args.softmax_scale = 0.25f;
    out.assign(static_cast<size_t>(t * 3 * 8), -1.0f);
    lse.assign(static_cast<size_t>(t * 3), -1.0f);
    args.out = MutableTensorView::contiguous(out.data(), Dtype::kFp32, {t, 3, 8});
    args.lse = layout == LseLayout::kHeadsTokens
                   ? MutableTensorView::contiguous(lse.data(), Dtype::kFp32, {3, t})
                   : MutableTensorView::contiguous(lse.data(), Dtype::kFp32, {t, 3});
  }

  TensorView random(uint32_t id, std::initializer_list<int64_t> shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    memory.emplace_back(static_cast<size_t>(count));
    const auto view = MutableTensorView::contiguous(memory.back().data(), Dtype::kFp32, shape);
    EXPECT_TRUE(fill_random(view, {.seed = 5, .tensor_id = id}).ok());
    return as_const(view);
  }

  PrefillProblem problem;
  PrefillArgs args;
  std::vector<int32_t> cu_q = {0, 5, 5, 40, 41, 49, 49};
  std::vector<int32_t> cu_k = {0, 2, 9, 60, 61, 69, 69};
  std::vector<std::vector<float>> memory;
  std::vector<float> out, lse;
};

TEST(RunSlicesTest, SlicesCoverEverySequenceAndHeadOnce) {
  const Call call(LseLayout::kHeadsTokens);
  for (const double max_flop : {0.0, 1.0, 1e3, 1e4, 3e4, 1e5, 1e9}) {
    std::vector<int> seen(6 * 3, 0);
    for (const CallSlice& slice : slice_call(call.problem, call.args, max_flop)) {
      for (int64_t s = slice.sequence_begin; s < slice.sequence_end; ++s) {
        for (int32_t h = slice.head_begin; h < slice.head_end; ++h) {
          ++seen[static_cast<size_t>(s * 3 + h)];
        }
      }
    }
    EXPECT_EQ(seen, std::vector<int>(6 * 3, 1)) << max_flop;
  }
}

TEST(RunSlicesTest, ASmallCallStaysWholeAndALongSequenceIsCutByHeads) {
  const Call call(LseLayout::kHeadsTokens);
  EXPECT_EQ(slice_call(call.problem, call.args, 1e9), (std::vector<CallSlice>{{0, 6, 0, 3}}));
  const double longest = sequence_flop(call.problem, call.args, 2);
  EXPECT_EQ(slice_call(call.problem, call.args, 2.5 * longest),
            (std::vector<CallSlice>{{0, 2, 0, 3}, {2, 3, 0, 2}, {2, 3, 2, 3}, {3, 6, 0, 3}}));
}

TEST(RunSlicesTest, CountsTheWorkOfVisiblePairs) {
  const Call call(LseLayout::kHeadsTokens);
  // 35 queries on 51 keys, bottom-right: 17 + 18 + ... + 51 pairs, 24 multiply-adds each.
  EXPECT_EQ(sequence_flop(call.problem, call.args, 2), 2.0 * 24 * (17 + 51) * 35 / 2);
  // 5 queries on 2 keys: 0 + 0 + 0 + 1 + 2.
  EXPECT_EQ(sequence_flop(call.problem, call.args, 0), 2.0 * 24 * 3);
}

TEST(RunSlicesTest, TheSlicesOfACallMakeItsBits) {
  for (const LseLayout layout : {LseLayout::kHeadsTokens, LseLayout::kTokensHeads}) {
    const Call whole(layout);
    ASSERT_TRUE(prefill(whole.problem, whole.args).ok());
    for (const double max_flop : {0.0, 1e4, 5e4}) {
      const Call sliced(layout);
      for (const CallSlice& slice : slice_call(sliced.problem, sliced.args, max_flop)) {
        const SlicedCall part(sliced.problem, sliced.args, slice);
        const Status status = prefill(part.problem(), part.args());
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      EXPECT_EQ(std::memcmp(sliced.out.data(), whole.out.data(), whole.out.size() * 4), 0);
      EXPECT_EQ(std::memcmp(sliced.lse.data(), whole.lse.data(), whole.lse.size() * 4), 0);
    }
  }
}

}  // namespace
}  // namespace flashprime::cli
