// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk.tensor: the tensor memory accelerator copies a box of a 5-D tensor map to shared
// memory. PTX ISA, section "cp.async.bulk.tensor" (PTX 8.0, sm_90). `map` is the address of a
// CUtensorMap in the kernel's parameters.
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

__device__ __forceinline__ void cp_async_bulk_tensor_5d(uint32_t smem_address, const void* map,
                                                        int c0, int c1, int c2, int c3, int c4,
                                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(smem_address),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier)
      : "memory");
}

// The same box into L2 only.
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_5d(const void* map, int c0, int c1,
                                                                 int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace flashprime::ptx
