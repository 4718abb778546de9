// SPDX-License-Identifier: Apache-2.0
#include "problem/validate_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "checks.h"
#include "problem/tensor_checks.h"

namespace flashprime {
namespace {

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

// Rows of the query side and of the key side.
struct Rows {
  int64_t q = 0;
  int64_t k = 0;
};

// Rows of q and of k, as the joined tensor or its first part has them.
Rows rows_of(const PrefillArgs& args) {
  return {(args.q.present() ? args.q : args.q_nope).shape[0],
          (args.k.present() ? args.k : args.k_nope).shape[0]};
}

// Joined or in two parts, and not both.
Status check_parts(std::string_view name, const TensorView& joined, const TensorView& nope,
                   const TensorView& pe, int32_t rope) {
  constexpr StatusCode kCode = StatusCode::kShape;
  const bool parts = nope.present() || pe.present();
  FLASHPRIME_REQUIRE(joined.present() || parts, kCode, name, ": got neither ", name, " nor ", name,
                     "_nope, wanted one of them");
  FLASHPRIME_REQUIRE(!joined.present() || !parts, kCode, name, ": got both ", name, " and ", name,
                     nope.present() ? "_nope" : "_pe", ", wanted one of them");
  FLASHPRIME_REQUIRE(joined.present() || nope.present(), kCode, name, "_nope: absent, wanted with ",
                     name, "_pe");
  FLASHPRIME_REQUIRE(joined.present() || pe.present() || rope == 0, kCode, name,
                     "_pe: absent, wanted because dims.rope is ", rope);
  FLASHPRIME_REQUIRE(!pe.present() || rope > 0, kCode, name,
                     "_pe: present, wanted absent because dims.rope is 0");
  return ok_status();
}

Status check_inputs(const PrefillProblem& problem, const PrefillArgs& args) {
  const auto [nope, rope, dim_v] = problem.dims;
  const int64_t dim_qk = int64_t{nope} + rope;
  const int64_t heads = problem.num_heads;
  const Dtype dtype = problem.dtype;

  FLASHPRIME_RETURN_IF_ERROR(check_parts("q", args.q, args.q_nope, args.q_pe, rope));
  FLASHPRIME_RETURN_IF_ERROR(check_parts("k", args.k, args.k_nope, args.k_pe, rope));
  FLASHPRIME_REQUIRE(args.v.present(), StatusCode::kShape, "v: absent, wanted [Tk, H, v]");
  const auto [tq, tk] = rows_of(args);

  TensorSpec k_pe{"k_pe", dtype, 2, {tk, rope}, "[Tk, rope] (or [Tk, 1, rope])"};
  if (args.k_pe.rank == 3) k_pe = {"k_pe", dtype, 3, {tk, 1, rope}, "[Tk, 1, rope]"};

  const std::pair<const TensorView&, TensorSpec> inputs[] = {
      {args.q, {"q", dtype, 3, {tq, heads, dim_qk}, "[T, H, nope + rope]"}},
      {args.q_nope, {"q_nope", dtype, 3, {tq, heads, nope}, "[T, H, nope]"}},
      {args.q_pe, {"q_pe", dtype, 3, {tq, heads, rope}, "[T, H, rope]"}},
      {args.k, {"k", dtype, 3, {tk, heads, dim_qk}, "[Tk, H, nope + rope]"}},
      {args.k_nope, {"k_nope", dtype, 3, {tk, heads, nope}, "[Tk, H, nope]"}},
      {args.k_pe, k_pe},
      {args.v, {"v", dtype, 3, {tk, heads, dim_v}, "[Tk, H, v]"}}};
  for (const auto& [view, spec] : inputs) {
    if (view.present()) FLASHPRIME_RETURN_IF_ERROR(check_tensor(view, spec));
  }
  return ok_status();
}

Status check_outputs(const PrefillProblem& problem, const PrefillArgs& args, const Rows& rows) {
  const int64_t heads = problem.num_heads;
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(
      as_const(args.out),
      {"out", problem.out_dtype, 3, {rows.q, heads, problem.dims.v}, "[T, H, v]", Access::kWrite}));

