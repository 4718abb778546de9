// SPDX-License-Identifier: Apache-2.0
// Approximate arithmetic and conversions. PTX ISA, sections "ex2", "lg2", "cvt".
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

// 2^x; subnormal results flush to 0, 2^-inf = 0, NaN stays NaN (PTX 1.4).
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2_approx_ftz(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x (PTX 1.4); 0 and subnormals give infinity.
__device__ __forceinline__ float rcp_approx_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// a * b + c of packed pairs (fp16: PTX 4.2, sm_53; bf16: PTX 7.0, sm_80).
__device__ __forceinline__ uint32_t fma_rn_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t fma_rn_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two fp32 values to packed bf16, low in the lower half (PTX 7.0, sm_80).
__device__ __forceinline__ uint32_t cvt_rn_bf16x2_f32(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two fp32 values to packed fp16 (PTX 7.0, sm_80).
__device__ __forceinline__ uint32_t cvt_rn_f16x2_f32(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float cvt_f32_f16(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

}  // namespace flashprime::ptx
