// SPDX-License-Identifier: Apache-2.0
// A layer whose lengths stay on the device. The plan says on the host what the chunks hold, but not
// how many new tokens each request has; so all tokens take part in every call, and a request that a
// chunk has no keys of gets an empty partial state there, which merges to nothing.
//
//   new tokens          -> fp32 state
//   each chunk          -> fp32 partial state, merged into the state in place
//   the last chunk      -> merged into the output, which is where rounding (or e4m3) happens
#include <algorithm>
#include <vector>

#include "checks.h"
#include "flashprime/merge.h"
#include "launch/launch.h"
#include "layer/layer_parts.h"
#include "select/select_kernel.h"

namespace flashprime {
namespace {

struct Regions {
  int64_t state_out = 0;
  int64_t state_lse = 0;
  int64_t partial_out = 0;
  int64_t partial_lse = 0;
  int64_t cu_seqlens_k = 0;
  int64_t call = 0;  // the workspace of one prefill() after the other
  int64_t call_bytes = 0;
  int64_t total = 0;
};

int64_t batch_of(const PrefillArgs& args) {
  return args.cu_seqlens_q.shape[0] - 1;
}

StatusOr<Regions> lay_out(const GpuDevice& gpu, const PrefillProblem& problem,
                          const PrefillArgs& args, const ContextPlan& plan,
                          const ExecutionOptions& options) {
  Regions regions;
  const auto add_call = [&](const PrefillProblem& part, int64_t total_k) -> Status {
    const StatusOr<const KernelRow*> kernel = select_kernel(part, options, &gpu);
    FLASHPRIME_RETURN_IF_ERROR(kernel.status());
    PrefillArgs part_args = args;
    part_args.v.shape[0] = total_k;
    const StatusOr<int64_t> bytes =
        (*kernel)->workspace_bytes({part, part_args, options, &gpu, nullptr});
    FLASHPRIME_RETURN_IF_ERROR(bytes.status());
    regions.call_bytes = std::max(regions.call_bytes, *bytes);
    return ok_status();
  };
  FLASHPRIME_RETURN_IF_ERROR(add_call(new_tokens_problem(problem), args.v.shape[0]));
  for (const ContextChunk& chunk : plan.chunks) {
    FLASHPRIME_RETURN_IF_ERROR(add_call(context_problem(problem), chunk.num_tokens()));
  }
  // Where the caller's own tensors are fp32 they are the state.
  const int64_t tokens = args.out.shape[0];
  const int64_t row_bytes = int64_t{problem.num_heads} * 4;
  WorkspaceLayout layout;
  regions.state_out =
      layout.add(problem.out_dtype == Dtype::kFp32 ? 0 : tokens, row_bytes * problem.dims.v);
  regions.state_lse = layout.add(problem.return_lse ? 0 : tokens, row_bytes);
  regions.partial_out = layout.add(tokens, row_bytes * problem.dims.v);
  regions.partial_lse = layout.add(tokens, row_bytes);
  regions.cu_seqlens_k = layout.add(batch_of(args) + 1, 4);
  regions.call = layout.add(regions.call_bytes, 1);
  const StatusOr<int64_t> total = layout.total();
  FLASHPRIME_RETURN_IF_ERROR(total.status());
  regions.total = *total;
  return regions;
}

class GpuLayer {
 public:
  GpuLayer(const GpuDevice& gpu, const PrefillProblem& problem, const PrefillArgs& args,
           const Regions& regions, const ExecutionOptions& options, StreamHandle stream)
      : gpu_(gpu),
        problem_(problem),
        args_(args),
        regions_(regions),
        options_(options),
        stream_(stream) {
    options_.device = {DeviceKind::kCuda, gpu.properties.id};
  }

  Status attend_new_tokens() const {
    PrefillArgs args = args_;
    args.out = state_out();
    args.lse = state_lse();
    args.output_scale = {};
    use_call_workspace(args);
    return prefill(new_tokens_problem(problem_), args, options_, stream_);
  }

  Status add_chunk(const ContextChunk& chunk, const KeyValueViews& views, bool last) const {
    FLASHPRIME_RETURN_IF_ERROR(check_chunk_views(problem_, args_, regions_.total, chunk, views));
    PrefillArgs args = args_;
    args.k = views.k;
    args.k_nope = views.k_nope;
    args.k_pe = views.k_pe;
    args.v = views.v;
    args.cu_seqlens_k = views.cu_seqlens_k;
    if (!args.cu_seqlens_k.present()) {
      FLASHPRIME_RETURN_IF_ERROR(upload_cu_seqlens_k(chunk));
      args.cu_seqlens_k =
          TensorView::contiguous(at(regions_.cu_seqlens_k), Dtype::kInt32, {batch_of(args_) + 1});
    }
    args.max_seqlen_k = chunk.max_seqlen_k;
    args.output_scale = {};
    args.out = rows_at(regions_.partial_out);
    args.lse = lse_at(regions_.partial_lse);
    use_call_workspace(args);
    FLASHPRIME_RETURN_IF_ERROR(prefill(context_problem(problem_), args, options_, stream_));

    MergeArgs merge;
    merge.prefix_out = as_const(state_out());
    merge.prefix_lse = as_const(state_lse());
    merge.suffix_out = as_const(args.out);
    merge.suffix_lse = as_const(args.lse);
    merge.out = last ? args_.out : state_out();
    merge.lse = last ? args_.lse : state_lse();
    if (last) merge.output_scale = args_.output_scale;
    merge.lse_layout = problem_.lse_layout;
    return merge_states(merge, options_, stream_);
  }