  FLASHPRIME_REQUIRE(args.lse.present() == problem.return_lse, StatusCode::kShape,
                     "lse: ", args.lse.present() ? "present" : "absent", ", wanted ",
                     problem.return_lse ? "present" : "absent", " because return_lse is ",
                     problem.return_lse ? "true" : "false");
  if (problem.return_lse) {
    const Dtype lse_dtype = problem.out_dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32;
    TensorSpec spec = lse_spec("lse", lse_dtype, problem.lse_layout, rows.q, heads);
    spec.access = Access::kWrite;
    FLASHPRIME_RETURN_IF_ERROR(check_tensor(as_const(args.lse), spec));
  }
  return check_output_scale(args.output_scale, problem.out_dtype);
}

Status check_cu_view(std::string_view name, const TensorView& view, std::string_view rows_name,
                     int64_t rows) {
  constexpr StatusCode kCode = StatusCode::kCuSeqlens;
  FLASHPRIME_REQUIRE(view.rank == 1, kCode, name, ": got rank ", view.rank,
                     ", wanted rank 1, [B + 1]");
  FLASHPRIME_REQUIRE(view.dtype == Dtype::kInt32, kCode, name, ": got ", dtype_name(view.dtype),
                     ", wanted int32");
  FLASHPRIME_REQUIRE(view.shape[0] >= 1, kCode, name, ": got length ", view.shape[0],
                     ", wanted B + 1, at least 1");
  FLASHPRIME_REQUIRE(view.stride[0] == 1 || view.shape[0] == 1, kCode, name, ": got stride ",
                     view.stride[0], ", wanted 1: it has to be contiguous");
  FLASHPRIME_REQUIRE(rows <= kMaxRows, kCode, name, ": got ", rows, " rows of ", rows_name,
                     ", wanted at most ", kMaxRows, ", the largest int32");
  if (view.shape[0] == 1 && view.data == nullptr) {
    FLASHPRIME_REQUIRE(rows == 0, kCode, name, ": got no sequence, wanted ", rows, ", the rows of ",
                       rows_name, ", covered");
    return ok_status();
  }
  return check_memory(view, {name, Dtype::kInt32});
}

// The contents of one cu_seqlens, and the stated maximum.
Status check_cu_values(std::string_view name, const TensorView& view, std::string_view rows_name,
                       int64_t rows, std::string_view max_name, int64_t max_seqlen) {
  if (view.data == nullptr) return ok_status();  // no sequence
  constexpr StatusCode kCode = StatusCode::kCuSeqlens;
  const int32_t* cu = static_cast<const int32_t*>(view.data);
  const int64_t batch = view.shape[0] - 1;
  FLASHPRIME_REQUIRE(cu[0] == 0, kCode, name, "[0]: got ", cu[0], ", wanted 0");
  for (int64_t b = 0; b < batch; ++b) {
    FLASHPRIME_REQUIRE(cu[b] <= cu[b + 1], kCode, name, "[", b + 1, "]: got ", cu[b + 1],
                       ", wanted at least ", cu[b], ", the entry before it");
  }
  FLASHPRIME_REQUIRE(cu[batch] == rows, kCode, name, "[", batch, "]: got ", cu[batch], ", wanted ",
                     rows, ", the rows of ", rows_name);
  for (int64_t b = 0; b < batch && max_seqlen >= 0; ++b) {
    FLASHPRIME_REQUIRE(cu[b + 1] - cu[b] <= max_seqlen, kCode, max_name, ": got ", max_seqlen,
                       ", wanted at least ", cu[b + 1] - cu[b], ", the length of sequence ", b);
  }
  return ok_status();
}

Status check_cu_views(const PrefillArgs& args, const Rows& rows) {
  FLASHPRIME_RETURN_IF_ERROR(check_cu_view("cu_seqlens_q", args.cu_seqlens_q, "q", rows.q));
  FLASHPRIME_RETURN_IF_ERROR(check_cu_view("cu_seqlens_k", args.cu_seqlens_k, "k", rows.k));
  const int64_t length = args.cu_seqlens_q.shape[0];
  FLASHPRIME_REQUIRE(args.cu_seqlens_k.shape[0] == length, StatusCode::kCuSeqlens,
                     "cu_seqlens_k: got length ", args.cu_seqlens_k.shape[0], ", wanted ", length,
                     ", the length of cu_seqlens_q");
  return ok_status();
}

// No output shares memory with what comes before it.
Status check_aliases(const PrefillArgs& args) {
  const auto tensors = tensors_of(args);
  for (size_t i = kNumInputs; i < kNumTensors; ++i) {
    FLASHPRIME_RETURN_IF_ERROR(check_no_overlap(tensors[i], std::span(tensors).first(i)));
  }
  return ok_status();
}

Status check_softmax_scale(float scale) {
  FLASHPRIME_REQUIRE(!std::isnan(scale), StatusCode::kNumeric,
                     "softmax_scale: got NaN, which is also its value when not set, wanted a "
                     "finite number of 0 or more");
  FLASHPRIME_REQUIRE(std::isfinite(scale) && scale >= 0.0f, StatusCode::kNumeric,
                     "softmax_scale: got ", scale, ", wanted a finite number of 0 or more");
  return ok_status();
}

// The stride of an axis with one element means nothing: kernels may multiply with it all the same.
int64_t stride_of(const int64_t extent, const int64_t stride) {
  return extent > 1 ? stride : 0;
}

RowTensor row_tensor(const TensorView& view, int64_t first_element = 0) {
  const char* data = static_cast<const char*>(view.data);
  if (data != nullptr) data += first_element * dtype_bytes(view.dtype);
  return {data, stride_of(view.shape[0], view.stride[0]), stride_of(view.shape[1], view.stride[1])};
}

}  // namespace

