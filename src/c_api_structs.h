// SPDX-License-Identifier: Apache-2.0
// How structs with a struct_size cross the C ABI.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "checks.h"

namespace flashprime::c_api {

// Reads what the caller gave into *result, which holds the defaults. `first_size` is the size of
// the struct in its first version: anything shorter was never a struct of this kind.
template <typename Struct>
Status read_struct(std::string_view name, const Struct* given, size_t first_size, Struct* result) {
  FLASHPRIME_REQUIRE(given != nullptr, StatusCode::kNull, name, ": got a null pointer");
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));  // the first field, and maybe all there is
  FLASHPRIME_REQUIRE(size >= first_size && size <= sizeof(Struct), StatusCode::kShape, name,
                     ".struct_size: got ", size, ", wanted ", first_size, " to ", sizeof(Struct),
                     "; begin from its _INIT value, and use a library no older than the header");
  std::memcpy(result, given, size);
  result->struct_size = sizeof(Struct);
  return ok_status();
}

// Writes as much of `value` as the caller's struct holds, and leaves its struct_size alone.
template <typename Struct>
Status write_struct(std::string_view name, const Struct& value, size_t first_size, Struct* result) {
  Struct readable = value;
  FLASHPRIME_RETURN_IF_ERROR(
      read_struct(name, static_cast<const Struct*>(result), first_size, &readable));
  size_t size = 0;
  std::memcpy(&size, result, sizeof(size));
  Struct sized = value;
  sized.struct_size = size;
  std::memcpy(result, &sized, size);
  return ok_status();
}

}  // namespace flashprime::c_api
