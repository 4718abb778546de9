// SPDX-License-Identifier: Apache-2.0
#include "flashprime/merge.h"

#include <cmath>
#include <limits>

#include "checks.h"
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

Status check_aliases(const MergeArgs& args) {
  struct Named {
    std::string_view name;
    const TensorView& view;
  };
  const TensorView out = as_const(args.out);
  const TensorView lse = as_const(args.lse);
  const Named inputs[] = {{"prefix_out", args.prefix_out},
                          {"prefix_lse", args.prefix_lse},
                          {"suffix_out", args.suffix_out},
                          {"suffix_lse", args.suffix_lse},
                          {"output_scale", args.output_scale}};
  for (const Named& input : inputs) {
    if (!input.view.present()) continue;
    const bool out_in_place = &input.view == &args.prefix_out && same_tensor(out, input.view);
    const bool lse_in_place = &input.view == &args.prefix_lse && same_tensor(lse, input.view);
    FLASHPRIME_REQUIRE(out_in_place || !overlap(out, input.view), StatusCode::kAlias,
                       "out: got memory that overlaps ", input.name,
                       ", wanted memory of its own or exactly prefix_out");
    FLASHPRIME_REQUIRE(!lse.present() || lse_in_place || !overlap(lse, input.view),
                       StatusCode::kAlias, "lse: got memory that overlaps ", input.name,
                       ", wanted memory of its own or exactly prefix_lse");
  }
  FLASHPRIME_REQUIRE(!lse.present() || !overlap(out, lse), StatusCode::kAlias,
                     "lse: got memory that overlaps out, wanted memory of its own");
  return ok_status();
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

  TensorSpec rows{
      "prefix_out", dtype, 3, {tokens, heads, dim}, "[T, H, D], the shape of prefix_out"};
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.prefix_out, rows));
  rows.name = "suffix_out";
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.suffix_out, rows));
  rows.name = "out";
  rows.dtype = out_dtype;
  rows.access = Access::kWrite;
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(as_const(args.out), rows));

  TensorSpec lse{
      "prefix_lse", Dtype::kFp32, 2, {heads, tokens}, "[H, T], the layout that lse_layout names"};
  if (args.lse_layout == LseLayout::kTokensHeads) {
    lse.shape = {tokens, heads};
    lse.meaning = "[T, H], the layout that lse_layout names";
  }
  lse.dense_last_axis = false;
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.prefix_lse, lse));
  lse.name = "suffix_lse";
  FLASHPRIME_RETURN_IF_ERROR(check_tensor(args.suffix_lse, lse));
  if (args.lse.present()) {
    lse.name = "lse";
    lse.access = Access::kWrite;
    FLASHPRIME_RETURN_IF_ERROR(check_tensor(as_const(args.lse), lse));
  }

  const bool fp8 = out_dtype == Dtype::kE4m3;
  FLASHPRIME_REQUIRE(args.output_scale.present() == fp8, StatusCode::kDtype, "output_scale: ",
                     fp8 ? "absent, wanted fp32 [1] because out is e4m3"
                         : "present, wanted absent because out is not e4m3");
  if (fp8) {
    FLASHPRIME_RETURN_IF_ERROR(
        check_tensor(args.output_scale, {"output_scale", Dtype::kFp32, 1, {1}, "[1]"}));
  }
  FLASHPRIME_REQUIRE(args.tokens_with_prefix <= tokens, StatusCode::kShape,
                     "tokens_with_prefix: got ", args.tokens_with_prefix, ", wanted at most ",
                     tokens, ", the tokens of prefix_out");
  FLASHPRIME_RETURN_IF_ERROR(check_aliases(args));
  if (fp8) {
    const float scale = *static_cast<const float*>(args.output_scale.data);
    FLASHPRIME_REQUIRE(std::isfinite(scale) && scale > 0.0f, StatusCode::kNumeric,
                       "output_scale: got ", scale, ", wanted a finite number above 0");
  }
  return ok_status();
}

