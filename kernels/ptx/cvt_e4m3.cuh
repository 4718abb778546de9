// SPDX-License-Identifier: Apache-2.0
// cvt.rn.satfinite.e4m3x2.f32: two fp32 values to packed e4m3 (PTX 8.1, sm_89), and the same bits
// computed with integers where the instruction does not exist.
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

#if __CUDA_ARCH__ >= 890

__device__ __forceinline__ uint32_t cvt_rn_satfinite_e4m3x2_f32(float low, float high) {
  unsigned short packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

#else

// One value: round to nearest even, at most 448, NaN to 0x7f.
__device__ __forceinline__ uint32_t e4m3_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 31) << 7;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return sign | 0x7e;  // 448 and more
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the grid is 2^-9: adding 2^14 leaves the rounded multiple in the low bits.
    const float shifted = __uint_as_float(magnitude) + 16384.0f;
    return sign | (__float_as_uint(shifted) & 0xfu);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return sign | ((rounded >> 20) - (120u << 3));
}

__device__ __forceinline__ uint32_t cvt_rn_satfinite_e4m3x2_f32(float low, float high) {
  return e4m3_of(low) | e4m3_of(high) << 8;
}

#endif

}  // namespace flashprime::ptx
