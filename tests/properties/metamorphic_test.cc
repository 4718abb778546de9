// SPDX-License-Identifier: Apache-2.0
// What must hold between two calls, whatever the right numbers are.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "flashprime/merge.h"
#include "tests/cases/dense_batch.h"
#include "tests/cases/number_formats.h"

namespace flashprime {
namespace {

using cases::DenseBatch;
using cases::DenseResult;

ExecutionOptions on(const char* kernel) {
  ExecutionOptions options;
  options.kernel = kernel;
  return options;
}

const char* any_kernel() {
  return *rc::gen::element("cpu_fast", "cpu_fast", "cpu_fast", "cpu_reference");
}

Mask any_mask() {
  Mask mask;
  mask.kind = *rc::gen::element(MaskKind::kCausal, MaskKind::kFull, MaskKind::kWindow);
  if (mask.kind == MaskKind::kWindow) {
    mask.window_left = *rc::gen::inRange(-1, 60);
    mask.window_right = *rc::gen::inRange(-1, 20);
  }
  return mask;
}

HeadDims any_dims() {
  return *rc::gen::element(HeadDims{16, 8, 16}, HeadDims{1, 0, 1}, HeadDims{17, 3, 5},
                           HeadDims{32, 32, 48}, HeadDims{64, 0, 33}, HeadDims{128, 64, 128});
}

int32_t any_length() {
  return *rc::gen::weightedOneOf<int32_t>(
      {{2, rc::gen::just<int32_t>(0)},
       {4, rc::gen::inRange<int32_t>(1, 20)},
       {3, rc::gen::inRange<int32_t>(1, 150)},
       {1, rc::gen::element<int32_t>(63, 64, 65, 127, 128, 129)}});
}

DenseBatch any_batch(Mask mask, int32_t sequences) {
  std::vector<int32_t> q_lens;
  std::vector<int32_t> k_lens;
  for (int32_t s = 0; s < sequences; ++s) {
    q_lens.push_back(any_length());
    k_lens.push_back(*rc::gen::element(0, 1) ? q_lens.back() : any_length());
  }
  const Dtype dtype = *rc::gen::element(Dtype::kBf16, Dtype::kFp16, Dtype::kFp32);
  return DenseBatch::random(any_dims(), *rc::gen::inRange<int32_t>(1, 4), dtype, mask, q_lens,
                            k_lens, *rc::gen::arbitrary<uint32_t>());
}

DenseResult run_ok(const DenseBatch& batch, const char* kernel) {
  DenseResult result = cases::run(batch, on(kernel));
  RC_ASSERT(result.status.ok());
  return result;
}

RC_GTEST_PROP(Metamorphic, PermutedSequencesKeepTheirBits, ()) {
  const char* kernel = any_kernel();
  const DenseBatch batch = any_batch(any_mask(), *rc::gen::inRange<int32_t>(1, 6));
  std::vector<int64_t> order(static_cast<size_t>(batch.sequences()));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[*rc::gen::inRange<size_t>(0, i)]);
  }
  const DenseBatch permuted = batch.select(order);
  const DenseResult a = run_ok(batch, kernel);
  const DenseResult b = run_ok(permuted, kernel);
  for (size_t s = 0; s < order.size(); ++s) {
    for (int64_t i = 0; i < permuted.q_lens[s]; ++i) {
      RC_ASSERT(b.row_bytes(permuted.first_q(static_cast<int64_t>(s)) + i) ==
                a.row_bytes(batch.first_q(order[s]) + i));
    }
  }
}

RC_GTEST_PROP(Metamorphic, ConcatenatedBatchesKeepTheirBits, ()) {
  const char* kernel = any_kernel();
  DenseBatch batch = any_batch(any_mask(), *rc::gen::inRange<int32_t>(2, 6));
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    (s < batch.sequences() / 2 ? first : second).push_back(s);
  }
  const DenseResult whole = run_ok(batch, kernel);
  const DenseResult a = run_ok(batch.select(first), kernel);
  const DenseResult b = run_ok(batch.select(second), kernel);
  for (int64_t row = 0; row < whole.rows; ++row) {
    RC_ASSERT(whole.row_bytes(row) ==
              (row < a.rows ? a.row_bytes(row) : b.row_bytes(row - a.rows)));
  }
}

