// SPDX-License-Identifier: Apache-2.0
#include "flashprime/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "checks.h"
#include "launch/launch_merge.h"
#include "launch/place_call.h"
#include "numerics/convert.h"
#include "problem/tensor_checks.h"
#include "select/select_kernel.h"

namespace flashprime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool same_tensor(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape &&
         a.stride == b.stride;
}

// In place is the one overlap that is safe: each element is read before it is written.
Status check_aliases(const MergeArgs& args) {
  const TensorView out = as_const(args.out);
  const TensorView lse = as_const(args.lse);
  const TensorView absent;
  const bool out_in_place = same_tensor(out, args.prefix_out);
  const bool lse_in_place = same_tensor(lse, args.prefix_lse);
  FLASHPRIME_RETURN_IF_ERROR(
      check_no_overlap({"out", out}, {{"prefix_out", out_in_place ? absent : args.prefix_out},
                                      {"prefix_lse", args.prefix_lse},
                                      {"suffix_out", args.suffix_out},
                                      {"suffix_lse", args.suffix_lse},
                                      {"output_scale", args.output_scale}}));
  return check_no_overlap({"lse", lse}, {{"prefix_out", args.prefix_out},
                                         {"prefix_lse", lse_in_place ? absent : args.prefix_lse},
                                         {"suffix_out", args.suffix_out},
                                         {"suffix_lse", args.suffix_lse},
                                         {"output_scale", args.output_scale},
                                         {"out", out}});
}

Status validate_merge(const MergeArgs& args) {
  const Dtype dtype = args.prefix_out.dtype;
  const Dtype out_dtype = args.out.dtype;
  const auto [tokens, heads, dim, unused] = args.prefix_out.shape;

  FLASHPRIME_REQUIRE(dtype == Dtype::kBf16 || dtype == Dtype::kFp16 || dtype == Dtype::kFp32,
                     StatusCode::kDtype, "prefix_out: got ", dtype_name(dtype),
                     ", wanted bf16, fp16 or fp32");
  FLASHPRIME_REQUIRE(out_dtype == Dtype::kBf16 || out_dtype == Dtype::kFp16 ||
                         out_dtype == Dtype::kFp32 || out_dtype == Dtype::kE4m3,
                     StatusCode::kDtype, "out: got ", dtype_name(out_dtype),
                     ", wanted bf16, fp16, fp32 or e4m3");
  FLASHPRIME_REQUIRE(
      args.lse_layout == LseLayout::kHeadsTokens || args.lse_layout == LseLayout::kTokensHeads,
      StatusCode::kShape, "lse_layout: got ", static_cast<int>(args.lse_layout),
      ", wanted [H, T] (0) or [T, H] (1)");

  FLASHPRIME_REQUIRE(args.prefix_out.rank == 3 && heads >= 1 && dim >= 1, StatusCode::kShape,
                     "prefix_out: got shape ", shape_text(args.prefix_out),
                     ", wanted [T, H, D] with H and D of 1 or more");
  TensorSpec rows{
      "prefix_out", dtype, 3, {tokens, heads, dim}, "[T, H, D], the shape of prefix_out"};
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.prefix_out, rows));
  rows.name = "suffix_out";
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.suffix_out, rows));
  rows.name = "out";
  rows.dtype = out_dtype;
  rows.access = Access::kWrite;
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(as_const(args.out), rows));

  TensorSpec lse = lse_spec("prefix_lse", Dtype::kFp32, args.lse_layout, tokens, heads);
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.prefix_lse, lse));
  lse.name = "suffix_lse";
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.suffix_lse, lse));
  if (args.lse.present()) {
    lse.name = "lse";
    lse.access = Access::kWrite;
    FLASHPRIME_RETURN_IF_ERROR(check_tensor(as_const(args.lse), lse));
  }

  FLASHPRIME_RETURN_IF_ERROR(check_output_scale(args.output_scale, out_dtype));
  FLASHPRIME_REQUIRE(args.tokens_with_prefix <= tokens, StatusCode::kShape,
                     "tokens_with_prefix: got ", args.tokens_with_prefix, ", wanted at most ",
                     tokens, ", the tokens of prefix_out");
  return check_aliases(args);
}