std::vector<Status> find_problem_defects(const PrefillProblem& problem) {
  const auto [nope, rope, dim_v] = problem.dims;
  const Dtype dtype = problem.dtype;
  const Dtype out_dtype = problem.out_dtype;
  const Mask& mask = problem.mask;
  const bool window = mask.kind == MaskKind::kWindow;
  const int splits = problem.num_splits;

  std::vector<Status> defects;
  const auto require = [&](bool condition, StatusCode code, const auto&... message) {
    if (!condition) defects.emplace_back(code, concat(message...));
  };
  require(dtype == Dtype::kBf16 || dtype == Dtype::kFp16 || dtype == Dtype::kFp32,
          StatusCode::kDtype, "dtype: got ", dtype_name(dtype), ", wanted bf16, fp16 or fp32");
  require(out_dtype == dtype || out_dtype == Dtype::kFp32 || out_dtype == Dtype::kFp64 ||
              out_dtype == Dtype::kE4m3,
          StatusCode::kDtype, "out_dtype: got ", dtype_name(out_dtype), ", wanted ",
          dtype_name(dtype), " (the dtype), fp32, fp64 or e4m3");

  require(nope >= 1, StatusCode::kShape, "dims.nope: got ", nope, ", wanted 1 or more");
  require(rope >= 0, StatusCode::kShape, "dims.rope: got ", rope, ", wanted 0 or more");
  require(dim_v >= 1, StatusCode::kShape, "dims.v: got ", dim_v, ", wanted 1 or more");

  require(window || mask.kind == MaskKind::kFull || mask.kind == MaskKind::kCausal,
          StatusCode::kUnsupported, "mask.kind: got ", static_cast<int>(mask.kind),
          ", wanted full (0), causal (1) or window (2)");
  require(window || (mask.window_left < 0 && mask.window_right < 0), StatusCode::kUnsupported,
          "mask: got window reaches (", mask.window_left, ", ", mask.window_right,
          ") with a mask that is not a window, wanted negative ones");

  require(problem.num_heads >= 1, StatusCode::kShape, "num_heads: got ", problem.num_heads,
          ", wanted 1 or more");
  require(problem.lse_layout == LseLayout::kHeadsTokens ||
              problem.lse_layout == LseLayout::kTokensHeads,
          StatusCode::kShape, "lse_layout: got ", static_cast<int>(problem.lse_layout),
          ", wanted [H, T] (0) or [T, H] (1)");
  require(splits >= 0, StatusCode::kUnsupported, "num_splits: got ", splits,
          ", wanted 0 (the selector chooses) or more");
  require(splits <= 1 || !problem.batch_invariant, StatusCode::kUnsupported, "num_splits: got ",
          splits, ", wanted 0 or 1 because batch_invariant forbids splitting keys");
  return defects;
}

Status validate_views(const PrefillProblem& problem, const PrefillArgs& args) {
  const std::vector<Status> defects = find_problem_defects(problem);
  if (!defects.empty()) return defects.front();
  FLASHPRIME_RETURN_IF_ERROR(check_inputs(problem, args));
  const Rows rows = rows_of(args);
  FLASHPRIME_RETURN_IF_ERROR(check_outputs(problem, args, rows));
  FLASHPRIME_RETURN_IF_ERROR(check_cu_views(args, rows));
  FLASHPRIME_RETURN_IF_ERROR(check_aliases(args));
  return check_softmax_scale(args.softmax_scale);
}

