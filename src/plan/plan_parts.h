// SPDX-License-Identifier: Apache-2.0
// What both context planners share: option checks, alignment, and closing a chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "flashprime/context_plan.h"

namespace flashprime::plan {

// A plan of more slices than this is refused: it costs gigabytes and means that the workspace is
// far too small for the context.
inline constexpr int64_t kMaxSlices = int64_t{1} << 24;

// lcm(block_size, dcp_size * dcp_interleave), and block_size alone when nothing is shared.
StatusOr<int64_t> cut_alignment(int64_t block_size, int32_t dcp_size, int64_t dcp_interleave);

Status check_inputs(const std::vector<int64_t>& context_lens, const ContextPlanOptions& options);

Status too_many_slices(int64_t workspace_rows);

// Fills in what follows from `slices` and moves the chunk to the end of the plan. kRange when the
// chunk's tokens do not fit the int32 of cu_seqlens_k.
Status append_chunk(std::vector<ContextSlice> slices, ContextPlan* plan);

// Whether a plan, which a caller may have built or changed by hand, is a partition of the context
// of `batch` requests into chunks in order. kPlan naming the chunk otherwise.
Status check_plan(const ContextPlan& plan, int64_t batch);

}  // namespace flashprime::plan
