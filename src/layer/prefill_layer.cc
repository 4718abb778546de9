// SPDX-License-Identifier: Apache-2.0
// New tokens, every context chunk and the merges as one call; on a GPU see layer_on_gpu.cc.
//
// On a CPU the batch falls into runs: maximal ranges of requests that all have context, or all have
// none. A run without context is a plain prefill() into the caller's output. A run with context has
// an fp32 state (out, lse) that starts as the new tokens' attention; each chunk's attention goes to
// an fp32 partial that is merged into the state in place; the state is cast to the output at the
// end. So the workspace holds one state of the tokens with context and one partial of the most
// tokens that a chunk touches at once; where the caller's own tensors are fp32 (an fp32 output, the
// LSE) they are the state.
#include "flashprime/prefill_layer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "checks.h"
#include "flashprime/merge.h"
#include "launch/place_call.h"
#include "layer/layer_parts.h"
#include "layer/view_slices.h"
#include "plan/plan_parts.h"
#include "problem/tensor_checks.h"
#include "problem/validate_problem.h"
#include "select/select_kernel.h"

namespace flashprime {
namespace {

// Requests [request_begin, request_end), which all have context or all have none.
struct Run {
  int64_t request_begin = 0;
  int64_t request_end = 0;
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  bool has_context = false;
  int64_t state_begin = 0;  // first row of its state, counting runs with context only
};

// Bytes of the workspace, one region after another, each a multiple of its alignment.
struct Regions {
  int64_t state_tokens = 0;
  int64_t partial_tokens = 0;
  int64_t state_out = 0;
  int64_t state_lse = 0;
  int64_t partial_out = 0;
  int64_t partial_lse = 0;
  int64_t total = 0;
};

const int32_t* cu_data(const TensorView& view) {
  return static_cast<const int32_t*>(view.data);
}

std::vector<int32_t> rebased(const int32_t* cu_seqlens, int64_t begin, int64_t end) {
  std::vector<int32_t> result;
  result.reserve(static_cast<size_t>(end - begin + 1));
  for (int64_t i = begin; i <= end; ++i) result.push_back(cu_seqlens[i] - cu_seqlens[begin]);
  return result;
}

TensorView cu_view(const std::vector<int32_t>& cu_seqlens) {
  return TensorView::contiguous(cu_seqlens.data(), Dtype::kInt32,
                                {static_cast<int64_t>(cu_seqlens.size())});
}

std::vector<Run> split_runs(const PrefillArgs& args, const ContextPlan& plan) {
  const int32_t* cu_q = cu_data(args.cu_seqlens_q);
  const auto batch = static_cast<int64_t>(plan.context_lens.size());
  std::vector<Run> runs;
  int64_t state_tokens = 0;
  for (int64_t begin = 0, end = 0; begin < batch; begin = end) {
    const auto has_context = [&](int64_t r) { return plan.context_lens[r] > 0; };
    while (end < batch && has_context(end) == has_context(begin)) ++end;
    Run run{begin, end, cu_q[begin], cu_q[end] - cu_q[begin], has_context(begin), state_tokens};
    if (run.has_context) state_tokens += run.num_tokens;
    runs.push_back(run);
  }
  return runs;
}

// The requests of a run that a chunk has keys of, as far as they make one range: requests at either
// end that the chunk gives nothing are left out, those between have empty partials. begin >= end
// when there are none.
struct Segment {
  int64_t begin;
  int64_t end;
};

Segment segment_of(const ContextChunk& chunk, const Run& run) {
  const auto is_empty = [&](int64_t request) {
    return chunk.slices[static_cast<size_t>(request - chunk.request_begin)].length == 0;
  };
  Segment segment{std::max<int64_t>(run.request_begin, chunk.request_begin),
                  std::min<int64_t>(run.request_end, chunk.request_end)};
  while (segment.begin < segment.end && is_empty(segment.begin)) ++segment.begin;
  while (segment.begin < segment.end && is_empty(segment.end - 1)) --segment.end;
  return segment;
}

StatusOr<Regions> lay_out(const PrefillProblem& problem, const PrefillArgs& args,
                          const ContextPlan& plan, const std::vector<Run>& runs) {
  Regions regions;
  const int32_t* cu_q = cu_data(args.cu_seqlens_q);
  for (const Run& run : runs) {
    if (!run.has_context) continue;
    regions.state_tokens += run.num_tokens;
    for (const ContextChunk& chunk : plan.chunks) {
      const auto [begin, end] = segment_of(chunk, run);
      if (begin >= end) continue;
      regions.partial_tokens = std::max<int64_t>(regions.partial_tokens, cu_q[end] - cu_q[begin]);
    }
  }
  const int64_t row_bytes = int64_t{problem.num_heads} * 4;
  WorkspaceLayout layout;
  regions.state_out = layout.add(problem.out_dtype == Dtype::kFp32 ? 0 : regions.state_tokens,
                                 row_bytes * problem.dims.v);
  regions.state_lse = layout.add(problem.return_lse ? 0 : regions.state_tokens, row_bytes);
  regions.partial_out = layout.add(regions.partial_tokens, row_bytes * problem.dims.v);
  regions.partial_lse = layout.add(regions.partial_tokens, row_bytes);
  const StatusOr<int64_t> total = layout.total();
  FLASHPRIME_RETURN_IF_ERROR(total.status());
  regions.total = *total;
  return regions;
}

// A call whose arguments, plan and kernels have been accepted.
struct Prepared {
  const GpuDevice* gpu = nullptr;
  // On a CPU:
  std::vector<Run> runs;
  Regions regions;
};

StatusOr<Prepared> prepare(const PrefillProblem& problem, const PrefillArgs& args,
                           const ContextPlan& plan, const ExecutionOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(validate_views(problem, args));
  const StatusOr<const GpuDevice*> gpu = place_call(options.device, tensors_of(args));
  FLASHPRIME_RETURN_IF_ERROR(gpu.status());
  Prepared prepared;
  prepared.gpu = *gpu;
  if (*gpu == nullptr) FLASHPRIME_RETURN_IF_ERROR(validate_values(problem, args));
  FLASHPRIME_RETURN_IF_ERROR(select_kernel(problem, options, *gpu).status());
  if (plan.chunks.empty() && plan.context_lens.empty()) return prepared;
  FLASHPRIME_RETURN_IF_ERROR(plan::check_plan(plan, args.cu_seqlens_q.shape[0] - 1));
  if (plan.chunks.empty()) return prepared;

  FLASHPRIME_REQUIRE(problem.out_dtype != Dtype::kFp64, StatusCode::kUnsupported,
                     "out_dtype: got fp64 with ", plan.chunks.size(),
                     " context chunks, whose partial states are fp32; wanted fp32 or less, or one "
                     "prefill() over context and new tokens");
  FLASHPRIME_RETURN_IF_ERROR(select_kernel(new_tokens_problem(problem), options, *gpu).status());
  FLASHPRIME_RETURN_IF_ERROR(select_kernel(context_problem(problem), options, *gpu).status());
  if (*gpu != nullptr) return prepared;
  FLASHPRIME_RETURN_IF_ERROR(select_parallel_for(options).status());
  prepared.runs = split_runs(args, plan);
  StatusOr<Regions> regions = lay_out(problem, args, plan, prepared.runs);
  FLASHPRIME_RETURN_IF_ERROR(regions.status());
  prepared.regions = *regions;
  return prepared;
}

class LayerCall {
 public:
  LayerCall(const PrefillProblem& problem, const PrefillArgs& args, const Prepared& prepared,
            const ExecutionOptions& options, StreamHandle stream)
      : problem_(problem),
        args_(args),
        runs_(prepared.runs),
        regions_(prepared.regions),
        options_(options),
        stream_(stream) {}

