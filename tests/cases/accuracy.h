// SPDX-License-Identifier: Apache-2.0
// Whether an implementation of prefill() is right on a case, judged against the fp64 kernel
// `cpu_reference` row by row.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flashprime/prefill.h"
#include "tests/cases/case.h"
#include "tests/cases/tensors.h"

namespace flashprime::cases {

/// Anything that claims to be prefill().
using Implementation = std::function<Status(const PrefillProblem&, const PrefillArgs&)>;

/// prefill() under `options`; on a GPU with copies of the tensors (staging.h).
Implementation library_prefill(ExecutionOptions options);

/// The dtype of the softmax weights in the kernels that `options` run: tensor cores multiply them
/// in the dtype of V, the CPU kernels in fp32.
Dtype weights_dtype(const ExecutionOptions& options, Dtype dtype);

/// What was measured. Errors are over the checked rows; o is the oracle, r its correct rounding.
struct Metrics {
  int64_t rows_checked = 0;         ///< (row, head) pairs
  int64_t elements_checked = 0;     ///< of out
  double rel_rms = 0;               ///< rms(out - o) / rms(o), stored output
  double ideal_rel_rms = 0;         ///< the same for r: what no kernel can beat
  double preround_rel_rms = 0;      ///< the same for the fp32 output
  double preround_max = 0;          ///< max |out32 - o| / max |v|
  double preround_bias = 0;         ///< mean(out32 - o) / rms(o), where all values have one sign
  double equal_codes = 1;           ///< fraction of stored elements equal to r
  double lse_error = 0;             ///< largest, absolute
  double lse_error_ulps = 0;        ///< largest, in fp32 ulps of the LSE
  double lse_error_over_bound = 0;  ///< largest, in units of the LSE bound
};

struct Verdict {
  Metrics metrics;
  std::vector<std::string> violations;  ///< one line a criterion: what, where, got, wanted

  bool passed() const { return violations.empty(); }
};

struct CheckOptions {
  uint64_t seed = 1;
  /// Multiply-adds that the oracle may spend; rows are sampled beyond it: first and last of every
  /// sequence, tile edges, then at random.
  int64_t oracle_work = 30'000'000;
  /// Runs the case a second time with fp32 output, for the error before rounding.
  bool preround = true;
  /// What the kernel under test rounds the softmax weights to before it multiplies them with V.
  Dtype weights = Dtype::kFp32;
};

/// A case with its data and its oracle, ready to judge any number of implementations. Criteria:
///  - every element lies in [round(o - d), round(o + d)] with d = element_factor * allowance *
///    max |v|, allowance = preround_rel_rms + preround_per_logit * S + W, S = scale max_j sum|q_i
///    k_ij|, W half an ulp of the weights' dtype at 1 where that is not fp32
///  - rms(out - o) <= max_rms_over_ideal * rms(r - o) + allowance * rms(o)
///  - fp32 output: rms(out32 - o) <= allowance * rms(o); |bias| <= allowance where V has one sign
///  - LSE within its bound; the same LSE with fp32 output
///  - a row that sees no key has out = 0 and LSE = -inf exactly; NaN exactly where the oracle has
///  it
///  - no byte outside out and lse changed, every element of them written, no input changed
class CaseChecker {
 public:
  /// kUnsupported where `cpu_reference` cannot run the case.
  static StatusOr<std::unique_ptr<CaseChecker>> make(const Case& c, const CheckOptions& options);
  ~CaseChecker();

  Verdict check(const Implementation& implementation);
  const Case& the_case() const;

 private:
  struct State;
  explicit CaseChecker(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flashprime::cases
