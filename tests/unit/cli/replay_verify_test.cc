// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cli/replay_data.h"
#include "flashprime/prefill.h"
#include "numerics/convert.h"

namespace flashprime::cli {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> rounded_to_bf16(std::vector<double> row) {
  for (double& x : row) {
    x = static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(x))));
  }
  return row;
}

VerifyResult judge(const std::vector<double>& out, double lse, const std::vector<double>& oracle,
                   double oracle_lse) {
  VerifyResult result;
  verify_row(VerifyLimits::of(Dtype::kBf16), out, lse, oracle, oracle_lse, "row", &result);
  return result;
}

// Attention of one row over the first `keys` keys of the replay's data, as the oracle makes it.
struct Row {
  std::vector<double> out;
  double lse = 0.0;
};

Row oracle_row(int64_t request, int64_t position, int32_t head) {
  const ReplayShape shape{{128, 64, 128}, 2, Dtype::kBf16};
  ReplayRow row(shape, 7);
  Row result;
  const Status status =
      row.oracle(0, request, position, head, 0.1147213867929261f, &result.out, &result.lse);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return result;
}

TEST(VerifyRow, AcceptsACorrectlyRoundedRow) {
  const auto limits = VerifyLimits::of(Dtype::kBf16);
  VerifyResult result;
  for (int64_t position : {0, 1, 500, 3000}) {
    const Row row = oracle_row(position, position, 1);
    verify_row(limits, rounded_to_bf16(row.out), static_cast<double>(static_cast<float>(row.lse)),
               row.out, row.lse, "row", &result);
  }
  EXPECT_TRUE(result.passed(limits)) << result.first_failure;
  EXPECT_EQ(result.rows, 4);
}

// What a causal mask that is off by one gives: the row of the query, without its own key. The
// oracle over position - 1 has another query, so the row is made from the definition.
TEST(VerifyRow, RejectsARowThatLacksOneOfItsKeys) {
  for (int64_t position : {int64_t{1}, int64_t{100}, int64_t{1000}, int64_t{3000}}) {
    const ReplayShape shape{{128, 64, 128}, 2, Dtype::kBf16};
    const float scale = 0.1147213867929261f;
    const std::vector<ReplayPiece> query = {{5, position, 1}};
    const std::vector<ReplayPiece> all = {{5, 0, position + 1}};
    ReplayTensors q_source(shape, 7, 1);
    ReplayTensors k_source(shape, 7, 1);
    const auto q = q_source.queries(0, query);
    const auto keys = k_source.keys(0, all);
    ASSERT_TRUE(q.ok() && keys.ok());
    PrefillProblem problem;
    problem.num_heads = 2;
    problem.out_dtype = Dtype::kFp64;
    problem.return_lse = true;
    problem.mask.kind = MaskKind::kFull;
    const int32_t cu_q[] = {0, 1};
    std::vector<double> out(2 * 128);
    std::vector<double> lse(2);
    const auto run = [&](int32_t visible) {
      const int32_t cu_k[] = {0, visible};
      PrefillArgs args;
      args.q = *q;
      args.k_nope = keys->k_nope;
      args.k_pe = keys->k_pe;
      args.v = keys->v;
      args.k_nope.shape[0] = args.k_pe.shape[0] = args.v.shape[0] = visible;
      args.cu_seqlens_q = TensorView::contiguous(cu_q, Dtype::kInt32, {2});
      args.cu_seqlens_k = TensorView::contiguous(cu_k, Dtype::kInt32, {2});
      args.softmax_scale = scale;
      args.out = MutableTensorView::contiguous(out.data(), Dtype::kFp64, {1, 2, 128});
      args.lse = MutableTensorView::contiguous(lse.data(), Dtype::kFp64, {2, 1});
      ExecutionOptions options;
      options.kernel = "cpu_reference";
      const Status status = prefill(problem, args, options);
      ASSERT_TRUE(status.ok()) << status.to_string();
    };
    const Row oracle = oracle_row(5, position, 1);
    run(static_cast<int32_t>(position) + 1);
    // The row alone is bit for bit what the strided tensors of a step give.
    EXPECT_EQ(std::vector<double>(out.begin() + 128, out.end()), oracle.out);
    EXPECT_EQ(lse[1], oracle.lse);
    run(static_cast<int32_t>(position));
    const VerifyResult result =
        judge(rounded_to_bf16({out.begin() + 128, out.end()}),
              static_cast<double>(static_cast<float>(lse[1])), oracle.out, oracle.lse);
    EXPECT_EQ(result.failed_rows, 1) << position;
    EXPECT_FALSE(result.first_failure.empty());
  }
}

TEST(VerifyRow, RejectsNanAndInfinityWhereverTheyAre) {
  const std::vector<double> good = {1.0, -0.5, 0.25};
  for (double bad : {kNan, kInfinity, -kInfinity}) {
    EXPECT_EQ(judge({1.0, bad, 0.25}, 2.0, good, 2.0).failed_rows, 1);
    EXPECT_EQ(judge(good, bad, good, 2.0).failed_rows, 1);
    EXPECT_EQ(judge(good, 2.0, {1.0, bad, 0.25}, 2.0).failed_rows, 1);
    EXPECT_EQ(judge(good, 2.0, good, bad).failed_rows, 1);
  }
  EXPECT_EQ(judge(good, 2.0, good, 2.0).failed_rows, 0);
}

TEST(VerifyRow, ABadRowAmongManyGoodOnesFailsTheWhole) {
  const auto limits = VerifyLimits::of(Dtype::kBf16);
  VerifyResult result;
  const std::vector<double> good(128, 1.0);
  for (int i = 0; i < 10'000; ++i) verify_row(limits, good, 1.0, good, 1.0, "good", &result);
  EXPECT_TRUE(result.passed(limits));
  std::vector<double> bad = good;
  bad[77] = 1.01;
  verify_row(limits, bad, 1.0, good, 1.0, "the bad one", &result);
  EXPECT_FALSE(result.passed(limits));
  EXPECT_NE(result.first_failure.find("the bad one"), std::string::npos);
}

TEST(VerifyRow, RowsThatEachPassCanFailByTheirRms) {
  const auto limits = VerifyLimits::of(Dtype::kBf16);
  VerifyResult result;
  const std::vector<double> oracle(128, 1.0);
  const std::vector<double> biased(128, 1.004);
  verify_row(limits, biased, 1.0, oracle, 1.0, "row", &result);
  EXPECT_EQ(result.failed_rows, 0);
  EXPECT_FALSE(result.passed(limits));
}

TEST(ElementAsDouble, ReadsEveryCodeOfBothHalfFormats) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const auto half = static_cast<uint16_t>(code);
    const double bf16 = element_as_double(&half, Dtype::kBf16, 0);
    const double fp16 = element_as_double(&half, Dtype::kFp16, 0);
    const auto expected_bf16 = static_cast<double>(bf16_to_float(half));
    const auto expected_fp16 = static_cast<double>(fp16_to_float(half));
    EXPECT_TRUE(bf16 == expected_bf16 || (std::isnan(bf16) && std::isnan(expected_bf16))) << code;
    EXPECT_TRUE(fp16 == expected_fp16 || (std::isnan(fp16) && std::isnan(expected_fp16))) << code;
  }
  const float values[] = {1.5f, -2.25f};
  EXPECT_EQ(element_as_double(values, Dtype::kFp32, 1), -2.25);
}

}  // namespace
}  // namespace flashprime::cli
