// SPDX-License-Identifier: Apache-2.0
#include "jit/sha256.h"

#include <mbedtls/sha256.h>
#include <mbedtls/version.h>

namespace flashprime {

Sha256 sha256(std::string_view bytes) {
  Sha256 hash;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  // Cannot fail: there is no hardware behind it. 2.28 (Debian 12) and 3.6 (Debian 13) differ in the
  // function's name only.
#if MBEDTLS_VERSION_MAJOR >= 3
  mbedtls_sha256(data, bytes.size(), hash.data(), 0);
#else
  mbedtls_sha256_ret(data, bytes.size(), hash.data(), 0);
#endif
  return hash;
}

std::string hex(const uint8_t* bytes, std::size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

bool parse_hex(std::string_view text, Sha256& hash) {
  if (text.size() != 2 * hash.size()) return false;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (std::size_t i = 0; i < hash.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    hash[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace flashprime
