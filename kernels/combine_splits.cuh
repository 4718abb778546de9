// SPDX-License-Identifier: Apache-2.0
// combine_splits: the partial fp32 states that sm80_mla_prefill left for each split of the keys, to
// one. A warp per (token, head); grid ceil(tokens * num_heads / warps).
#pragma once

#include "kernels/ptx/math.cuh"
#include "kernels/shared/merge_params.h"
#include "kernels/tile/row_io.cuh"

namespace flashprime {

template <MergeTraits traits>
__device__ __forceinline__ void combine_splits(const CombineParams& params) {
  constexpr float kLog2e = 1.44269504088896340736f;
  constexpr float kLn2 = 0.69314718055994530942f;
  const float minus_infinity = -__int_as_float(0x7f800000);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (index >= params.tokens * params.num_heads) return;
  const int64_t token = index / params.num_heads;
  const int64_t head = index - token * params.num_heads;
  const auto element_of = [&](const auto& tensor) {
    return token * tensor.stride_token + head * tensor.stride_head;
  };
  const float* partial_lse =
      static_cast<const float*>(params.partial_lse.data) + element_of(params.partial_lse);

  // Every lane takes the same path over the splits, in their order: the sums are reproducible.
  float max = minus_infinity;
  for (int split = 0; split < params.num_splits; ++split) {
    max = fmaxf(max, partial_lse[split * params.lse_stride_split]);
  }
  const float reference = max == minus_infinity ? 0.0f : max;
  float sum = 0.0f;
  for (int split = 0; split < params.num_splits; ++split) {
    sum += ptx::ex2_approx_ftz((partial_lse[split * params.lse_stride_split] - reference) * kLog2e);
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;

  float quant = 1.0f;
  if constexpr (traits.out_dtype == Dtype::kE4m3) quant = 1.0f / *params.output_scale;
  for (int i = lane * 4; i < traits.dim_v; i += 128) {
    float x[4] = {};
    for (int split = 0; split < params.num_splits; ++split) {
      const float weight =
          ptx::ex2_approx_ftz((partial_lse[split * params.lse_stride_split] - reference) * kLog2e) *
          inverse;
      if (weight == 0.0f) continue;
      float partial[4];
      load_four<Dtype::kFp32>(params.partial_out.data,
                              element_of(params.partial_out) + split * params.out_stride_split + i,
                              partial);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] += weight * partial[j];
    }
    if constexpr (traits.out_dtype == Dtype::kE4m3) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] *= quant;
    }
    store_four<traits.out_dtype>(params.out.data, element_of(params.out) + i, x);
  }
  if (traits.return_lse && lane == 0) {
    static_cast<float*>(params.lse.data)[element_of(params.lse)] =
        sum == 0.0f ? minus_infinity : max + ptx::lg2_approx_ftz(sum) * kLn2;
  }
}

}  // namespace flashprime
