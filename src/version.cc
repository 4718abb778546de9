// SPDX-License-Identifier: Apache-2.0
#include "flashprime/version.h"

namespace flashprime {

std::string_view version() {
  return FLASHPRIME_VERSION_STRING;
}

std::string_view build_description() {
#if defined(__clang__)
#define FLASHPRIME_COMPILER "clang "
#else
#define FLASHPRIME_COMPILER "g++ "
#endif
#if defined(__SANITIZE_THREAD__)
#define FLASHPRIME_SANITIZER ", tsan"
#elif defined(__SANITIZE_ADDRESS__)
#define FLASHPRIME_SANITIZER ", asan"
#else
#define FLASHPRIME_SANITIZER ""
#endif
#if defined(NDEBUG)
#define FLASHPRIME_ASSERTIONS ", release"
#else
#define FLASHPRIME_ASSERTIONS ", assertions"
#endif
#if defined(__OPTIMIZE__)
#define FLASHPRIME_OPTIMIZED ", optimized"
#else
#define FLASHPRIME_OPTIMIZED ", not optimized"
#endif
  return FLASHPRIME_COMPILER __VERSION__ FLASHPRIME_ASSERTIONS FLASHPRIME_OPTIMIZED
      FLASHPRIME_SANITIZER;
}

}  // namespace flashprime
