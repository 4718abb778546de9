// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/number_formats.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace flashprime::cases {
namespace {

struct Format {
  int mantissa_bits;  // stored ones
  int min_exponent;   // of the smallest normal number
  double max_finite;
};

Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return {7, -126, 0x1.fep127};
    case Dtype::kFp16: return {10, -14, 65504.0};
    case Dtype::kE4m3: return {3, -6, 448.0};
    case Dtype::kFp32: return {23, -126, std::numeric_limits<float>::max()};
    default: return {52, -1022, std::numeric_limits<double>::max()};
  }
}

int exponent_of(const Format& format, double x) {
  if (x == 0.0) return format.min_exponent;
  const int exponent = std::ilogb(x);
  return exponent < format.min_exponent ? format.min_exponent : exponent;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Encodes a value that the format can represent.
uint32_t encode(const Format& format, int exponent_bits, double value) {
  const uint32_t sign = std::signbit(value) ? 1u : 0u;
  const int bias = 1 - format.min_exponent;
  const double magnitude = std::fabs(value);
  const int exponent = exponent_of(format, magnitude);
  const auto significand =
      static_cast<uint32_t>(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const uint32_t hidden = 1u << format.mantissa_bits;
  const uint32_t field = significand < hidden
                             ? significand
                             : (static_cast<uint32_t>(exponent + bias) << format.mantissa_bits) +
                                   (significand - hidden);
  return (sign << (exponent_bits + format.mantissa_bits)) | field;
}

double decode(const Format& format, int exponent_bits, uint32_t code) {
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const auto field = static_cast<int>((code >> format.mantissa_bits) & ((1u << exponent_bits) - 1));
  const bool negative = (code >> (exponent_bits + format.mantissa_bits)) & 1u;
  const double significand = field == 0 ? mantissa : mantissa + (1u << format.mantissa_bits);
  const int exponent = (field == 0 ? 1 : field) + format.min_exponent - 1;
  const double magnitude = std::ldexp(significand, exponent - format.mantissa_bits);
  return negative ? -magnitude : magnitude;
}

}  // namespace

double round_to(Dtype dtype, double x) {
  if (dtype == Dtype::kFp64 || std::isnan(x)) return x;
  if (dtype == Dtype::kFp32) return static_cast<double>(static_cast<float>(x));
  const Format format = format_of(dtype);
  if (dtype == Dtype::kE4m3 && std::fabs(x) > format.max_finite) {
    return std::copysign(format.max_finite, x);
  }
  if (std::isinf(x) || x == 0.0) return x;
  const int shift = format.mantissa_bits - exponent_of(format, x);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, shift)), -shift);
  if (std::fabs(rounded) > format.max_finite) {
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  return rounded;
}

double ulp_of(Dtype dtype, double x) {
  const Format format = format_of(dtype);
  return std::ldexp(1.0, exponent_of(format, x) - format.mantissa_bits);
}

double load(const void* data, Dtype dtype, int64_t index) {
  switch (dtype) {
    case Dtype::kFp64: return static_cast<const double*>(data)[index];
    case Dtype::kFp32: return static_cast<const float*>(data)[index];
    case Dtype::kInt32: return static_cast<const int32_t*>(data)[index];
    case Dtype::kBf16:
      return float_of(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[index]) << 16);
    case Dtype::kFp16: {
      const uint16_t code = static_cast<const uint16_t*>(data)[index];
      if ((code & 0x7c00) == 0x7c00) {
        if (code & 0x3ff) return std::numeric_limits<double>::quiet_NaN();
        return code & 0x8000 ? -std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::infinity();
      }
      return decode(format_of(dtype), 5, code);
    }
    case Dtype::kE4m3: {
      const uint8_t code = static_cast<const uint8_t*>(data)[index];
      if ((code & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
      return decode(format_of(dtype), 4, code);
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void store(void* data, Dtype dtype, int64_t index, double x) {
  switch (dtype) {
    case Dtype::kFp64: static_cast<double*>(data)[index] = x; return;
    case Dtype::kFp32: static_cast<float*>(data)[index] = static_cast<float>(x); return;
    case Dtype::kInt32: static_cast<int32_t*>(data)[index] = static_cast<int32_t>(x); return;
    case Dtype::kBf16: {
      auto* out = static_cast<uint16_t*>(data);
      const auto narrow = static_cast<float>(x);
      if (std::isnan(x)) {
        out[index] = 0x7fc0;
      } else if (static_cast<double>(narrow) == x) {
        // What test data is: one integer addition instead of round_to().
        const uint32_t bits = bits_of(narrow);
        out[index] = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
      } else {
        out[index] = static_cast<uint16_t>(bits_of(static_cast<float>(round_to(dtype, x))) >> 16);
      }
      return;
    }
    case Dtype::kFp16: {
      auto* out = static_cast<uint16_t*>(data);
      const double rounded = round_to(dtype, x);
      if (std::isnan(rounded)) {
        out[index] = 0x7e00;
      } else if (std::isinf(rounded)) {
        out[index] = rounded < 0 ? 0xfc00 : 0x7c00;
      } else {
        out[index] = static_cast<uint16_t>(encode(format_of(dtype), 5, rounded));
      }
      return;
    }
    case Dtype::kE4m3: {
      auto* out = static_cast<uint8_t*>(data);
      const double rounded = round_to(dtype, x);
      out[index] =
          std::isnan(rounded) ? 0x7f : static_cast<uint8_t>(encode(format_of(dtype), 4, rounded));
      return;
    }
  }
}

}  // namespace flashprime::cases
