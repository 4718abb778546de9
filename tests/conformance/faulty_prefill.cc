// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/faulty_prefill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/cases/number_formats.h"

namespace flashprime {
namespace {

using cases::load;
using cases::round_to;
using cases::store;
using cases::ulp_of;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kTile = 64;

// Through memory as an integer: g++ 12 and 14 drop the truncation when it stays in registers.
float truncated_to_bf16(float value) {
  volatile uint16_t upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  return std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
}

float rounded_to_bf16(float value) {
  return static_cast<float>(round_to(Dtype::kBf16, static_cast<double>(value)));
}

// The value of `dtype` next to x towards zero.
double truncated_to(Dtype dtype, double x) {
  const double nearest = round_to(dtype, x);
  if (std::fabs(nearest) <= std::fabs(x) || !std::isfinite(nearest)) return nearest;
  return nearest - std::copysign(ulp_of(dtype, x), x);
}

// Degree 3 on [0, 1): good to 1e-4.
float coarse_exp2(float x) {
  if (!(x > -126.0f)) return x == x ? 0.0f : x;
  const float whole = std::floor(x);
  const float f = x - whole;
  return std::ldexp(1.0f + f * (0.695556f + f * (0.226173f + f * 0.0781455f)),
                    static_cast<int>(whole));
}

class Run {
 public:
  Run(const PrefillProblem& problem, const PrefillArgs& args, Fault fault)
      : problem_(problem), args_(args), fault_(fault) {}

  void sequence_head(int64_t sequence, int64_t head);

 private:
  bool has(Fault fault) const { return fault_ == fault; }
  int64_t boundary(const TensorView& view, int64_t index) const {
    return static_cast<const int32_t*>(view.data)[index];
  }
  float element(const TensorView& view, int64_t token, int64_t head, int64_t i) const {
    int64_t index = token * view.stride[0] + i;
    if (view.rank == 3 && view.shape[1] > 1) index += head * view.stride[1];
    return static_cast<float>(load(view.data, view.dtype, index));
  }
  void load_qk_row(const TensorView& joined, const TensorView& nope, const TensorView& pe,
                   int64_t token, int64_t head, float* row) const;
  void load_keys_and_values(int64_t sequence, int64_t head);
  void row(int64_t i);
  void write(int64_t i, const std::vector<float>& out, float lse, bool empty);

  const PrefillProblem& problem_;
  const PrefillArgs& args_;
  const Fault fault_;
  const int64_t d_ = problem_.dims.nope + problem_.dims.rope;
  const int64_t dim_v_ = problem_.dims.v;

