// SPDX-License-Identifier: Apache-2.0
#include "cli/run_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "cli/run_slices.h"
#include "flashprime/random.h"
#include "tests/cases/case.h"
#include "tests/cases/number_formats.h"

namespace flashprime::cli {
namespace {

// `count` different numbers below `total`, the first and the last among them.
std::set<int64_t> sample(int64_t total, int64_t count, uint64_t seed) {
  std::set<int64_t> chosen;
  if (total <= 0 || count <= 0) return chosen;
  chosen.insert(total - 1);
  if (count >= 2) chosen.insert(0);
  // Floyd's method over the numbers between them.
  const int64_t between = std::max<int64_t>(total - 2, 0);
  for (int64_t i = between - std::clamp<int64_t>(count - 2, 0, between); i < between; ++i) {
    const auto random =
        philox4x32_10({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0x72756e76u},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t word = uint64_t{random[0]} << 32 | random[1];
    const auto drawn = static_cast<int64_t>(word % static_cast<uint64_t>(i + 1));
    if (!chosen.insert(1 + drawn).second) chosen.insert(1 + i);
  }
  return chosen;
}

// One query row in one head with the keys it sees: its mask is gone, so a wrong mask shows.
struct RowCall {
  PrefillProblem problem;
  PrefillArgs args;
  std::vector<double> out;
  double lse = 0.0;
  int32_t cu_seqlens_q[2] = {0, 1};
  int32_t cu_seqlens_k[2] = {0, 0};
};

void make_row_call(const PrefillProblem& problem, const PrefillArgs& args, int64_t token,
                   int32_t head, int64_t key_begin, int64_t key_end, RowCall* call) {
  call->problem = problem;
  call->problem.num_heads = 1;
  call->problem.mask = {MaskKind::kFull, -1, -1};
  call->problem.out_dtype = Dtype::kFp64;
  call->problem.return_lse = true;
  call->problem.lse_layout = LseLayout::kHeadsTokens;
  call->args.softmax_scale = args.softmax_scale;
  const auto q_part = [&](const TensorView& view) {
    return narrow(view, 0, token, token + 1, 1, head, head + 1);
  };
  const auto k_part = [&](const TensorView& view) {
    return narrow(view, 0, key_begin, key_end, 1, head, head + 1);
  };
  call->args.q = q_part(args.q);
  call->args.q_nope = q_part(args.q_nope);
  call->args.q_pe = q_part(args.q_pe);
  call->args.k = k_part(args.k);
  call->args.k_nope = k_part(args.k_nope);
  if (args.k_pe.present()) call->args.k_pe = narrow(args.k_pe, 0, key_begin, key_end);
  call->args.v = k_part(args.v);
  call->cu_seqlens_k[1] = static_cast<int32_t>(key_end - key_begin);
  call->args.cu_seqlens_q = TensorView::contiguous(call->cu_seqlens_q, Dtype::kInt32, {2});
  call->args.cu_seqlens_k = TensorView::contiguous(call->cu_seqlens_k, Dtype::kInt32, {2});
  call->out.assign(static_cast<size_t>(problem.dims.v), 0.0);
  call->args.out =
      MutableTensorView::contiguous(call->out.data(), Dtype::kFp64, {1, 1, problem.dims.v});
  call->args.lse = MutableTensorView::contiguous(&call->lse, Dtype::kFp64, {1, 1});
}

// Element (row, head 0, i) of a view without its head axis where it has one.
double element(const TensorView& view, int64_t row, int64_t i) {
  return cases::load(view.data, view.dtype, row * view.stride[0] + i);
}

// scale * max over the keys of sum |q_i k_i|: what the rounding of a dot product grows with.
double logit_magnitude(const RowCall& call) {
  const PrefillArgs& args = call.args;
  const HeadDims& dims = call.problem.dims;
  const auto query = [&](int32_t i) {
    if (args.q.present()) return element(args.q, 0, i);
    return i < dims.nope ? element(args.q_nope, 0, i) : element(args.q_pe, 0, i - dims.nope);
  };
  double largest = 0.0;
  for (int64_t key = 0; key < call.cu_seqlens_k[1]; ++key) {
    double sum = 0.0;
    for (int32_t i = 0; i < dims.nope + dims.rope; ++i) {
      const double k = args.k.present() ? element(args.k, key, i)
                       : i < dims.nope  ? element(args.k_nope, key, i)
                                        : element(args.k_pe, key, i - dims.nope);
      sum += std::fabs(query(i) * k);
    }
    // A key whose logit is infinite weighs nothing or makes the row NaN: no rounding in either.
    if (std::isfinite(sum)) largest = std::max(largest, sum);
  }
  return largest * static_cast<double>(args.softmax_scale);
}

double largest_value(const RowCall& call) {
  double largest = 0.0;
  for (int64_t key = 0; key < call.cu_seqlens_k[1]; ++key) {
    for (int32_t i = 0; i < call.problem.dims.v; ++i) {
      const double value = std::fabs(element(call.args.v, key, i));
      if (std::isfinite(value)) largest = std::max(largest, value);
    }
  }
  return largest;
}

// |got - want| beyond what rounding to `dtype` explains, in units of `bound`; both may be special.
double excess(double got, double want, double bound, Dtype dtype) {
  if (std::isnan(want) || std::isnan(got)) {
    return std::isnan(want) && std::isnan(got) ? 0.0 : std::numeric_limits<double>::infinity();
  }
  if (got == cases::round_to(dtype, want)) return 0.0;
  if (got >= cases::round_to(dtype, want - bound) && got <= cases::round_to(dtype, want + bound)) {
    const double units = (std::fabs(got - want) - cases::ulp_of(dtype, want) / 2) / bound;
    return std::clamp(units, 0.0, 1.0);
  }
  const double units = std::fabs(got - want) / bound;
  // NaN (infinity off by infinity) must not get lost in a max() either.
  return units > 1.0 ? units : std::numeric_limits<double>::infinity();
}

}  // namespace

StatusOr<RowVerification> verify_rows(const PrefillProblem& problem, const PrefillArgs& args,
                                      int64_t count, uint64_t seed,
                                      const std::function<bool()>& stop) {
  const cases::Tolerance tolerance;
  const int64_t tokens = args.out.shape[0];
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < args.cu_seqlens_q.shape[0]; ++i) {
    starts.push_back(seqlen_offset(args.cu_seqlens_q, i));
  }
  ExecutionOptions reference;
  reference.device.kind = DeviceKind::kCpu;
  reference.kernel = "cpu_reference";
  float output_scale = 1.0f;
  if (args.output_scale.present()) {
    output_scale = *static_cast<const float*>(args.output_scale.data);
  }
  RowVerification result;
  for (const int64_t index : sample(tokens * problem.num_heads, count, seed)) {
    if (stop()) break;
    const int64_t token = index / problem.num_heads;
    const auto head = static_cast<int32_t>(index % problem.num_heads);
    const auto sequence = static_cast<int64_t>(
        std::upper_bound(starts.begin(), starts.end(), token) - starts.begin() - 1);
    const auto s = static_cast<size_t>(sequence);
    const int64_t k_start = seqlen_offset(args.cu_seqlens_k, sequence);
    const int64_t k_len = seqlen_offset(args.cu_seqlens_k, sequence + 1) - k_start;
    const cases::KeyRange keys =
        cases::visible_keys(problem.mask, token - starts[s], starts[s + 1] - starts[s], k_len);
    const int64_t key_begin = k_start + keys.begin;
    const int64_t key_end = k_start + std::max(keys.begin, keys.end);
    RowCall call;
    make_row_call(problem, args, token, head, key_begin, key_end, &call);
    if (Status status = prefill(call.problem, call.args, reference); !status.ok()) return status;

    const double magnitude = logit_magnitude(call);
    const double allowance = tolerance.preround_rel_rms + tolerance.preround_per_logit * magnitude;
    const double out_bound = tolerance.element_factor * allowance * largest_value(call);
    double worst_out = 0.0;
    for (int32_t i = 0; i < problem.dims.v; ++i) {
      const double got = cases::load(args.out.data, problem.out_dtype,
                                     token * args.out.stride[0] + head * args.out.stride[1] + i);
      worst_out = std::max(worst_out, excess(got, call.out[static_cast<size_t>(i)] / output_scale,
                                             out_bound / output_scale, problem.out_dtype));
    }
    const int32_t row_axis = problem.lse_layout == LseLayout::kHeadsTokens ? 1 : 0;
    const double lse = cases::load(args.lse.data, args.lse.dtype,
                                   token * args.lse.stride[static_cast<size_t>(row_axis)] +
                                       head * args.lse.stride[static_cast<size_t>(1 - row_axis)]);
    const double lse_bound = tolerance.lse_ulps * cases::ulp_of(Dtype::kFp32, call.lse) +
                             tolerance.lse_absolute + tolerance.lse_per_logit * magnitude;
    const double worst_lse = excess(lse, call.lse, lse_bound, args.lse.dtype);
    ++result.rows;
    result.worst_out = std::max(result.worst_out, worst_out);
    result.worst_lse = std::max(result.worst_lse, worst_lse);
    if (worst_out <= 1.0 && worst_lse <= 1.0) continue;
    ++result.failed_rows;
    if (result.first_failure.empty()) {
      result.first_failure = fmt::format(
          "token {} head {} (sequence {}, {} keys): out off by {:.3g} and lse by {:.3g} times the "
          "bound; lse is {:.9g}, fp64 says {:.9g}",
          token, head, sequence, key_end - key_begin, worst_out, worst_lse, lse, call.lse);
    }
  }
  return result;
}

}  // namespace flashprime::cli