float load_lse(const MergeArgs& args, const TensorView& view, int64_t token, int64_t head) {
  const bool heads_first = args.lse_layout == LseLayout::kHeadsTokens;
  const float lse = static_cast<const float*>(view.data)[token * view.stride[heads_first ? 1 : 0] +
                                                         head * view.stride[heads_first ? 0 : 1]];
  return std::isinf(lse) ? -kInfinity : lse;
}

void merge_row(const MergeArgs& args, int64_t token, int64_t head) {
  const bool has_prefix = args.tokens_with_prefix < 0 || token < args.tokens_with_prefix;
  const float lse_p = has_prefix ? load_lse(args, args.prefix_lse, token, head) : -kInfinity;
  const float lse_s = load_lse(args, args.suffix_lse, token, head);
  // Weights in fp64, so that they are the same whatever vector expf a compiler would pick.
  const bool nan = std::isnan(lse_p) || std::isnan(lse_s);
  const float max = lse_p > lse_s ? lse_p : lse_s;
  double weight_p = 0.0, weight_s = 0.0;
  float lse = -kInfinity;
  if (nan) {
    lse = std::numeric_limits<float>::quiet_NaN();
  } else if (max != -kInfinity) {
    weight_p = std::exp(static_cast<double>(lse_p) - static_cast<double>(max));
    weight_s = std::exp(static_cast<double>(lse_s) - static_cast<double>(max));
    lse = static_cast<float>(static_cast<double>(max) + std::log(weight_p + weight_s));
  }
  const double sum = weight_p + weight_s;
  const float p = static_cast<float>(weight_p / sum);
  const float s = static_cast<float>(weight_s / sum);
  const float out_factor = args.output_scale.present()
                               ? 1.0f / *static_cast<const float*>(args.output_scale.data)
                               : 1.0f;

  const auto row = [&](const TensorView& view) {
    return token * view.stride[0] + head * view.stride[1];
  };
  const int64_t prefix_row = row(args.prefix_out);
  const int64_t suffix_row = row(args.suffix_out);
  const int64_t out_row = token * args.out.stride[0] + head * args.out.stride[1];
  const Dtype dtype = args.prefix_out.dtype;
  for (int64_t c = 0; c < args.out.shape[2]; ++c) {
    float value = 0.0f;
    if (nan) {
      value = lse;
    } else if (p == 0.0f && weight_s > 0.0) {
      value = load_element(args.suffix_out.data, dtype, suffix_row + c);
    } else if (s == 0.0f && weight_p > 0.0) {
      value = load_element(args.prefix_out.data, dtype, prefix_row + c);
    } else if (sum > 0.0) {
      value = p * load_element(args.prefix_out.data, dtype, prefix_row + c) +
              s * load_element(args.suffix_out.data, dtype, suffix_row + c);
    }
    store_element(args.out.data, args.out.dtype, out_row + c, value * out_factor);
  }
  if (args.lse.present()) {
    const bool heads_first = args.lse_layout == LseLayout::kHeadsTokens;
    static_cast<float*>(args.lse.data)[token * args.lse.stride[heads_first ? 1 : 0] +
                                       head * args.lse.stride[heads_first ? 0 : 1]] = lse;
  }
}

Status run_merge(const MergeArgs& args, const ExecutionOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(validate_merge(args));
  const StatusOr<ParallelFor> parallel_for = select_parallel_for(options);
  FLASHPRIME_RETURN_IF_ERROR(parallel_for.status());
  (*parallel_for)(args.out.shape[0], [&](int64_t token) {
    for (int64_t head = 0; head < args.out.shape[1]; ++head) merge_row(args, token, head);
  });
  return ok_status();
}

}  // namespace

Status merge_states(const MergeArgs& args, const ExecutionOptions& options,
                    StreamHandle /*stream*/) {
  return without_exceptions([&] { return run_merge(args, options); });
}

}  // namespace flashprime
