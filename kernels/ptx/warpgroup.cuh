// SPDX-License-Identifier: Apache-2.0
// What warpgroups of one block share out: registers (setmaxnreg, PTX 8.0, sm_90a) and named
// barriers (barrier.cta). PTX ISA, sections "setmaxnreg", "barrier".
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits at a named barrier for `threads` threads, its own included.
__device__ __forceinline__ void barrier_cta_sync(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts as present there without waiting.
__device__ __forceinline__ void barrier_cta_arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Orders generic accesses of shared memory before later asynchronous ones (wgmma, bulk copies).
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace flashprime::ptx
