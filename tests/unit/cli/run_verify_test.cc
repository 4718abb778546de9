// SPDX-License-Identifier: Apache-2.0
#include "cli/run_verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "flashprime/random.h"
#include "tests/cases/number_formats.h"

namespace flashprime::cli {
namespace {

// A finished call: 3 sequences, of which one has more queries than keys.
class RunVerifyTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 40, kKeys = 60, kHeads = 2, kDim = 16, kV = 8;

  void compute(Dtype out_dtype = Dtype::kBf16, Mask mask = {}) {
    problem_.dims = {.nope = 12, .rope = 4, .v = kV};
    problem_.num_heads = kHeads;
    problem_.dtype = Dtype::kBf16;
    problem_.out_dtype = out_dtype;
    problem_.mask = mask;
    problem_.return_lse = true;
    args_.q = random(1, &q_, {kTokens, kHeads, kDim});
    args_.k = random(2, &k_, {kKeys, kHeads, kDim});
    args_.v = random(3, &v_, {kKeys, kHeads, kV});
    args_.cu_seqlens_q = TensorView::contiguous(cu_q_, Dtype::kInt32, {4});
    args_.cu_seqlens_k = TensorView::contiguous(cu_k_, Dtype::kInt32, {4});
    args_.softmax_scale = 0.25f;
    out_.assign(static_cast<size_t>(kTokens * kHeads * kV * dtype_bytes(out_dtype)), 0);
    lse_.assign(static_cast<size_t>(kTokens * kHeads), 0.0f);
    args_.out = MutableTensorView::contiguous(out_.data(), out_dtype, {kTokens, kHeads, kV});
    args_.lse = MutableTensorView::contiguous(lse_.data(), Dtype::kFp32, {kHeads, kTokens});
    if (out_dtype == Dtype::kE4m3) {
      args_.output_scale = TensorView::contiguous(&output_scale_, Dtype::kFp32, {1});
    }
    run();
  }
  void run() {
    const Status status = prefill(problem_, args_);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  TensorView random(uint32_t id, std::vector<uint16_t>* memory,
                    std::initializer_list<int64_t> shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    memory->resize(static_cast<size_t>(count));
    const auto view = MutableTensorView::contiguous(memory->data(), Dtype::kBf16, shape);
    EXPECT_TRUE(fill_random(view, {.seed = 7, .tensor_id = id}).ok());
    return as_const(view);
  }
  RowVerification verify(int64_t count = 1'000'000) {
    const StatusOr<RowVerification> result =
        verify_rows(problem_, args_, count, 3, [] { return false; });
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return result.ok() ? *result : RowVerification{};
  }

  PrefillProblem problem_;
  PrefillArgs args_;
  std::vector<uint16_t> q_, k_, v_;
  std::vector<unsigned char> out_;
  std::vector<float> lse_;
  int32_t cu_q_[4] = {0, 10, 10, 40};
  int32_t cu_k_[4] = {0, 4, 12, 60};
  float output_scale_ = 0.02f;
};

TEST_F(RunVerifyTest, ChecksEveryRowOnceWhenAskedForMore) {
  compute();
  const RowVerification result = verify();
  EXPECT_EQ(result.rows, kTokens * kHeads);
  EXPECT_EQ(result.failed_rows, 0) << result.first_failure;
  EXPECT_LE(result.worst_out, 1.0);
  EXPECT_LE(result.worst_lse, 1.0);
}

TEST_F(RunVerifyTest, ChecksAsManyRowsAsAsked) {
  compute();
  for (int64_t count : {1, 2, 3, 17, 79, 80}) EXPECT_EQ(verify(count).rows, count);
}

TEST_F(RunVerifyTest, AcceptsEveryOutputTypeAndMask) {
  for (const Dtype out : {Dtype::kBf16, Dtype::kFp32, Dtype::kE4m3}) {
    for (const Mask& mask : {Mask{MaskKind::kFull, -1, -1}, Mask{MaskKind::kCausal, -1, -1},
                             Mask{MaskKind::kWindow, 5, 0}, Mask{MaskKind::kWindow, 2, -1}}) {
      compute(out, mask);
      const RowVerification result = verify();
      EXPECT_EQ(result.failed_rows, 0) << result.first_failure;
    }
  }
}

TEST_F(RunVerifyTest, FindsOneWrongElement) {
  for (const Dtype out : {Dtype::kBf16, Dtype::kFp32, Dtype::kE4m3}) {
    compute(out);
    const int64_t index = (25 * kHeads + 1) * kV + 3;
    const double right = cases::load(out_.data(), out, index);
    // Two codes away, which no rounding explains.
    cases::store(out_.data(), out, index,
                 right + (out == Dtype::kFp32 ? 1e-3 : 2.1 * cases::ulp_of(out, right)));
    const RowVerification result = verify();
    EXPECT_EQ(result.failed_rows, 1);
    EXPECT_GT(result.worst_out, 1.0);
    EXPECT_THAT(result.first_failure, ::testing::HasSubstr("token 25 head 1 (sequence 2, "));
  }
}

TEST_F(RunVerifyTest, FindsAWrongLse) {
  compute();
  lse_[1 * kTokens + 12] += 1e-4f;
  const RowVerification result = verify();
  EXPECT_EQ(result.failed_rows, 1);
  EXPECT_GT(result.worst_lse, 1.0);
}

TEST_F(RunVerifyTest, FindsAMaskThatIsOffByOne) {
  compute();
  problem_.mask = {MaskKind::kWindow, -1, 1};
  run();
  problem_.mask = {};
  // All rows but the last of each sequence, which sees everything either way, and the rows that see
  // nothing under both masks.
  EXPECT_EQ(verify().failed_rows, kHeads * ((10 - 1 - 5) + (30 - 1)));
}

TEST_F(RunVerifyTest, EmptyRowsMustBeZeroAndMinusInfinityExactly) {
  compute();
  ASSERT_EQ(lse_[0], -std::numeric_limits<float>::infinity());
  lse_[0] = -1e30f;
  EXPECT_EQ(verify().failed_rows, 1);
  lse_[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(verify().failed_rows, 1);
  lse_[0] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(verify().failed_rows, 0);
  cases::store(out_.data(), Dtype::kBf16, 0, 1e-30);
  EXPECT_EQ(verify().failed_rows, 1);
}

TEST_F(RunVerifyTest, NanMustBeWhereTheReferenceHasIt) {
  compute();
  q_[static_cast<size_t>((30 * kHeads + 1) * kDim)] = 0x7fc0;
  EXPECT_EQ(verify().failed_rows, 1) << "the row was computed without the NaN";
  run();
  EXPECT_EQ(verify().failed_rows, 0);
  cases::store(out_.data(), Dtype::kBf16, (30 * kHeads + 1) * kV, 0.5);
  EXPECT_EQ(verify().failed_rows, 1);
}

TEST_F(RunVerifyTest, StopsWhenAskedTo) {
  compute();
  int calls = 0;
  const StatusOr<RowVerification> result =
      verify_rows(problem_, args_, 50, 3, [&] { return ++calls > 10; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->rows, 10);
}

}  // namespace
}  // namespace flashprime::cli