// How one format is kept in memory.
struct Bf16 {
  using Code = uint16_t;
  static float load(Code code) { return bf16_to_float(code); }
  static Code store(float value) { return float_to_bf16(value); }
};
struct Fp16 {
  using Code = uint16_t;
  static float load(Code code) { return fp16_to_float(code); }
  static Code store(float value) { return float_to_fp16(value); }
};
struct Fp32 {
  using Code = float;
  static float load(Code code) { return code; }
  static Code store(float value) { return value; }
};
struct E4m3 {
  using Code = uint8_t;
  static Code store(float value) { return float_to_e4m3(value); }
};

// What both sides of one token and head contribute. The weights sum to 1 unless both are empty.
struct Weights {
  float prefix = 0.0f;
  float suffix = 0.0f;
  float lse = -kInfinity;
};

// In fp64, of which the results keep 24 bits: compilers then have no faster fp32 exp to differ by.
Weights weights_of(float prefix_lse, float suffix_lse) {
  if (std::isinf(prefix_lse)) prefix_lse = -kInfinity;
  if (std::isinf(suffix_lse)) suffix_lse = -kInfinity;
  if (std::isnan(prefix_lse) || std::isnan(suffix_lse)) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return {nan, nan, nan};
  }
  if (prefix_lse == -kInfinity && suffix_lse == -kInfinity) return {};
  const double max = std::max(prefix_lse, suffix_lse);
  const double min = std::min(prefix_lse, suffix_lse);
  const double smaller = std::exp(min - max);  // the larger weight is exp(0) = 1
  const float high = static_cast<float>(1.0 / (1.0 + smaller));
  const float low = static_cast<float>(smaller / (1.0 + smaller));
  const bool prefix_is_larger = prefix_lse >= suffix_lse;
  return {prefix_is_larger ? high : low, prefix_is_larger ? low : high,
          static_cast<float>(max + std::log1p(smaller))};
}

// A side of weight 0 is not read: it may hold anything. A NaN weight is not 0 and reaches the sum.
template <typename In, typename Out>
void merge_row(const Weights& weights, float out_factor, int64_t dim,
               const typename In::Code* prefix, const typename In::Code* suffix,
               typename Out::Code* out) {
  const auto store = [&](int64_t c, float value) {
    if constexpr (std::is_same_v<Out, E4m3>) value *= out_factor;
    out[c] = Out::store(value);
  };
  if (weights.prefix == 0.0f && weights.suffix == 0.0f) {
    for (int64_t c = 0; c < dim; ++c) store(c, 0.0f);
  } else if (weights.prefix == 0.0f) {
    for (int64_t c = 0; c < dim; ++c) store(c, In::load(suffix[c]));
  } else if (weights.suffix == 0.0f) {
    for (int64_t c = 0; c < dim; ++c) store(c, In::load(prefix[c]));
  } else {
    for (int64_t c = 0; c < dim; ++c) {
      store(c, weights.prefix * In::load(prefix[c]) + weights.suffix * In::load(suffix[c]));
    }
  }
}

struct LseStrides {
  int64_t token;
  int64_t head;
};

template <typename View>
LseStrides lse_strides(const View& view, LseLayout layout) {
  if (layout == LseLayout::kHeadsTokens) return {view.stride[1], view.stride[0]};
  return {view.stride[0], view.stride[1]};
}

