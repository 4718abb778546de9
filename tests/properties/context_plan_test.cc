// SPDX-License-Identifier: Apache-2.0
// What holds for every plan of every list of lengths.
#include "flashprime/context_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace flashprime {
namespace {

struct Input {
  std::vector<int64_t> lens;
  ContextPlanOptions options;
};

// Lengths from 0 (often) to 2^31 - 1; workspaces that cut the longest into at most ~200 slices.
Input any_input(bool shared) {
  Input input;
  const auto length =
      rc::gen::weightedOneOf<int64_t>({{3, rc::gen::just<int64_t>(0)},
                                       {6, rc::gen::inRange<int64_t>(1, 300)},
                                       {6, rc::gen::inRange<int64_t>(1, 20000)},
                                       {1, rc::gen::inRange<int64_t>(1, int64_t{1} << 31)},
                                       {1, rc::gen::just<int64_t>((int64_t{1} << 31) - 1)}});
  input.lens = *rc::gen::container<std::vector<int64_t>>(length);
  ContextPlanOptions& options = input.options;
  options.block_size = *rc::gen::element<int64_t>(1, 16, 48, 64, 128);
  if (shared) {
    options.dcp_size = *rc::gen::inRange<int32_t>(2, 9);
    options.dcp_interleave = *rc::gen::element<int64_t>(1, 3, 16, 64);
  }
  const int64_t stripe = options.dcp_size * options.dcp_interleave;
  const int64_t alignment = shared ? std::lcm(options.block_size, stripe) : options.block_size;
  int64_t longest = 0;
  for (int64_t len : input.lens) longest = std::max(longest, len);
  const int64_t least = std::max(alignment * static_cast<int64_t>(input.lens.size() + 1),
                                 longest / 200 * static_cast<int64_t>(input.lens.size()));
  const int64_t rows = *rc::gen::inRange<int64_t>(least, 4 * least + 70000);
  options.workspace_rows = std::min<int64_t>(rows, std::numeric_limits<int32_t>::max());
  options.workspace_rows -= options.workspace_rows % options.dcp_size;
  return input;
}

ContextPlan plan_of(const StatusOr<ContextPlan>& plan) {
  RC_ASSERT(plan.ok());
  return *plan;
}

void check_bookkeeping(const ContextPlan& plan, const Input& input) {
  RC_ASSERT(plan.context_lens == input.lens);
  std::vector<int64_t> covered(input.lens.size(), 0);
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const ContextChunk& chunk = plan.chunks[c];
    RC_ASSERT(chunk.index == static_cast<int32_t>(c));
    RC_ASSERT(chunk.request_begin >= 0);
    RC_ASSERT(chunk.request_end - chunk.request_begin == static_cast<int32_t>(chunk.slices.size()));
    RC_ASSERT(chunk.cu_seqlens_k.size() == chunk.slices.size() + 1);
    RC_ASSERT(chunk.cu_seqlens_k[0] == 0);
    RC_ASSERT(chunk.num_tokens() > 0);
    int64_t longest = 0;
    bool has_empty = false;
    for (size_t i = 0; i < chunk.slices.size(); ++i) {
      const ContextSlice& slice = chunk.slices[i];
      RC_ASSERT(slice.request == chunk.request_begin + static_cast<int32_t>(i));
      RC_ASSERT(slice.start == covered[static_cast<size_t>(slice.request)]);
      RC_ASSERT(slice.length >= 0);
      covered[static_cast<size_t>(slice.request)] += slice.length;
      RC_ASSERT(chunk.cu_seqlens_k[i + 1] - chunk.cu_seqlens_k[i] == slice.length);
      longest = std::max(longest, slice.length);
      has_empty = has_empty || slice.length == 0;
    }
    RC_ASSERT(chunk.max_seqlen_k == longest);
    RC_ASSERT(chunk.has_empty_slice == has_empty);
  }
  RC_ASSERT(covered == input.lens);
}

void check_greedy(const Input& input) {
  const ContextPlan plan = plan_of(plan_context_greedy(input.lens, input.options));
  check_bookkeeping(plan, input);
  const ContextPlanOptions& options = input.options;
  const int64_t stripe = options.dcp_size * options.dcp_interleave;
  const bool shared = options.dcp_size > 1;
  const int64_t alignment = shared ? std::lcm(options.block_size, stripe) : options.block_size;
  for (const ContextChunk& chunk : plan.chunks) {
    RC_ASSERT(!chunk.has_empty_slice);
    int64_t rows = 0;
    for (size_t i = 0; i < chunk.slices.size(); ++i) {
      const ContextSlice& slice = chunk.slices[i];
      RC_ASSERT(i == 0 || slice.start == 0);
      RC_ASSERT(slice.start % alignment == 0);
      rows += shared ? (slice.length + stripe - 1) / stripe * options.dcp_interleave : slice.length;
    }
    RC_ASSERT(rows <= options.workspace_rows / options.dcp_size);
  }
}

RC_GTEST_PROP(ContextPlanProperties, GreedyCoversEveryTokenOnceInOrderWithinTheWorkspace, ()) {
  check_greedy(any_input(false));
}

RC_GTEST_PROP(ContextPlanProperties, GreedyKeepsPaddedRowsOfEveryRankWithinItsShare, ()) {
  check_greedy(any_input(true));
}

RC_GTEST_PROP(ContextPlanProperties, EqualSlicesCoverEveryTokenOnceInOrderWithinTheWorkspace, ()) {
  const Input input = any_input(false);
  const ContextPlan plan = plan_of(plan_context_equal_slices(input.lens, input.options));
  check_bookkeeping(plan, input);
  for (const ContextChunk& chunk : plan.chunks) {
    RC_ASSERT(chunk.request_begin == 0);
    RC_ASSERT(chunk.num_tokens() <= input.options.workspace_rows);
    for (const ContextSlice& slice : chunk.slices) {
      RC_ASSERT(slice.length == 0 || slice.start % input.options.block_size == 0);
    }
  }
}

}  // namespace
}  // namespace flashprime
