// SPDX-License-Identifier: Apache-2.0
// A ragged batch in dense row-major tensors, made to be cut up, permuted and put together: for the
// tests that compare calls with calls.
#pragma once

#include <cstddef>
#include <vector>

#include "flashprime/prefill.h"
#include "flashprime/prefill_layer.h"

namespace flashprime::cases {

struct DenseBatch {
  PrefillProblem problem;
  float softmax_scale = 0.0f;
  std::vector<int32_t> q_lens;
  std::vector<int32_t> k_lens;
  std::vector<std::byte> q;  ///< [T, H, nope + rope]
  std::vector<std::byte> k;  ///< [Tk, H, nope + rope]
  std::vector<std::byte> v;  ///< [Tk, H, v]
  int64_t max_seqlen_q = -1;
  int64_t max_seqlen_k = -1;

  /// Data of fill_random(); LSE wanted, dtype out, batch-invariant.
  static DenseBatch random(const HeadDims& dims, int32_t heads, Dtype dtype, const Mask& mask,
                           std::vector<int32_t> q_lens, std::vector<int32_t> k_lens, uint64_t seed);

  int64_t sequences() const { return static_cast<int64_t>(q_lens.size()); }
  int64_t total_q() const;
  int64_t total_k() const;
  int64_t q_row_bytes() const;
  int64_t k_row_bytes() const;
  int64_t v_row_bytes() const;
  int64_t first_q(int64_t sequence) const;
  int64_t first_k(int64_t sequence) const;

  /// The sequences named, in that order (a sequence may appear twice).
  DenseBatch select(const std::vector<int64_t>& sequences) const;
  /// Query rows [q_begin, q_end) and keys [k_begin, k_end) of one sequence as a batch of one.
  DenseBatch cut(int64_t sequence, int64_t q_begin, int64_t q_end, int64_t k_begin,
                 int64_t k_end) const;
  /// Only these heads, in that order.
  DenseBatch select_heads(const std::vector<int32_t>& heads) const;
  void append(const DenseBatch& other);

  double get(const std::vector<std::byte>& tensor, int64_t index) const;
  void set(std::vector<std::byte>& tensor, int64_t index, double value);
};

struct DenseResult {
  Status status;
  Dtype dtype = Dtype::kBf16;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim_v = 0;
  std::vector<std::byte> out;  ///< [T, H, v]
  std::vector<float> lse;      ///< [H, T]

  double out_at(int64_t row, int64_t head, int64_t i) const;
  float lse_at(int64_t row, int64_t head) const;
  /// The bytes of a row of all heads, out and then LSE.
  std::vector<std::byte> row_bytes(int64_t row) const;
  std::vector<std::byte> row_head_bytes(int64_t row, int64_t head) const;
  bool same_bits(const DenseResult& other) const;
};

/// prefill() into outputs whose bytes were `garbage` before.
DenseResult run(const DenseBatch& batch, const ExecutionOptions& execution,
                unsigned char garbage = 0xff);

/// The new tokens of `batch` (its last q_lens[s] keys are theirs) and everything before them as
/// context, cut as `plan` says, through prefill_layer().
DenseResult run_layer(const DenseBatch& batch, const ContextPlan& plan,
                      const ExecutionOptions& execution);

/// k_lens - q_lens: what is context in `batch`.
std::vector<int64_t> context_lens(const DenseBatch& batch);

/// Chunks of at most `tokens` of each request at a time, in request order.
ContextPlan equal_chunks(const std::vector<int64_t>& context_lens, int64_t tokens);

}  // namespace flashprime::cases
