// SPDX-License-Identifier: Apache-2.0
// The fast CPU kernel, compiled once per SIMD target by fast.cc.
//
// A tile is up to kFastBlockQ query rows of one head. Its keys are visited in blocks of kBlockKv,
// counted from key 0 of the sequence, so that what happens to a row does not depend on its tile:
//
//   for each block of keys that some row sees
//     unpack K to fp32, transposed            k_panels  [kBlockKv / kPanel][d_qk][kPanel]
//     unpack V to fp32                        v_panels  [v / kPanel][kBlockKv][kPanel]
//     for each group of kRows query rows
//       S = Q K^T                             scores    [kRows][kBlockKv]
//       running max, P = exp2, row sum        per row, over the keys that the row sees
//       O = alpha O + P V                     o         [group][v / kPanel][kRows][kPanel]
//   out = O / l, lse = m * scale + ln l
//
// Both products are the same register tile: kRows x kPanel accumulators, one FMA chain per element
// in the order of the inner index. So an element's bits depend on its own row and keys alone: not
// on the group, the tile, the batch, the strides or the number of threads. Keys that a row does
// not see take no part, not even as zeros: their K and V may hold NaN.

#if defined(FLASHPRIME_CPU_FAST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHPRIME_CPU_FAST_INL_H_
#undef FLASHPRIME_CPU_FAST_INL_H_
#else
#define FLASHPRIME_CPU_FAST_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/fast_target.h"
#include "cpu/mask_range.h"
#include "numerics/convert.h"

// Only targets with fused multiply-add and 16-bit float conversion.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace flashprime::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;

constexpr size_t kLanes = HWY_LANES(float);
// Register tile: 12 of 16 (AVX2) or 24 of 32 (AVX-512) vector registers accumulate; the rest hold
// one broadcast and the panel's two vectors.
constexpr size_t kRows = HWY_TARGET == HWY_AVX2 ? 6 : 12;
constexpr size_t kPanel = 2 * kLanes;
constexpr size_t kBlockKv = 128;
static_assert(kFastBlockQ % kRows == 0 && kBlockKv % kPanel == 0);

constexpr size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

// ---------------------------------------------------------------------------------------------
// Unpacking: 16-bit or fp32 rows in memory to fp32 in registers.

