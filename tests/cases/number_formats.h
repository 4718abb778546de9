// SPDX-License-Identifier: Apache-2.0
// Number formats by their definition, apart from the library's own conversions: the checks must not
// share a rounding bug with what they check.
#pragma once

#include "flashprime/types.h"

namespace flashprime::cases {

/// `x` rounded to the nearest value of the format, ties to even. e4m3 saturates to +-448 and keeps
/// NaN; bf16 and fp16 overflow to infinity.
double round_to(Dtype dtype, double x);

/// Distance from |x| to the next larger value of the format.
double ulp_of(Dtype dtype, double x);

double load(const void* data, Dtype dtype, int64_t index);

/// Stores round_to(dtype, x).
void store(void* data, Dtype dtype, int64_t index, double x);

}  // namespace flashprime::cases