  // Of the current sequence and head.
  int64_t head_ = 0;
  int64_t first_q_ = 0;
  int64_t q_len_ = 0;
  int64_t k_len_ = 0;
  int64_t loaded_keys_ = 0;    // k_len_, and with kNeighbourTimesZero the rest of the last tile
  std::vector<float> keys_;    // [loaded_keys_][d_]
  std::vector<float> values_;  // [loaded_keys_][dim_v_]
};

void Run::load_qk_row(const TensorView& joined, const TensorView& nope, const TensorView& pe,
                      int64_t token, int64_t head, float* row) const {
  const int64_t dim_nope = problem_.dims.nope;
  const int64_t rope_head = has(Fault::kRopeOfFirstHead) ? 0 : head;
  for (int64_t i = 0; i < d_; ++i) {
    if (i >= dim_nope && has(Fault::kRopePartDropped)) {
      row[i] = 0.0f;
    } else if (joined.present()) {
      row[i] = element(joined, token, i < dim_nope ? head : rope_head, i);
    } else {
      row[i] = i < dim_nope ? element(nope, token, head, i)
                            : element(pe, token, rope_head, i - dim_nope);
    }
  }
}

void Run::load_keys_and_values(int64_t sequence, int64_t head) {
  const int64_t total = args_.v.shape[0];
  const TensorView& offsets =
      has(Fault::kKeysAtQueryOffsets) ? args_.cu_seqlens_q : args_.cu_seqlens_k;
  const int64_t first = std::min(boundary(offsets, sequence), total - k_len_);
  loaded_keys_ = k_len_;
  if (has(Fault::kNeighbourTimesZero)) {
    loaded_keys_ = std::min((k_len_ + kTile - 1) / kTile * kTile, total - first);
  }
  keys_.resize(static_cast<size_t>(loaded_keys_ * d_));
  values_.resize(static_cast<size_t>(loaded_keys_ * dim_v_));
  const int64_t kv_head = has(Fault::kHeadsSwapped) ? problem_.num_heads - 1 - head : head;
  for (int64_t j = 0; j < loaded_keys_; ++j) {
    const auto shifted = [&](Fault fault) {
      return first + (has(fault) && j + 1 < k_len_ ? j + 1 : j);
    };
    load_qk_row(args_.k, args_.k_nope, args_.k_pe, shifted(Fault::kKeyRowShifted), kv_head,
                keys_.data() + j * d_);
    TensorView v = args_.v;
    if (has(Fault::kValueTreatedAsDense)) {
      v.stride[0] = v.shape[1] * v.shape[2];
      v.stride[1] = v.shape[2];
      if (args_.v.stride[1] == 0) v = args_.v;  // denser than dense: that would read past the end
    }
    for (int64_t i = 0; i < dim_v_; ++i) {
      values_[static_cast<size_t>(j * dim_v_ + i)] =
          element(v, shifted(Fault::kValueRowShifted), kv_head, i);
    }
  }
}

void Run::row(int64_t i) {
  // Which keys: [begin, end).
  int64_t diagonal = i + k_len_ - q_len_;
  if (has(Fault::kCausalTopLeft)) diagonal = i;
  if (has(Fault::kMaskOneTooStrict)) --diagonal;
  if (has(Fault::kMaskOneTooLoose)) ++diagonal;
  int64_t begin = 0;
  int64_t end = k_len_;
  if (problem_.mask.kind == MaskKind::kCausal) end = std::min(end, diagonal + 1);
  if (problem_.mask.kind == MaskKind::kWindow) {
    int64_t left = problem_.mask.window_left;
    if (left >= 0 && has(Fault::kWindowLeftOneTooWide)) ++left;
    if (left >= 0) begin = std::max(begin, diagonal - left);
    if (problem_.mask.window_right >= 0 && !has(Fault::kWindowRightIgnored)) {
      end = std::min(end, diagonal + problem_.mask.window_right + 1);
    }
  }
  if (has(Fault::kFirstKeyDropped) && end - begin > 1) ++begin;
  if (has(Fault::kLastKeyDropped) && end - begin > 1) --end;
  if (has(Fault::kPartialTileSkipped) && end == k_len_ && end > kTile) end = end / kTile * kTile;
  const bool empty = end <= begin;

  std::vector<float> q(static_cast<size_t>(d_));
  load_qk_row(args_.q, args_.q_nope, args_.q_pe, first_q_ + i, head_, q.data());
  float scale = args_.softmax_scale;
  if (has(Fault::kScaleAppliedTwice)) scale *= scale;
  if (has(Fault::kScaleOffBy64Ulps)) scale += 64 * static_cast<float>(ulp_of(Dtype::kFp32, scale));
  const float log2e = has(Fault::kScaleWithoutLog2e) ? 1.0f : 1.44269504f;

  float max = has(Fault::kMaximumStartsAtZero) ? 0.0f : -kInf;
  float sum = 0.0f;
  std::vector<float> out(static_cast<size_t>(dim_v_), 0.0f);
  const int64_t first_tile = begin / kTile;
  const int64_t tiles = empty ? 0 : (end + kTile - 1) / kTile - first_tile;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t tile =
        first_tile + (has(Fault::kBf16AccumulatorReversedTiles) ? tiles - 1 - t : t);
    const int64_t from = std::max(begin, tile * kTile);
    const int64_t to = std::min(end, (tile + 1) * kTile);
    float logits[kTile];
    float tile_max = -kInf;
    for (int64_t j = from; j < to; ++j) {
      float dot = 0.0f;
      for (int64_t e = 0; e < d_; ++e) {
        dot += q[static_cast<size_t>(e)] * keys_[static_cast<size_t>(j * d_ + e)];
      }
      logits[j - from] = dot * scale;
      if (std::isnan(dot) && has(Fault::kNanLogitIgnored)) logits[j - from] = -kInf;
      if (logits[j - from] > tile_max) tile_max = logits[j - from];
    }
    const float new_max = has(Fault::kRunningMaxResetPerTile) ? tile_max : std::max(max, tile_max);
    float alpha = max == -kInf ? 0.0f : std::exp2((max - new_max) * log2e);
    if (has(Fault::kRunningMaxResetPerTile)) alpha = t == 0 ? 0.0f : 1.0f;
    const float reference = new_max == -kInf ? 0.0f : new_max;
    sum *= alpha;
    if (!has(Fault::kOutputNotRescaled)) {
      for (float& value : out) value *= alpha;
    }
    for (int64_t j = from; j < to; ++j) {
      const float x = (logits[j - from] - reference) * log2e;
      float p = has(Fault::kCoarseExponential) ? coarse_exp2(x) : std::exp2(x);
      sum += has(Fault::kDenominatorOfTruncatedWeights) ? truncated_to_bf16(p) : p;
      if (has(Fault::kWeightsTruncatedToBf16)) p = truncated_to_bf16(p);
      if (has(Fault::kWeightsRoundedToBf16)) p = rounded_to_bf16(p);
      for (int64_t e = 0; e < dim_v_; ++e) {
        out[static_cast<size_t>(e)] += p * values_[static_cast<size_t>(j * dim_v_ + e)];
      }
    }
    if (has(Fault::kNeighbourTimesZero)) {
      for (int64_t j = std::max(to, k_len_); j < std::min(loaded_keys_, (tile + 1) * kTile); ++j) {
        for (int64_t e = 0; e < dim_v_; ++e) {
          out[static_cast<size_t>(e)] += 0.0f * values_[static_cast<size_t>(j * dim_v_ + e)];
        }
      }
    }
    if (has(Fault::kBf16AccumulatorReversedTiles)) {
      for (float& value : out) value = rounded_to_bf16(value);
    }
    max = new_max;
  }
  if (empty && has(Fault::kEmptyRowAverages)) {
    for (int64_t j = 0; j < k_len_; ++j) {
      for (int64_t e = 0; e < dim_v_; ++e) {
        out[static_cast<size_t>(e)] += values_[static_cast<size_t>(j * dim_v_ + e)];
      }
    }
    sum = static_cast<float>(std::max<int64_t>(1, k_len_));
  }
  if (sum == 0.0f) {
    write(i, out, has(Fault::kEmptyRowLsePlusInfinity) ? kInf : -kInf, true);
    return;
  }
  for (float& value : out) value /= sum;
  float lse = static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
  if (empty) lse = -kInf;
  if (has(Fault::kLseBaseTwo)) lse *= 1.44269504f;
  if (has(Fault::kLseOfMaximumOnly)) lse = max;
  write(i, out, lse, false);
}

void Run::write(int64_t i, const std::vector<float>& out, float lse, bool empty) {
  if (empty && has(Fault::kEmptyRowNotWritten)) return;
  if (has(Fault::kLastRowNotWritten) && i > 0 && i == q_len_ - 1) return;
  const int64_t token = first_q_ + i;
  const int64_t base = token * args_.out.stride[0] + head_ * args_.out.stride[1];
  const Dtype dtype = args_.out.dtype;
  const bool e4m3 = dtype == Dtype::kE4m3;
  float factor = 1.0f;
  if (e4m3) {
    factor = static_cast<const float*>(args_.output_scale.data)[0];
    if (!has(Fault::kFp8MultipliesByScale)) factor = 1.0f / factor;
  }
  for (int64_t e = 0; e < dim_v_; ++e) {
    auto value = static_cast<double>(out[static_cast<size_t>(e)] * factor);
    if (e4m3 && has(Fault::kFp8FlushesSubnormals) && std::fabs(value) < 0x1p-6) value = 0.0;
    if (e4m3 && has(Fault::kFp8WrapsInsteadOfSaturating) && std::fabs(value) > 448) value /= 256;
    if (e4m3 && has(Fault::kNanBecomesLargestFp8) && std::isnan(value)) value = 448;
    if (has(Fault::kOutputTruncated)) value = truncated_to(dtype, value);
    store(args_.out.data, dtype, base + e, value);
  }
  if (has(Fault::kOneElementPastTheEnd) && token == args_.out.shape[0] - 1 &&
      head_ == problem_.num_heads - 1) {
    store(args_.out.data, dtype, base + dim_v_, 0.0);
  }
  if (!args_.lse.present()) return;
  const bool heads_first = problem_.lse_layout == LseLayout::kHeadsTokens;
  int64_t index =
      head_ * args_.lse.stride[heads_first ? 0 : 1] + token * args_.lse.stride[heads_first ? 1 : 0];
  if (has(Fault::kLseStridesIgnored)) index = head_ * args_.out.shape[0] + token;
  store(args_.lse.data, args_.lse.dtype, index, static_cast<double>(lse));
}

void Run::sequence_head(int64_t sequence, int64_t head) {
  head_ = head;
  first_q_ = boundary(args_.cu_seqlens_q, sequence);
  q_len_ = boundary(args_.cu_seqlens_q, sequence + 1) - first_q_;
  k_len_ = boundary(args_.cu_seqlens_k, sequence + 1) - boundary(args_.cu_seqlens_k, sequence);
  load_keys_and_values(sequence, head);
  for (int64_t i = 0; i < q_len_; ++i) row(i);
}

}  // namespace

