// SPDX-License-Identifier: Apache-2.0
// What a prefill kernel is given at run time. Plain data, the same on host and device.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

// One tensor of rows: element (token, head, i) is at data + token * stride_token +
// head * stride_head + i, strides in elements.
struct RowTensor {
  const void* data = nullptr;
  int64_t stride_token = 0;
  int64_t stride_head = 0;
};

struct MutableRowTensor {
  void* data = nullptr;
  int64_t stride_token = 0;
  int64_t stride_head = 0;
};

// Joined q or k is the case where both parts come from one tensor.
struct PrefillParams {
  RowTensor q_nope;  // [total_q][num_heads][nope]
  RowTensor q_pe;    // [total_q][num_heads][rope], null when rope == 0
  RowTensor k_nope;  // [total_k][num_heads][nope]
  RowTensor k_pe;    // [total_k][num_heads][rope], stride_head 0 when shared by all heads
  RowTensor v;       // [total_k][num_heads][v]

  MutableRowTensor out;  // [total_q][num_heads][v]
  MutableRowTensor lse;  // [total_q][num_heads] (no inner axis), null when not wanted

  // With num_splits > 1, split i writes its partial fp32 state i * stride_split further on.
  int32_t num_splits = 1;
  int64_t out_stride_split = 0;
  int64_t lse_stride_split = 0;

  const int32_t* cu_seqlens_q = nullptr;  // [batch + 1]
  const int32_t* cu_seqlens_k = nullptr;  // [batch + 1]

  int64_t batch = 0;
  int64_t total_q = 0;
  int64_t total_k = 0;
  int32_t num_heads = 0;

  // Reaches of MaskKind::kWindow, negative when unbounded.
  int64_t window_left = -1;
  int64_t window_right = -1;

  float softmax_scale = 0.0f;
  const float* output_scale = nullptr;  // [1], with e4m3 output only
};

}  // namespace flashprime
