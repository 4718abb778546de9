// SPDX-License-Identifier: Apache-2.0
// What this process may use of the machine.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

// Threads that compile at once: cores of the process's affinity and cgroup, and free memory.
int32_t default_compile_threads();

int64_t peak_rss_bytes();
// Of all threads so far.
double process_cpu_ms();

}  // namespace flashprime
