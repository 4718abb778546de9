// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "checks.h"
#include "flashprime/context_plan.h"
#include "numerics/checked.h"
#include "plan/plan_parts.h"

namespace flashprime {
namespace {

StatusOr<ContextPlan> make_plan(const std::vector<int64_t>& context_lens,
                                const ContextPlanOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(plan::check_inputs(context_lens, options));
  FLASHPRIME_REQUIRE(options.dcp_size == 1, StatusCode::kPlan, "dcp_size: got ", options.dcp_size,
                     ", wanted 1: equal slices cannot share a context between ranks; use "
                     "plan_context_greedy");

  ContextPlan result;
  result.context_lens = context_lens;
  int64_t with_context = 0;
  int64_t longest = 0;
  for (int64_t length : context_lens) {
    with_context += length > 0 ? 1 : 0;
    longest = std::max(longest, length);
  }
  if (with_context == 0) return result;

  const int64_t share = options.workspace_rows / with_context;
  const int64_t slice_rows = share - share % options.block_size;
  FLASHPRIME_REQUIRE(slice_rows > 0, StatusCode::kPlan, "workspace_rows: got ",
                     options.workspace_rows, ", wanted at least one block of ", options.block_size,
                     " rows for each of ", with_context,
                     " requests with context; plan fewer requests at once");

  const int64_t num_chunks = longest / slice_rows + (longest % slice_rows != 0 ? 1 : 0);
  int64_t num_slices = 0;
  if (!checked_mul(num_chunks, static_cast<int64_t>(context_lens.size()), &num_slices) ||
      num_slices > plan::kMaxSlices) {
    return plan::too_many_slices(options.workspace_rows);
  }
  result.chunks.reserve(static_cast<size_t>(num_chunks));
  for (int64_t i = 0; i < num_chunks; ++i) {
    std::vector<ContextSlice> slices;
    slices.reserve(context_lens.size());
    for (size_t r = 0; r < context_lens.size(); ++r) {
      const int64_t start = std::min(i * slice_rows, context_lens[r]);
      const int64_t length = std::min(slice_rows, context_lens[r] - start);
      slices.push_back({static_cast<int32_t>(r), start, length});
    }
    FLASHPRIME_RETURN_IF_ERROR(plan::append_chunk(std::move(slices), &result));
  }
  return result;
}

}  // namespace

StatusOr<ContextPlan> plan_context_equal_slices(const std::vector<int64_t>& context_lens,
                                                const ContextPlanOptions& options) {
  return without_exceptions([&] { return make_plan(context_lens, options); });
}

}  // namespace flashprime
