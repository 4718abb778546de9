// SPDX-License-Identifier: Apache-2.0
// The reference is the oracle of every other test, so it is compared with values worked out by
// hand, never with itself.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "flashprime/prefill.h"
#include "tests/unit/owned_tensor.h"

namespace flashprime {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2 = 0.69314718055994530942;
constexpr double kLn3 = 1.09861228866810969140;

// One head, dims (1, 1, 1), fp32 in and fp64 out unless a test says otherwise. q and k rows are
// (nope, rope) pairs.
struct Call {
  Call(std::vector<int32_t> cu_q, std::vector<int32_t> cu_k)
      : cu_seqlens_q(std::move(cu_q)),
        cu_seqlens_k(std::move(cu_k)),
        q(Dtype::kFp32, {cu_seqlens_q.back(), 1, 2}, 0),
        k(Dtype::kFp32, {cu_seqlens_k.back(), 1, 2}, 0),
        v(Dtype::kFp32, {cu_seqlens_k.back(), 1, 1}, 0),
        out(Dtype::kFp64, {cu_seqlens_q.back(), 1, 1}),
        lse(Dtype::kFp64, {1, cu_seqlens_q.back()}) {
    problem.dims = {1, 1, 1};
    problem.dtype = Dtype::kFp32;
    problem.out_dtype = Dtype::kFp64;
    problem.return_lse = true;
    args.q = q.input();
    args.k = k.input();
    args.v = v.input();
    const auto batch = static_cast<int64_t>(cu_seqlens_q.size());
    args.cu_seqlens_q = TensorView::contiguous(cu_seqlens_q.data(), Dtype::kInt32, {batch});
    args.cu_seqlens_k = TensorView::contiguous(cu_seqlens_k.data(), Dtype::kInt32, {batch});
    args.softmax_scale = 1.0f;
    args.out = out.view();
    args.lse = lse.view();
  }

