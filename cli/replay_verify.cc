// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace flashprime::cli {

VerifyLimits VerifyLimits::of(Dtype out_dtype) {
  VerifyLimits limits;
  switch (out_dtype) {
    case Dtype::kBf16: limits.element_relative = 0x1p-8; break;
    case Dtype::kFp16: limits.element_relative = 0x1p-11; break;
    default: limits.relative_rms = 1e-4; limits.row_rms = 1e-4;
  }
  return limits;
}

double VerifyResult::relative_rms() const {
  return oracle_squares > 0.0 ? std::sqrt(error_squares / oracle_squares) : 0.0;
}

bool VerifyResult::passed(const VerifyLimits& limits) const {
  return failed_rows == 0 && relative_rms() <= limits.relative_rms;
}

void verify_row(const VerifyLimits& limits, const std::vector<double>& out, double lse,
                const std::vector<double>& oracle_out, double oracle_lse, const std::string& where,
                VerifyResult* result) {
  double squares = 0.0;
  for (double value : oracle_out) squares += value * value;
  const double rms = std::sqrt(squares / static_cast<double>(oracle_out.size()));
  double worst = 0.0;
  for (size_t i = 0; i < oracle_out.size(); ++i) {
    const double error = std::abs(out[i] - oracle_out[i]);
    const double limit = limits.element_relative * std::abs(oracle_out[i]) + limits.row_rms * rms;
    // NaN would be skipped by max(), and an infinite limit would excuse anything.
    const double ratio = std::isfinite(out[i]) && std::isfinite(limit)
                             ? error / std::max(limit, std::numeric_limits<double>::min())
                             : std::numeric_limits<double>::infinity();
    worst = std::max(worst, ratio);
    result->worst_absolute = std::max(result->worst_absolute, error);
    result->error_squares += error * error;
  }
  const double lse_error = std::isfinite(lse) && std::isfinite(oracle_lse)
                               ? std::abs(lse - oracle_lse)
                               : std::numeric_limits<double>::infinity();
  result->oracle_squares += squares;
  result->worst_element = std::max(result->worst_element, worst);
  result->worst_lse = std::max(result->worst_lse, lse_error);
  ++result->rows;
  if (worst <= 1.0 && lse_error <= limits.lse) return;
  ++result->failed_rows;
  if (result->first_failure.empty()) {
    result->first_failure =
        fmt::format("{}: worst element {:.3g} times its limit, lse off by {:.3g} (limit {:.3g})",
                    where, worst, lse_error, limits.lse);
  }
}

double element_as_double(const void* data, Dtype dtype, int64_t index) {
  const char* bytes = static_cast<const char*>(data) + index * dtype_bytes(dtype);
  if (dtype == Dtype::kFp32) {
    float value = 0.0f;
    std::memcpy(&value, bytes, sizeof value);
    return static_cast<double>(value);
  }
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof half);
  if (dtype == Dtype::kBf16) {
    const uint32_t word = uint32_t{half} << 16;
    float value = 0.0f;
    std::memcpy(&value, &word, sizeof value);
    return static_cast<double>(value);
  }
  const int exponent = half >> 10 & 0x1f;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  const int mantissa = half & 0x3ff;
  if (exponent == 0x1f) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 1024, exponent - 25);
}

}  // namespace flashprime::cli
