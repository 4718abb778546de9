// SPDX-License-Identifier: Apache-2.0
#include "numerics/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace flashprime {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Checked, ProductsAndSumsThatFitAreExact) {
  int64_t result = 0;
  EXPECT_TRUE(checked_mul(int64_t{1} << 31, int64_t{1} << 31, &result));
  EXPECT_EQ(result, int64_t{1} << 62);
  EXPECT_TRUE(checked_mul(-3, 5, &result));
  EXPECT_EQ(result, -15);
  EXPECT_TRUE(checked_add(kMax - 1, 1, &result));
  EXPECT_EQ(result, kMax);
}

TEST(Checked, ProductsAndSumsThatDoNotFitAreReported) {
  int64_t result = 0;
  EXPECT_FALSE(checked_mul(int64_t{1} << 32, int64_t{1} << 31, &result));
  EXPECT_FALSE(checked_mul(std::numeric_limits<int64_t>::min(), -1, &result));
  EXPECT_FALSE(checked_add(kMax, 1, &result));
  EXPECT_FALSE(checked_add(std::numeric_limits<int64_t>::min(), -1, &result));
}

}  // namespace
}  // namespace flashprime
