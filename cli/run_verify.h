// SPDX-License-Identifier: Apache-2.0
// Rows of a finished call against the fp64 kernel, for data of any size and distribution.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "flashprime/prefill.h"

namespace flashprime::cli {

struct RowVerification {
  int64_t rows = 0;  // (token, head) pairs
  int64_t failed_rows = 0;
  double worst_out = 0.0;  // largest error beyond the output rounding, in units of its bound
  double worst_lse = 0.0;  // largest error, in units of its bound
  std::string first_failure;
};

// Checks `count` rows of out and lse (the first, the last, others drawn by `seed`; all if there are
// no more) against `cpu_reference`. Bounds are those of the case table: an fp32 kernel's error,
// which grows with the logits, and then the output's own rounding. A row that sees no key must be 0
// and -inf exactly, and NaN must be where the reference has it. `stop` ends it early.
StatusOr<RowVerification> verify_rows(const PrefillProblem& problem, const PrefillArgs& args,
                                      int64_t count, uint64_t seed,
                                      const std::function<bool()>& stop);

}  // namespace flashprime::cli
