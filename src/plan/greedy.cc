// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "checks.h"
#include "flashprime/context_plan.h"
#include "plan/plan_parts.h"

namespace flashprime {
namespace {

class GreedyPlanner {
 public:
  GreedyPlanner(const std::vector<int64_t>& context_lens, const ContextPlanOptions& options,
                int64_t alignment)
      : options_(options),
        alignment_(alignment),
        budget_(options.workspace_rows / options.dcp_size),
        free_(budget_) {
    plan_.context_lens = context_lens;
  }

  StatusOr<ContextPlan> run() {
    // A chunk holds at most workspace_rows tokens. Refused before the first chunk is built, not
    // after the last one that fits.
    int64_t least_slices = 0;
    for (int64_t length : plan_.context_lens) {
      least_slices += length / options_.workspace_rows;
      if (least_slices > plan::kMaxSlices) return plan::too_many_slices(options_.workspace_rows);
    }
    for (size_t r = 0; r < plan_.context_lens.size(); ++r) {
      FLASHPRIME_RETURN_IF_ERROR(plan_.context_lens[r] == 0
                                     ? close_chunk()
                                     : add_request(static_cast<int32_t>(r), plan_.context_lens[r]));
    }
    FLASHPRIME_RETURN_IF_ERROR(close_chunk());
    return std::move(plan_);
  }

 private:
  Status add_request(int32_t request, int64_t context_len) {
    int64_t start = 0;
    while (true) {
      const int64_t remaining = context_len - start;
      if (local_rows(remaining) <= free_) return add_slice({request, start, remaining});
      // An aligned part is striped over the ranks without padding: it takes part / dcp_size rows,
      // so `free_ * dcp_size` (at most workspace_rows) bounds it in tokens. remaining - 1 leaves
      // at least one token for the next chunk.
      const int64_t part = floor_align(std::min(free_ * options_.dcp_size, remaining - 1));
      FLASHPRIME_REQUIRE(part > 0 || !slices_.empty(), StatusCode::kPlan, "workspace_rows: got ",
                         options_.workspace_rows, ", wanted at least ", alignment_,
                         " (lcm of block_size and dcp_size * dcp_interleave) to cut the context of "
                         "request ",
                         request, " (", context_len, " tokens)");
      if (part > 0) {
        FLASHPRIME_RETURN_IF_ERROR(add_slice({request, start, part}));
        start += part;
      }
      FLASHPRIME_RETURN_IF_ERROR(close_chunk());
    }
  }

  Status add_slice(const ContextSlice& slice) {
    if (++num_slices_ > plan::kMaxSlices) return plan::too_many_slices(options_.workspace_rows);
    slices_.push_back(slice);
    free_ -= local_rows(slice.length);
    return ok_status();
  }

  Status close_chunk() {
    free_ = budget_;
    if (slices_.empty()) return ok_status();
    return plan::append_chunk(std::exchange(slices_, {}), &plan_);
  }

  // Rows that `tokens` take on the rank that holds most of them, padded to whole stripes.
  int64_t local_rows(int64_t tokens) const {
    if (options_.dcp_size == 1) return tokens;
    const int64_t stripe = options_.dcp_size * options_.dcp_interleave;
    return (tokens / stripe + (tokens % stripe != 0 ? 1 : 0)) * options_.dcp_interleave;
  }

  int64_t floor_align(int64_t tokens) const { return tokens - tokens % alignment_; }

  const ContextPlanOptions options_;
  const int64_t alignment_;
  const int64_t budget_;  // rows per rank
  int64_t free_;          // of budget_, in the open chunk
  int64_t num_slices_ = 0;
  std::vector<ContextSlice> slices_;  // of the open chunk
  ContextPlan plan_;
};

StatusOr<ContextPlan> make_plan(const std::vector<int64_t>& context_lens,
                                const ContextPlanOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(plan::check_inputs(context_lens, options));
  FLASHPRIME_REQUIRE(options.workspace_rows % options.dcp_size == 0, StatusCode::kPlan,
                     "workspace_rows: got ", options.workspace_rows,
                     ", wanted a multiple of dcp_size ", options.dcp_size);
  const StatusOr<int64_t> alignment =
      plan::cut_alignment(options.block_size, options.dcp_size, options.dcp_interleave);
  if (!alignment.ok()) return alignment.status();
  return GreedyPlanner(context_lens, options, *alignment).run();
}

}  // namespace

StatusOr<ContextPlan> plan_context_greedy(const std::vector<int64_t>& context_lens,
                                          const ContextPlanOptions& options) {
  return without_exceptions([&] { return make_plan(context_lens, options); });
}

}  // namespace flashprime
