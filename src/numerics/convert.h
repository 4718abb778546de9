// SPDX-License-Identifier: Apache-2.0
// Conversions between number formats, each with exactly one rounding to nearest even.
//
// Nothing here truncates: g++ 12.2 and 14.2 can drop a truncation of fp32 to bf16 altogether when
// it is optimised together with the arithmetic around it. Results are integers for the same reason.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "flashprime/types.h"

namespace flashprime {

using ::std::uint16_t;

inline float bf16_to_float(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
}

inline float fp16_to_float(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t magnitude = code & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + ((127u - 15u) << 23);
  } else {  // zero, subnormal: a multiple of 2^-24
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(bits | sign);
}

inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t code;
  if (magnitude > 0x7f800000u) {
    code = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    code = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14: normal
    code = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {  // adding 0.5 rounds to a multiple of 2^-24, which is then the code
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(code | sign);
}

inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  uint32_t bits;
  if (magnitude == 0x7fu) {
    bits = 0x7fc00000u;
  } else if (magnitude >= 0x08u) {
    bits = (magnitude << 20) + ((127u - 7u) << 23);
  } else {  // zero, subnormal: a multiple of 2^-9
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  }
  return std::bit_cast<float>(bits | sign);
}

// Saturates to +-448, infinities included; NaN becomes 0x7f or 0xff.
inline uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t code;
  if (magnitude > 0x7f800000u) {
    code = 0x7fu;
  } else if (magnitude >= 0x43e00000u) {  // 448 and more
    code = 0x7eu;
  } else if (magnitude >= 0x3c800000u) {  // 2^-6: normal
    code = (magnitude - ((127u - 7u) << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  } else {  // adding 2^14 rounds to a multiple of 2^-9, which is then the code
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  }
  return static_cast<uint8_t>(code | sign);
}

// `value` rounded to nearest even on the grid of a format with that many stored mantissa bits and
// that smallest normal exponent; its range is not bounded above. NaN and infinities stay.
template <int kMantissaBits, int kMinExponent>
inline double round_to_grid(double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), kMinExponent);
  return std::scalbn(std::nearbyint(std::scalbn(value, kMantissaBits - exponent)),
                     exponent - kMantissaBits);
}

// From fp64 with a single rounding. Going through fp32 would round twice. Once the value lies on
// the target's grid, the fp32 conversions are exact but for overflow, which they define.
inline uint16_t double_to_bf16(double value) {
  return float_to_bf16(static_cast<float>(round_to_grid<7, -126>(value)));
}

inline uint16_t double_to_fp16(double value) {
  return float_to_fp16(static_cast<float>(round_to_grid<10, -14>(value)));
}

inline uint8_t double_to_e4m3(double value) {
  return float_to_e4m3(static_cast<float>(round_to_grid<3, -6>(value)));
}

// Element `index` of an array. kInt32 is not a number format of tensors: NaN.
inline double load_element_as_double(const void* data, Dtype dtype, int64_t index) {
  switch (dtype) {
    case Dtype::kBf16: return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case Dtype::kFp16: return fp16_to_float(static_cast<const uint16_t*>(data)[index]);
    case Dtype::kFp32: return static_cast<const float*>(data)[index];
    case Dtype::kFp64: return static_cast<const double*>(data)[index];
    case Dtype::kE4m3: return e4m3_to_float(static_cast<const uint8_t*>(data)[index]);
    case Dtype::kInt32: break;
  }
  return std::nan("");
}

inline float load_element(const void* data, Dtype dtype, int64_t index) {
  return static_cast<float>(load_element_as_double(data, dtype, index));
}

// Rounds once, to nearest even. kInt32 stores nothing.
inline void store_element(void* data, Dtype dtype, int64_t index, float value) {
  switch (dtype) {
    case Dtype::kBf16: static_cast<uint16_t*>(data)[index] = float_to_bf16(value); break;
    case Dtype::kFp16: static_cast<uint16_t*>(data)[index] = float_to_fp16(value); break;
    case Dtype::kFp32: static_cast<float*>(data)[index] = value; break;
    case Dtype::kFp64: static_cast<double*>(data)[index] = static_cast<double>(value); break;
    case Dtype::kE4m3: static_cast<uint8_t*>(data)[index] = float_to_e4m3(value); break;
    case Dtype::kInt32: break;
  }
}

inline void store_element(void* data, Dtype dtype, int64_t index, double value) {
  switch (dtype) {
    case Dtype::kBf16: static_cast<uint16_t*>(data)[index] = double_to_bf16(value); break;
    case Dtype::kFp16: static_cast<uint16_t*>(data)[index] = double_to_fp16(value); break;
    case Dtype::kFp32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case Dtype::kFp64: static_cast<double*>(data)[index] = value; break;
    case Dtype::kE4m3: static_cast<uint8_t*>(data)[index] = double_to_e4m3(value); break;
    case Dtype::kInt32: break;
  }
}

}  // namespace flashprime