 private:
  void* at(int64_t offset) const { return static_cast<char*>(args_.workspace) + offset; }

  void use_call_workspace(PrefillArgs& args) const {
    args.workspace = at(regions_.call);
    args.workspace_bytes = regions_.call_bytes;
  }

  // The keys that the chunk holds of every request of the call. Only the device has the offsets of
  // the queries, so the whole batch runs and this one has to be as long.
  Status upload_cu_seqlens_k(const ContextChunk& chunk) const {
    const cuda::Driver& driver = *gpu_.driver;
    const LaunchScope scope(gpu_, stream_);
    FLASHPRIME_RETURN_IF_ERROR(scope.status());
    const StatusOr<bool> capturing = cuda::is_capturing(driver, stream_);
    FLASHPRIME_RETURN_IF_ERROR(capturing.status());
    FLASHPRIME_REQUIRE(
        !*capturing, StatusCode::kStream,
        "cu_seqlens_k: absent while the stream records a graph, wanted on the "
        "device from the context source: a copy from the plan would not be repeated");
    std::vector<int32_t> cu(static_cast<size_t>(batch_of(args_) + 1), 0);
    for (size_t request = 0; request < cu.size(); ++request) {
      const auto begin = static_cast<size_t>(chunk.request_begin);
      if (request <= begin) continue;
      cu[request] = chunk.cu_seqlens_k[std::min(request - begin, chunk.cu_seqlens_k.size() - 1)];
    }
    // From pageable memory: the driver has its own copy when the call returns.
    return driver.check(driver.api().cuMemcpyHtoDAsync_v2(
                            reinterpret_cast<cuda::DevicePointer>(at(regions_.cu_seqlens_k)),
                            cu.data(), cu.size() * sizeof(int32_t), stream_),
                        "cuMemcpyHtoDAsync");
  }

  MutableTensorView state_out() const {
    return problem_.out_dtype == Dtype::kFp32 ? args_.out : rows_at(regions_.state_out);
  }
  MutableTensorView state_lse() const {
    return problem_.return_lse ? args_.lse : lse_at(regions_.state_lse);
  }
  MutableTensorView rows_at(int64_t offset) const {
    return MutableTensorView::contiguous(at(offset), Dtype::kFp32,
                                         {args_.out.shape[0], problem_.num_heads, problem_.dims.v});
  }
  MutableTensorView lse_at(int64_t offset) const {
    const int64_t tokens = args_.out.shape[0];
    const int64_t heads = problem_.num_heads;
    return problem_.lse_layout == LseLayout::kHeadsTokens
               ? MutableTensorView::contiguous(at(offset), Dtype::kFp32, {heads, tokens})
               : MutableTensorView::contiguous(at(offset), Dtype::kFp32, {tokens, heads});
  }

  const GpuDevice& gpu_;
  const PrefillProblem& problem_;
  const PrefillArgs& args_;
  const Regions& regions_;
  ExecutionOptions options_;
  const StreamHandle stream_;
};

}  // namespace

StatusOr<int64_t> gpu_layer_workspace_bytes(const GpuDevice& gpu, const PrefillProblem& problem,
                                            const PrefillArgs& args, const ContextPlan& plan,
                                            const ExecutionOptions& options) {
  const StatusOr<Regions> regions = lay_out(gpu, problem, args, plan, options);
  if (!regions.ok()) return regions.status();
  return regions->total;
}

Status run_layer_on_gpu(const GpuDevice& gpu, const PrefillProblem& problem,
                        const PrefillArgs& args, const ContextPlan& plan,
                        const ContextSource& source, const ExecutionOptions& options,
                        StreamHandle stream) {
  const StatusOr<Regions> regions = lay_out(gpu, problem, args, plan, options);
  FLASHPRIME_RETURN_IF_ERROR(regions.status());
  FLASHPRIME_RETURN_IF_ERROR(check_layer_workspace(args, regions->total));
  const GpuLayer layer(gpu, problem, args, *regions, options, stream);
  FLASHPRIME_RETURN_IF_ERROR(layer.attend_new_tokens());
  for (const ContextChunk& chunk : plan.chunks) {
    const StatusOr<KeyValueViews> views = source(chunk, stream);
    FLASHPRIME_RETURN_IF_ERROR(views.status());
    const bool last = &chunk == &plan.chunks.back();
    if (Status status = layer.add_chunk(chunk, *views, last); !status.ok()) {
      return Status(status.code(), concat("context chunk ", chunk.index, ": ", status.message()));
    }
  }
  return ok_status();
}

}  // namespace flashprime
