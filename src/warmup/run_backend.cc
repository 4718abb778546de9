// SPDX-License-Identifier: Apache-2.0
// An engine's calls as calls of prefill().
#include <utility>

#include "checks.h"
#include "flashprime/backend.h"
#include "flashprime/prefill_backend.h"

namespace flashprime {
namespace {

PrefillArgs to_args(const PrefillChunkMetadata& chunk, const PrefillBackendArgs& given,
                    float softmax_scale) {
  PrefillArgs args;
  args.q = given.q;
  args.k = given.k;
  args.v = given.v;
  args.cu_seqlens_q = chunk.cu_seqlens_q;
  args.cu_seqlens_k = chunk.cu_seqlens_k;
  args.max_seqlen_q = chunk.max_seqlen_q;
  args.max_seqlen_k = chunk.max_seqlen_k;
  args.softmax_scale = softmax_scale;
  args.out = given.out;
  args.lse = given.lse;
  args.output_scale = given.output_scale;
  args.workspace = given.workspace;
  args.workspace_bytes = given.workspace_bytes;
  return args;
}

}  // namespace

StatusOr<PrefillBackend> PrefillBackend::create(const PrefillBackendOptions& options) {
  return without_exceptions([&]() -> StatusOr<PrefillBackend> {
    PrefillBackend backend(options);
    PrefillBackendArgs args;
    args.out.dtype = options.dtype;
    const Explanation answer = explain(backend.problem(args, MaskKind::kCausal), options.execution);
    std::string reasons;
    for (const KernelVerdict& verdict : answer.verdicts) {
      for (const std::string& reason : verdict.reasons) {
        reasons += concat("\n  ", verdict.kernel, ": ", reason);
      }
    }
    FLASHPRIME_REQUIRE(answer.supported, StatusCode::kUnsupported,
                       "FLASHPRIME: no kernel runs this layer:", reasons);
    return backend;
  });
}

PrefillProblem PrefillBackend::problem(const PrefillBackendArgs& args, MaskKind mask) const {
  PrefillProblem problem;
  problem.dims = options_.dims;
  problem.num_heads = options_.num_heads;
  problem.dtype = options_.dtype;
  problem.out_dtype = args.out.dtype;
  problem.mask = Mask{mask, -1, -1};
  problem.return_lse = args.lse.present();
  problem.lse_layout = options_.lse_layout;
  problem.batch_invariant = options_.batch_invariant;
  problem.num_splits = options_.batch_invariant ? 1 : 0;
  return problem;
}

Status PrefillBackend::run(const PrefillChunkMetadata& chunk, const PrefillBackendArgs& args,
                           MaskKind mask, StreamHandle stream) const {
  return prefill(problem(args, mask), to_args(chunk, args, options_.softmax_scale),
                 options_.execution, stream);
}

Status PrefillBackend::run_prefill_new_tokens(const PrefillBackendArgs& args,
                                              StreamHandle stream) const {
  const PrefillChunkMetadata tokens{batch_.cu_seqlens_q, batch_.cu_seqlens_q, batch_.max_seqlen_q,
                                    batch_.max_seqlen_q};
  return run(tokens, args, MaskKind::kCausal, stream);
}

Status PrefillBackend::run_prefill_context_chunk(int64_t chunk, const PrefillBackendArgs& args,
                                                 StreamHandle stream) const {
  const auto count = static_cast<int64_t>(batch_.chunks.size());
  FLASHPRIME_REQUIRE(chunk >= 0 && chunk < count, StatusCode::kRange, "chunk: got ", chunk,
                     ", wanted 0 to ", count - 1, ", the chunks that prepare() was given");
  PrefillChunkMetadata metadata = batch_.chunks[static_cast<size_t>(chunk)];
  metadata.cu_seqlens_q = batch_.cu_seqlens_q;
  metadata.max_seqlen_q = batch_.max_seqlen_q;
  return run_prefill_context_chunk(metadata, args, stream);
}

Status PrefillBackend::run_prefill_context_chunk(const PrefillChunkMetadata& chunk,
                                                 const PrefillBackendArgs& args,
                                                 StreamHandle stream) const {
  FLASHPRIME_REQUIRE(args.lse.present(), StatusCode::kShape,
                     "lse: absent, wanted with a context chunk, whose result is merged");
  FLASHPRIME_REQUIRE(args.out.dtype != Dtype::kE4m3, StatusCode::kDtype,
                     "out: got e4m3 with a context chunk, wanted what can be merged");
  return run(chunk, args, MaskKind::kFull, stream);
}

StatusOr<int64_t> PrefillBackend::workspace_bytes(const PrefillChunkMetadata& chunk,
                                                  const PrefillBackendArgs& args,
                                                  MaskKind mask) const {
  return prefill_workspace_bytes(problem(args, mask), to_args(chunk, args, options_.softmax_scale),
                                 options_.execution);
}

MlaWarmupConfig PrefillBackend::warmup_config(ComputeCapability capability,
                                              int32_t fa_version) const {
  return {.dims = options_.dims,
          .num_heads = options_.num_heads,
          .dtype = options_.dtype,
          .capability = capability,
          .fa_version = fa_version,
          .batch_invariant = options_.batch_invariant};
}

PlanOptions PrefillBackend::plan_options(std::vector<std::string> archs) const {
  return {.dims = options_.dims, .dtype = options_.dtype, .archs = std::move(archs)};
}

}  // namespace flashprime