template <typename In, typename Out>
void merge_token(const MergeArgs& args, int64_t token) {
  const bool has_prefix = args.tokens_with_prefix < 0 || token < args.tokens_with_prefix;
  const float out_factor = args.output_scale.present()
                               ? 1.0f / *static_cast<const float*>(args.output_scale.data)
                               : 1.0f;
  const auto load_lse = [&](const TensorView& view, int64_t head) {
    const LseStrides stride = lse_strides(view, args.lse_layout);
    return static_cast<const float*>(view.data)[token * stride.token + head * stride.head];
  };
  const auto row = [&](const auto& view, int64_t head) {
    return token * view.stride[0] + head * view.stride[1];
  };
  for (int64_t head = 0; head < args.out.shape[1]; ++head) {
    const Weights weights = weights_of(has_prefix ? load_lse(args.prefix_lse, head) : -kInfinity,
                                       load_lse(args.suffix_lse, head));
    using InCode = typename In::Code;
    merge_row<In, Out>(
        weights, out_factor, args.out.shape[2],
        static_cast<const InCode*>(args.prefix_out.data) + row(args.prefix_out, head),
        static_cast<const InCode*>(args.suffix_out.data) + row(args.suffix_out, head),
        static_cast<typename Out::Code*>(args.out.data) + row(args.out, head));
    if (args.lse.present()) {
      const LseStrides stride = lse_strides(args.lse, args.lse_layout);
      static_cast<float*>(args.lse.data)[token * stride.token + head * stride.head] = weights.lse;
    }
  }
}

using MergeToken = void (*)(const MergeArgs& args, int64_t token);

template <typename In>
MergeToken merge_token_to(Dtype out_dtype) {
  switch (out_dtype) {
    case Dtype::kBf16: return merge_token<In, Bf16>;
    case Dtype::kFp16: return merge_token<In, Fp16>;
    case Dtype::kE4m3: return merge_token<In, E4m3>;
    default: return merge_token<In, Fp32>;
  }
}

MergeToken select_merge_token(const MergeArgs& args) {
  switch (args.prefix_out.dtype) {
    case Dtype::kBf16: return merge_token_to<Bf16>(args.out.dtype);
    case Dtype::kFp16: return merge_token_to<Fp16>(args.out.dtype);
    default: return merge_token_to<Fp32>(args.out.dtype);
  }
}

Status run_on_cpu(const MergeArgs& args, const ExecutionOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(check_output_scale_value(args.output_scale));
  const StatusOr<ParallelFor> parallel_for = select_parallel_for(options);
  FLASHPRIME_RETURN_IF_ERROR(parallel_for.status());
  const MergeToken merge_one = select_merge_token(args);
  constexpr int64_t kTokensPerTask = 16;
  const int64_t tokens = args.out.shape[0];
  const int64_t tasks = tokens / kTokensPerTask + (tokens % kTokensPerTask != 0 ? 1 : 0);
  (*parallel_for)(tasks, [&](int64_t task) {
    const int64_t first = task * kTokensPerTask;
    const int64_t end = std::min(first + kTokensPerTask, tokens);
    for (int64_t token = first; token < end; ++token) merge_one(args, token);
  });
  return ok_status();
}

Status run_merge(const MergeArgs& args, const ExecutionOptions& options, StreamHandle stream) {
  FLASHPRIME_RETURN_IF_ERROR(validate_merge(args));
  const NamedTensor tensors[] = {
      {"prefix_out", args.prefix_out},    {"prefix_lse", args.prefix_lse},
      {"suffix_out", args.suffix_out},    {"suffix_lse", args.suffix_lse},
      {"out", as_const(args.out)},        {"lse", as_const(args.lse)},
      {"output_scale", args.output_scale}};
  const StatusOr<const GpuDevice*> gpu = place_call(options.device, tensors);
  FLASHPRIME_RETURN_IF_ERROR(gpu.status());
  return *gpu == nullptr ? run_on_cpu(args, options) : launch_merge(**gpu, args, stream);
}

}  // namespace

Status merge_states(const MergeArgs& args, const ExecutionOptions& options, StreamHandle stream) {
  return without_exceptions([&] { return run_merge(args, options, stream); });
}

}  // namespace flashprime
