// SPDX-License-Identifier: Apache-2.0
// stmatrix: fragments of 8x8 matrices of 16-bit elements to shared memory.
// PTX ISA, section "stmatrix" (PTX 7.8, sm_90).
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

// Four matrices; lane i gives the shared-memory address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix_x4(uint32_t smem_address, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

}  // namespace flashprime::ptx
