// SPDX-License-Identifier: Apache-2.0
// Every pair of lengths from 0 to 260. All queries are the same row and all sequences have the same
// keys, so that a row's result depends only on how many keys it sees: 261 results are all there is,
// and each must come back bit for bit from every place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/cases/dense_batch.h"

namespace flashprime {
namespace {

using cases::DenseBatch;
using cases::DenseResult;

constexpr int32_t kLongest = 260;
constexpr HeadDims kDims{4, 0, 4};

std::vector<std::byte> repeated(const std::vector<std::byte>& row, int64_t times) {
  std::vector<std::byte> result;
  for (int64_t i = 0; i < times; ++i) result.insert(result.end(), row.begin(), row.end());
  return result;
}

// `q_lens` against `k_lens`, sequence by sequence, each with the first keys of `keys`.
DenseBatch same_rows(const DenseBatch& keys, const Mask& mask, std::vector<int32_t> q_lens,
                     std::vector<int32_t> k_lens) {
  DenseBatch batch = keys.cut(0, 0, 0, 0, 0);
  batch.problem.mask = mask;
  batch.q_lens = std::move(q_lens);
  batch.k_lens = std::move(k_lens);
  const std::vector<std::byte> query(keys.q.begin(), keys.q.begin() + keys.q_row_bytes());
  batch.q = repeated(query, batch.total_q());
  for (const int32_t len : batch.k_lens) {
    batch.k.insert(batch.k.end(), keys.k.begin(), keys.k.begin() + len * keys.k_row_bytes());
    batch.v.insert(batch.v.end(), keys.v.begin(), keys.v.begin() + len * keys.v_row_bytes());
  }
  return batch;
}

class ExhaustiveLengths : public testing::Test {
 protected:
  void SetUp() override {
    Mask full;
    full.kind = MaskKind::kFull;
    keys_ = DenseBatch::random(kDims, 1, Dtype::kBf16, full, {1}, {kLongest}, 3);
    std::vector<int32_t> ones(kLongest + 1, 1);
    std::vector<int32_t> lens;
    for (int32_t n = 0; n <= kLongest; ++n) lens.push_back(n);
    const DenseBatch table = same_rows(keys_, full, ones, lens);
    ExecutionOptions fast;
    fast.kernel = "cpu_fast";
    by_count_ = cases::run(table, fast);
    ASSERT_TRUE(by_count_.status.ok()) << by_count_.status.to_string();

    // The 261 results themselves, against the definition.
    DenseBatch exact = table;
    exact.problem.out_dtype = Dtype::kFp32;
    ExecutionOptions reference;
    reference.kernel = "cpu_reference";
    const DenseResult oracle = cases::run(exact, reference);
    ASSERT_TRUE(oracle.status.ok());
    for (int32_t n = 0; n <= kLongest; ++n) {
      for (int64_t i = 0; i < kDims.v; ++i) {
        ASSERT_NEAR(by_count_.out_at(n, 0, i), oracle.out_at(n, 0, i),
                    0x1p-8 * std::fabs(oracle.out_at(n, 0, i)) + 1e-6)
            << n;
      }
      if (n == 0) continue;
      ASSERT_NEAR(by_count_.lse_at(n, 0), oracle.lse_at(n, 0), 2e-6) << n;
    }
    ASSERT_EQ(by_count_.lse_at(0, 0), -INFINITY);
  }

  // Checks every row of a batch made by same_rows() against the table.
  void check(const DenseBatch& batch, const DenseResult& result) {
    ASSERT_TRUE(result.status.ok()) << result.status.to_string();
    const int64_t out_bytes = kDims.v * dtype_bytes(Dtype::kBf16);
    int64_t row = 0;
    for (size_t s = 0; s < batch.q_lens.size(); ++s) {
      for (int64_t i = 0; i < batch.q_lens[s]; ++i, ++row) {
        const int64_t sees = batch.problem.mask.kind == MaskKind::kFull
                                 ? batch.k_lens[s]
                                 : std::max<int64_t>(0, i + batch.k_lens[s] - batch.q_lens[s] + 1);
        const bool same =
            std::equal(result.out.begin() + row * out_bytes,
                       result.out.begin() + (row + 1) * out_bytes,
                       by_count_.out.begin() + sees * out_bytes) &&
            result.lse[static_cast<size_t>(row)] == by_count_.lse[static_cast<size_t>(sees)];
        ASSERT_TRUE(same) << "q " << batch.q_lens[s] << " k " << batch.k_lens[s] << " row " << i;
      }
    }
  }

  DenseBatch keys_;
  DenseResult by_count_;  // row n: a query that sees the first n keys
};

TEST_F(ExhaustiveLengths, EveryCausalPairUpTo260IsRightInEveryRow) {
  std::vector<int32_t> k_lens;
  for (int32_t n = 0; n <= kLongest; ++n) k_lens.push_back(n);
  for (int32_t q_len = 0; q_len <= kLongest; ++q_len) {
    const DenseBatch batch =
        same_rows(keys_, Mask{}, std::vector<int32_t>(k_lens.size(), q_len), k_lens);
    check(batch, cases::run(batch, ExecutionOptions{}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(ExhaustiveLengths, EveryKeyLengthUpTo260IsRightUnmasked) {
  Mask full;
  full.kind = MaskKind::kFull;
  std::vector<int32_t> k_lens;
  for (int32_t n = 0; n <= kLongest; ++n) k_lens.push_back(n);
  for (const int32_t q_len : {1, 2, 15, 16, 17, 65}) {
    const DenseBatch batch =
        same_rows(keys_, full, std::vector<int32_t>(k_lens.size(), q_len), k_lens);
    check(batch, cases::run(batch, ExecutionOptions{}));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace flashprime
