// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/dense_batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "flashprime/random.h"
#include "tests/cases/number_formats.h"
#include "tests/cases/staging.h"

namespace flashprime::cases {
namespace {

std::vector<int32_t> prefix_sums(const std::vector<int32_t>& lens) {
  std::vector<int32_t> sums{0};
  for (const int32_t len : lens) sums.push_back(sums.back() + len);
  return sums;
}

void append_rows(std::vector<std::byte>& to, const std::vector<std::byte>& from, int64_t begin,
                 int64_t rows, int64_t row_bytes) {
  const auto first = from.begin() + begin * row_bytes;
  to.insert(to.end(), first, first + rows * row_bytes);
}

TensorView vector_view(const std::vector<int32_t>& values) {
  return TensorView::contiguous(values.data(), Dtype::kInt32,
                                {static_cast<int64_t>(values.size())});
}

PrefillArgs args_without_keys(const DenseBatch& batch, DenseResult& result) {
  const PrefillProblem& problem = batch.problem;
  PrefillArgs args;
  args.q = TensorView::contiguous(
      batch.q.data(), problem.dtype,
      {batch.total_q(), problem.num_heads, problem.dims.nope + problem.dims.rope});
  args.softmax_scale = batch.softmax_scale;
  args.out = MutableTensorView::contiguous(result.out.data(), problem.out_dtype,
                                           {batch.total_q(), problem.num_heads, problem.dims.v});
  args.lse = MutableTensorView::contiguous(result.lse.data(), Dtype::kFp32,
                                           {problem.num_heads, batch.total_q()});
  return args;
}

DenseResult empty_result(const DenseBatch& batch, unsigned char garbage) {
  DenseResult result;
  result.dtype = batch.problem.out_dtype;
  result.rows = batch.total_q();
  result.heads = batch.problem.num_heads;
  result.dim_v = batch.problem.dims.v;
  const int64_t elements = result.rows * result.heads * result.dim_v;
  result.out.assign(static_cast<size_t>(elements * dtype_bytes(result.dtype)), std::byte{garbage});
  result.lse.resize(static_cast<size_t>(result.rows * result.heads));
  if (!result.lse.empty()) {
    std::memset(result.lse.data(), garbage, result.lse.size() * sizeof(float));
  }
  return result;
}

}  // namespace

DenseBatch DenseBatch::random(const HeadDims& dims, int32_t heads, Dtype dtype, const Mask& mask,
                              std::vector<int32_t> q_lens, std::vector<int32_t> k_lens,
                              uint64_t seed) {
  DenseBatch batch;
  batch.problem.dims = dims;
  batch.problem.num_heads = heads;
  batch.problem.dtype = dtype;
  batch.problem.out_dtype = dtype;
  batch.problem.mask = mask;
  batch.problem.return_lse = true;
  batch.problem.batch_invariant = true;
  batch.softmax_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims.nope + dims.rope)));
  batch.q_lens = std::move(q_lens);
  batch.k_lens = std::move(k_lens);
  const auto fill = [&](std::vector<std::byte>& tensor, int64_t rows, int64_t row_bytes,
                        uint32_t id) {
    tensor.resize(static_cast<size_t>(rows * row_bytes));
    RandomSpec spec;
    spec.seed = seed;
    spec.tensor_id = id;
    const auto view = MutableTensorView::contiguous(
        tensor.data(), dtype, {rows, heads, row_bytes / heads / dtype_bytes(dtype)});
    // Fails only on a view that is no tensor, which this is not.
    [[maybe_unused]] const Status status = fill_random(view, spec);
    assert(status.ok());
  };
  fill(batch.q, batch.total_q(), batch.q_row_bytes(), 0);
  fill(batch.k, batch.total_k(), batch.k_row_bytes(), 1);
  fill(batch.v, batch.total_k(), batch.v_row_bytes(), 2);
  return batch;
}

int64_t DenseBatch::total_q() const {
  return std::accumulate(q_lens.begin(), q_lens.end(), int64_t{0});
}

int64_t DenseBatch::total_k() const {
  return std::accumulate(k_lens.begin(), k_lens.end(), int64_t{0});
}

int64_t DenseBatch::q_row_bytes() const {
  return int64_t{problem.num_heads} * (problem.dims.nope + problem.dims.rope) *
         dtype_bytes(problem.dtype);
}

int64_t DenseBatch::k_row_bytes() const {
  return q_row_bytes();
}

int64_t DenseBatch::v_row_bytes() const {
  return int64_t{problem.num_heads} * problem.dims.v * dtype_bytes(problem.dtype);
}

int64_t DenseBatch::first_q(int64_t sequence) const {
  return std::accumulate(q_lens.begin(), q_lens.begin() + sequence, int64_t{0});
}

