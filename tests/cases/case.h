// SPDX-License-Identifier: Apache-2.0
// The case table: which attention problems are checked, on which data, in which memory layout and
// how closely. Tests, benchmarks and `flashprime check` read the same rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/prefill.h"

namespace flashprime::cases {

/// What the numbers look like. All are functions of (seed, tensor, row, element) alone.
enum class Distribution : uint8_t {
  kNormal,         ///< N(0, 1), the numbers of fill_random()
  kPeaky,          ///< queries times 8: a few keys carry a row
  kOutliers,       ///< one element in a thousand times 10
  kPositiveV,      ///< values in [0, 1]: a biased kernel shows here
  kTiedMaxima,     ///< negative values and three distinct keys, so that maxima tie
  kEqualLogits,    ///< every key the same: the average of the values
  kOneHot,         ///< each query matches one key far better than the rest
  kSinkToken,      ///< key 0 of each sequence 20 above the rest
  kHugeLogits,     ///< logits near +-1e4
  kTiny,           ///< 1e-30 (1e-4 for fp16): products underflow
  kIntegerGrid,    ///< small integers, exact in every dtype
  kRotary,         ///< the rope part rotates with the position
  kNegativeScores  ///< every logit near -120, so that exp(x) alone underflows
};
constexpr int kNumDistributions = 13;
std::string_view distribution_name(Distribution distribution);

/// How a [rows, heads, dim] tensor lies in memory.
enum class Layout : uint8_t {
  kDense,       ///< row-major
  kPadded,      ///< gaps between heads and between rows
  kTransposed,  ///< from [heads, rows, dim]
  kOdd,         ///< last axis padded by one element, start at element 1: 2-byte alignment only
  kSlice,       ///< part of a wider tensor, as vLLM makes it (see Case)
  kBroadcast    ///< one head seen by all: head stride 0 (k joined and v only)
};
std::string_view layout_name(Layout layout);

/// Where a special number replaces the data.
struct Poison {
  enum class Tensor : uint8_t { kQ, kK, kV };
  enum class Value : uint8_t { kNan, kInfinity, kHuge };
  Tensor tensor = Tensor::kK;
  int32_t sequence = 0;
  int32_t row = -1;  ///< within the sequence; -1: every row
  Value value = Value::kNan;
};

/// How closely a kernel must agree with the fp64 oracle; see accuracy.h for the definitions.
struct Tolerance {
  /// Relative RMS error before the output rounding, at logits near 1.
  double preround_rel_rms = 1e-6;
  /// The same per unit of scale * max_j sum_i |q_i k_ij|: the rounding of the dot products, a
  /// random walk of up to 256 steps of half an fp32 ulp.
  double preround_per_logit = 0x1p-21;
  /// Largest error of one element, in units of the RMS allowance times max |v|.
  double element_factor = 8.0;
  /// RMS error of the stored output over that of the correctly rounded oracle.
  double max_rms_over_ideal = 1.01;
  /// LSE bound: lse_ulps ulp(|lse|) + lse_absolute + lse_per_logit * (the sum above).
  double lse_ulps = 4.0;
  double lse_absolute = 5e-6;
  double lse_per_logit = 0x1p-20;
  std::string_view reason =
      "fp32 arithmetic with fp32 weights: what is left is the output rounding, and the rounding of "
      "fp32 dot products, which grows with the size of the logits";
};

/// Bits of Case::suites.
enum Suite : uint32_t { kQuick = 1, kFull = 2, kKnownBugs = 4 };

struct Case {
  std::string name;  ///< unique, also the handle of `--filter`
  std::string why;   ///< what it guards against
  HeadDims dims;
  int32_t heads = 2;
  Dtype dtype = Dtype::kBf16;
  Dtype out_dtype = Dtype::kBf16;
  Mask mask;
  std::vector<int32_t> q_lens;  ///< one per sequence
  std::vector<int32_t> k_lens;
  int64_t stated_max_q = -1;  ///< max_seqlen_q as passed; may exceed the truth
  int64_t stated_max_k = -1;

  bool lse = true;
  LseLayout lse_layout = LseLayout::kHeadsTokens;
  bool lse_gapped = false;  ///< strides with gaps instead of dense ones

  /// Joined or in two parts. q in parts with kSlice: both are views of one joined tensor. k in
  /// parts: k_nope has `k_layout`, or with kSlice shares one [Tk, H, nope + v] tensor with v, and
  /// k_pe is a slice of [Tk, 48 + rope]. Joined k with kSlice: k and v are the halves of one
  /// [Tk, 2, H, d] tensor (d = v).
  bool q_split = false;
  bool k_split = false;
  bool k_pe_rank3 = false;  ///< k_pe as [Tk, 1, rope]
  Layout q_layout = Layout::kDense;
  Layout k_layout = Layout::kDense;
  Layout v_layout = Layout::kDense;
  Layout out_layout = Layout::kDense;

  Distribution distribution = Distribution::kNormal;
  std::vector<Poison> poison;
  double softmax_scale = -1.0;  ///< negative: (nope + rope)^-0.5
  float output_scale = 1.0f;    ///< with e4m3 output
  Tolerance tolerance;
  uint32_t suites = kFull;

  int64_t total_q() const;
  int64_t total_k() const;
  float scale() const;
  /// Visible (query, key, head) triples: what the work is counted in.
  int64_t visible_pairs() const;
  PrefillProblem problem() const;
};

/// Keys [begin, end) of a sequence that row `i` sees; end <= begin: none. Written from the
/// definition of the mask, apart from any kernel.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};
KeyRange visible_keys(const Mask& mask, int64_t i, int64_t q_len, int64_t k_len);

/// Every case; quick ones first.
const std::vector<Case>& case_table();

}  // namespace flashprime::cases
