// SPDX-License-Identifier: Apache-2.0
// Problem and options to the kernel that runs them, and the reasons.
#pragma once

#include "select/kernel_registry.h"

namespace flashprime {

// The kernel that prefill() runs where place_call() has put it. kUnsupported with every kernel's
// reasons if there is none.
StatusOr<const KernelRow*> select_kernel(const PrefillProblem& problem,
                                         const ExecutionOptions& options, const GpuDevice* gpu);

// The loop that a call's tiles go through: the caller's, or the library's pool.
StatusOr<ParallelFor> select_parallel_for(const ExecutionOptions& options);

}  // namespace flashprime