RC_GTEST_PROP(Metamorphic, SplittingTheContextAndMergingChangesNothingBeyondRounding, ()) {
  const char* kernel = any_kernel();
  Mask causal;
  const auto q_len = *rc::gen::inRange<int32_t>(1, 40);
  const auto context = *rc::gen::inRange<int32_t>(0, 200);
  DenseBatch batch = DenseBatch::random(any_dims(), 2, Dtype::kBf16, causal, {q_len},
                                        {q_len + context}, *rc::gen::arbitrary<uint32_t>());
  batch.problem.out_dtype = Dtype::kFp32;
  const int64_t cut = *rc::gen::inRange<int64_t>(0, context + 1);
  DenseBatch prefix = batch.cut(0, 0, q_len, 0, cut);
  prefix.problem.mask.kind = MaskKind::kFull;
  const DenseBatch suffix = batch.cut(0, 0, q_len, cut, q_len + context);
  const DenseResult p = run_ok(prefix, kernel);
  const DenseResult s = run_ok(suffix, kernel);
  const DenseResult whole = run_ok(batch, kernel);
  DenseResult merged = whole;
  const auto out_view = [](const DenseResult& r) {
    return TensorView::contiguous(r.out.data(), Dtype::kFp32, {r.rows, r.heads, r.dim_v});
  };
  const auto lse_view = [](const DenseResult& r) {
    return TensorView::contiguous(r.lse.data(), Dtype::kFp32, {r.heads, r.rows});
  };
  MergeArgs args;
  args.prefix_out = out_view(p);
  args.prefix_lse = lse_view(p);
  args.suffix_out = out_view(s);
  args.suffix_lse = lse_view(s);
  args.out = MutableTensorView::contiguous(merged.out.data(), Dtype::kFp32,
                                           {merged.rows, merged.heads, merged.dim_v});
  args.lse =
      MutableTensorView::contiguous(merged.lse.data(), Dtype::kFp32, {merged.heads, merged.rows});
  RC_ASSERT(merge_states(args).ok());
  for (int64_t row = 0; row < whole.rows; ++row) {
    for (int64_t h = 0; h < whole.heads; ++h) {
      RC_ASSERT(std::fabs(merged.lse_at(row, h) - whole.lse_at(row, h)) <= 1e-5f);
      for (int64_t i = 0; i < whole.dim_v; ++i) {
        RC_ASSERT(std::fabs(merged.out_at(row, h, i) - whole.out_at(row, h, i)) <= 1e-5);
      }
    }
  }
}

RC_GTEST_PROP(Metamorphic, LaterQueriesAndKeysDoNotChangeEarlierCausalRows, ()) {
  const char* kernel = any_kernel();
  const auto q_len = *rc::gen::inRange<int32_t>(1, 90);
  const auto context = *rc::gen::inRange<int32_t>(0, 100);
  const auto extra = *rc::gen::inRange<int32_t>(1, 80);
  DenseBatch longer =
      DenseBatch::random(any_dims(), 2, Dtype::kBf16, Mask{}, {q_len + extra},
                         {q_len + context + extra}, *rc::gen::arbitrary<uint32_t>());
  const DenseBatch shorter = longer.cut(0, 0, q_len, 0, q_len + context);
  // What is appended is fully masked for the earlier rows, so it may be anything.
  const double poison = *rc::gen::element(std::numeric_limits<double>::quiet_NaN(),
                                          std::numeric_limits<double>::infinity(), 6e4);
  const int64_t dk = 2 * (longer.problem.dims.nope + longer.problem.dims.rope);
  const int64_t dv = 2 * longer.problem.dims.v;
  for (int64_t i = (q_len + context) * dk; i < (q_len + context + extra) * dk; ++i) {
    longer.set(longer.k, i, poison);
  }
  for (int64_t i = (q_len + context) * dv; i < (q_len + context + extra) * dv; ++i) {
    longer.set(longer.v, i, poison);
  }
  const DenseResult a = run_ok(shorter, kernel);
  const DenseResult b = run_ok(longer, kernel);
  for (int64_t row = 0; row < q_len; ++row) {
    for (int64_t h = 0; h < 2; ++h) {
      RC_ASSERT(a.row_head_bytes(row, h) == b.row_head_bytes(row, h));
    }
  }
}

RC_GTEST_PROP(Metamorphic, AConstantAddedToAllLogitsShiftsTheLseAlone, ()) {
  const char* kernel = any_kernel();
  DenseBatch batch = any_batch(any_mask(), 2);
  batch.problem.out_dtype = Dtype::kFp32;
  const int64_t d = batch.problem.dims.nope + batch.problem.dims.rope;
  const int64_t heads = batch.problem.num_heads;
  // Feature 0: 1 in every query, a power of two or 0 in every key, exact in every dtype.
  const double feature = *rc::gen::element(-64.0, -8.0, 4.0, 32.0);
  DenseBatch shifted = batch;
  for (int64_t row = 0; row < batch.total_q() * heads; ++row) {
    batch.set(batch.q, row * d, 1.0);
    shifted.set(shifted.q, row * d, 1.0);
  }
  for (int64_t row = 0; row < batch.total_k() * heads; ++row) {
    batch.set(batch.k, row * d, 0.0);
    shifted.set(shifted.k, row * d, feature);
  }
  const double shift = static_cast<double>(batch.softmax_scale) * feature;
  const DenseResult a = run_ok(batch, kernel);
  const DenseResult b = run_ok(shifted, kernel);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const auto before = static_cast<double>(a.lse_at(row, h));
      const auto after = static_cast<double>(b.lse_at(row, h));
      if (std::isinf(before)) {
        RC_ASSERT(after == before);
        continue;
      }
      RC_ASSERT(std::fabs(after - before - shift) <= 5e-6 * (1.0 + std::fabs(shift)));
      for (int64_t i = 0; i < a.dim_v; ++i) {
        RC_ASSERT(std::fabs(a.out_at(row, h, i) - b.out_at(row, h, i)) <=
                  1e-5 * (1.0 + std::fabs(shift)));
      }
    }
  }
}

