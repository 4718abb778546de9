// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_parts.h"

#include "checks.h"
#include "numerics/checked.h"
#include "problem/validate_problem.h"

namespace flashprime {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;

}  // namespace

PrefillProblem new_tokens_problem(const PrefillProblem& problem) {
  PrefillProblem result = problem;
  result.out_dtype = Dtype::kFp32;
  result.return_lse = true;
  return result;
}

PrefillProblem context_problem(const PrefillProblem& problem) {
  PrefillProblem result = new_tokens_problem(problem);
  result.mask = Mask{MaskKind::kFull, -1, -1};
  result.self_attention = false;
  return result;
}

int64_t WorkspaceLayout::add(int64_t rows, int64_t row_bytes) {
  const int64_t offset = total_;
  int64_t bytes = 0;
  if (!checked_mul(rows, row_bytes, &bytes) ||
      !checked_add(bytes, kWorkspaceAlignment - 1, &bytes) ||
      !checked_add(total_, bytes - bytes % kWorkspaceAlignment, &total_)) {
    overflown_ = true;
  }
  return offset;
}

StatusOr<int64_t> WorkspaceLayout::total() const {
  FLASHPRIME_REQUIRE(!overflown_, StatusCode::kRange,
                     "workspace: the fp32 states of the tokens with context overflow 64 bits");
  return total_;
}

Status check_layer_workspace(const PrefillArgs& args, int64_t needed) {
  if (needed == 0) return ok_status();
  FLASHPRIME_REQUIRE(args.workspace != nullptr, StatusCode::kWorkspace,
                     "workspace: got a null pointer, wanted ", needed,
                     " bytes, what prefill_layer_workspace_bytes returns");
  FLASHPRIME_REQUIRE(args.workspace_bytes >= needed, StatusCode::kWorkspace,
                     "workspace_bytes: got ", args.workspace_bytes, ", wanted at least ", needed,
                     ", what prefill_layer_workspace_bytes returns");
  FLASHPRIME_REQUIRE(reinterpret_cast<uintptr_t>(args.workspace) % kWorkspaceAlignment == 0,
                     StatusCode::kWorkspace, "workspace: got a pointer that is not a multiple of ",
                     kWorkspaceAlignment, " bytes");
  const TensorView workspace = TensorView::contiguous(args.workspace, Dtype::kE4m3, {needed});
  FLASHPRIME_RETURN_IF_ERROR(check_memory(workspace, {"workspace", Dtype::kE4m3}));
  const auto tensors = tensors_of(args);
  return check_no_overlap({"workspace", workspace}, std::span(tensors).first(kNumTensors));
}

Status check_chunk_views(const PrefillProblem& problem, const PrefillArgs& args,
                         int64_t workspace_bytes, const ContextChunk& chunk,
                         const KeyValueViews& views) {
  TensorView workspace;
  if (workspace_bytes > 0) {
    workspace = TensorView::contiguous(args.workspace, Dtype::kE4m3, {workspace_bytes});
  }
  const auto check_apart = [&](const NamedTensor& input) {
    return check_no_overlap(
        input,
        {{"out", as_const(args.out)}, {"lse", as_const(args.lse)}, {"workspace", workspace}});
  };
  for (const NamedTensor& key : {NamedTensor{"k", views.k}, NamedTensor{"k_nope", views.k_nope},
                                 NamedTensor{"k_pe", views.k_pe}, NamedTensor{"v", views.v}}) {
    if (!key.view.present()) continue;
    FLASHPRIME_RETURN_IF_ERROR(check_memory(key.view, {key.name, problem.dtype}));
    FLASHPRIME_REQUIRE(key.view.shape[0] == chunk.num_tokens(), StatusCode::kShape, key.name,
                       ": got ", key.view.shape[0], " rows, wanted ", chunk.num_tokens(),
                       ", the tokens of the chunk");
    FLASHPRIME_RETURN_IF_ERROR(check_apart(key));
  }
  const NamedTensor lengths = {"cu_seqlens_k", views.cu_seqlens_k};
  if (!lengths.view.present()) return ok_status();
  FLASHPRIME_RETURN_IF_ERROR(check_memory(lengths.view, {lengths.name, Dtype::kInt32}));
  return check_apart(lengths);
}

}  // namespace flashprime
