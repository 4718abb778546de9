// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "checks.h"
#include "flashprime/context_plan.h"
#include "numerics/checked.h"
#include "plan/plan_parts.h"

namespace flashprime {

StatusOr<int64_t> context_workspace_rows(const ContextWorkspaceOptions& options) {
  constexpr int64_t kMostRows = 65536;
  FLASHPRIME_REQUIRE(options.max_model_len >= 1, StatusCode::kShape, "max_model_len: got ",
                     options.max_model_len, ", wanted at least 1");
  FLASHPRIME_REQUIRE(options.max_num_seqs >= 1, StatusCode::kShape, "max_num_seqs: got ",
                     options.max_num_seqs, ", wanted at least 1");
  const StatusOr<int64_t> alignment =
      plan::cut_alignment(options.block_size, options.dcp_size, options.dcp_interleave);
  if (!alignment.ok()) return alignment.status();

  int64_t by_length = 0;
  int64_t by_requests = 0;
  FLASHPRIME_REQUIRE(checked_mul(8, options.max_model_len, &by_length) &&
                         checked_mul(4, options.max_num_seqs, &by_requests) &&
                         checked_mul(by_requests, options.block_size, &by_requests),
                     StatusCode::kRange, "max_model_len, max_num_seqs, block_size: got ",
                     options.max_model_len, ", ", options.max_num_seqs, ", ", options.block_size,
                     ", wanted 8 * max_model_len and 4 * max_num_seqs * block_size in 64 bits");
  // At least one alignment unit; above it the result is the cap rounded up by less than a unit, so
  // nothing overflows from here on.
  const int64_t rows = std::max(std::min(std::max(by_length, by_requests), kMostRows), *alignment);
  const int64_t units = rows / *alignment + (rows % *alignment != 0 ? 1 : 0);
  return units * *alignment;
}

}  // namespace flashprime
