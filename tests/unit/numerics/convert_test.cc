// SPDX-License-Identifier: Apache-2.0
#include "numerics/convert.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace flashprime {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One number format: what the exhaustive tests need to know about it.
struct Format {
  const char* name;
  int bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  float (*to_float)(uint32_t code);
  uint32_t (*from_float)(float value);
  uint32_t (*from_double)(double value);
};

const Format kFormats[] = {
    {"bf16", 16, 7, 127, true, [](uint32_t c) { return bf16_to_float(static_cast<uint16_t>(c)); },
     [](float v) { return uint32_t{float_to_bf16(v)}; },
     [](double v) { return uint32_t{double_to_bf16(v)}; }},
    {"fp16", 16, 10, 15, true, [](uint32_t c) { return fp16_to_float(static_cast<uint16_t>(c)); },
     [](float v) { return uint32_t{float_to_fp16(v)}; },
     [](double v) { return uint32_t{double_to_fp16(v)}; }},
    {"e4m3", 8, 3, 7, false, [](uint32_t c) { return e4m3_to_float(static_cast<uint8_t>(c)); },
     [](float v) { return uint32_t{float_to_e4m3(v)}; },
     [](double v) { return uint32_t{double_to_e4m3(v)}; }},
};

uint32_t magnitude_mask(const Format& format) {
  return (1u << (format.bits - 1)) - 1;
}

// The smallest magnitude code that is not a finite number.
uint32_t first_special(const Format& format) {
  return format.has_infinity ? magnitude_mask(format) & ~((1u << format.mantissa_bits) - 1) : 0x7fu;
}

// A code's value from the definition of the format.
double value_of(const Format& format, uint32_t code) {
  const uint32_t magnitude = code & magnitude_mask(format);
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const double mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                                     : std::ldexp(1.0 + fraction, exponent - format.bias);
  return code == magnitude ? value : -value;
}

class Convert : public testing::TestWithParam<Format> {};

TEST_P(Convert, DecodesEveryFiniteCodeAsTheFormatDefinesIt) {
  const Format& format = GetParam();
  for (uint32_t code = 0; code < 1u << format.bits; ++code) {
    if ((code & magnitude_mask(format)) >= first_special(format)) continue;
    ASSERT_EQ(format.to_float(code), value_of(format, code)) << "code " << code;
    ASSERT_EQ(std::signbit(format.to_float(code)), code > magnitude_mask(format));
  }
}

TEST_P(Convert, EveryCodeSurvivesARoundTrip) {
  const Format& format = GetParam();
  for (uint32_t code = 0; code < 1u << format.bits; ++code) {
    const float value = format.to_float(code);
    if (std::isnan(value)) {  // may be made quiet, keeps its sign
      ASSERT_TRUE(std::isnan(format.to_float(format.from_float(value)))) << "code " << code;
      ASSERT_TRUE(std::isnan(format.to_float(format.from_double(value)))) << "code " << code;
      ASSERT_EQ(format.from_float(value) > magnitude_mask(format), code > magnitude_mask(format));
      continue;
    }
    ASSERT_EQ(format.from_float(value), code);
    ASSERT_EQ(format.from_double(value), code);
  }
}

TEST_P(Convert, RoundsToNearestAndTiesToEven) {
  const Format& format = GetParam();
  // bf16 subnormals have midpoints that fp32 has too, so every pair of neighbours has all three.
  for (uint32_t code = 0; code + 1 < first_special(format); ++code) {
    for (const uint32_t sign : {0u, magnitude_mask(format) + 1}) {
      const double low = value_of(format, code | sign), high = value_of(format, (code + 1) | sign);
      const double middle = (low + high) / 2;
      const uint32_t even = (code % 2 == 0 ? code : code + 1) | sign;
      ASSERT_EQ(format.from_double(middle), even) << "code " << code;
      ASSERT_EQ(format.from_double(std::nextafter(middle, low)), code | sign);
      ASSERT_EQ(format.from_double(std::nextafter(middle, high)), (code + 1) | sign);
      const float middle32 = static_cast<float>(middle);
      ASSERT_EQ(middle32, middle);
      ASSERT_EQ(format.from_float(middle32), even) << "code " << code;
      ASSERT_EQ(format.from_float(std::nextafter(middle32, static_cast<float>(low))), code | sign);
      ASSERT_EQ(format.from_float(std::nextafter(middle32, static_cast<float>(high))),
                (code + 1) | sign);
    }
  }
}

TEST_P(Convert, KeepsTheSignOfZeroAndFlushesOnlyBelowHalfTheSmallestNumber) {
  const Format& format = GetParam();
  const uint32_t sign = magnitude_mask(format) + 1;
  const float smallest = format.to_float(1);
  EXPECT_EQ(format.from_float(0.0f), 0u);
  EXPECT_EQ(format.from_float(-0.0f), sign);
  EXPECT_EQ(format.from_double(-0.0), sign);
  EXPECT_EQ(format.from_float(smallest * 0.5f), 0u);
  EXPECT_EQ(format.from_float(-smallest * 0.5f), sign);
  EXPECT_EQ(format.from_float(smallest * 0.75f), 1u);
  EXPECT_EQ(format.from_double(std::numeric_limits<double>::denorm_min()), 0u);
}

