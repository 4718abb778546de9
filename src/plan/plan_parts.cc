// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_parts.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "checks.h"
#include "numerics/checked.h"

namespace flashprime::plan {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

}  // namespace

StatusOr<int64_t> cut_alignment(int64_t block_size, int32_t dcp_size, int64_t dcp_interleave) {
  FLASHPRIME_REQUIRE(block_size >= 1, StatusCode::kShape, "block_size: got ", block_size,
                     ", wanted at least 1");
  FLASHPRIME_REQUIRE(dcp_size >= 1, StatusCode::kShape, "dcp_size: got ", dcp_size,
                     ", wanted at least 1");
  FLASHPRIME_REQUIRE(dcp_interleave >= 1, StatusCode::kShape, "dcp_interleave: got ",
                     dcp_interleave, ", wanted at least 1");
  if (dcp_size == 1) return block_size;
  int64_t stripe = 0;
  int64_t alignment = 0;
  FLASHPRIME_REQUIRE(checked_mul(dcp_size, dcp_interleave, &stripe) &&
                         checked_mul(block_size / std::gcd(block_size, stripe), stripe, &alignment),
                     StatusCode::kRange, "block_size, dcp_size, dcp_interleave: got ", block_size,
                     ", ", dcp_size, ", ", dcp_interleave,
                     ", wanted a least common multiple that fits 64 bits");
  return alignment;
}

Status check_inputs(const std::vector<int64_t>& context_lens, const ContextPlanOptions& options) {
  FLASHPRIME_REQUIRE(options.workspace_rows >= 1, StatusCode::kShape, "workspace_rows: got ",
                     options.workspace_rows, ", wanted at least 1");
  FLASHPRIME_RETURN_IF_ERROR(
      cut_alignment(options.block_size, options.dcp_size, options.dcp_interleave).status());
  FLASHPRIME_REQUIRE(context_lens.size() <= static_cast<size_t>(kInt32Max), StatusCode::kRange,
                     "context_lens: got ", context_lens.size(), " requests, wanted at most ",
                     kInt32Max);
  for (size_t r = 0; r < context_lens.size(); ++r) {
    FLASHPRIME_REQUIRE(context_lens[r] >= 0, StatusCode::kShape, "context_lens[", r, "]: got ",
                       context_lens[r], ", wanted at least 0");
  }
  return ok_status();
}

Status too_many_slices(int64_t workspace_rows) {
  return Status(StatusCode::kRange, concat("workspace_rows: got ", workspace_rows,
                                           ", which cuts this context into more than ", kMaxSlices,
                                           " slices; wanted a larger workspace"));
}

Status append_chunk(std::vector<ContextSlice> slices, ContextPlan* plan) {
  ContextChunk chunk;
  chunk.index = static_cast<int32_t>(plan->chunks.size());
  chunk.request_begin = slices.front().request;
  chunk.request_end = slices.back().request + 1;
  chunk.cu_seqlens_k.reserve(slices.size() + 1);
  chunk.cu_seqlens_k.push_back(0);
  int64_t tokens = 0;
  for (const ContextSlice& slice : slices) {
    FLASHPRIME_REQUIRE(checked_add(tokens, slice.length, &tokens) && tokens <= kInt32Max,
                       StatusCode::kRange, "workspace_rows: chunk ", chunk.index,
                       " would take more than ", kInt32Max,
                       " tokens, which cu_seqlens_k (int32) cannot count; wanted a smaller "
                       "workspace");
    chunk.cu_seqlens_k.push_back(static_cast<int32_t>(tokens));
    chunk.max_seqlen_k = std::max(chunk.max_seqlen_k, slice.length);
    chunk.has_empty_slice = chunk.has_empty_slice || slice.length == 0;
  }
  chunk.slices = std::move(slices);
  plan->chunks.push_back(std::move(chunk));
  return ok_status();
}