RC_GTEST_PROP(Metamorphic, DoubledValuesDoubleTheOutputBitForBit, ()) {
  const char* kernel = any_kernel();
  const DenseBatch batch = any_batch(any_mask(), 2);
  DenseBatch doubled = batch;
  const int64_t elements = batch.total_k() * batch.problem.num_heads * batch.problem.dims.v;
  for (int64_t i = 0; i < elements; ++i) doubled.set(doubled.v, i, 2.0 * batch.get(batch.v, i));
  const DenseResult a = run_ok(batch, kernel);
  const DenseResult b = run_ok(doubled, kernel);
  RC_ASSERT(a.lse.size() == b.lse.size());
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t h = 0; h < a.heads; ++h) {
      RC_ASSERT(a.lse_at(row, h) == b.lse_at(row, h));
      for (int64_t i = 0; i < a.dim_v; ++i) {
        const double once = a.out_at(row, h, i);
        // Up to the smallest normal fp16, doubling may uncover a bit that rounding took.
        if (batch.problem.dtype == Dtype::kFp16 && std::fabs(once) <= 0x1p-14) continue;
        RC_ASSERT(b.out_at(row, h, i) == 2.0 * once);
      }
    }
  }
}

RC_GTEST_PROP(Metamorphic, ConstantValuesComeBackWithinOneUlp, ()) {
  const char* kernel = any_kernel();
  DenseBatch batch = any_batch(any_mask(), 2);
  const double value = *rc::gen::element(1.0, -0.75, 3.0, 1.0078125);
  const int64_t elements = batch.total_k() * batch.problem.num_heads * batch.problem.dims.v;
  for (int64_t i = 0; i < elements; ++i) batch.set(batch.v, i, value);
  const DenseResult result = run_ok(batch, kernel);
  // fp32 sums of up to 200 weights and their reciprocal: a few ulp where the output shows them.
  const double ulps = batch.problem.dtype == Dtype::kFp32 ? 8.0 : 1.0;
  for (int64_t row = 0; row < result.rows; ++row) {
    for (int64_t h = 0; h < result.heads; ++h) {
      const bool empty = std::isinf(result.lse_at(row, h));
      for (int64_t i = 0; i < result.dim_v; ++i) {
        const double wanted = empty ? 0.0 : value;
        const double bound = empty ? 0.0 : ulps * cases::ulp_of(batch.problem.dtype, value);
        RC_ASSERT(std::fabs(result.out_at(row, h, i) - wanted) <= bound);
      }
    }
  }
}

RC_GTEST_PROP(Metamorphic, DuplicatedHeadsGiveDuplicatedBits, ()) {
  const char* kernel = any_kernel();
  const DenseBatch batch = any_batch(any_mask(), 2);
  std::vector<int32_t> heads;
  const auto count = *rc::gen::inRange<int32_t>(1, 8);
  for (int32_t h = 0; h < count; ++h) {
    heads.push_back(*rc::gen::inRange<int32_t>(0, batch.problem.num_heads));
  }
  const DenseResult a = run_ok(batch, kernel);
  const DenseResult b = run_ok(batch.select_heads(heads), kernel);
  for (int64_t row = 0; row < a.rows; ++row) {
    for (size_t h = 0; h < heads.size(); ++h) {
      RC_ASSERT(a.row_head_bytes(row, heads[h]) == b.row_head_bytes(row, static_cast<int64_t>(h)));
    }
  }
}

// scale 0: every visible key weighs the same. Integers over a power of two of keys: exact in fp32.
RC_GTEST_PROP(Metamorphic, AveragesOfIntegersOverAPowerOfTwoOfKeysAreExact, ()) {
  const char* kernel = any_kernel();
  Mask full;
  full.kind = MaskKind::kFull;
  const auto keys = *rc::gen::element<int32_t>(1, 2, 4, 8, 16, 32, 64, 128, 256);
  DenseBatch batch = DenseBatch::random(any_dims(), 2, Dtype::kBf16, full, {3}, {keys},
                                        *rc::gen::arbitrary<uint32_t>());
  batch.problem.out_dtype = Dtype::kFp32;
  batch.softmax_scale = 0.0f;
  const int64_t row_elements = 2 * batch.problem.dims.v;
  std::vector<int64_t> sums(static_cast<size_t>(row_elements), 0);
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t i = 0; i < row_elements; ++i) {
      const auto value = static_cast<int64_t>(10.0 * batch.get(batch.v, j * row_elements + i));
      batch.set(batch.v, j * row_elements + i, static_cast<double>(value));
      sums[static_cast<size_t>(i)] += value;
    }
  }
  const DenseResult result = run_ok(batch, kernel);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < result.dim_v; ++i) {
        const auto sum = sums[static_cast<size_t>(h * result.dim_v + i)];
        RC_ASSERT(result.out_at(row, h, i) == static_cast<double>(sum) / keys);
      }
    }
  }
}

}  // namespace
}  // namespace flashprime