int64_t DenseBatch::first_k(int64_t sequence) const {
  return std::accumulate(k_lens.begin(), k_lens.begin() + sequence, int64_t{0});
}

void DenseBatch::append(const DenseBatch& other) {
  q_lens.insert(q_lens.end(), other.q_lens.begin(), other.q_lens.end());
  k_lens.insert(k_lens.end(), other.k_lens.begin(), other.k_lens.end());
  q.insert(q.end(), other.q.begin(), other.q.end());
  k.insert(k.end(), other.k.begin(), other.k.end());
  v.insert(v.end(), other.v.begin(), other.v.end());
}

DenseBatch DenseBatch::cut(int64_t sequence, int64_t q_begin, int64_t q_end, int64_t k_begin,
                           int64_t k_end) const {
  DenseBatch part;
  part.problem = problem;
  part.softmax_scale = softmax_scale;
  part.q_lens = {static_cast<int32_t>(q_end - q_begin)};
  part.k_lens = {static_cast<int32_t>(k_end - k_begin)};
  append_rows(part.q, q, first_q(sequence) + q_begin, q_end - q_begin, q_row_bytes());
  append_rows(part.k, k, first_k(sequence) + k_begin, k_end - k_begin, k_row_bytes());
  append_rows(part.v, v, first_k(sequence) + k_begin, k_end - k_begin, v_row_bytes());
  return part;
}

DenseBatch DenseBatch::select(const std::vector<int64_t>& wanted) const {
  DenseBatch part;
  part.problem = problem;
  part.softmax_scale = softmax_scale;
  for (const int64_t s : wanted) {
    const auto index = static_cast<size_t>(s);
    part.append(cut(s, 0, q_lens[index], 0, k_lens[index]));
  }
  return part;
}

DenseBatch DenseBatch::select_heads(const std::vector<int32_t>& heads) const {
  DenseBatch part = *this;
  part.problem.num_heads = static_cast<int32_t>(heads.size());
  const auto pick = [&](const std::vector<std::byte>& from, int64_t row_bytes) {
    const int64_t head_bytes = row_bytes / problem.num_heads;
    std::vector<std::byte> to;
    for (int64_t row = 0; row * row_bytes < static_cast<int64_t>(from.size()); ++row) {
      for (const int32_t head : heads) {
        append_rows(to, from, row * problem.num_heads + head, 1, head_bytes);
      }
    }
    return to;
  };
  part.q = pick(q, q_row_bytes());
  part.k = pick(k, k_row_bytes());
  part.v = pick(v, v_row_bytes());
  return part;
}

double DenseBatch::get(const std::vector<std::byte>& tensor, int64_t index) const {
  return load(tensor.data(), problem.dtype, index);
}

void DenseBatch::set(std::vector<std::byte>& tensor, int64_t index, double value) {
  store(tensor.data(), problem.dtype, index, value);
}

double DenseResult::out_at(int64_t row, int64_t head, int64_t i) const {
  return load(out.data(), dtype, (row * heads + head) * dim_v + i);
}

float DenseResult::lse_at(int64_t row, int64_t head) const {
  return lse[static_cast<size_t>(head * rows + row)];
}

std::vector<std::byte> DenseResult::row_head_bytes(int64_t row, int64_t head) const {
  std::vector<std::byte> bytes;
  append_rows(bytes, out, row * heads + head, 1, dim_v * dtype_bytes(dtype));
  const float value = lse_at(row, head);
  std::byte raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.insert(bytes.end(), raw, raw + sizeof value);
  return bytes;
}