// kWidth consecutive elements of a row. Never reads past them.
template <class D>
HWY_INLINE hn::Vec<D> load_elements(D d, const float* p) {
  return hn::LoadU(d, p);
}
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
template <class D>
HWY_INLINE hn::Vec<D> load_elements(D d, const Bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> load_elements(D d, const Fp16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

HWY_INLINE float load_element(const float* p) {
  return *p;
}
HWY_INLINE float load_element(const Bf16* p) {
  return bf16_to_float(p->bits);
}
HWY_INLINE float load_element(const Fp16* p) {
  return fp16_to_float(p->bits);
}

// Rows [0, rows) of `source` to columns of `panel` [length][kStride]: panel[i][r] = source[r][i].
template <size_t kStride, class Element>
HWY_INLINE void transpose_rows(const Element* source, int64_t stride, size_t rows, size_t length,
                               float* panel) {
  const hn::CappedTag<float, 4> d4;
  const size_t length4 = length / 4 * 4;
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const Element* r0 = source + static_cast<int64_t>(r) * stride;
    const Element* r1 = r0 + stride;
    const Element* r2 = r1 + stride;
    const Element* r3 = r2 + stride;
    float* column = panel + r;
    for (size_t i = 0; i < length4; i += 4) {
      const auto a = load_elements(d4, r0 + i);
      const auto b = load_elements(d4, r1 + i);
      const auto c = load_elements(d4, r2 + i);
      const auto e = load_elements(d4, r3 + i);
      const auto ac_low = hn::InterleaveLower(d4, a, c);   // a0 c0 a1 c1
      const auto ac_high = hn::InterleaveUpper(d4, a, c);  // a2 c2 a3 c3
      const auto be_low = hn::InterleaveLower(d4, b, e);
      const auto be_high = hn::InterleaveUpper(d4, b, e);
      hn::StoreU(hn::InterleaveLower(d4, ac_low, be_low), d4, column + (i + 0) * kStride);
      hn::StoreU(hn::InterleaveUpper(d4, ac_low, be_low), d4, column + (i + 1) * kStride);
      hn::StoreU(hn::InterleaveLower(d4, ac_high, be_high), d4, column + (i + 2) * kStride);
      hn::StoreU(hn::InterleaveUpper(d4, ac_high, be_high), d4, column + (i + 3) * kStride);
    }
    for (size_t i = length4; i < length; ++i) {
      column[i * kStride + 0] = load_element(r0 + i);
      column[i * kStride + 1] = load_element(r1 + i);
      column[i * kStride + 2] = load_element(r2 + i);
      column[i * kStride + 3] = load_element(r3 + i);
    }
  }
  for (; r < rows; ++r) {
    const Element* row = source + static_cast<int64_t>(r) * stride;
    for (size_t i = 0; i < length; ++i) panel[i * kStride + r] = load_element(row + i);
  }
}

// One vector of panel columns [rows, kStride) set to zero, for every i.
template <size_t kStride>
HWY_INLINE void zero_columns(size_t rows, size_t length, float* panel) {
  for (size_t i = 0; i < length; ++i) {
    for (size_t r = rows; r < kStride; ++r) panel[i * kStride + r] = 0.0f;
  }
}

// `rows` rows of nope + rope elements to panels [panel][d_qk][kStride], zeros behind the last row.
template <size_t kStride, class Element>
HWY_NOINLINE void pack_transposed(const Element* nope, int64_t nope_stride, size_t nope_length,
                                  const Element* rope, int64_t rope_stride, size_t rope_length,
                                  size_t rows, float* panels) {
  const size_t d_qk = nope_length + rope_length;
  for (size_t r = 0; r < rows; r += kStride, panels += d_qk * kStride) {
    const size_t count = HWY_MIN(rows - r, kStride);
    const int64_t row = static_cast<int64_t>(r);
    transpose_rows<kStride>(nope + row * nope_stride, nope_stride, count, nope_length, panels);
    if (rope_length != 0) {
      transpose_rows<kStride>(rope + row * rope_stride, rope_stride, count, rope_length,
                              panels + nope_length * kStride);
    }
    if (count != kStride) zero_columns<kStride>(count, d_qk, panels);
  }
}

// `rows` rows of `length` elements to panels [panel][kBlockKv][kPanel]. Columns past `length` are
// zero: they are computed on, never stored.
template <class Element>
HWY_NOINLINE void pack_rows(const Element* source, int64_t stride, size_t rows, size_t length,
                            float* panels) {
  const DF df;
  for (size_t first = 0; first < length; first += kPanel, panels += kBlockKv * kPanel) {
    const size_t count = HWY_MIN(length - first, kPanel);
    const Element* column = source + first;
    for (size_t r = 0; r < rows; ++r) {
      const Element* row = column + static_cast<int64_t>(r) * stride;
      float* to = panels + r * kPanel;
      if (count == kPanel) {
        hn::Store(load_elements(df, row), df, to);
        hn::Store(load_elements(df, row + kLanes), df, to + kLanes);
      } else {
        for (size_t i = 0; i < kPanel; ++i) to[i] = i < count ? load_element(row + i) : 0.0f;
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------
// The register tile: C[r][0 .. kPanel) = start + sum_k A(k, r) * B[k][0 .. kPanel).

// A(k, r) = a[k * kAStrideK + r * kAStrideR]. `alpha` scales what C holds; null starts at zero.
template <size_t kNumRows, size_t kAStrideK, size_t kAStrideR, size_t kCStride>
HWY_INLINE void multiply_accumulate(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                                    size_t length, const float* alpha, float* HWY_RESTRICT c) {
  const DF df;
  VF acc[kNumRows][2];
#pragma GCC unroll 16
  for (size_t r = 0; r < kNumRows; ++r) {
    if (alpha == nullptr) {
      acc[r][0] = hn::Zero(df);
      acc[r][1] = hn::Zero(df);
    } else {
      const VF factor = hn::Set(df, alpha[r]);
      acc[r][0] = hn::Mul(factor, hn::Load(df, c + r * kCStride));
      acc[r][1] = hn::Mul(factor, hn::Load(df, c + r * kCStride + kLanes));
    }
  }
  for (size_t k = 0; k < length; ++k) {
    const VF b0 = hn::Load(df, b);
    const VF b1 = hn::Load(df, b + kLanes);
#pragma GCC unroll 16
    for (size_t r = 0; r < kNumRows; ++r) {
      const VF a_kr = hn::Set(df, a[r * kAStrideR]);
      acc[r][0] = hn::MulAdd(a_kr, b0, acc[r][0]);
      acc[r][1] = hn::MulAdd(a_kr, b1, acc[r][1]);
    }
    a += kAStrideK;
    b += kPanel;
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kNumRows; ++r) {
    hn::Store(acc[r][0], df, c + r * kCStride);
    hn::Store(acc[r][1], df, c + r * kCStride + kLanes);
  }
}

HWY_NOINLINE void multiply_scores(const float* q, const float* k_panel, size_t d_qk,
                                  float* scores) {
  multiply_accumulate<kRows, kRows, 1, kBlockKv>(q, k_panel, d_qk, nullptr, scores);
}

// o[0 .. kNumRows) = alpha * o + P V over the keys [begin, end) of the block, every panel.
template <size_t kNumRows>
HWY_NOINLINE void accumulate_output(const float* p, const float* v_panels, size_t num_panels,
                                    size_t begin, size_t end, const float* alpha, float* o) {
  for (size_t panel = 0; panel < num_panels; ++panel) {
    multiply_accumulate<kNumRows, 1, kBlockKv, kPanel>(
        p + begin, v_panels + (panel * kBlockKv + begin) * kPanel, end - begin, alpha,
        o + panel * kRows * kPanel);
  }
}

// ---------------------------------------------------------------------------------------------
// Online softmax of one row.

// 2^x for x <= 0 or NaN; 0 below 2^-125, where the exponent would leave fp32. Degree 6 in [-1/2,
// 1/2], relative error below 2^-23; exactly 1 at 0. NaN stays NaN only by the last line: what
// ConvertTo() makes of it would turn the sum of bits into a large finite number.
HWY_INLINE VF exp2_nonpositive(VF x) {
  const DF df;
  const DI di;
  const VF rounded = hn::Round(x);
  const VF f = hn::Sub(x, rounded);
  VF y = hn::Set(df, 0x1.41fbbap-13f);
  y = hn::MulAdd(y, f, hn::Set(df, 0x1.5f3e54p-10f));
  y = hn::MulAdd(y, f, hn::Set(df, 0x1.3b2d4cp-7f));
  y = hn::MulAdd(y, f, hn::Set(df, 0x1.c6aee8p-5f));
  y = hn::MulAdd(y, f, hn::Set(df, 0x1.ebfbdcp-3f));
  y = hn::MulAdd(y, f, hn::Set(df, 0x1.62e43p-1f));
  y = hn::MulAdd(y, f, hn::Set(df, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, rounded));
  const VF scaled = hn::BitCast(df, hn::Add(hn::BitCast(di, y), exponent));
  const VF result = hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -125.0f)), scaled);
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// Lanes of the vector at key `j` whose key lies in [begin, end).
HWY_INLINE hn::Mask<DF> keys_within(size_t j, size_t begin, size_t end) {
  const DF df;
  const VF key = hn::Iota(df, static_cast<float>(j));
  return hn::And(hn::Ge(key, hn::Set(df, static_cast<float>(begin))),
                 hn::Lt(key, hn::Set(df, static_cast<float>(end))));
}

// What a row carries from block to block: every key so far has weight exp2((s - max) * c).
struct RowState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

// Scores of one row to weights, in place, over the visible keys [begin, end) of the block, which
// is not empty; and how the row's earlier output must be scaled. Other keys' places are not
// defined afterwards.
HWY_INLINE float softmax_row(float* s, size_t begin, size_t end, float c, RowState& state) {
  const DF df;
  const size_t first = begin / kLanes * kLanes;
  const VF minus_infinity = hn::Set(df, -std::numeric_limits<float>::infinity());
  VF max = hn::Set(df, state.max);
  for (size_t j = first; j < end; j += kLanes) {
    VF x = hn::Load(df, s + j);
    if (j < begin || j + kLanes > end) {
      x = hn::IfThenElse(keys_within(j, begin, end), x, minus_infinity);
    }
    max = hn::Max(max, x);
  }
  const float new_max = hn::GetLane(hn::MaxOfLanes(df, max));

  // No logit above -inf yet: weights are 0, and subtracting the maximum would make NaN of them.
  // A NaN logit may hide from the maximum, but never from the weights.
  const bool all_minus_infinity = new_max == -std::numeric_limits<float>::infinity();
  const VF reference = hn::Set(df, all_minus_infinity ? 0.0f : new_max);
  const VF factor = hn::Set(df, c);
  // Two partial sums by the parity of the vector within the block, whatever `begin` is.
  VF sums[2] = {hn::Zero(df), hn::Zero(df)};
  for (size_t j = first; j < end; j += kLanes) {
    VF p = exp2_nonpositive(hn::Mul(hn::Sub(hn::Load(df, s + j), reference), factor));
    if (j < begin || j + kLanes > end) p = hn::IfThenElseZero(keys_within(j, begin, end), p);
    hn::Store(p, df, s + j);
    VF& sum = sums[j / kLanes % 2];
    sum = hn::Add(sum, p);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(df, hn::Add(sums[0], sums[1])));

  float alpha = 0.0f;
  if (state.max == new_max) {
    alpha = 1.0f;
  } else if (state.max != -std::numeric_limits<float>::infinity()) {
    alpha = hn::GetLane(exp2_nonpositive(hn::Set(df, (state.max - new_max) * c)));
  }
  state.sum = state.sum * alpha + sum;
  state.max = new_max;
  return alpha;
}

// ---------------------------------------------------------------------------------------------
// The tile.

// Where the parts of a tile's scratch begin, in floats.
struct ScratchLayout {
  explicit ScratchLayout(const HeadDims& dims)
      : d_qk(static_cast<size_t>(dims.nope) + static_cast<size_t>(dims.rope)),
        v_panels(round_up(static_cast<size_t>(dims.v), kPanel) / kPanel),
        q(0),
        k(q + round_up(kFastBlockQ * d_qk, 16)),
        v(k + kBlockKv * d_qk),
        scores(v + v_panels * kBlockKv * kPanel),
        o(scores + kRows * kBlockKv),
        end(o + kFastBlockQ * v_panels * kPanel) {}
  size_t d_qk;
  size_t v_panels;
  size_t q, k, v, scores, o, end;
};

double scratch_bytes(const HeadDims& dims) {
  const double d_qk = static_cast<double>(dims.nope) + dims.rope;
  const double v = static_cast<double>(dims.v) + kPanel;
  return 4.0 * ((kFastBlockQ + kBlockKv) * (d_qk + v) + kRows * kBlockKv + 32);
}

void store_output(const PrefillTraits& traits, const PrefillParams& params, int64_t token,
                  int32_t head, size_t row, const RowState& state, const float* o) {
  const size_t v = static_cast<size_t>(traits.dims.v);
  const int64_t base = token * params.out.stride_token + head * params.out.stride_head;
  // A row that saw no key, or only logits of -inf, has a sum of 0.
  const float inverse = state.sum == 0.0f ? 0.0f : 1.0f / state.sum;
  const float quant = traits.out_dtype == Dtype::kE4m3 ? 1.0f / *params.output_scale : 1.0f;
  for (size_t i = 0; i < v; ++i) {
    const float* panel = o + i / kPanel * kRows * kPanel;
    float value = state.sum == 0.0f ? 0.0f : panel[row * kPanel + i % kPanel] * inverse;
    if (traits.out_dtype == Dtype::kE4m3) value *= quant;
    store_element(params.out.data, traits.out_dtype, base + static_cast<int64_t>(i), value);
  }
  if (traits.return_lse) {
    const double lse = state.sum == 0.0f ? -std::numeric_limits<double>::infinity()
                                         : static_cast<double>(state.max) * params.softmax_scale +
                                               std::log(static_cast<double>(state.sum));
    store_element(params.lse.data, Dtype::kFp32,
                  token * params.lse.stride_token + head * params.lse.stride_head,
                  static_cast<float>(lse));
  }
}

template <class Element>
void run_tile_of(const PrefillTraits& traits, const PrefillParams& params, const Tile& tile,
                 float* scratch) {
  const ScratchLayout at(traits.dims);
  const size_t nope = static_cast<size_t>(traits.dims.nope);
  const size_t rope = static_cast<size_t>(traits.dims.rope);
  const size_t v_dim = static_cast<size_t>(traits.dims.v);
  const int64_t q_first = params.cu_seqlens_q[tile.sequence] + tile.q_begin;
  const int64_t k_first = params.cu_seqlens_k[tile.sequence];
  const int64_t q_len =
      int64_t{params.cu_seqlens_q[tile.sequence + 1]} - params.cu_seqlens_q[tile.sequence];
  const int64_t k_len = params.cu_seqlens_k[tile.sequence + 1] - k_first;
  const size_t num_rows = static_cast<size_t>(tile.q_rows);
  const float c = static_cast<float>(static_cast<double>(params.softmax_scale) *
                                     1.4426950408889634074);  // log2(e)

  const auto rows_of = [&](const RowTensor& tensor, int64_t token) HWY_ATTR {
    return static_cast<const Element*>(tensor.data) + token * tensor.stride_token +
           tile.head * tensor.stride_head;
  };

  float* const q = scratch + at.q;
  float* const o = scratch + at.o;
  float* const scores = scratch + at.scores;
  float* const k_panels = scratch + at.k;
  float* const v_panels = scratch + at.v;
  const size_t o_group = at.v_panels * kRows * kPanel;  // floats of o per group

  KeyRange range[kFastBlockQ];
  RowState state[kFastBlockQ];
  for (size_t r = 0; r < num_rows; ++r) {
    range[r] = visible_keys(traits.mask, params.window_left, params.window_right,
                            tile.q_begin + static_cast<int64_t>(r), q_len, k_len);
  }
  std::memset(o, 0, round_up(num_rows, kRows) / kRows * o_group * sizeof(float));

  // Both ends of the ranges never decrease with the row.
  const int64_t keys_begin = range[0].begin / int64_t{kBlockKv} * int64_t{kBlockKv};
  const int64_t keys_end = range[num_rows - 1].end;
  if (keys_begin < keys_end) {
    pack_transposed<kRows>(rows_of(params.q_nope, q_first), params.q_nope.stride_token, nope,
                           rope != 0 ? rows_of(params.q_pe, q_first) : nullptr,
                           params.q_pe.stride_token, rope, num_rows, q);
  }
  for (int64_t block = keys_begin; block < keys_end; block += kBlockKv) {
    // Visible keys of a row in this block, counted from its first key.
    const auto within = [&](int64_t key) HWY_ATTR {
      return static_cast<size_t>(HWY_MIN(HWY_MAX(key - block, 0), int64_t{kBlockKv}));
    };
    const size_t block_keys = within(keys_end);
    const int64_t k_token = k_first + block;
    pack_transposed<kPanel>(rows_of(params.k_nope, k_token), params.k_nope.stride_token, nope,
                            rope != 0 ? rows_of(params.k_pe, k_token) : nullptr,
                            params.k_pe.stride_token, rope, block_keys, k_panels);
    pack_rows(rows_of(params.v, k_token), params.v.stride_token, block_keys, v_dim, v_panels);

    for (size_t group = 0; group < num_rows; group += kRows) {
      const size_t rows = HWY_MIN(kRows, num_rows - group);
      const size_t group_begin = within(range[group].begin);
      const size_t group_end = within(range[group + rows - 1].end);
      if (group_begin >= group_end) continue;
      for (size_t j = group_begin / kPanel * kPanel; j < group_end; j += kPanel) {
        multiply_scores(q + group * at.d_qk, k_panels + j * at.d_qk, at.d_qk, scores + j);
      }

      // Keys that all rows of the group see, and each row's own keys on both sides of them.
      float alpha[kRows];
      size_t begin[kRows];
      size_t end[kRows];
      size_t common_begin = 0;
      size_t common_end = kBlockKv;
      for (size_t r = 0; r < rows; ++r) {
        begin[r] = within(range[group + r].begin);
        end[r] = HWY_MAX(within(range[group + r].end), begin[r]);
        alpha[r] = begin[r] == end[r]
                       ? 1.0f
                       : softmax_row(scores + r * kBlockKv, begin[r], end[r], c, state[group + r]);
        common_begin = HWY_MAX(common_begin, begin[r]);
        common_end = HWY_MIN(common_end, end[r]);
      }
      float* const o_rows = o + group / kRows * o_group;
      const auto accumulate_row = [&](size_t r, size_t from, size_t to, float factor) HWY_ATTR {
        accumulate_output<1>(scores + r * kBlockKv, v_panels, at.v_panels, from, to, &factor,
                             o_rows + r * kPanel);
      };
      for (size_t r = rows; r < kRows; ++r) alpha[r] = 1.0f;
      // One row alone is not worth a whole register tile.
      if (rows != 1 && common_begin < common_end) {
        for (size_t r = 0; r < rows; ++r) {
          if (begin[r] == common_begin) continue;
          accumulate_row(r, begin[r], common_begin, alpha[r]);
          alpha[r] = 1.0f;
        }
        accumulate_output<kRows>(scores, v_panels, at.v_panels, common_begin, common_end, alpha,
                                 o_rows);
        for (size_t r = 0; r < rows; ++r) {
          if (end[r] != common_end) accumulate_row(r, common_end, end[r], 1.0f);
        }
      } else {
        for (size_t r = 0; r < rows; ++r) {
          if (begin[r] != end[r]) accumulate_row(r, begin[r], end[r], alpha[r]);
        }
      }
    }
  }

  for (size_t r = 0; r < num_rows; ++r) {
    store_output(traits, params, q_first + static_cast<int64_t>(r), tile.head, r % kRows, state[r],
                 o + r / kRows * o_group);
  }
}

void run_tile(const PrefillTraits& traits, const PrefillParams& params, const Tile& tile,
              void* scratch) {
  float* const floats = static_cast<float*>(scratch);
  switch (traits.dtype) {
    case Dtype::kBf16: return run_tile_of<Bf16>(traits, params, tile, floats);
    case Dtype::kFp16: return run_tile_of<Fp16>(traits, params, tile, floats);
    default: return run_tile_of<float>(traits, params, tile, floats);
  }
}

}  // namespace flashprime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // target
#endif  // include guard