  Status attend_new_tokens() const {
    for (const Run& run : runs_) {
      if (run.num_tokens == 0) continue;
      const std::vector<int32_t> cu_q =
          rebased(cu_data(args_.cu_seqlens_q), run.request_begin, run.request_end);
      const std::vector<int32_t> cu_k =
          rebased(cu_data(args_.cu_seqlens_k), run.request_begin, run.request_end);
      PrefillArgs args = args_;
      args.workspace = nullptr;  // the states are in it
      args.workspace_bytes = 0;
      take_queries(run.token_begin, run.num_tokens, &args);
      take_keys({args_.k, args_.k_nope, args_.k_pe, args_.v},
                cu_data(args_.cu_seqlens_k)[run.request_begin], cu_k.back(), &args);
      args.cu_seqlens_q = cu_view(cu_q);
      args.cu_seqlens_k = cu_view(cu_k);
      if (run.has_context) {
        args.out = state_out(run);
        args.lse = state_lse(run);
        args.output_scale = {};
      } else {
        args.out = slice_rows(args_.out, run.token_begin, run.num_tokens);
        args.lse = slice_lse(args_.lse, problem_.lse_layout, run.token_begin, run.num_tokens);
      }
      FLASHPRIME_RETURN_IF_ERROR(prefill(run.has_context ? new_tokens_problem(problem_) : problem_,
                                         args, options_, stream_));
    }
    return ok_status();
  }

