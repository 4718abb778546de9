// SPDX-License-Identifier: Apache-2.0
// merge_states: two partial attention states over disjoint keys to one. A warp per (token, head);
// grid ceil(tokens * num_heads / warps). Bound by memory: every element is read and written once.
#pragma once

#include "kernels/ptx/math.cuh"
#include "kernels/shared/merge_params.h"
#include "kernels/tile/row_io.cuh"

namespace flashprime {

// What both sides weigh in the merge of two LSEs. An infinite LSE of either sign is an empty side;
// a NaN one makes both weights, and so everything, NaN.
struct MergeWeights {
  float prefix;
  float suffix;
  float lse;
};

__device__ __forceinline__ MergeWeights merge_weights(float prefix_lse, float suffix_lse) {
  constexpr float kLog2e = 1.44269504088896340736f;
  constexpr float kLn2 = 0.69314718055994530942f;
  const float minus_infinity = -__int_as_float(0x7f800000);
  const float p = isinf(prefix_lse) ? minus_infinity : prefix_lse;
  const float s = isinf(suffix_lse) ? minus_infinity : suffix_lse;
  if (p == minus_infinity && s == minus_infinity) return {0.0f, 0.0f, minus_infinity};
  if (p == minus_infinity && s == s) return {0.0f, 1.0f, s};
  if (s == minus_infinity && p == p) return {1.0f, 0.0f, p};
  const float max = fmaxf(p, s);
  const float wp = ptx::ex2_approx_ftz((p - max) * kLog2e);
  const float ws = ptx::ex2_approx_ftz((s - max) * kLog2e);
  const float sum = wp + ws;
  return {wp / sum, ws / sum, max + ptx::lg2_approx_ftz(sum) * kLn2};
}

template <MergeTraits traits>
__device__ __forceinline__ void merge_states(const MergeParams& params) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (index >= params.tokens * params.num_heads) return;
  const int64_t token = index / params.num_heads;
  const int64_t head = index - token * params.num_heads;
  const auto element_of = [&](const auto& tensor) {
    return token * tensor.stride_token + head * tensor.stride_head;
  };

  float prefix_lse = -__int_as_float(0x7f800000);
  if (token < params.tokens_with_prefix) {
    prefix_lse = static_cast<const float*>(params.prefix_lse.data)[element_of(params.prefix_lse)];
  }
  const MergeWeights weights = merge_weights(
      prefix_lse, static_cast<const float*>(params.suffix_lse.data)[element_of(params.suffix_lse)]);
  __syncwarp();  // lse may be prefix_lse: every lane has read it

  float quant = 1.0f;
  if constexpr (traits.out_dtype == Dtype::kE4m3) quant = 1.0f / *params.output_scale;
  for (int i = lane * 4; i < traits.dim_v; i += 128) {
    float x[4] = {};
    // A side of weight zero is not read: it may hold anything.
    if (weights.prefix != 0.0f) {
      float prefix[4];
      load_four<traits.dtype>(params.prefix_out.data, element_of(params.prefix_out) + i, prefix);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = weights.prefix * prefix[j];
    }
    if (weights.suffix != 0.0f) {
      float suffix[4];
      load_four<traits.dtype>(params.suffix_out.data, element_of(params.suffix_out) + i, suffix);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[j] =
            weights.prefix != 0.0f ? x[j] + weights.suffix * suffix[j] : weights.suffix * suffix[j];
      }
    }
    if constexpr (traits.out_dtype == Dtype::kE4m3) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] *= quant;
    }
    store_four<traits.out_dtype>(params.out.data, element_of(params.out) + i, x);
  }
  if (traits.return_lse && lane == 0) {
    static_cast<float*>(params.lse.data)[element_of(params.lse)] = weights.lse;
  }
}

}  // namespace flashprime
