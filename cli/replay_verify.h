// SPDX-License-Identifier: Apache-2.0
// Judges rows of attention against the fp64 oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashprime/types.h"

namespace flashprime::cli {

// What a row may differ by.
//
// The LSE limit is what finds a wrong mask: leaving out one key of weight p moves the LSE by p, and
// even among 14,000 keys of N(0,1) data the mean weight is 7e-5. fp32 arithmetic needs a quarter of
// the limit at most: 4 ulp of an LSE below 16 and the rounding of one dot product.
// The output limits are those of a 16-bit output of a kernel that keeps probabilities in fp32.
// Rounding to bf16 costs up to 2^-8 of an element and 1.7e-3 in RMS. A row's RMS scales the second
// term because an element that cancels to nearly nothing carries the rounding of all that it is a
// sum of.
struct VerifyLimits {
  double relative_rms = 2.6e-3;   // of all rows together
  double element_relative = 0.0;  // |error| <= element_relative |oracle| + row_rms RMS(oracle row)
  double row_rms = 4e-3;
  double lse = 2e-5;  // absolute

  static VerifyLimits of(Dtype out_dtype);
};

// What was seen so far.
struct VerifyResult {
  int64_t rows = 0;
  int64_t failed_rows = 0;
  double error_squares = 0.0;
  double oracle_squares = 0.0;
  double worst_element = 0.0;  // error / its limit: at most 1
  double worst_absolute = 0.0;
  double worst_lse = 0.0;
  std::string first_failure;

  double relative_rms() const;
  bool passed(const VerifyLimits& limits) const;
};

// Adds one row. `where` names it in first_failure. NaN and infinity on either side fail.
void verify_row(const VerifyLimits& limits, const std::vector<double>& out, double lse,
                const std::vector<double>& oracle_out, double oracle_lse, const std::string& where,
                VerifyResult* result);

// The element at `index` of a bf16, fp16 or fp32 array.
double element_as_double(const void* data, Dtype dtype, int64_t index);

}  // namespace flashprime::cli
