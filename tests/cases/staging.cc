// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/staging.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "flashprime/backend.h"
#include "flashprime/device_memory.h"

namespace flashprime::cases {
namespace {

constexpr int64_t kGuardBytes = 4096;
constexpr uint64_t kAlignment = 256;
constexpr int64_t kLargeBytes = int64_t{1} << 28;  // inputs beyond it are not copied back

// Host bytes [begin, end) and their copy on the device.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool written = false;
  DeviceBuffer buffer;
  int64_t offset = 0;  // of `begin` in the buffer

  int64_t bytes() const { return static_cast<int64_t>(end - begin); }
};

template <typename Pointer>
bool has_elements(const BasicTensorView<Pointer>& view) {
  if (view.rank < 1 || view.rank > view.kMaxRank || view.data == nullptr) return false;
  return std::all_of(view.shape.begin(), view.shape.begin() + view.rank,
                     [](int64_t extent) { return extent > 0; });
}

// The copies of a call's tensors. add() every view, then copy_in(), then move() every view.
class Stage {
 public:
  explicit Stage(int32_t device) : device_(device) {}

  template <typename Pointer>
  void add(const BasicTensorView<Pointer>& view) {
    if (!has_elements(view)) return;
    int64_t last = 0;
    for (int32_t axis = 0; axis < view.rank; ++axis) {
      last += (view.shape[axis] - 1) * view.stride[axis];
    }
    Span span;
    span.begin = reinterpret_cast<uint64_t>(view.data);
    span.end = span.begin + static_cast<uint64_t>((last + 1) * dtype_bytes(view.dtype));
    span.written = std::is_same_v<Pointer, void*>;
    spans_.push_back(std::move(span));
  }

