// SPDX-License-Identifier: Apache-2.0
// The library's own threads, used unless the caller brings a ParallelFor.
#pragma once

#include "flashprime/execution.h"
#include "flashprime/status.h"

namespace flashprime::cpu {

// Threads that a call with num_threads == 0 uses: FLASHPRIME_THREADS, else the processors this
// process may run on. kNumeric when the variable is set to anything but an integer in [1, 1024].
StatusOr<int32_t> default_num_threads();

// A loop over the pool with that many threads, the caller's included. The pool grows on demand,
// is shared by all callers, survives fork() in the child by running serially there, and is never
// destroyed before exit.
ParallelFor pool_parallel_for(int32_t num_threads);

}  // namespace flashprime::cpu
