// SPDX-License-Identifier: Apache-2.0
// Random small problems over every axis: the fp64 kernel against the formula written out here once
// more, and every kernel against the fp64 kernel.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "flashprime/backend.h"
#include "tests/cases/accuracy.h"
#include "tests/cases/number_formats.h"

namespace flashprime {
namespace {

using cases::Case;
using cases::Layout;
using cases::Poison;

Case any_case() {
  Case c;
  c.name = "random";
  c.dims.nope = *rc::gen::inRange(1, 20);
  c.dims.rope = *rc::gen::element(0, 0, 1, 8, 13);
  c.dims.v = *rc::gen::inRange(1, 24);
  c.heads = *rc::gen::inRange(1, 5);
  c.dtype = *rc::gen::element(Dtype::kBf16, Dtype::kFp16, Dtype::kFp32);
  c.out_dtype = *rc::gen::element(c.dtype, Dtype::kFp32, Dtype::kE4m3);
  c.output_scale = *rc::gen::element(1.0f, 0.02f, 3.7f);
  c.mask.kind = *rc::gen::element(MaskKind::kCausal, MaskKind::kFull, MaskKind::kWindow);
  if (c.mask.kind == MaskKind::kWindow) {
    c.mask.window_left = *rc::gen::inRange(-1, 12);
    c.mask.window_right = *rc::gen::inRange(-1, 6);
  }
  const auto sequences = *rc::gen::inRange(0, 5);
  for (int s = 0; s < sequences; ++s) {
    c.q_lens.push_back(*rc::gen::element(0, 1, 2, 3, 5, 8, 17, 33));
    c.k_lens.push_back(*rc::gen::element(0, 1, 2, 3, 5, 9, 16, 40, 70));
  }
  const auto layout = [] {
    return *rc::gen::element(Layout::kDense, Layout::kPadded, Layout::kTransposed, Layout::kOdd,
                             Layout::kSlice);
  };
  c.q_split = *rc::gen::arbitrary<bool>();
  c.k_split = *rc::gen::arbitrary<bool>();
  c.k_pe_rank3 = *rc::gen::arbitrary<bool>();
  c.q_layout = layout();
  c.k_layout = c.k_split ? layout() : *rc::gen::element(layout(), Layout::kBroadcast);
  c.v_layout = *rc::gen::element(layout(), Layout::kBroadcast);
  c.out_layout = layout();
  c.lse = *rc::gen::arbitrary<bool>();
  c.lse_layout = *rc::gen::element(LseLayout::kHeadsTokens, LseLayout::kTokensHeads);
  c.lse_gapped = *rc::gen::arbitrary<bool>();
  c.distribution = static_cast<cases::Distribution>(*rc::gen::inRange(0, cases::kNumDistributions));
  // The rope part is shared by heads where k is split, so that a query cannot match its own key in
  // every head: that distribution's promise (one hot) does not matter here, its numbers do.
  c.softmax_scale = *rc::gen::element(-1.0, 0.0, 0.135, 1.0);
  if (sequences > 0 && *rc::gen::inRange(0, 3) == 0) {
    Poison poison;
    poison.tensor = *rc::gen::element(Poison::Tensor::kQ, Poison::Tensor::kK, Poison::Tensor::kV);
    poison.sequence = *rc::gen::inRange(0, sequences);
    poison.row = *rc::gen::inRange(-1, 9);
    c.poison.push_back(poison);
  }
  return c;
}

std::string describe(const Case& c) {
  std::string text = "dims " + std::to_string(c.dims.nope) + "," + std::to_string(c.dims.rope) +
                     "," + std::to_string(c.dims.v) + " heads " + std::to_string(c.heads) +
                     " dtype " + std::to_string(static_cast<int>(c.dtype)) + "->" +
                     std::to_string(static_cast<int>(c.out_dtype)) + " mask " +
                     std::to_string(static_cast<int>(c.mask.kind)) + "(" +
                     std::to_string(c.mask.window_left) + "," +
                     std::to_string(c.mask.window_right) + ") data " +
                     std::string(cases::distribution_name(c.distribution)) + " q ";
  for (const int32_t len : c.q_lens) text += std::to_string(len) + " ";
  text += "k ";
  for (const int32_t len : c.k_lens) text += std::to_string(len) + " ";
  return text;
}

// out and lse of one row and head, from the definition in the public header, in long double.
struct DefinedRow {
  std::vector<long double> out;
  long double lse;
};

DefinedRow define_row(const Case& c, const cases::ValueSource& source, int64_t sequence,
                      int64_t first_q, int64_t first_k, int64_t i, int64_t head) {
  const int64_t d = c.dims.nope + c.dims.rope;
  const int64_t q_len = c.q_lens[static_cast<size_t>(sequence)];
  const int64_t k_len = c.k_lens[static_cast<size_t>(sequence)];
  std::vector<float> row(static_cast<size_t>(c.heads * std::max<int64_t>(d, c.dims.v)));
  const auto stored = [&](float value) {
    return static_cast<long double>(cases::round_to(c.dtype, static_cast<double>(value)));
  };
  source.q_row(first_q + i, row.data());
  std::vector<long double> q;
  for (int64_t e = 0; e < d; ++e) q.push_back(stored(row[static_cast<size_t>(head * d + e)]));

  DefinedRow result{std::vector<long double>(static_cast<size_t>(c.dims.v), 0.0L),
                    -std::numeric_limits<long double>::infinity()};
  std::vector<long double> x;
  std::vector<int64_t> seen;
  for (int64_t j = 0; j < k_len; ++j) {
    const int64_t position = i + (k_len - q_len);
    bool visible = true;
    if (c.mask.kind == MaskKind::kCausal) visible = j <= position;
    if (c.mask.kind == MaskKind::kWindow) {
      visible = (c.mask.window_left < 0 || j >= position - c.mask.window_left) &&
                (c.mask.window_right < 0 || j <= position + c.mask.window_right);
    }
    if (!visible) continue;
    source.k_row(first_k + j, row.data());
    long double dot = 0;
    for (int64_t e = 0; e < d; ++e) {
      dot += q[static_cast<size_t>(e)] * stored(row[static_cast<size_t>(head * d + e)]);
    }
    x.push_back(static_cast<long double>(c.scale()) * dot);
    seen.push_back(j);
  }
  if (seen.empty()) return result;
  long double max = -std::numeric_limits<long double>::infinity();
  bool nan = false;
  for (const long double value : x) {
    nan |= std::isnan(value);
    max = std::max(max, value);
  }
  if (nan) max = std::numeric_limits<long double>::quiet_NaN();
  long double sum = 0;
  for (const long double value : x) sum += std::exp(value - max);
  for (size_t n = 0; n < seen.size(); ++n) {
    source.v_row(first_k + seen[n], row.data());
    for (int64_t e = 0; e < c.dims.v; ++e) {
      result.out[static_cast<size_t>(e)] +=
          std::exp(x[n] - max) / sum * stored(row[static_cast<size_t>(head * c.dims.v + e)]);
    }
  }
  result.lse = max + std::log(sum);
  return result;
}

RC_GTEST_PROP(Differential, ReferenceKernelComputesTheDefinition, ()) {
  Case c = any_case();
  c.lse = true;
  c.lse_layout = LseLayout::kHeadsTokens;
  c.lse_gapped = false;
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  const cases::InputTensors inputs(c, seed);
  cases::OutputTensors outputs(c, Dtype::kFp64, -5.0);
  PrefillProblem problem = c.problem();
  problem.out_dtype = Dtype::kFp64;
  PrefillArgs args = inputs.args();
  args.out = outputs.out();
  args.lse = outputs.lse();
  ExecutionOptions execution;
  execution.kernel = "cpu_reference";
  const Status status = prefill(problem, args, execution);
  if (!status.ok()) RC_FAIL(status.to_string());

  const cases::ValueSource source(c, seed);
  int64_t first_q = 0;
  int64_t first_k = 0;
  for (size_t s = 0; s < c.q_lens.size(); ++s) {
    for (int64_t i = 0; i < c.q_lens[s]; ++i) {
      const int64_t head = i % c.heads;
      const DefinedRow wanted =
          define_row(c, source, static_cast<int64_t>(s), first_q, first_k, i, head);
      const double lse =
          cases::load(args.lse.data, Dtype::kFp64, head * args.lse.stride[0] + first_q + i);
      const auto close = [](double got, long double value, double scale) {
        if (std::isnan(value)) return std::isnan(got);
        if (std::isinf(value)) return got == static_cast<double>(value);
        return std::fabs(got - static_cast<double>(value)) <= 1e-11 * scale;
      };
      if (!close(lse, wanted.lse, 1.0 + std::fabs(static_cast<double>(wanted.lse)))) {
        RC_FAIL(describe(c) + "lse " + std::to_string(lse) + " wanted " +
                std::to_string(static_cast<double>(wanted.lse)));
      }
      for (int64_t e = 0; e < c.dims.v; ++e) {
        const double got =
            cases::load(args.out.data, Dtype::kFp64,
                        (first_q + i) * args.out.stride[0] + head * args.out.stride[1] + e);
        if (!close(got, wanted.out[static_cast<size_t>(e)], 1e2)) {
          RC_FAIL(describe(c) + "out " + std::to_string(got));
        }
      }
    }
    first_q += c.q_lens[s];
    first_k += c.k_lens[s];
  }
}

RC_GTEST_PROP(Differential, EveryKernelAgreesWithTheOracleOnRandomProblems, ()) {
  const Case c = any_case();
  cases::CheckOptions options;
  options.seed = *rc::gen::arbitrary<uint32_t>();
  auto checker = cases::CaseChecker::make(c, options);
  if (!checker.ok()) RC_FAIL(describe(c) + checker.status().to_string());
  for (const KernelInfo& info : list_kernels()) {
    if (info.device != DeviceKind::kCpu) continue;
    ExecutionOptions execution;
    execution.kernel = info.name;
    const cases::Verdict verdict = (*checker)->check(cases::library_prefill(execution));
    if (!verdict.passed()) {
      RC_FAIL(info.name + ": " + describe(c) + verdict.violations.front());
    }
  }
}

}  // namespace
}  // namespace flashprime