  void run() {
    ExecutionOptions options;
    options.kernel = "cpu_reference";
    ASSERT_EQ(prefill(problem, args, options).to_string(), "kOk");
  }
  void expect_row(int64_t row, double want_out, double want_lse) const {
    if (std::isnan(want_out)) {
      EXPECT_TRUE(std::isnan(out.get(row))) << "row " << row;
    } else {
      EXPECT_DOUBLE_EQ(out.get(row), want_out) << "row " << row;
    }
    if (std::isnan(want_lse)) {
      EXPECT_TRUE(std::isnan(lse.get(0, row))) << "row " << row;
    } else {
      EXPECT_DOUBLE_EQ(lse.get(0, row), want_lse) << "row " << row;
    }
  }

  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k;
  OwnedTensor q, k, v, out, lse;
  PrefillProblem problem;
  PrefillArgs args;
};

TEST(Reference, OneKeyGivesItsValueAndItsLogit) {
  Call call({0, 1}, {0, 1});
  call.q.set(0, 0, 0, 3.0);
  call.q.set(0, 0, 1, -2.0);
  call.k.set(0, 0, 0, 5.0);
  call.k.set(0, 0, 1, 0.5);
  call.v.set(0, 0, 0, 7.0);
  call.args.softmax_scale = 0.25f;
  call.run();
  call.expect_row(0, 7.0, 0.25 * (15.0 - 1.0));
}

TEST(Reference, LogitsLn2ApartWeighTwoToOne) {
  Call call({0, 1}, {0, 2});
  call.problem.mask.kind = MaskKind::kFull;
  call.q.set(0, 0, 0, 1.0);
  const double ln2 = static_cast<float>(kLn2);
  call.k.set(1, 0, 0, ln2);
  call.v.set(0, 0, 0, 30.0);
  call.v.set(1, 0, 0, 60.0);
  call.run();
  // Weights 1/3 and 2/3; fp32 ln2 is off by 1.9e-9.
  EXPECT_NEAR(call.out.get(0), 50.0, 3e-8);
  EXPECT_NEAR(call.lse.get(0, 0), kLn3, 3e-9);
}

// With all logits equal, out is the mean of the visible values and lse the log of their number.
TEST(Reference, CausalIsAlignedAtTheBottomRight) {
  Call call({0, 2}, {0, 3});
  for (int64_t j = 0; j < 3; ++j) call.v.set(j, 0, 0, double(3 * j));
  call.run();
  call.expect_row(0, 1.5, kLn2);
  call.expect_row(1, 3.0, kLn3);
}

TEST(Reference, CausalWithMoreQueriesThanKeysLeavesTheFirstRowsEmpty) {
  Call call({0, 3}, {0, 1});
  call.v.set(0, 0, 0, 9.0);
  call.run();
  call.expect_row(0, 0.0, -kInf);
  call.expect_row(1, 0.0, -kInf);
  call.expect_row(2, 9.0, 0.0);
}

TEST(Reference, FullSeesEveryKey) {
  Call call({0, 2}, {0, 3});
  call.problem.mask.kind = MaskKind::kFull;
  for (int64_t j = 0; j < 3; ++j) call.v.set(j, 0, 0, double(3 * j));
  call.run();
  call.expect_row(0, 3.0, kLn3);
  call.expect_row(1, 3.0, kLn3);
}

TEST(Reference, WindowReachesLeftAndRightOfTheAlignedPosition) {
  Call call({0, 3}, {0, 4});  // query i sits at key i + 1
  call.problem.mask = {MaskKind::kWindow, 1, 0};
  for (int64_t j = 0; j < 4; ++j) call.v.set(j, 0, 0, double(10 * j));
  call.run();
  call.expect_row(0, 5.0, kLn2);   // keys 0, 1
  call.expect_row(1, 15.0, kLn2);  // keys 1, 2
  call.expect_row(2, 25.0, kLn2);  // keys 2, 3

  call.problem.mask = {MaskKind::kWindow, -1, 1};
  call.run();
  call.expect_row(0, 10.0, kLn3);  // keys 0 to 2
  call.expect_row(2, 15.0, std::log(4.0));

  const int64_t furthest = std::numeric_limits<int64_t>::max();
  call.problem.mask = {MaskKind::kWindow, furthest, furthest};
  call.run();
  call.expect_row(0, 15.0, std::log(4.0));
}

TEST(Reference, AWindowBeforeTheFirstKeyIsEmpty) {
  Call call({0, 3}, {0, 1});  // query i sits at key i - 2
  call.problem.mask = {MaskKind::kWindow, -1, 1};
  call.v.set(0, 0, 0, 4.0);
  call.run();
  call.expect_row(0, 0.0, -kInf);
  call.expect_row(1, 4.0, 0.0);
  call.expect_row(2, 4.0, 0.0);
}

TEST(Reference, ZeroLengthQueriesKeysAndBatchesAreLegal) {
  Call call({0, 0, 2, 3}, {0, 2, 2, 3});  // no queries; no keys; one of each
  call.problem.mask.kind = MaskKind::kFull;
  call.v.set(2, 0, 0, 6.0);
  call.run();
  call.expect_row(0, 0.0, -kInf);
  call.expect_row(1, 0.0, -kInf);
  call.expect_row(2, 6.0, 0.0);

  Call empty({0}, {0});
  empty.run();
  Call no_keys({0, 2}, {0, 0});
  no_keys.run();
  no_keys.expect_row(1, 0.0, -kInf);
}

TEST(Reference, ScaleZeroIsAPlainMean) {
  Call call({0, 1}, {0, 2});
  call.problem.mask.kind = MaskKind::kFull;
  call.args.softmax_scale = 0.0f;
  call.q.set(0, 0, 0, 100.0);
  call.k.set(0, 0, 0, 100.0);
  call.v.set(0, 0, 0, 2.0);
  call.v.set(1, 0, 0, 4.0);
  call.run();
  call.expect_row(0, 3.0, kLn2);
}

TEST(Reference, HugeLogitsNeitherOverflowNorVanish) {
  Call call({0, 2}, {0, 2});
  call.problem.mask.kind = MaskKind::kFull;
  call.q.set(0, 0, 0, 1e4);
  call.q.set(1, 0, 0, -1e4);
  call.k.set(0, 0, 0, 1.0);
  call.k.set(1, 0, 0, 0.5);
  call.v.set(0, 0, 0, 1.0);
  call.v.set(1, 0, 0, 2.0);
  call.run();
  call.expect_row(0, 1.0, 1e4);
  call.expect_row(1, 2.0, -5e3);
}

TEST(Reference, NanInAVisibleRowReachesWhatDependsOnItAndNothingElse) {
  {  // a query: its own row
    Call call({0, 2}, {0, 2});
    call.q.set(1, 0, 1, kNan);
    call.v.set(0, 0, 0, 5.0);
    call.run();
    call.expect_row(0, 5.0, 0.0);
    call.expect_row(1, kNan, kNan);
  }
  {  // a future key: rows that see it
    Call call({0, 2}, {0, 2});
    call.k.set(1, 0, 0, kNan);
    call.v.set(0, 0, 0, 5.0);
    call.run();
    call.expect_row(0, 5.0, 0.0);
    call.expect_row(1, kNan, kNan);
  }
  {  // a future value: out of the rows that see it, and no LSE
    Call call({0, 2}, {0, 2});
    call.v.set(1, 0, 0, kNan);
    call.run();
    call.expect_row(0, 0.0, 0.0);
    call.expect_row(1, kNan, kLn2);
  }
  {  // a lone NaN logit is not an empty row
    Call call({0, 1}, {0, 1});
    call.q.set(0, 0, 0, kNan);
    call.run();
    call.expect_row(0, kNan, kNan);
  }
  {  // another sequence: nothing
    Call call({0, 1, 2}, {0, 1, 2});
    call.q.set(1, 0, 0, kNan);
    call.k.set(1, 0, 0, kNan);
    call.v.set(1, 0, 0, kNan);
    call.v.set(0, 0, 0, 5.0);
    call.run();
    call.expect_row(0, 5.0, 0.0);
  }
}

TEST(Reference, InfiniteLogitsAreWeightZeroOrNan) {
  Call call({0, 3}, {0, 2});
  call.problem.mask.kind = MaskKind::kFull;
  call.k.set(0, 0, 0, -kInf);
  call.k.set(0, 0, 1, 0.0);
  call.k.set(1, 0, 0, 1.0);
  call.v.set(0, 0, 0, 3.0);
  call.v.set(1, 0, 0, 8.0);
  call.q.set(0, 0, 0, 1.0);   // logits -inf, 1: the second key alone
  call.q.set(1, 0, 0, -1.0);  // logits +inf, -1
  call.q.set(2, 0, 0, 0.0);   // logits NaN, 0
  call.run();
  call.expect_row(0, 8.0, 1.0);
  call.expect_row(1, kNan, kNan);
  call.expect_row(2, kNan, kNan);

  Call all_minus_inf({0, 1}, {0, 1});
  all_minus_inf.q.set(0, 0, 0, 1.0);
  all_minus_inf.k.set(0, 0, 0, -kInf);
  all_minus_inf.v.set(0, 0, 0, kNan);
  all_minus_inf.run();
  all_minus_inf.expect_row(0, 0.0, -kInf);
}

TEST(Reference, JoinedAndSplitInputsMeanTheSame) {
  // Two heads, dims (2, 1, 2); the numbers are small integers, exact in every dtype.
  const std::vector<int32_t> cu = {0, 2};
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32}) {
    OwnedTensor q(dtype, {2, 2, 3}), k(dtype, {2, 2, 3}), v(dtype, {2, 2, 2}, {10, 5, 1});
    OwnedTensor q_nope(dtype, {2, 2, 2}), q_pe(dtype, {2, 2, 1}), k_nope(dtype, {2, 2, 2});
    OwnedTensor k_pe(dtype, {2, 1});
    k_pe.fill([](auto t, auto, auto) { return 1.0 - double(t); });
    q.fill([](auto t, auto h, auto c) { return double((t + 2 * h + c) % 3); });
    k.fill(
        [&](auto t, auto h, auto c) { return c == 2 ? k_pe.get(t) : double((t + h + 2 * c) % 2); });
    v.fill([](auto t, auto h, auto c) { return double(t + 2 * h - c); });
    q_nope.fill([&](auto t, auto h, auto c) { return q.get(t, h, c); });
    q_pe.fill([&](auto t, auto h, auto) { return q.get(t, h, 2); });
    k_nope.fill([&](auto t, auto h, auto c) { return k.get(t, h, c); });

    PrefillProblem problem;
    problem.dims = {2, 1, 2};
    problem.num_heads = 2;
    problem.dtype = dtype;
    problem.out_dtype = Dtype::kFp64;
    problem.mask.kind = MaskKind::kFull;
    PrefillArgs args;
    args.v = v.input();
    args.cu_seqlens_q = args.cu_seqlens_k = TensorView::contiguous(cu.data(), Dtype::kInt32, {2});
    args.softmax_scale = 1.0f;
    ExecutionOptions options;
    options.kernel = "cpu_reference";
    for (int variant = 0; variant < 5; ++variant) {
      OwnedTensor out(Dtype::kFp64, {2, 2, 2}, {5, 11, 1});
      args.out = out.view();
      args.q = variant & 1 ? TensorView{} : q.input();
      args.q_nope = variant & 1 ? q_nope.input() : TensorView{};
      args.q_pe = variant & 1 ? q_pe.input() : TensorView{};
      args.k = variant & 2 ? TensorView{} : k.input();
      args.k_nope = variant & 2 ? k_nope.input() : TensorView{};
      args.k_pe = variant & 2 ? k_pe.input() : TensorView{};
      if (variant == 4) {  // rank 3 is the other way to share k_pe
        args.k = {};
        args.k_nope = k_nope.input();
        args.k_pe = TensorView::contiguous(k_pe.input().data, dtype, {2, 1, 1});
      }
      ASSERT_EQ(prefill(problem, args, options).to_string(), "kOk");
      for (int64_t i = 0; i < 2; ++i) {
        for (int64_t h = 0; h < 2; ++h) {
          double logit[2] = {};
          for (int64_t j = 0; j < 2; ++j) {
            for (int64_t c = 0; c < 3; ++c) logit[j] += q.get(i, h, c) * k.get(j, h, c);
          }
          const double weight = 1.0 / (1.0 + std::exp(logit[1] - logit[0]));  // of key 0
          for (int64_t c = 0; c < 2; ++c) {
            const double want = weight * v.get(0, h, c) + (1.0 - weight) * v.get(1, h, c);
            EXPECT_NEAR(out.get(i, h, c), want, 1e-14) << "variant " << variant;
          }
        }
      }
    }
  }
}

