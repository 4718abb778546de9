// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/case.h"

#include <algorithm>
#include <cmath>

namespace flashprime::cases {
namespace {

int64_t sum(const std::vector<int32_t>& lens) {
  int64_t total = 0;
  for (const int32_t len : lens) total += len;
  return total;
}

}  // namespace

std::string_view distribution_name(Distribution distribution) {
  switch (distribution) {
    case Distribution::kNormal: return "normal";
    case Distribution::kPeaky: return "peaky";
    case Distribution::kOutliers: return "outliers";
    case Distribution::kPositiveV: return "positive_v";
    case Distribution::kTiedMaxima: return "tied_maxima";
    case Distribution::kEqualLogits: return "equal_logits";
    case Distribution::kOneHot: return "one_hot";
    case Distribution::kSinkToken: return "sink_token";
    case Distribution::kHugeLogits: return "huge_logits";
    case Distribution::kTiny: return "tiny";
    case Distribution::kIntegerGrid: return "integer_grid";
    case Distribution::kRotary: return "rotary";
    case Distribution::kNegativeScores: return "negative_scores";
  }
  return "unknown";
}

std::string_view layout_name(Layout layout) {
  switch (layout) {
    case Layout::kDense: return "dense";
    case Layout::kPadded: return "padded";
    case Layout::kTransposed: return "transposed";
    case Layout::kOdd: return "odd";
    case Layout::kSlice: return "slice";
    case Layout::kBroadcast: return "broadcast";
  }
  return "unknown";
}

int64_t Case::total_q() const {
  return sum(q_lens);
}

int64_t Case::total_k() const {
  return sum(k_lens);
}

float Case::scale() const {
  if (softmax_scale >= 0) return static_cast<float>(softmax_scale);
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims.nope + dims.rope)));
}

int64_t Case::visible_pairs() const {
  int64_t pairs = 0;
  for (size_t s = 0; s < q_lens.size(); ++s) {
    for (int64_t i = 0; i < q_lens[s]; ++i) {
      const KeyRange keys = visible_keys(mask, i, q_lens[s], k_lens[s]);
      pairs += std::max<int64_t>(0, keys.end - keys.begin);
    }
  }
  return pairs * heads;
}

PrefillProblem Case::problem() const {
  PrefillProblem problem;
  problem.dims = dims;
  problem.num_heads = heads;
  problem.dtype = dtype;
  problem.out_dtype = out_dtype;
  problem.mask = mask;
  problem.return_lse = lse;
  problem.lse_layout = lse_layout;
  return problem;
}

KeyRange visible_keys(const Mask& mask, int64_t i, int64_t q_len, int64_t k_len) {
  const int64_t diagonal = i + k_len - q_len;
  int64_t first = 0;
  int64_t last = k_len - 1;
  if (mask.kind == MaskKind::kCausal) last = std::min(last, diagonal);
  if (mask.kind == MaskKind::kWindow) {
    if (mask.window_left >= 0) first = std::max(first, diagonal - mask.window_left);
    if (mask.window_right >= 0) last = std::min(last, diagonal + mask.window_right);
  }
  return {first, last + 1};
}

}  // namespace flashprime::cases
