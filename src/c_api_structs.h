// SPDX-License-Identifier: Apache-2.0
// What the functions of the C ABI have in common.
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

// The numbers of the C enumerations are those of the C++ ones.
template <typename Enum>
constexpr bool same(int c_value, Enum value) {
  return c_value == static_cast<int>(value);
}

// What a C function returns for a status, whose message becomes that of the thread's last error.
int report(const Status& status);

// Runs body(), which returns a Status, and turns it into what a C function returns.
template <typename Body>
int guarded(const Body& body) {
  return report(without_exceptions(body));
}

// Calls body(), which returns a StatusOr, and stores its value.
template <typename Value, typename Body>
int guarded_value(const char* name, Value* result, const Body& body) {
  return guarded([&]() -> Status {
    FLASHPRIME_REQUIRE(result != nullptr, StatusCode::kNull, name, ": got a null pointer");
    auto value = body();
    FLASHPRIME_RETURN_IF_ERROR(value.status());
    *result = *value;
    return ok_status();
  });
}

// An int32 that has to be the value of an enumeration of 8 bits: any other must not wrap into one.
inline Status check_enum(std::string_view name, int32_t value, int32_t last) {
  FLASHPRIME_REQUIRE(value >= 0 && value <= last, StatusCode::kUnsupported, name, ": got ", value,
                     ", wanted 0 to ", last);
  return ok_status();
}

}  // namespace flashprime::c_api
