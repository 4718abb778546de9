// SPDX-License-Identifier: Apache-2.0
// Merging two partial attention results over disjoint sets of keys.
#pragma once

#include "flashprime/export.h"

#include "flashprime/execution.h"
#include "flashprime/status.h"
#include "flashprime/tensor.h"

namespace flashprime {

/// Two partial states and where their merge goes. Every tensor has strides of its own; the last
/// axis of the [T, H, D] tensors has stride 1.
struct MergeArgs {
  TensorView prefix_out;    ///< [T, H, D] bf16, fp16 or fp32: attention over the earlier keys
  TensorView prefix_lse;    ///< fp32, [H, T] or [T, H]
  TensorView suffix_out;    ///< [T, H, D], the dtype of prefix_out: attention over the later keys
  TensorView suffix_lse;    ///< fp32
  MutableTensorView out;    ///< [T, H, D] bf16, fp16, fp32 or e4m3
  MutableTensorView lse;    ///< fp32, optional
  TensorView output_scale;  ///< fp32 [1], with e4m3 output only
  LseLayout lse_layout = LseLayout::kHeadsTokens;  ///< of all three LSE tensors
  /// Tokens from this one on have no prefix: they copy the suffix and its LSE, and their prefix is
  /// never read. Negative: every token has one.
  int64_t tokens_with_prefix = -1;
};

/// Per token and head, in fp32, with p the prefix and s the suffix (infinite LSEs count as -inf):
///   m = max(lse_p, lse_s), w = exp(lse - m), out = (w_p out_p + w_s out_s) / (w_p + w_s),
///   lse = m + ln(w_p + w_s)
/// Both empty: out = 0, lse = -inf. One side empty: the other side unchanged, bit for bit except
/// for the cast; a side of weight zero is never read into the result. A NaN LSE gives NaN.
///
/// In place: `out` may be exactly `prefix_out` (same pointer, dtype, shape, strides), `lse` exactly
/// `prefix_lse`. Any other overlap of an output with another tensor is kAlias.
/// Thread-safe as prefill().
FLASHPRIME_API Status merge_states(const MergeArgs& args, const ExecutionOptions& options = {},
                                   StreamHandle stream = nullptr);

}  // namespace flashprime
