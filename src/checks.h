// SPDX-License-Identifier: Apache-2.0
// How the library says no: one line per check, a message made of its parts.
#pragma once

#include <exception>
#include <locale>
#include <new>
#include <sstream>
#include <string>

#include "flashprime/status.h"

namespace flashprime {

// The parts one after another, numbers as in C whatever the process's locale is.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  (text << ... << parts);
  return text.str();
}

// Calls body(), which returns a Status or StatusOr. No exception crosses the public API.
template <typename Body>
auto without_exceptions(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "memory: an allocation of the library failed");
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, concat("exception: ", error.what()));
  }
}

}  // namespace flashprime

// Leaves the function with an error unless `condition` holds; the rest is the message's parts.
#define FLASHPRIME_REQUIRE(condition, code, ...)                                            \
  do {                                                                                      \
    if (!(condition)) return ::flashprime::Status(code, ::flashprime::concat(__VA_ARGS__)); \
  } while (false)

// Leaves the function with the Status of `expression` unless it is kOk.
#define FLASHPRIME_RETURN_IF_ERROR(expression)                                         \
  do {                                                                                 \
    if (::flashprime::Status returned = (expression); !returned.ok()) return returned; \
  } while (false)
