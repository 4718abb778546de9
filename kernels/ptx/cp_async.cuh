// SPDX-License-Identifier: Apache-2.0
// cp.async: asynchronous copies from global to shared memory.
// PTX ISA, section "cp.async" (PTX 7.0, sm_80).
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

// 16 bytes, through L2 only; the last 16 - src_size of them are zero and not read.
__device__ __forceinline__ void cp_async_cg_16(uint32_t smem_address, const void* gmem,
                                               uint32_t src_size) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem_address),
               "l"(gmem), "r"(src_size)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace flashprime::ptx
