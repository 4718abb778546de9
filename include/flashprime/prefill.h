// SPDX-License-Identifier: Apache-2.0
// MLA prefill attention over ragged batches. Start reading here.
#pragma once

#include "flashprime/export.h"

#include <limits>

#include "flashprime/execution.h"
#include "flashprime/status.h"
#include "flashprime/tensor.h"
#include "flashprime/types.h"

namespace flashprime {

/// What is computed, without data or lengths.
struct PrefillProblem {
  HeadDims dims;
  int32_t num_heads = 1;           ///< H: query heads on this rank; keys have as many
  Dtype dtype = Dtype::kBf16;      ///< of q, k and v: bf16, fp16, or fp32 (CPU only)
  Dtype out_dtype = Dtype::kBf16;  ///< = dtype, kFp32 (CPU), kE4m3, or kFp64 (`cpu_reference`)
  Mask mask;                       ///< causal unless said otherwise
  bool return_lse = false;         ///< write `lse`
  LseLayout lse_layout = LseLayout::kHeadsTokens;  ///< of `lse`
  bool self_attention = false;   ///< declares cu_seqlens_q == cu_seqlens_k; checked
  bool batch_invariant = false;  ///< forbids splitting keys
  int32_t num_splits = 0;        ///< splits of the keys; 0 lets the selector choose
};

/// The data of one call. T = total new tokens, Tk = total keys, B = sequences, H = num_heads.
/// Give q joined or in two parts, and k joined or in two parts, independently of each other.
/// The last axis of q, k, v and out has stride 1; every other stride is free. Rows that
/// cu_seqlens do not name are never read and never influence a result.
struct PrefillArgs {
  TensorView q;       ///< [T, H, nope + rope]
  TensorView q_nope;  ///< [T, H, nope], or
  TensorView q_pe;    ///< [T, H, rope] with it; absent when rope == 0

  TensorView k;       ///< [Tk, H, nope + rope]
  TensorView k_nope;  ///< [Tk, H, nope], or
  TensorView k_pe;    ///< [Tk, rope] or [Tk, 1, rope], shared by all heads; absent when rope == 0
  TensorView v;       ///< [Tk, H, v], for example a slice of the up-projection's output

  TensorView cu_seqlens_q;    ///< int32 [B + 1], from 0 to T, never decreasing
  TensorView cu_seqlens_k;    ///< int32 [B + 1], from 0 to Tk, never decreasing
  int64_t max_seqlen_q = -1;  ///< at least the longest sequence; negative: not stated
  int64_t max_seqlen_k = -1;

  /// Multiplies q.k before the softmax: finite and >= 0, no default.
  float softmax_scale = std::numeric_limits<float>::quiet_NaN();

  MutableTensorView out;    ///< [T, H, v] of out_dtype
  MutableTensorView lse;    ///< fp32 (fp64 with out_dtype kFp64), [H, T] or [T, H], any strides
  TensorView output_scale;  ///< fp32 [1], with out_dtype kE4m3 only: stored = out / scale

  void* workspace = nullptr;  ///< of at least prefill_workspace_bytes(), 256-byte aligned
  int64_t workspace_bytes = 0;
};

/// Computes, for each sequence, head and query row i,
///   out_i = sum_j p_ij v_j,  p_ij = exp(x_ij - lse_i),  x_ij = softmax_scale * q_i . k_j,
///   lse_i = ln sum_j exp(x_ij)
/// over the keys j that the mask lets i see (FlashAttention's varlen semantics, bottom-right
/// aligned). A row that sees no key has out = 0 and lse = -inf. Zero-length queries, zero-length
/// keys and an empty batch are legal. NaN in a visible row reaches every output that depends on it
/// and no other. e4m3 output is RNE(clamp(out * (1 / scale), +-448)), NaN kept.
///
/// Every argument is validated before any output is touched; see StatusCode for what can come back.
/// Thread-safe: any number of calls at once, as long as their outputs and workspaces differ.
/// On a GPU rows of q, k and v begin at multiples of 16 bytes and rows of out at whole four
/// elements (kAlignment, kStride); cu_seqlens and output_scale lie there and are trusted unless
/// ExecutionOptions::checked; a kernel that is not loaded is loaded or compiled by the call, except
/// while the stream records a graph (kNotWarm).
/// On a GPU the call is ordered on `stream` and does not synchronise; on a CPU it has finished
/// when it returns.
FLASHPRIME_API Status prefill(const PrefillProblem& problem, const PrefillArgs& args,
                              const ExecutionOptions& options = {}, StreamHandle stream = nullptr);

/// Bytes of workspace that prefill() needs for these arguments (data pointers are not read, except
/// cu_seqlens on a CPU). CPU kernels need none.
FLASHPRIME_API StatusOr<int64_t> prefill_workspace_bytes(const PrefillProblem& problem,
                                                         const PrefillArgs& args,
                                                         const ExecutionOptions& options = {});

}  // namespace flashprime
