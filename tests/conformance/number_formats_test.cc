// SPDX-License-Identifier: Apache-2.0
// The checks' number formats against the library's conversions: two implementations, one answer.
#include "tests/cases/number_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "numerics/convert.h"

namespace flashprime {
namespace {

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

TEST(NumberFormats, DecodeEverySixteenBitCodeAsTheLibraryDoes) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<uint16_t>(code);
    ASSERT_TRUE(same(cases::load(&half, Dtype::kBf16, 0), static_cast<double>(bf16_to_float(half))))
        << code;
    ASSERT_TRUE(same(cases::load(&half, Dtype::kFp16, 0), static_cast<double>(fp16_to_float(half))))
        << code;
  }
}

TEST(NumberFormats, DecodeEveryE4m3CodeAsTheLibraryDoes) {
  for (uint32_t code = 0; code < 0x100; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_TRUE(same(cases::load(&byte, Dtype::kE4m3, 0), static_cast<double>(e4m3_to_float(byte))))
        << code;
  }
}

// Around every 16-bit code, at the midpoints, and just beside them.
TEST(NumberFormats, RoundAsTheLibraryDoesOnAndAroundEveryMidpoint) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(code << 16 | low);
      if (std::isnan(value)) continue;
      const auto x = static_cast<double>(value);
      uint16_t ours = 0;
      cases::store(&ours, Dtype::kBf16, 0, x);
      ASSERT_EQ(ours, float_to_bf16(value)) << value;
      ASSERT_TRUE(same(cases::load(&ours, Dtype::kBf16, 0), cases::round_to(Dtype::kBf16, x)))
          << value;
      cases::store(&ours, Dtype::kFp16, 0, x);
      ASSERT_EQ(ours, float_to_fp16(value)) << value;
      uint8_t byte = 0;
      cases::store(&byte, Dtype::kE4m3, 0, x);
      ASSERT_EQ(byte, float_to_e4m3(value)) << value;
    }
  }
}

}  // namespace
}  // namespace flashprime