std::vector<std::byte> DenseResult::row_bytes(int64_t row) const {
  std::vector<std::byte> bytes;
  for (int64_t head = 0; head < heads; ++head) {
    const std::vector<std::byte> part = row_head_bytes(row, head);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

bool DenseResult::same_bits(const DenseResult& other) const {
  return out == other.out && lse.size() == other.lse.size() &&
         (lse.empty() ||
          std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0);
}

DenseResult run(const DenseBatch& batch, const ExecutionOptions& execution, unsigned char garbage) {
  DenseResult result = empty_result(batch, garbage);
  const std::vector<int32_t> cu_q = prefix_sums(batch.q_lens);
  const std::vector<int32_t> cu_k = prefix_sums(batch.k_lens);
  const PrefillProblem& problem = batch.problem;
  PrefillArgs args = args_without_keys(batch, result);
  args.k = TensorView::contiguous(
      batch.k.data(), problem.dtype,
      {batch.total_k(), problem.num_heads, problem.dims.nope + problem.dims.rope});
  args.v = TensorView::contiguous(batch.v.data(), problem.dtype,
                                  {batch.total_k(), problem.num_heads, problem.dims.v});
  args.cu_seqlens_q = vector_view(cu_q);
  args.cu_seqlens_k = vector_view(cu_k);
  args.max_seqlen_q = batch.max_seqlen_q;
  args.max_seqlen_k = batch.max_seqlen_k;
  result.status = staged_prefill(problem, args, execution);
  return result;
}

std::vector<int64_t> context_lens(const DenseBatch& batch) {
  std::vector<int64_t> lens;
  for (size_t s = 0; s < batch.q_lens.size(); ++s) {
    lens.push_back(int64_t{batch.k_lens[s]} - batch.q_lens[s]);
  }
  return lens;
}

ContextPlan equal_chunks(const std::vector<int64_t>& context_lens, int64_t tokens) {
  ContextPlan plan;
  plan.context_lens = context_lens;
  int64_t longest = 0;
  for (const int64_t len : context_lens) longest = std::max(longest, len);
  for (int64_t start = 0; start < longest; start += tokens) {
    ContextChunk chunk;
    chunk.index = static_cast<int32_t>(plan.chunks.size());
    chunk.request_end = static_cast<int32_t>(context_lens.size());
    chunk.cu_seqlens_k = {0};
    for (size_t r = 0; r < context_lens.size(); ++r) {
      const int64_t begin = std::min(start, context_lens[r]);
      const int64_t length = std::min(tokens, context_lens[r] - begin);
      chunk.slices.push_back({static_cast<int32_t>(r), begin, length});
      chunk.cu_seqlens_k.push_back(chunk.cu_seqlens_k.back() + static_cast<int32_t>(length));
      chunk.max_seqlen_k = std::max(chunk.max_seqlen_k, length);
      chunk.has_empty_slice |= length == 0;
    }
    plan.chunks.push_back(std::move(chunk));
  }
  return plan;
}

DenseResult run_layer(const DenseBatch& batch, const ContextPlan& plan,
                      const ExecutionOptions& execution) {
  DenseResult result = empty_result(batch, 0xff);
  const PrefillProblem& problem = batch.problem;
  const int64_t d = problem.dims.nope + problem.dims.rope;
  const std::vector<int64_t> context = context_lens(batch);

  std::vector<std::byte> new_k;
  std::vector<std::byte> new_v;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const auto index = static_cast<size_t>(s);
    const int64_t begin = batch.first_k(s) + context[index];
    append_rows(new_k, batch.k, begin, batch.q_lens[index], batch.k_row_bytes());
    append_rows(new_v, batch.v, begin, batch.q_lens[index], batch.v_row_bytes());
  }
  const std::vector<int32_t> cu = prefix_sums(batch.q_lens);
  PrefillArgs args = args_without_keys(batch, result);
  args.k =
      TensorView::contiguous(new_k.data(), problem.dtype, {batch.total_q(), problem.num_heads, d});
  args.v = TensorView::contiguous(new_v.data(), problem.dtype,
                                  {batch.total_q(), problem.num_heads, problem.dims.v});
  args.cu_seqlens_q = vector_view(cu);
  args.cu_seqlens_k = vector_view(cu);

  // One chunk at a time in the same buffers, as the contract of the source allows.
  std::vector<std::byte> chunk_k;
  std::vector<std::byte> chunk_v;
  const ContextSource source = [&](const ContextChunk& chunk,
                                   StreamHandle) -> StatusOr<KeyValueViews> {
    chunk_k.clear();
    chunk_v.clear();
    for (const ContextSlice& slice : chunk.slices) {
      const int64_t begin = batch.first_k(slice.request) + slice.start;
      append_rows(chunk_k, batch.k, begin, slice.length, batch.k_row_bytes());
      append_rows(chunk_v, batch.v, begin, slice.length, batch.v_row_bytes());
    }
    KeyValueViews views;
    views.k = TensorView::contiguous(chunk_k.data(), problem.dtype,
                                     {chunk.num_tokens(), problem.num_heads, d});
    views.v = TensorView::contiguous(chunk_v.data(), problem.dtype,
                                     {chunk.num_tokens(), problem.num_heads, problem.dims.v});
    return views;
  };

  if (execution.device.kind == DeviceKind::kCuda) {
    result.status = staged_prefill_layer(problem, args, plan, source, execution);
    return result;
  }
  const auto bytes = prefill_layer_workspace_bytes(problem, args, plan, execution);
  if (!bytes.ok()) {
    result.status = bytes.status();
    return result;
  }
  // Old contents of a workspace must not matter: NaN everywhere.
  std::vector<std::byte> memory(static_cast<size_t>(*bytes) + 256, std::byte{0xff});
  void* aligned = memory.data();
  size_t space = memory.size();
  args.workspace = std::align(256, static_cast<size_t>(*bytes), aligned, space);
  args.workspace_bytes = *bytes;
  result.status = prefill_layer(problem, args, plan, source, execution);
  return result;
}

}  // namespace flashprime::cases
