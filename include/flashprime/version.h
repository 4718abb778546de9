// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashprime/export.h"

#include <string_view>

#define FLASHPRIME_VERSION_MAJOR 0
#define FLASHPRIME_VERSION_MINOR 1
#define FLASHPRIME_VERSION_PATCH 0
#define FLASHPRIME_VERSION_STRING "0.1.0"

namespace flashprime {

/// Version of the library that is linked, as FLASHPRIME_VERSION_STRING.
FLASHPRIME_API std::string_view version();

/// Compiler, build type and options that this library was built with.
FLASHPRIME_API std::string_view build_description();

}  // namespace flashprime