  Status copy_in() {
    std::sort(spans_.begin(), spans_.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    std::vector<Span> joined;
    for (Span& span : spans_) {
      if (!joined.empty() && span.begin < joined.back().end) {
        joined.back().end = std::max(joined.back().end, span.end);
        joined.back().written |= span.written;
      } else {
        joined.push_back(std::move(span));
      }
    }
    spans_ = std::move(joined);
    for (Span& span : spans_) {
      span.offset = kGuardBytes + static_cast<int64_t>(span.begin % kAlignment);
      auto buffer = DeviceBuffer::allocate(device_, span.offset + span.bytes() + kGuardBytes);
      if (!buffer.ok()) return buffer.status();
      span.buffer = *std::move(buffer);
      const std::vector<std::byte> guard(static_cast<size_t>(span.offset), std::byte{0xff});
      for (Status status :
           {span.buffer.copy_from_host(guard.data(), span.offset),
            span.buffer.copy_from_host(reinterpret_cast<const void*>(span.begin), span.bytes(),
                                       span.offset),
            span.buffer.copy_from_host(guard.data(), kGuardBytes, span.offset + span.bytes())}) {
        if (!status.ok()) return status;
      }
    }
    return ok_status();
  }

  template <typename Pointer>
  void move(BasicTensorView<Pointer>& view) const {
    if (!has_elements(view)) return;
    const auto address = reinterpret_cast<uint64_t>(view.data);
    for (const Span& span : spans_) {
      if (address < span.begin || address >= span.end) continue;
      view.data = static_cast<std::byte*>(span.buffer.data()) + span.offset +
                  static_cast<int64_t>(address - span.begin);
      return;
    }
  }

  Status copy_out() const {
    for (const Span& span : spans_) {
      for (const int64_t begin : {int64_t{0}, span.offset + span.bytes()}) {
        std::vector<std::byte> guard(static_cast<size_t>(begin == 0 ? span.offset : kGuardBytes));
        Status status =
            span.buffer.copy_to_host(guard.data(), static_cast<int64_t>(guard.size()), begin);
        if (!status.ok()) return status;
        if (std::any_of(guard.begin(), guard.end(),
                        [](std::byte b) { return b != std::byte{0xff}; })) {
          return Status(StatusCode::kInternal, "a kernel wrote outside the tensors");
        }
      }
      // Inputs come back too, so that a write to one is seen.
      if (!span.written && span.bytes() > kLargeBytes) continue;
      Status status =
          span.buffer.copy_to_host(reinterpret_cast<void*>(span.begin), span.bytes(), span.offset);
      if (!status.ok()) return status;
    }
    return ok_status();
  }

 private:
  int32_t device_;
  std::vector<Span> spans_;
};

// Inputs are const for the caller; their bytes come back as they were unless a kernel changed them.
template <typename Visit>
void visit_tensors(PrefillArgs& args, const Visit& visit) {
  visit(args.q);
  visit(args.q_nope);
  visit(args.q_pe);
  visit(args.k);
  visit(args.k_nope);
  visit(args.k_pe);
  visit(args.v);
  visit(args.cu_seqlens_q);
  visit(args.cu_seqlens_k);
  visit(args.out);
  visit(args.lse);
  visit(args.output_scale);
}

// A workspace on the device, of exactly that size, full of NaN.
StatusOr<DeviceBuffer> make_workspace(int32_t device, int64_t bytes) {
  StatusOr<DeviceBuffer> buffer = DeviceBuffer::allocate(device, bytes);
  if (!buffer.ok()) return buffer;
  const std::vector<std::byte> garbage(static_cast<size_t>(bytes), std::byte{0xff});
  if (Status status = buffer->copy_from_host(garbage.data(), bytes); !status.ok()) return status;
  return buffer;
}

// Runs call(args on the device), waits, and copies back whatever came of it.
template <typename Call>
Status run_staged(Stage& stage, int32_t device, const Call& call) {
  if (Status status = stage.copy_in(); !status.ok()) return status;
  const Status called = call();
  if (Status status = synchronize(device); !status.ok()) return status;
  const Status copied = stage.copy_out();
  return called.ok() ? copied : called;
}

// Prefix sums of the keys that a chunk holds of every request of the batch.
std::vector<int32_t> lengths_of(const ContextChunk& chunk, size_t num_requests) {
  std::vector<int32_t> lengths(num_requests + 1, 0);
  for (const ContextSlice& slice : chunk.slices) {
    lengths[static_cast<size_t>(slice.request) + 1] = static_cast<int32_t>(slice.length);
  }
  std::partial_sum(lengths.begin(), lengths.end(), lengths.begin());
  return lengths;
}

}  // namespace

Status staged_prefill(const PrefillProblem& problem, const PrefillArgs& host_args,
                      const ExecutionOptions& options) {
  if (options.device.kind != DeviceKind::kCuda) return prefill(problem, host_args, options);
  const int32_t device = options.device.index;
  PrefillArgs args = host_args;
  Stage stage(device);
  visit_tensors(args, [&](auto& view) { stage.add(view); });
  return run_staged(stage, device, [&]() -> Status {
    visit_tensors(args, [&](auto& view) { stage.move(view); });
    args.workspace = nullptr;
    args.workspace_bytes = 0;
    const StatusOr<int64_t> bytes = prefill_workspace_bytes(problem, args, options);
    if (!bytes.ok()) return bytes.status();
    const StatusOr<DeviceBuffer> workspace = make_workspace(device, *bytes);
    if (!workspace.ok()) return workspace.status();
    args.workspace = workspace->data();
    args.workspace_bytes = *bytes;
    const Status status = prefill(problem, args, options);
    const Status finished = synchronize(device);  // before the workspace goes
    return status.ok() ? finished : status;
  });
}

Status staged_merge_states(const MergeArgs& host_args, const ExecutionOptions& options) {
  if (options.device.kind != DeviceKind::kCuda) return merge_states(host_args, options);
  MergeArgs args = host_args;
  Stage stage(options.device.index);
  const auto visit_all = [&](const auto& visit) {
    visit(args.prefix_out);
    visit(args.prefix_lse);
    visit(args.suffix_out);
    visit(args.suffix_lse);
    visit(args.out);
    visit(args.lse);
    visit(args.output_scale);
  };
  visit_all([&](auto& view) { stage.add(view); });
  return run_staged(stage, options.device.index, [&] {
    visit_all([&](auto& view) { stage.move(view); });
    return merge_states(args, options);
  });
}

Status staged_prefill_layer(const PrefillProblem& problem, const PrefillArgs& host_args,
                            const ContextPlan& plan, const ContextSource& host_source,
                            const ExecutionOptions& options) {
  if (options.device.kind != DeviceKind::kCuda) {
    return prefill_layer(problem, host_args, plan, host_source, options);
  }
  const int32_t device = options.device.index;
  PrefillArgs args = host_args;
  Stage stage(device);
  visit_tensors(args, [&](auto& view) { stage.add(view); });
  // The keys and values of one chunk at a time: the last chunk's are gone when the next come.
  std::unique_ptr<Stage> chunk_stage;
  const ContextSource source = [&](const ContextChunk& chunk,
                                   StreamHandle stream) -> StatusOr<KeyValueViews> {
    StatusOr<KeyValueViews> views = host_source(chunk, stream);
    if (!views.ok()) return views;
    if (Status status = synchronize(device, stream); !status.ok()) return status;
    chunk_stage = std::make_unique<Stage>(device);
    // Every other chunk brings its lengths along; those of the rest come from the plan.
    const std::vector<int32_t> lengths = lengths_of(chunk, plan.context_lens.size());
    if (chunk.index % 2 == 1) {
      views->cu_seqlens_k = TensorView::contiguous(lengths.data(), Dtype::kInt32,
                                                   {static_cast<int64_t>(lengths.size())});
    }
    for (TensorView* view :
         {&views->k, &views->k_nope, &views->k_pe, &views->v, &views->cu_seqlens_k}) {
      chunk_stage->add(*view);
    }
    if (Status status = chunk_stage->copy_in(); !status.ok()) return status;
    for (TensorView* view :
         {&views->k, &views->k_nope, &views->k_pe, &views->v, &views->cu_seqlens_k}) {
      chunk_stage->move(*view);
    }
    return views;
  };
  return run_staged(stage, device, [&]() -> Status {
    visit_tensors(args, [&](auto& view) { stage.move(view); });
    args.workspace = nullptr;
    args.workspace_bytes = 0;
    const StatusOr<int64_t> bytes = prefill_layer_workspace_bytes(problem, args, plan, options);
    if (!bytes.ok()) return bytes.status();
    const StatusOr<DeviceBuffer> workspace = make_workspace(device, *bytes);
    if (!workspace.ok()) return workspace.status();
    args.workspace = workspace->data();
    args.workspace_bytes = *bytes;
    const Status status = prefill_layer(problem, args, plan, source, options);
    const Status finished = synchronize(device);  // before workspace and chunk go
    return status.ok() ? finished : status;
  });
}

ExecutionOptions execution_under_test() {
  ExecutionOptions execution;
  execution.device.kind = DeviceKind::kCpu;
  const char* name = std::getenv("FLASHPRIME_TEST_KERNEL");
  if (name == nullptr) return execution;
  execution.kernel = name;
  for (const KernelInfo& info : list_kernels()) {
    if (info.name == name) execution.device.kind = info.device;
  }
  execution.checked = true;
  return execution;
}

}  // namespace flashprime::cases
