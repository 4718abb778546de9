// SPDX-License-Identifier: Apache-2.0
// What the kernels that merge partial attention states are compiled for and given.
#pragma once

#include "flashprime/types.h"
#include "kernels/shared/prefill_params.h"

namespace flashprime {

struct MergeTraits {
  int32_t dim_v = 128;
  Dtype dtype = Dtype::kFp32;  // of the partial outputs
  Dtype out_dtype = Dtype::kBf16;
  bool return_lse = false;
};

// merge_states: out = merge(prefix, suffix). `out` may be `prefix_out`, `lse` may be `prefix_lse`.
struct MergeParams {
  RowTensor prefix_out;  // [tokens][num_heads][v]
  RowTensor prefix_lse;  // [tokens][num_heads] (no inner axis)
  RowTensor suffix_out;
  RowTensor suffix_lse;
  MutableRowTensor out;
  MutableRowTensor lse;
  int64_t tokens = 0;
  int64_t tokens_with_prefix = 0;
  int32_t num_heads = 0;
  const float* output_scale = nullptr;
};

// combine_splits: out = merge of num_splits partial fp32 states, stride_split elements apart.
struct CombineParams {
  RowTensor partial_out;  // [split][tokens][num_heads][v], fp32
  RowTensor partial_lse;  // [split][tokens][num_heads], fp32
  int64_t out_stride_split = 0;
  int64_t lse_stride_split = 0;
  int32_t num_splits = 0;
  MutableRowTensor out;
  MutableRowTensor lse;
  int64_t tokens = 0;
  int32_t num_heads = 0;
  const float* output_scale = nullptr;
};

}  // namespace flashprime
