// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_data.h"

#include <malloc.h>

#include <array>
#include <new>

#include "cli/parallel.h"
#include "flashprime/random.h"

namespace flashprime::cli {
namespace {

enum TensorKind : uint32_t { kQuery = 0, kKeyNope = 1, kKeyRope = 2, kValue = 3, kNumKinds = 4 };

// Every head of every tensor of every layer is a random tensor of its own, so that the oracle can
// make one head alone. Its rows are addressed by request and position.
RandomSpec spec_of(uint64_t seed, const ReplayShape& shape, int32_t layer, TensorKind kind,
                   int32_t head, int64_t request, int64_t position) {
  RandomSpec spec;
  spec.seed = seed;
  spec.tensor_id =
      (static_cast<uint32_t>(layer) * kNumKinds + kind) * static_cast<uint32_t>(shape.heads) +
      static_cast<uint32_t>(head);
  spec.first_row = (static_cast<uint64_t>(request) << 32) + static_cast<uint64_t>(position);
  return spec;
}

MutableTensorView rows_view(void* data, Dtype dtype, int64_t rows, int64_t width, int64_t stride) {
  return MutableTensorView::strided(data, dtype, {rows, width}, {stride, 1});
}

struct FillJob {
  MutableTensorView view;
  RandomSpec spec;
};

// Rows of one job: enough to outweigh handing it out, few enough to balance the threads.
constexpr int64_t kRowsPerJob = 128;

// Where one head of one tensor lies: element (row, i) at data + (row * stride + offset + i).
struct Destination {
  TensorKind kind;
  int32_t head;
  void* data;
  int64_t offset;
  int64_t width;
  int64_t stride;
};

Status fill(const ReplayShape& shape, uint64_t seed, int32_t threads, int32_t layer,
            const std::vector<ReplayPiece>& pieces, const std::vector<Destination>& destinations) {
  const int64_t element = dtype_bytes(shape.dtype);
  std::vector<FillJob> jobs;
  int64_t row = 0;
  for (const ReplayPiece& piece : pieces) {
    for (int64_t done = 0; done < piece.length; done += kRowsPerJob) {
      const int64_t rows = std::min(kRowsPerJob, piece.length - done);
      for (const Destination& to : destinations) {
        auto* data =
            static_cast<std::byte*>(to.data) + ((row + done) * to.stride + to.offset) * element;
        jobs.push_back(
            {rows_view(data, shape.dtype, rows, to.width, to.stride),
             spec_of(seed, shape, layer, to.kind, to.head, piece.request, piece.start + done)});
      }
    }
    row += piece.length;
  }
  std::vector<Status> failures(jobs.size());
  parallel_for(threads, static_cast<int64_t>(jobs.size()), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    failures[index] = fill_random(jobs[index].view, jobs[index].spec);
  });
  for (Status& failure : failures) {
    if (!failure.ok()) return std::move(failure);
  }
  return ok_status();
}

int64_t total_rows(const std::vector<ReplayPiece>& pieces) {
  int64_t rows = 0;
  for (const ReplayPiece& piece : pieces) rows += piece.length;
  return rows;
}

}  // namespace

void* ScratchBuffer::reserve(int64_t bytes) {
  if (bytes > bytes_) {
    const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset();  // before the new one, so that the two never coexist
    bytes_ = 0;
#ifdef __GLIBC__
    malloc_trim(0);  // it would keep the hole: up to twice the memory at the peak, measured
#endif
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (memory_ == nullptr) throw std::bad_alloc();
    bytes_ = static_cast<int64_t>(rounded);
  }
  return memory_.get();
}

StatusOr<TensorView> ReplayTensors::queries(int32_t layer, const std::vector<ReplayPiece>& pieces) {
  const int64_t rows = total_rows(pieces);
  const int64_t width = shape_.dims.nope + shape_.dims.rope;
  const int64_t stride = shape_.heads * width;
  void* q = q_.reserve(rows * stride * dtype_bytes(shape_.dtype));
  std::vector<Destination> destinations;
  for (int32_t head = 0; head < shape_.heads; ++head) {
    destinations.push_back({kQuery, head, q, head * width, width, stride});
  }
  const Status filled = fill(shape_, seed_, threads_, layer, pieces, destinations);
  if (!filled.ok()) return filled;
  return TensorView::contiguous(q, shape_.dtype, {rows, shape_.heads, width});
}