Status validate_values(const PrefillProblem& problem, const PrefillArgs& args) {
  const Rows rows = rows_of(args);
  FLASHPRIME_RETURN_IF_ERROR(check_cu_values("cu_seqlens_q", args.cu_seqlens_q, "q", rows.q,
                                             "max_seqlen_q", args.max_seqlen_q));
  FLASHPRIME_RETURN_IF_ERROR(check_cu_values("cu_seqlens_k", args.cu_seqlens_k, "k", rows.k,
                                             "max_seqlen_k", args.max_seqlen_k));
  const int64_t length = args.cu_seqlens_q.shape[0];
  if (problem.self_attention && length > 1) {
    const int32_t* cu_q = static_cast<const int32_t*>(args.cu_seqlens_q.data);
    const int32_t* cu_k = static_cast<const int32_t*>(args.cu_seqlens_k.data);
    for (int64_t b = 0; b < length; ++b) {
      FLASHPRIME_REQUIRE(cu_q[b] == cu_k[b], StatusCode::kCuSeqlens, "cu_seqlens_k[", b, "]: got ",
                         cu_k[b], ", wanted ", cu_q[b],
                         ", as cu_seqlens_q has, because self_attention is declared");
    }
  }
  return check_output_scale_value(args.output_scale);
}

std::array<NamedTensor, kNumTensors + 1> tensors_of(const PrefillArgs& args) {
  const TensorView workspace =
      TensorView::contiguous(args.workspace, Dtype::kE4m3, {args.workspace_bytes});
  return {{{"q", args.q},
           {"q_nope", args.q_nope},
           {"q_pe", args.q_pe},
           {"k", args.k},
           {"k_nope", args.k_nope},
           {"k_pe", args.k_pe},
           {"v", args.v},
           {"cu_seqlens_q", args.cu_seqlens_q},
           {"cu_seqlens_k", args.cu_seqlens_k},
           {"output_scale", args.output_scale},
           {"out", as_const(args.out)},
           {"lse", as_const(args.lse)},
           {"workspace", workspace}}};
}

PrefillTraits make_traits(const PrefillProblem& problem) {
  return {problem.dims, problem.dtype, problem.out_dtype, problem.mask.kind, problem.return_lse};
}

PrefillParams make_params(const PrefillProblem& problem, const PrefillArgs& args) {
  const bool rope = problem.dims.rope > 0;
  PrefillParams params;
  params.q_nope = row_tensor(args.q.present() ? args.q : args.q_nope);
  params.k_nope = row_tensor(args.k.present() ? args.k : args.k_nope);
  if (rope) {
    params.q_pe = args.q.present() ? row_tensor(args.q, problem.dims.nope) : row_tensor(args.q_pe);
    params.k_pe = args.k.present() ? row_tensor(args.k, problem.dims.nope) : row_tensor(args.k_pe);
    if (!args.k.present()) params.k_pe.stride_head = 0;
  }
  params.v = row_tensor(args.v);

  params.out = {args.out.data, stride_of(args.out.shape[0], args.out.stride[0]),
                stride_of(args.out.shape[1], args.out.stride[1])};
  if (problem.return_lse) {
    const int token = problem.lse_layout == LseLayout::kHeadsTokens ? 1 : 0;
    const int head = 1 - token;
    params.lse = {args.lse.data, stride_of(args.lse.shape[token], args.lse.stride[token]),
                  stride_of(args.lse.shape[head], args.lse.stride[head])};
  }

  params.cu_seqlens_q = static_cast<const int32_t*>(args.cu_seqlens_q.data);
  params.cu_seqlens_k = static_cast<const int32_t*>(args.cu_seqlens_k.data);
  params.batch = args.cu_seqlens_q.shape[0] - 1;
  params.total_q = (args.q.present() ? args.q : args.q_nope).shape[0];
  params.total_k = args.v.shape[0];
  params.num_heads = problem.num_heads;

  // No key is further than this from any query, and kernels may add a position to it.
  constexpr int64_t kFurthest = int64_t{1} << 32;
  params.window_left = std::min(problem.mask.window_left, kFurthest);
  params.window_right = std::min(problem.mask.window_right, kFurthest);

  params.softmax_scale = args.softmax_scale;
  if (args.output_scale.present()) {
    params.output_scale = static_cast<const float*>(args.output_scale.data);
  }
  return params;
}

}  // namespace flashprime
