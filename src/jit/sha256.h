// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "flashprime/types.h"

namespace flashprime {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view bytes);
std::string hex(const uint8_t* bytes, std::size_t count);
inline std::string hex(const Sha256& hash) {
  return hex(hash.data(), hash.size());
}
// False unless the text is exactly 64 lower-case hexadecimal digits.
bool parse_hex(std::string_view text, Sha256& hash);

}  // namespace flashprime
