// SPDX-License-Identifier: Apache-2.0
#include "flashprime/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "numerics/convert.h"

namespace flashprime {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The value that the header defines for element e of row r, written down once more.
float defined_value(const RandomSpec& spec, uint64_t row, uint64_t element) {
  const uint64_t r = spec.first_row + row;
  const Words words =
      philox4x32_10({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(r),
                     static_cast<uint32_t>(r >> 32), spec.tensor_id},
                    {static_cast<uint32_t>(spec.seed), static_cast<uint32_t>(spec.seed >> 32)});
  const uint32_t word = words[element % 4];
  int sum = 0;
  for (int byte = 0; byte < 4; ++byte) sum += static_cast<int>((word >> (8 * byte)) & 0xff);
  const float value = static_cast<float>(sum - 510) * 0x1.bb688cp-8f;
  return value * spec.scale;
}

RandomSpec some_spec() {
  return {.seed = 0x123456789abcdef0, .tensor_id = 7, .first_row = 0xfffffffe, .scale = 0.3f};
}

TEST(FillRandom, FollowsItsDefinitionForEveryDtypeAndRowLength) {
  const RandomSpec spec = some_spec();
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32}) {
    for (int64_t inner : {1, 3, 4, 31, 32, 33, 64, 191}) {
      std::vector<float> memory(4 * 2 * inner);  // room for any dtype
      ASSERT_TRUE(
          fill_random(MutableTensorView::contiguous(memory.data(), dtype, {4, 2, inner}), spec)
              .ok());
      for (int64_t row = 0; row < 4; ++row) {
        for (int64_t e = 0; e < 2 * inner; ++e) {
          double want = 0.0;  // room for any dtype
          store_element(&want, dtype, 0, defined_value(spec, row, e));
          ASSERT_EQ(load_element(memory.data(), dtype, row * 2 * inner + e),
                    load_element(&want, dtype, 0))
              << "row " << row << " element " << e << " inner " << inner;
        }
      }
    }
  }
}

TEST(FillRandom, StridesAndTheCutIntoRowsDoNotChangeValues) {
  RandomSpec spec = some_spec();
  std::vector<float> whole(10 * 3 * 5);
  ASSERT_TRUE(
      fill_random(MutableTensorView::contiguous(whole.data(), Dtype::kFp32, {10, 3, 5}), spec)
          .ok());

  constexpr float kUntouched = -99.0f;
  std::vector<float> strided(6 * 200, kUntouched);
  spec.first_row += 4;
  ASSERT_TRUE(
      fill_random(MutableTensorView::strided(strided.data(), Dtype::kFp32, {6, 3, 5}, {200, 2, 11}),
                  spec)
          .ok());
  int written = 0;
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t c = 0; c < 5; ++c) {
        ASSERT_EQ(strided[t * 200 + h * 2 + c * 11], whole[((t + 4) * 3 + h) * 5 + c]);
      }
    }
  }
  for (float value : strided) written += value != kUntouched ? 1 : 0;
  EXPECT_EQ(written, 6 * 3 * 5);
}

TEST(FillRandom, SeedsAndTensorIdsGiveDifferentNumbers) {
  std::vector<float> a(64), b(64), c(64);
  const auto fill = [](std::vector<float>& values, const RandomSpec& spec) {
    return fill_random(MutableTensorView::contiguous(values.data(), Dtype::kFp32, {1, 64}), spec);
  };
  ASSERT_TRUE(fill(a, {.seed = 1, .tensor_id = 0}).ok());
  ASSERT_TRUE(fill(b, {.seed = 1, .tensor_id = 1}).ok());
  ASSERT_TRUE(fill(c, {.seed = uint64_t{1} << 32, .tensor_id = 0}).ok());
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

TEST(FillRandom, IsNearlyStandardNormal) {
  std::vector<float> values(1 << 20);
  ASSERT_TRUE(fill_random(MutableTensorView::contiguous(values.data(), Dtype::kFp32, {1024, 1024}),
                          {.seed = 3})
                  .ok());
  double sum = 0.0, squares = 0.0;
  float largest = 0.0f;
  for (float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    largest = std::max(largest, std::abs(value));
  }
  const double n = static_cast<double>(values.size());
  // Five standard errors: 5 / sqrt(n) = 0.0049 for the mean, less for the deviation.
  EXPECT_NEAR(sum / n, 0.0, 0.0049);
  EXPECT_NEAR(std::sqrt(squares / n), 1.0, 0.0035);
  EXPECT_LE(largest, 510 * 0x1.bb688cp-8f);
  EXPECT_GT(largest, 3.2f);
}

TEST(FillRandom, RefusesWhatItCannotFill) {
  float memory[8] = {};
  const auto code = [](const MutableTensorView& view, const RandomSpec& spec = {}) {
    return fill_random(view, spec).code();
  };
  EXPECT_EQ(code({}), StatusCode::kShape);
  EXPECT_EQ(code(MutableTensorView::contiguous(memory, Dtype::kE4m3, {8})), StatusCode::kDtype);
  EXPECT_EQ(code(MutableTensorView::contiguous(nullptr, Dtype::kFp32, {8})), StatusCode::kNull);
  EXPECT_EQ(code(MutableTensorView::strided(memory, Dtype::kFp32, {2, 4}, {2, 1})),
            StatusCode::kStride);
  EXPECT_EQ(code(MutableTensorView::contiguous(memory, Dtype::kFp32, {8}),
                 {.scale = std::numeric_limits<float>::infinity()}),
            StatusCode::kNumeric);
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(code(MutableTensorView::contiguous(memory, Dtype::kFp32, {0, huge, huge})),
            StatusCode::kRange);
  EXPECT_EQ(fill_random(MutableTensorView::contiguous(nullptr, Dtype::kFp32, {0, 8}), {}).code(),
            StatusCode::kOk);
  for (float value : memory) EXPECT_EQ(value, 0.0f);
}

TEST(FillRandom, RowsWithoutElementsTakeNoTime) {
  EXPECT_TRUE(
      fill_random(MutableTensorView::contiguous(nullptr, Dtype::kFp32, {int64_t{1} << 60, 0}), {})
          .ok());
}

}  // namespace
}  // namespace flashprime
