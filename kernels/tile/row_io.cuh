// SPDX-License-Identifier: Apache-2.0
// Four neighbouring elements of a row as fp32, read and written in any of the library's dtypes.
#pragma once

#include "flashprime/types.h"
#include "kernels/ptx/cvt_e4m3.cuh"
#include "kernels/ptx/math.cuh"

namespace flashprime {

template <Dtype dtype>
__device__ __forceinline__ void load_four(const void* row, int64_t element, float (&x)[4]) {
  if constexpr (dtype == Dtype::kFp32) {
    const float4 loaded =
        *reinterpret_cast<const float4*>(static_cast<const float*>(row) + element);
    x[0] = loaded.x;
    x[1] = loaded.y;
    x[2] = loaded.z;
    x[3] = loaded.w;
  } else {
    const uint2 loaded =
        *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(row) + element);
    const uint32_t words[2] = {loaded.x, loaded.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = words[i / 2] >> (i % 2 * 16) & 0xffffu;
      x[i] = dtype == Dtype::kBf16 ? __uint_as_float(bits << 16)
                                   : ptx::cvt_f32_f16(static_cast<unsigned short>(bits));
    }
  }
}

template <Dtype dtype>
__device__ __forceinline__ void store_four(void* row, int64_t element, const float (&x)[4]) {
  if constexpr (dtype == Dtype::kFp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(row) + element) =
        make_float4(x[0], x[1], x[2], x[3]);
  } else if constexpr (dtype == Dtype::kE4m3) {
    *reinterpret_cast<uint32_t*>(static_cast<char*>(row) + element) =
        ptx::cvt_rn_satfinite_e4m3x2_f32(x[0], x[1]) | ptx::cvt_rn_satfinite_e4m3x2_f32(x[2], x[3])
                                                           << 16;
  } else {
    uint2 words;
    words.x = dtype == Dtype::kBf16 ? ptx::cvt_rn_bf16x2_f32(x[0], x[1])
                                    : ptx::cvt_rn_f16x2_f32(x[0], x[1]);
    words.y = dtype == Dtype::kBf16 ? ptx::cvt_rn_bf16x2_f32(x[2], x[3])
                                    : ptx::cvt_rn_f16x2_f32(x[2], x[3]);
    *reinterpret_cast<uint2*>(static_cast<unsigned short*>(row) + element) = words;
  }
}

}  // namespace flashprime