TEST(Reference, OutputIsRoundedOnceToItsDtype) {
  // Mean of 1 and 1 + 2^-7 is the midpoint of two bf16 neighbours: ties go to the even one, 1.
  for (Dtype out_dtype : {Dtype::kBf16, Dtype::kFp32}) {
    Call call({0, 1}, {0, 2});
    OwnedTensor q(Dtype::kBf16, {1, 1, 2}, 0), k(Dtype::kBf16, {2, 1, 2}, 0);
    OwnedTensor v(Dtype::kBf16, {2, 1, 1}), out(out_dtype, {1, 1, 1}), lse(Dtype::kFp32, {1, 1});
    v.set(0, 0, 0, 1.0);
    v.set(1, 0, 0, 1.0 + 0x1p-7);
    call.problem.mask.kind = MaskKind::kFull;
    call.problem.dtype = Dtype::kBf16;
    call.problem.out_dtype = out_dtype;
    call.args.q = q.input();
    call.args.k = k.input();
    call.args.v = v.input();
    call.args.out = out.view();
    call.args.lse = lse.view();
    call.run();
    EXPECT_EQ(out.get(0), out_dtype == Dtype::kBf16 ? 1.0 : 1.0 + 0x1p-8);
    EXPECT_EQ(lse.get(0), double(float(kLn2)));
  }
}

