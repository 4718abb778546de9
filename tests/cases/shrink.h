// SPDX-License-Identifier: Apache-2.0
// From a case that fails to the smallest one near it that still does.
#pragma once

#include <functional>

#include "tests/cases/accuracy.h"

namespace flashprime::cases {

struct ShrinkLimits {
  int64_t runs = 1000;
  double seconds = 30;
  std::function<bool()> stop;  ///< true ends it early
};

struct ShrunkCase {
  Case c;
  Verdict verdict;  ///< of `c`
  int64_t runs = 0;
  bool minimal = false;  ///< false: a limit was reached first
};

/// Drops sequences, heads and tokens, then poison, layouts and options, as long as the case still
/// violates a criterion that `failing`, the verdict of `c`, violates. When nothing is left to drop,
/// the case is minimal: one sequence, one head, or one new token or key less, and it passes.
ShrunkCase shrink_case(const Case& c, const Verdict& failing, const CheckOptions& options,
                       const Implementation& implementation, const ShrinkLimits& limits);

}  // namespace flashprime::cases
