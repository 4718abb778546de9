// SPDX-License-Identifier: Apache-2.0
// 128-bit compare-and-swap in global memory. PTX ISA, section "atom" (PTX 8.3, sm_90).
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

struct B128 {
  uint64_t low;
  uint64_t high;
};

// Stores `value` if `expected` is there; what was there before.
__device__ __forceinline__ B128 atom_cas_b128(void* gmem, B128 expected, B128 value) {
  B128 old;
  asm volatile(
      "{\n.reg .b128 e, v, o;\n"
      "mov.b128 e, {%3, %4};\n"
      "mov.b128 v, {%5, %6};\n"
      "atom.relaxed.gpu.global.cas.b128 o, [%2], e, v;\n"
      "mov.b128 {%0, %1}, o;\n}"
      : "=l"(old.low), "=l"(old.high)
      : "l"(gmem), "l"(expected.low), "l"(expected.high), "l"(value.low), "l"(value.high)
      : "memory");
  return old;
}

}  // namespace flashprime::ptx
