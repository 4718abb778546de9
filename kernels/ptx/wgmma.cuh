// SPDX-License-Identifier: Apache-2.0
// wgmma.fence, commit_group, wait_group, and the matrix descriptor of operands in shared memory.
// PTX ISA, section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate" (PTX 8.0, sm_90a).
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

// Orders accesses of registers before the wgmma.mma_async that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of this warpgroup's groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Matrix descriptor for 128-byte swizzled tiles, 64 elements wide, whose rows are 128 bytes apart,
// eight rows a swizzle atom of 1,024 bytes. `chunk_bytes` is the distance to the next 64 columns,
// which N-major operands wider than that need; K-major operands do not use it.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t smem_address, uint32_t chunk_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kAtomStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kAtomStride | (static_cast<uint64_t>(chunk_bytes >> 4) << 16) |
         ((smem_address & 0x3ffffu) >> 4);
}

}  // namespace flashprime::ptx