  Status add_chunk(const ContextChunk& chunk, const KeyValueViews& views) const {
    FLASHPRIME_REQUIRE(!views.cu_seqlens_k.present(), StatusCode::kCuSeqlens,
                       "cu_seqlens_k: got a tensor from the context source, wanted none on the "
                       "CPU: the plan says how long the slices are");
    FLASHPRIME_RETURN_IF_ERROR(check_chunk_views(problem_, args_, regions_.total, chunk, views));
    for (const Run& run : runs_) {
      if (!run.has_context) continue;
      FLASHPRIME_RETURN_IF_ERROR(add_chunk_to_run(chunk, views, run));
    }
    return ok_status();
  }

  // The states as the caller wants them.
  Status write_out() const {
    if (problem_.out_dtype == Dtype::kFp32) return ok_status();
    for (const Run& run : runs_) {
      if (!run.has_context || run.num_tokens == 0) continue;
      MergeArgs cast;  // no token has a prefix: a merge that copies
      cast.suffix_out = cast.prefix_out = as_const(state_out(run));
      cast.suffix_lse = cast.prefix_lse = as_const(state_lse(run));
      cast.out = slice_rows(args_.out, run.token_begin, run.num_tokens);
      cast.output_scale = args_.output_scale;
      cast.lse_layout = problem_.lse_layout;
      cast.tokens_with_prefix = 0;
      FLASHPRIME_RETURN_IF_ERROR(merge_states(cast, options_, stream_));
    }
    return ok_status();
  }

 private:
  void take_queries(int64_t token_begin, int64_t num_tokens, PrefillArgs* args) const {
    args->q = slice_rows(args_.q, token_begin, num_tokens);
    args->q_nope = slice_rows(args_.q_nope, token_begin, num_tokens);
    args->q_pe = slice_rows(args_.q_pe, token_begin, num_tokens);
  }

  static void take_keys(const KeyValueViews& views, int64_t row_begin, int64_t num_rows,
                        PrefillArgs* args) {
    args->k = slice_rows(views.k, row_begin, num_rows);
    args->k_nope = slice_rows(views.k_nope, row_begin, num_rows);
    args->k_pe = slice_rows(views.k_pe, row_begin, num_rows);
    args->v = slice_rows(views.v, row_begin, num_rows);
  }

  // Merges into the run's state the attention over what the chunk holds of its requests.
  Status add_chunk_to_run(const ContextChunk& chunk, const KeyValueViews& views,
                          const Run& run) const {
    const auto [begin, end] = segment_of(chunk, run);
    if (begin >= end) return ok_status();

    const int32_t* new_cu_q = cu_data(args_.cu_seqlens_q);
    const std::vector<int32_t> cu_q = rebased(new_cu_q, begin, end);
    const std::vector<int32_t> cu_k =
        rebased(chunk.cu_seqlens_k.data(), begin - chunk.request_begin, end - chunk.request_begin);
    const int64_t token_begin = new_cu_q[begin];
    const int64_t num_tokens = cu_q.back();
    if (num_tokens == 0) return ok_status();

    PrefillArgs args;
    take_queries(token_begin, num_tokens, &args);
    take_keys(views, chunk.cu_seqlens_k[static_cast<size_t>(begin - chunk.request_begin)],
              cu_k.back(), &args);
    args.cu_seqlens_q = cu_view(cu_q);
    args.cu_seqlens_k = cu_view(cu_k);
    args.max_seqlen_q = args_.max_seqlen_q;
    args.max_seqlen_k = chunk.max_seqlen_k;
    args.softmax_scale = args_.softmax_scale;
    args.out = rows_at(regions_.partial_out, num_tokens);
    args.lse = lse_at(regions_.partial_lse, num_tokens);
    FLASHPRIME_RETURN_IF_ERROR(prefill(context_problem(problem_), args, options_, stream_));

    MergeArgs merge;
    merge.out = slice_rows(state_out(run), token_begin - run.token_begin, num_tokens);
    merge.lse =
        slice_lse(state_lse(run), problem_.lse_layout, token_begin - run.token_begin, num_tokens);
    merge.prefix_out = as_const(merge.out);
    merge.prefix_lse = as_const(merge.lse);
    merge.suffix_out = as_const(args.out);
    merge.suffix_lse = as_const(args.lse);
    merge.lse_layout = problem_.lse_layout;
    return merge_states(merge, options_, stream_);
  }

