// SPDX-License-Identifier: Apache-2.0
// Size arithmetic that reports overflow instead of wrapping. Every product of extents, strides and
// element sizes goes through here.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

// False when a * b does not fit; *product is then unspecified.
[[nodiscard]] inline bool checked_mul(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// False when a + b does not fit; *sum is then unspecified.
[[nodiscard]] inline bool checked_add(int64_t a, int64_t b, int64_t* sum) {
  return !__builtin_add_overflow(a, b, sum);
}

}  // namespace flashprime
