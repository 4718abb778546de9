// SPDX-License-Identifier: Apache-2.0
// How the context (keys computed earlier) of a prefill batch is cut into chunks that fit a
// workspace. Pure functions of lengths; vLLM's two planners and its workspace rule.
#pragma once

#include "flashprime/export.h"

#include <vector>

#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

/// Context tokens [start, start + length) of one request.
struct ContextSlice {
  int32_t request = 0;
  int64_t start = 0;
  int64_t length = 0;

  bool operator==(const ContextSlice&) const = default;
};

/// One attention call over context: `slices[i]` belongs to request `request_begin + i`.
struct ContextChunk {
  int32_t index = 0;          ///< position in ContextPlan::chunks
  int32_t request_begin = 0;  ///< the chunk's queries are those of [request_begin, request_end)
  int32_t request_end = 0;
  std::vector<ContextSlice> slices;   ///< one per request of that range, possibly of length 0
  std::vector<int32_t> cu_seqlens_k;  ///< prefix sums of the slice lengths, from 0
  int64_t max_seqlen_k = 0;
  bool has_empty_slice = false;

  int64_t num_tokens() const { return cu_seqlens_k.empty() ? 0 : cu_seqlens_k.back(); }
};

/// A partition of every request's context into chunks, in the order in which they run.
struct ContextPlan {
  std::vector<int64_t> context_lens;  ///< as given, one per request
  std::vector<ContextChunk> chunks;   ///< empty when no request has context
};

/// Options of both planners.
struct ContextPlanOptions {
  int64_t workspace_rows = 65536;  ///< W: rows (tokens) a chunk may take
  int64_t block_size = 16;         ///< of the KV cache; cuts fall on multiples of it
  int32_t dcp_size = 1;            ///< ranks that share the context (decode context parallelism)
  int64_t dcp_interleave = 1;      ///< tokens a rank holds in a row
};

/// Equal slices: with n requests that have context, every request gives c = floor(W / n) rounded
/// down to a block per chunk; chunk i takes tokens [i c, (i + 1) c) of every request, possibly
/// none. Every chunk's query range is all requests. kPlan when c would be 0. dcp_size must be 1.
FLASHPRIME_API StatusOr<ContextPlan> plan_context_equal_slices(
    const std::vector<int64_t>& context_lens, const ContextPlanOptions& options);

/// Greedy packing in request order: whole contexts while they fit in W; the first that does not is
/// split at a multiple of lcm(block_size, dcp_size * dcp_interleave), leaving at least one token,
/// and continues as the first slice of the next chunk. A request without context ends a chunk.
/// With DCP the budget is W / dcp_size padded rows per rank (W must be a multiple of dcp_size).
FLASHPRIME_API StatusOr<ContextPlan> plan_context_greedy(const std::vector<int64_t>& context_lens,
                                                         const ContextPlanOptions& options);

/// Input of the workspace rule.
struct ContextWorkspaceOptions {
  int64_t max_model_len = 0;  ///< tokens
  int64_t max_num_seqs = 0;
  int64_t block_size = 16;
  int32_t dcp_size = 1;
  int64_t dcp_interleave = 1;
};

/// W in rows: max(8 max_model_len, 4 max_num_seqs block_size) capped at 65,536, at least one
/// alignment unit, rounded up to it (vLLM 0.33.0).
FLASHPRIME_API StatusOr<int64_t> context_workspace_rows(const ContextWorkspaceOptions& options);

}  // namespace flashprime
