// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <charconv>
#include <cmath>
#include <string_view>

#include "checks.h"
#include "flashprime/warmup.h"
#include "warmup/torch_name.h"

namespace flashprime {
namespace {

// As Python's repr: the shortest digits that read back as the same double, fixed from 1e-4 up to
// below 1e16, and always with a point or an exponent.
std::string double_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  const bool fixed = size == 0.0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value,
                    fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string_view cpp_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return "Dtype::kBf16";
    case Dtype::kFp16: return "Dtype::kFp16";
    case Dtype::kFp32: return "Dtype::kFp32";
    case Dtype::kFp64: return "Dtype::kFp64";
    case Dtype::kE4m3: return "Dtype::kE4m3";
    case Dtype::kInt32: return "Dtype::kInt32";
  }
  return "?";
}

template <std::size_t N>
std::string joined(const std::array<int64_t, N>& values) {
  std::string text;
  for (std::size_t i = 0; i < N; ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text;
}

struct CppText {
  template <std::size_t N>
  std::string operator()(const std::array<int64_t, N>& values) const {
    return concat("{", joined(values), "}");
  }
  template <std::size_t N>
  std::string operator()(const std::optional<std::array<int64_t, N>>& values) const {
    return values ? concat("{{", joined(*values), "}}") : "{}";
  }
  std::string operator()(Dtype dtype) const { return std::string(cpp_dtype(dtype)); }
  std::string operator()(double value) const {
    if (std::isnan(value)) return "std::numeric_limits<double>::quiet_NaN()";
    if (std::isinf(value)) {
      return std::string(value < 0 ? "-" : "") + "std::numeric_limits<double>::infinity()";
    }
    return double_text(value);
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int32_t value) const { return std::to_string(value); }
  std::string operator()(int64_t value) const { return std::to_string(value); }
};

struct PythonText {
  template <std::size_t N>
  std::string operator()(const std::array<int64_t, N>& values) const {
    return concat("(", joined(values), N == 1 ? ",)" : ")");
  }
  template <std::size_t N>
  std::string operator()(const std::optional<std::array<int64_t, N>>& values) const {
    return values ? (*this)(*values) : "None";
  }
  std::string operator()(Dtype dtype) const { return std::string(torch_name(dtype)); }
  std::string operator()(double value) const { return double_text(value); }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int32_t value) const { return std::to_string(value); }
  std::string operator()(int64_t value) const { return std::to_string(value); }
};

// In the order of CompileKey::fields().
constexpr std::array<std::string_view, 15> kFieldNames = {"q_shape",
                                                          "k_shape",
                                                          "v_shape",
                                                          "q_dtype",
                                                          "max_seqlen_q",
                                                          "max_seqlen_k",
                                                          "softmax_scale",
                                                          "causal",
                                                          "fa_version",
                                                          "v_stride",
                                                          "cu_seqlens_q_shape",
                                                          "cu_seqlens_k_shape",
                                                          "window_size",
                                                          "return_softmax_lse",
                                                          "num_splits"};

// Folds a value's bits into a running FNV-1a hash, a presence byte before what is optional.
class KeyHash {
 public:
  template <std::size_t N>
  void operator()(const std::array<int64_t, N>& values) {
    for (int64_t value : values) (*this)(value);
  }
  template <std::size_t N>
  void operator()(const std::optional<std::array<int64_t, N>>& values) {
    (*this)(values.has_value());
    if (values) (*this)(*values);
  }
  void operator()(double value) { mix(std::bit_cast<uint64_t>(value)); }
  void operator()(Dtype value) { mix(static_cast<uint64_t>(value)); }
  void operator()(bool value) { mix(value ? 1 : 0); }
  void operator()(int32_t value) { mix(static_cast<uint64_t>(value)); }
  void operator()(int64_t value) { mix(static_cast<uint64_t>(value)); }

  uint64_t value() const { return hash_; }

 private:
  void mix(uint64_t bits) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_ = (hash_ ^ ((bits >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  uint64_t hash_ = 0xcbf29ce484222325u;
};

// Everything but the double, which has no strong order of its own.
auto integral_fields(const CompileKey& key) {
  return std::tie(key.causal, key.fa_version, key.v_stride, key.cu_seqlens_q_shape,
                  key.cu_seqlens_k_shape, key.window_size, key.return_softmax_lse, key.num_splits);
}

}  // namespace

std::strong_ordering CompileKey::operator<=>(const CompileKey& other) const {
  const auto shapes = [](const CompileKey& key) {
    return std::tie(key.q_shape, key.k_shape, key.v_shape, key.q_dtype, key.max_seqlen_q,
                    key.max_seqlen_k);
  };
  if (const auto order = shapes(*this) <=> shapes(other); order != 0) return order;
  if (const auto order = std::strong_order(softmax_scale, other.softmax_scale); order != 0) {
    return order;
  }
  return integral_fields(*this) <=> integral_fields(other);
}

std::size_t CompileKey::hash() const {
  KeyHash hash;
  std::apply([&](const auto&... field) { (hash(field), ...); }, fields());
  return static_cast<std::size_t>(hash.value());
}

std::string CompileKey::to_string() const {
  std::string text = "CompileKey{";
  std::size_t index = 0;
  const auto append = [&](const auto& field) {
    text += index == 0 ? "." : ", .";
    text += kFieldNames[index++];
    text += " = ";
    text += CppText{}(field);
  };
  std::apply([&](const auto&... field) { (append(field), ...); }, fields());
  return text + "}";
}

std::string CompileKey::to_python() const {
  std::string text;
  const auto append = [&](const auto& field) {
    text += text.empty() ? "(" : ", ";
    text += PythonText{}(field);
  };
  std::apply([&](const auto&... field) { (append(field), ...); }, fields());
  return text + ")";
}

}  // namespace flashprime