INSTANTIATE_TEST_SUITE_P(Formats, Convert, testing::ValuesIn(kFormats),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Convert, SixteenBitFormatsOverflowToInfinity) {
  const float bf16_max = bf16_to_float(0x7f7f);
  const float bf16_limit = std::bit_cast<float>(0x7f7f8000u);  // halfway to 2^128
  EXPECT_EQ(float_to_bf16(std::nextafter(bf16_limit, 0.0f)), 0x7f7f);
  EXPECT_EQ(float_to_bf16(bf16_limit), 0x7f80);
  EXPECT_EQ(float_to_bf16(-bf16_limit), 0xff80);
  EXPECT_EQ(double_to_bf16(static_cast<double>(bf16_max) * 2), 0x7f80);
  EXPECT_EQ(double_to_bf16(1e300), 0x7f80);
  EXPECT_EQ(float_to_bf16(kInf), 0x7f80);

  EXPECT_EQ(float_to_fp16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(double_to_fp16(65519.999999999), 0x7bff);
  EXPECT_EQ(double_to_fp16(65520.0), 0x7c00);
  EXPECT_EQ(double_to_fp16(-1e300), 0xfc00);
  EXPECT_EQ(float_to_fp16(-kInf), 0xfc00);
}

TEST(Convert, E4m3SaturatesAndKeepsNan) {
  for (float value : {448.0f, 449.0f, 464.0f, 465.0f, 1e30f, kInf}) {
    EXPECT_EQ(float_to_e4m3(value), 0x7e) << value;
    EXPECT_EQ(float_to_e4m3(-value), 0xfe) << value;
    EXPECT_EQ(double_to_e4m3(static_cast<double>(value)), 0x7e) << value;
  }
  EXPECT_EQ(float_to_e4m3(kNan), 0x7f);
  EXPECT_EQ(float_to_e4m3(-kNan), 0xff);
  EXPECT_EQ(double_to_e4m3(std::nan("")), 0x7f);
}

TEST(Convert, NanStaysQuietNanWhateverItsPayload) {
  const float payload_in_low_bits = std::bit_cast<float>(0x7f800001u);
  EXPECT_EQ(float_to_bf16(payload_in_low_bits), 0x7fc0);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0xffffffffu)), 0xffff);
  EXPECT_EQ(float_to_fp16(payload_in_low_bits), 0x7e00);
  EXPECT_EQ(float_to_e4m3(payload_in_low_bits), 0x7f);
}

TEST(Convert, Fp64IsRoundedOnceNotTwice) {
  // Just above a midpoint of the format, but exactly on it once rounded to fp32.
  const double above_bf16_tie = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(double_to_bf16(above_bf16_tie), 0x3f81);
  EXPECT_EQ(float_to_bf16(static_cast<float>(above_bf16_tie)), 0x3f80);
  const double above_fp16_tie = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(double_to_fp16(above_fp16_tie), 0x3c01);
  EXPECT_EQ(float_to_fp16(static_cast<float>(above_fp16_tie)), 0x3c00);
  const double above_e4m3_tie = 1.0 + 0x1p-4 + 0x1p-40;
  EXPECT_EQ(double_to_e4m3(above_e4m3_tie), 0x39);
  EXPECT_EQ(float_to_e4m3(static_cast<float>(above_e4m3_tie)), 0x38);
}

// Some g++ releases drop a truncation to bf16 when its result feeds a sum in the same loop. The
// rounding is used this way in kernels, so it is tested this way.
TEST(Convert, RoundingInsideASummationLoopIsNotOptimisedAway) {
  const float step = 0x1p-9f;  // below half of bf16's spacing at 1
  volatile int count = 1000;
  std::vector<float> values(1000);
  for (int i = 0; i < count; ++i) values[i] = 1.0f + step + static_cast<float>(i % 7) * 0x1p-12f;
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += bf16_to_float(float_to_bf16(values[i]));
  EXPECT_EQ(sum, 1000.0f);
}

TEST(Convert, ElementsAreLoadedAndStoredByDtype) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kFp64, Dtype::kE4m3}) {
    alignas(8) unsigned char memory[32] = {};
    store_element(memory, dtype, 1, 1.5f);
    store_element(memory, dtype, 2, -0.375);
    EXPECT_EQ(load_element(memory, dtype, 0), 0.0f);
    EXPECT_EQ(load_element(memory, dtype, 1), 1.5f);
    EXPECT_EQ(load_element_as_double(memory, dtype, 2), -0.375);
    EXPECT_EQ(load_element(memory, dtype, 3), 0.0f);
  }
}

}  // namespace
}  // namespace flashprime