StatusOr<KeyValueViews> ReplayTensors::keys(int32_t layer, const std::vector<ReplayPiece>& pieces) {
  const int64_t rows = total_rows(pieces);
  const HeadDims& dims = shape_.dims;
  const int64_t element = dtype_bytes(shape_.dtype);
  const int64_t head_stride = dims.nope + dims.v;
  const int64_t stride = shape_.heads * head_stride;
  void* kv = kv_.reserve(rows * stride * element);
  void* k_pe = k_pe_.reserve(rows * dims.rope * element);
  std::vector<Destination> destinations;
  for (int32_t head = 0; head < shape_.heads; ++head) {
    destinations.push_back({kKeyNope, head, kv, head * head_stride, dims.nope, stride});
    destinations.push_back({kValue, head, kv, head * head_stride + dims.nope, dims.v, stride});
  }
  if (dims.rope > 0) destinations.push_back({kKeyRope, 0, k_pe, 0, dims.rope, dims.rope});
  const Status filled = fill(shape_, seed_, threads_, layer, pieces, destinations);
  if (!filled.ok()) return filled;

  KeyValueViews views;
  views.k_nope = TensorView::strided(kv, shape_.dtype, {rows, shape_.heads, dims.nope},
                                     {stride, head_stride, 1});
  views.v = TensorView::strided(static_cast<std::byte*>(kv) + dims.nope * element, shape_.dtype,
                                {rows, shape_.heads, dims.v}, {stride, head_stride, 1});
  if (dims.rope > 0) {
    views.k_pe = TensorView::contiguous(k_pe, shape_.dtype, {rows, dims.rope});
  }
  return views;
}

Status ReplayRow::oracle(int32_t layer, int64_t request, int64_t position, int32_t head,
                         float softmax_scale, std::vector<double>* out, double* lse) {
  const HeadDims& dims = shape_.dims;
  const int64_t element = dtype_bytes(shape_.dtype);
  const int64_t width = dims.nope + dims.rope;
  const int64_t keys = position + 1;
  void* q = q_.reserve(width * element);
  void* k_nope = k_nope_.reserve(keys * dims.nope * element);
  void* k_pe = k_pe_.reserve(keys * dims.rope * element);
  void* v = v_.reserve(keys * dims.v * element);
  const std::vector<ReplayPiece> query = {{request, position, 1}};
  const std::vector<ReplayPiece> visible = {{request, 0, keys}};
  Status filled = fill(shape_, seed_, 1, layer, query, {{kQuery, head, q, 0, width, width}});
  std::vector<Destination> destinations = {{kKeyNope, head, k_nope, 0, dims.nope, dims.nope},
                                           {kValue, head, v, 0, dims.v, dims.v}};
  if (dims.rope > 0) destinations.push_back({kKeyRope, 0, k_pe, 0, dims.rope, dims.rope});
  if (filled.ok()) filled = fill(shape_, seed_, 1, layer, visible, destinations);
  if (!filled.ok()) return filled;

  PrefillProblem problem;
  problem.dims = dims;
  problem.num_heads = 1;
  problem.dtype = shape_.dtype;
  problem.out_dtype = Dtype::kFp64;
  problem.mask.kind = MaskKind::kFull;  // every key given is visible
  problem.return_lse = true;
  const std::array<int32_t, 2> cu_q = {0, 1};
  const std::array<int32_t, 2> cu_k = {0, static_cast<int32_t>(keys)};
  out->resize(static_cast<size_t>(dims.v));
  PrefillArgs args;
  args.q = TensorView::contiguous(q, shape_.dtype, {1, 1, width});
  args.k_nope = TensorView::contiguous(k_nope, shape_.dtype, {keys, 1, dims.nope});
  if (dims.rope > 0) args.k_pe = TensorView::contiguous(k_pe, shape_.dtype, {keys, dims.rope});
  args.v = TensorView::contiguous(v, shape_.dtype, {keys, 1, dims.v});
  args.cu_seqlens_q = TensorView::contiguous(cu_q.data(), Dtype::kInt32, {2});
  args.cu_seqlens_k = TensorView::contiguous(cu_k.data(), Dtype::kInt32, {2});
  args.softmax_scale = softmax_scale;
  args.out = MutableTensorView::contiguous(out->data(), Dtype::kFp64, {1, 1, dims.v});
  args.lse = MutableTensorView::contiguous(lse, Dtype::kFp64, {1, 1});
  ExecutionOptions options;
  options.device = {DeviceKind::kCpu, 0};
  options.kernel = "cpu_reference";
  return prefill(problem, args, options);
}

}  // namespace flashprime::cli
