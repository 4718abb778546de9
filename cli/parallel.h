// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace flashprime::cli {

// Runs body(i) for i in [0, n) on up to `threads` threads, the caller's included.
void parallel_for(int32_t threads, int64_t n, const std::function<void(int64_t)>& body);

}  // namespace flashprime::cli