  MutableTensorView state_out(const Run& run) const {
    if (problem_.out_dtype == Dtype::kFp32) {
      return slice_rows(args_.out, run.token_begin, run.num_tokens);
    }
    return slice_rows(rows_at(regions_.state_out, regions_.state_tokens), run.state_begin,
                      run.num_tokens);
  }

  MutableTensorView state_lse(const Run& run) const {
    if (problem_.return_lse) {
      return slice_lse(args_.lse, problem_.lse_layout, run.token_begin, run.num_tokens);
    }
    return slice_lse(lse_at(regions_.state_lse, regions_.state_tokens), problem_.lse_layout,
                     run.state_begin, run.num_tokens);
  }

  MutableTensorView rows_at(int64_t offset, int64_t tokens) const {
    return MutableTensorView::contiguous(static_cast<char*>(args_.workspace) + offset, Dtype::kFp32,
                                         {tokens, problem_.num_heads, problem_.dims.v});
  }

  MutableTensorView lse_at(int64_t offset, int64_t tokens) const {
    void* data = static_cast<char*>(args_.workspace) + offset;
    const int64_t heads = problem_.num_heads;
    return problem_.lse_layout == LseLayout::kHeadsTokens
               ? MutableTensorView::contiguous(data, Dtype::kFp32, {heads, tokens})
               : MutableTensorView::contiguous(data, Dtype::kFp32, {tokens, heads});
  }

  const PrefillProblem& problem_;
  const PrefillArgs& args_;
  const std::vector<Run>& runs_;
  const Regions& regions_;
  const ExecutionOptions& options_;
  const StreamHandle stream_;
};

Status run_prefill_layer(const PrefillProblem& problem, const PrefillArgs& args,
                         const ContextPlan& plan, const ContextSource& source,
                         const ExecutionOptions& options, StreamHandle stream) {
  const StatusOr<Prepared> prepared = prepare(problem, args, plan, options);
  FLASHPRIME_RETURN_IF_ERROR(prepared.status());
  if (plan.chunks.empty()) return prefill(problem, args, options, stream);
  FLASHPRIME_REQUIRE(source, StatusCode::kNull, "source: got an empty function for ",
                     plan.chunks.size(), " context chunks");
  if (prepared->gpu != nullptr) {
    return run_layer_on_gpu(*prepared->gpu, problem, args, plan, source, options, stream);
  }
  FLASHPRIME_RETURN_IF_ERROR(check_layer_workspace(args, prepared->regions.total));

  const LayerCall call(problem, args, *prepared, options, stream);
  FLASHPRIME_RETURN_IF_ERROR(call.attend_new_tokens());
  for (const ContextChunk& chunk : plan.chunks) {
    const StatusOr<KeyValueViews> views = source(chunk, stream);
    FLASHPRIME_RETURN_IF_ERROR(views.status());
    if (Status status = call.add_chunk(chunk, *views); !status.ok()) {
      return Status(status.code(), concat("context chunk ", chunk.index, ": ", status.message()));
    }
  }
  return call.write_out();
}

}  // namespace

ContextSource context_from_views(std::vector<KeyValueViews> views) {
  return [views = std::move(views)](const ContextChunk& chunk,
                                    StreamHandle) -> StatusOr<KeyValueViews> {
    FLASHPRIME_REQUIRE(chunk.index >= 0 && static_cast<size_t>(chunk.index) < views.size(),
                       StatusCode::kPlan, "views: got ", views.size(),
                       ", wanted one per chunk of the plan, which has a chunk ", chunk.index);
    return views[static_cast<size_t>(chunk.index)];
  };
}

Status prefill_layer(const PrefillProblem& problem, const PrefillArgs& args,
                     const ContextPlan& plan, const ContextSource& source,
                     const ExecutionOptions& options, StreamHandle stream) {
  return without_exceptions(
      [&] { return run_prefill_layer(problem, args, plan, source, options, stream); });
}

StatusOr<int64_t> prefill_layer_workspace_bytes(const PrefillProblem& problem,
                                                const PrefillArgs& args, const ContextPlan& plan,
                                                const ExecutionOptions& options) {
  return without_exceptions([&]() -> StatusOr<int64_t> {
    const StatusOr<Prepared> prepared = prepare(problem, args, plan, options);
    FLASHPRIME_RETURN_IF_ERROR(prepared.status());
    if (plan.chunks.empty()) return prefill_workspace_bytes(problem, args, options);
    if (prepared->gpu != nullptr) {
      return gpu_layer_workspace_bytes(*prepared->gpu, problem, args, plan, options);
    }
    return prepared->regions.total;
  });
}

}  // namespace flashprime
