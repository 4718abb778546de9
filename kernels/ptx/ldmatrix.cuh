// SPDX-License-Identifier: Apache-2.0
// ldmatrix: 8x8 matrices of 16-bit elements from shared memory to mma.sync fragments.
// PTX ISA, section "ldmatrix" (PTX 6.5, sm_75).
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

// Four matrices; lane i gives the shared-memory address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_address));
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t smem_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_address));
}

}  // namespace flashprime::ptx
