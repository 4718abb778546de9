// SPDX-License-Identifier: Apache-2.0
// A batch of requests with context, for tests of prefill_layer().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "flashprime/prefill_layer.h"
#include "flashprime/random.h"

namespace flashprime::testing {

// Memory aligned as a workspace has to be, with guard bytes behind it.
class Workspace {
 public:
  explicit Workspace(int64_t bytes, uint8_t fill = 0xff)
      : bytes_(bytes), storage_(static_cast<size_t>(bytes) + 512, std::byte{fill}) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (256 - address % 256) % 256;
  }
  void* data() { return data_; }
  int64_t bytes() const { return bytes_; }
  bool guard_is(uint8_t fill) const {
    for (const std::byte* p = data_ + bytes_; p != storage_.data() + storage_.size(); ++p) {
      if (*p != std::byte{fill}) return false;
    }
    return true;
  }

 private:
  int64_t bytes_;
  std::vector<std::byte> storage_;
  std::byte* data_;
};

// bf16 keys and values of requests, context first, then the new tokens; queries of the new ones.
struct LayerBatch {
  LayerBatch(std::vector<int64_t> new_tokens, std::vector<int64_t> context, HeadDims head_dims,
             int32_t num_heads, uint64_t seed = 1)
      : new_lens(std::move(new_tokens)), context_lens(std::move(context)) {
    problem.dims = head_dims;
    problem.num_heads = num_heads;
    problem.out_dtype = Dtype::kFp32;
    problem.return_lse = true;
    cu_new = {0};
    cu_all = {0};
    for (size_t r = 0; r < new_lens.size(); ++r) {
      cu_new.push_back(cu_new.back() + static_cast<int32_t>(new_lens[r]));
      cu_all.push_back(cu_all.back() + static_cast<int32_t>(new_lens[r] + context_lens[r]));
    }
    const int64_t dim_qk = head_dims.nope + head_dims.rope;
    q = random(tokens(), dim_qk, seed, 0);
    k_all = random(cu_all.back(), dim_qk, seed, 1);
    v_all = random(cu_all.back(), head_dims.v, seed, 2);
    for (size_t r = 0; r < new_lens.size(); ++r) {
      append(k_all, dim_qk, cu_all[r + 1] - new_lens[r], new_lens[r], &k_new);
      append(v_all, head_dims.v, cu_all[r + 1] - new_lens[r], new_lens[r], &v_new);
    }
  }

  int64_t tokens() const { return cu_new.back(); }
  int64_t heads() const { return problem.num_heads; }
  int64_t dim_qk() const { return problem.dims.nope + problem.dims.rope; }

  static std::vector<uint16_t> random_rows(int64_t rows, int64_t row_size, uint64_t seed,
                                           uint32_t id) {
    std::vector<uint16_t> data(static_cast<size_t>(rows * row_size));
    RandomSpec spec;
    spec.seed = seed;
    spec.tensor_id = id;
    const Status status = fill_random(
        MutableTensorView::contiguous(data.data(), Dtype::kBf16, {rows, row_size}), spec);
    if (!status.ok()) std::abort();
    return data;
  }
  std::vector<uint16_t> random(int64_t rows, int64_t dim, uint64_t seed, uint32_t id) const {
    return random_rows(rows, heads() * dim, seed, id);
  }
  void append(const std::vector<uint16_t>& from, int64_t dim, int64_t begin, int64_t rows,
              std::vector<uint16_t>* to) const {
    const auto first = from.begin() + begin * heads() * dim;
    to->insert(to->end(), first, first + rows * heads() * dim);
  }
  TensorView rows_view(const std::vector<uint16_t>& data, int64_t dim) const {
    return TensorView::contiguous(
        data.data(), Dtype::kBf16,
        {static_cast<int64_t>(data.size()) / (heads() * dim), heads(), dim});
  }
  static TensorView cu_view(const std::vector<int32_t>& cu) {
    return TensorView::contiguous(cu.data(), Dtype::kInt32, {static_cast<int64_t>(cu.size())});
  }

  // Arguments of the new tokens, without outputs.
  PrefillArgs new_token_args() const {
    PrefillArgs args;
    args.q = rows_view(q, dim_qk());
    args.k = rows_view(k_new, dim_qk());
    args.v = rows_view(v_new, problem.dims.v);
    args.cu_seqlens_q = args.cu_seqlens_k = cu_view(cu_new);
    args.softmax_scale = 0.3f;
    return args;
  }

  // One attention over context and new keys together; new tokens see all context because the
  // causal mask is aligned at the bottom right.
  PrefillArgs one_pass_args() const {
    PrefillArgs args = new_token_args();
    args.k = rows_view(k_all, dim_qk());
    args.v = rows_view(v_all, problem.dims.v);
    args.cu_seqlens_k = cu_view(cu_all);
    return args;
  }

  // A source that gathers each chunk into one buffer, which the next chunk overwrites.
  ContextSource gathering_source() {
    return [this](const ContextChunk& chunk, StreamHandle) -> StatusOr<KeyValueViews> {
      chunks_seen.push_back(chunk.index);
      std::fill(k_chunk.begin(), k_chunk.end(), uint16_t{0x7fff});  // NaN
      std::fill(v_chunk.begin(), v_chunk.end(), uint16_t{0x7fff});
      k_chunk.clear();
      v_chunk.clear();
      for (const ContextSlice& slice : chunk.slices) {
        const int64_t begin = cu_all[static_cast<size_t>(slice.request)] + slice.start;
        append(k_all, dim_qk(), begin, slice.length, &k_chunk);
        append(v_all, problem.dims.v, begin, slice.length, &v_chunk);
      }
      KeyValueViews views;
      views.k = rows_view(k_chunk, dim_qk());
      views.v = rows_view(v_chunk, problem.dims.v);
      return views;
    };
  }

  PrefillProblem problem;
  std::vector<int64_t> new_lens, context_lens;
  std::vector<int32_t> cu_new, cu_all;
  std::vector<uint16_t> q, k_all, v_all, k_new, v_new;
  std::vector<uint16_t> k_chunk, v_chunk;
  std::vector<int32_t> chunks_seen;
};

}  // namespace flashprime::testing
