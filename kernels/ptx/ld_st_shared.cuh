// SPDX-License-Identifier: Apache-2.0
// ld.shared and st.shared: words of shared memory by their 32-bit address.
// PTX ISA, sections "ld" and "st".
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

__device__ __forceinline__ uint32_t ld_shared(uint32_t smem_address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(smem_address) : "memory");
  return word;
}

__device__ __forceinline__ void ld_shared_v4(uint32_t (&words)[4], uint32_t smem_address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(smem_address)
               : "memory");
}

__device__ __forceinline__ void st_shared(uint32_t smem_address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem_address), "r"(word) : "memory");
}

__device__ __forceinline__ void st_shared_v4(uint32_t smem_address, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(smem_address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace flashprime::ptx