TEST(Reference, E4m3OutputIsDividedByTheScaleAndSaturates) {
  Call call({0, 4}, {0, 4});
  OwnedTensor out(Dtype::kE4m3, {4, 1, 1}), lse(Dtype::kFp32, {1, 4}), scale(Dtype::kFp32, {1});
  call.problem.mask = {MaskKind::kWindow, 0, 0};  // each query sees its own key alone
  call.problem.out_dtype = Dtype::kE4m3;
  call.args.out = out.view();
  call.args.lse = lse.view();
  call.args.output_scale = scale.input();
  scale.set(0, 0, 0, 50.0);
  const double values[] = {100.0, -1e6, kNan, 50.0 * 0x1p-9};
  for (int64_t j = 0; j < 4; ++j) call.v.set(j, 0, 0, values[j]);
  call.run();
  EXPECT_EQ(out.get(0), 2.0);
  EXPECT_EQ(out.get(1), -448.0);
  EXPECT_TRUE(std::isnan(out.get(2)));
  EXPECT_EQ(out.get(3), 0x1p-9);  // the smallest subnormal is not flushed
}

TEST(Reference, LseLayoutAndStridesOnlyChangeWhereItGoes) {
  Call call({0, 2}, {0, 2});
  OwnedTensor lse(Dtype::kFp64, {2, 1}, {3, 7});
  call.problem.lse_layout = LseLayout::kTokensHeads;
  call.args.lse = lse.view();
  call.run();
  EXPECT_DOUBLE_EQ(lse.get(0, 0), 0.0);
  EXPECT_DOUBLE_EQ(lse.get(1, 0), kLn2);
}

}  // namespace
}  // namespace flashprime