Status check_plan(const ContextPlan& plan, int64_t batch) {
  FLASHPRIME_REQUIRE(static_cast<int64_t>(plan.context_lens.size()) == batch, StatusCode::kPlan,
                     "plan.context_lens: got ", plan.context_lens.size(), " requests, wanted ",
                     batch, ", the batch of cu_seqlens_q");
  std::vector<int64_t> covered(plan.context_lens.size(), 0);
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const ContextChunk& chunk = plan.chunks[c];
    const int64_t requests = int64_t{chunk.request_end} - chunk.request_begin;
    FLASHPRIME_REQUIRE(chunk.index == static_cast<int64_t>(c), StatusCode::kPlan, "plan.chunks[", c,
                       "].index: got ", chunk.index, ", wanted its position");
    FLASHPRIME_REQUIRE(chunk.request_begin >= 0 && requests >= 1 && chunk.request_end <= batch,
                       StatusCode::kPlan, "plan.chunks[", c, "]: got requests [",
                       chunk.request_begin, ", ", chunk.request_end,
                       "), wanted a non-empty part of [0, ", batch, ")");
    FLASHPRIME_REQUIRE(static_cast<int64_t>(chunk.slices.size()) == requests &&
                           static_cast<int64_t>(chunk.cu_seqlens_k.size()) == requests + 1,
                       StatusCode::kPlan, "plan.chunks[", c, "]: got ", chunk.slices.size(),
                       " slices and ", chunk.cu_seqlens_k.size(),
                       " entries of cu_seqlens_k, wanted ", requests, " and ", requests + 1);
    FLASHPRIME_REQUIRE(chunk.cu_seqlens_k[0] == 0, StatusCode::kPlan, "plan.chunks[", c,
                       "].cu_seqlens_k[0]: got ", chunk.cu_seqlens_k[0], ", wanted 0");
    int64_t longest = 0;
    for (size_t i = 0; i < chunk.slices.size(); ++i) {
      const ContextSlice& slice = chunk.slices[i];
      const int64_t request = chunk.request_begin + static_cast<int64_t>(i);
      const auto r = static_cast<size_t>(request);
      FLASHPRIME_REQUIRE(slice.request == request, StatusCode::kPlan, "plan.chunks[", c,
                         "].slices[", i, "].request: got ", slice.request, ", wanted ", request);
      FLASHPRIME_REQUIRE(slice.start == covered[r] && slice.length >= 0 &&
                             slice.length <= plan.context_lens[r] - slice.start,
                         StatusCode::kPlan, "plan.chunks[", c, "].slices[", i, "]: got start ",
                         slice.start, " and length ", slice.length, ", wanted to continue request ",
                         request, " at ", covered[r], " of ", plan.context_lens[r]);
      covered[r] += slice.length;
      longest = std::max(longest, slice.length);
      FLASHPRIME_REQUIRE(int64_t{chunk.cu_seqlens_k[i + 1]} - chunk.cu_seqlens_k[i] == slice.length,
                         StatusCode::kPlan, "plan.chunks[", c, "].cu_seqlens_k[", i + 1, "]: got ",
                         chunk.cu_seqlens_k[i + 1], ", wanted ",
                         chunk.cu_seqlens_k[i] + slice.length);
    }
    FLASHPRIME_REQUIRE(chunk.max_seqlen_k >= longest, StatusCode::kPlan, "plan.chunks[", c,
                       "].max_seqlen_k: got ", chunk.max_seqlen_k, ", wanted at least ", longest);
    FLASHPRIME_REQUIRE(longest > 0, StatusCode::kPlan, "plan.chunks[", c,
                       "]: got no tokens, wanted at least one");
  }
  for (size_t r = 0; r < covered.size(); ++r) {
    FLASHPRIME_REQUIRE(covered[r] == plan.context_lens[r], StatusCode::kPlan, "plan: got ",
                       covered[r], " tokens of request ", r, "'s context in chunks, wanted all ",
                       plan.context_lens[r]);
  }
  return ok_status();
}

}  // namespace flashprime::plan