void PrintTo(const FaultName& value, std::ostream* out) {
  *out << value.name;
}

const std::vector<FaultName>& all_faults() {
#define FLASHPRIME_FAULT(name) {Fault::k##name, #name}
  static const std::vector<FaultName> faults = {
      FLASHPRIME_FAULT(WeightsTruncatedToBf16),
      FLASHPRIME_FAULT(WeightsRoundedToBf16),
      FLASHPRIME_FAULT(DenominatorOfTruncatedWeights),
      FLASHPRIME_FAULT(CoarseExponential),
      FLASHPRIME_FAULT(FirstKeyDropped),
      FLASHPRIME_FAULT(LastKeyDropped),
      FLASHPRIME_FAULT(PartialTileSkipped),
      FLASHPRIME_FAULT(MaskOneTooStrict),
      FLASHPRIME_FAULT(MaskOneTooLoose),
      FLASHPRIME_FAULT(CausalTopLeft),
      FLASHPRIME_FAULT(WindowLeftOneTooWide),
      FLASHPRIME_FAULT(WindowRightIgnored),
      FLASHPRIME_FAULT(ScaleOffBy64Ulps),
      FLASHPRIME_FAULT(ScaleAppliedTwice),
      FLASHPRIME_FAULT(ScaleWithoutLog2e),
      FLASHPRIME_FAULT(Bf16AccumulatorReversedTiles),
      FLASHPRIME_FAULT(KeyRowShifted),
      FLASHPRIME_FAULT(ValueRowShifted),
      FLASHPRIME_FAULT(ValueTreatedAsDense),
      FLASHPRIME_FAULT(KeysAtQueryOffsets),
      FLASHPRIME_FAULT(NeighbourTimesZero),
      FLASHPRIME_FAULT(RunningMaxResetPerTile),
      FLASHPRIME_FAULT(OutputNotRescaled),
      FLASHPRIME_FAULT(MaximumStartsAtZero),
      FLASHPRIME_FAULT(NanLogitIgnored),
      FLASHPRIME_FAULT(LseBaseTwo),
      FLASHPRIME_FAULT(LseOfMaximumOnly),
      FLASHPRIME_FAULT(LseStridesIgnored),
      FLASHPRIME_FAULT(EmptyRowLsePlusInfinity),
      FLASHPRIME_FAULT(EmptyRowNotWritten),
      FLASHPRIME_FAULT(EmptyRowAverages),
      FLASHPRIME_FAULT(LastRowNotWritten),
      FLASHPRIME_FAULT(OneElementPastTheEnd),
      FLASHPRIME_FAULT(OutputTruncated),
      FLASHPRIME_FAULT(HeadsSwapped),
      FLASHPRIME_FAULT(RopePartDropped),
      FLASHPRIME_FAULT(RopeOfFirstHead),
      FLASHPRIME_FAULT(Fp8MultipliesByScale),
      FLASHPRIME_FAULT(Fp8FlushesSubnormals),
      FLASHPRIME_FAULT(Fp8WrapsInsteadOfSaturating),
      FLASHPRIME_FAULT(NanBecomesLargestFp8),
  };
#undef FLASHPRIME_FAULT
  return faults;
}

Status faulty_prefill(const PrefillProblem& problem, const PrefillArgs& args, Fault fault) {
  Run run(problem, args, fault);
  const int64_t batch = args.cu_seqlens_q.shape[0] - 1;
  for (int64_t sequence = 0; sequence < batch; ++sequence) {
    for (int64_t head = 0; head < problem.num_heads; ++head) run.sequence_head(sequence, head);
  }
  return {};
}

}  // namespace flashprime
