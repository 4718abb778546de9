// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

namespace flashprime::cpu {

StatusOr<int32_t> default_num_threads() {
  return 1;
}

ParallelFor pool_parallel_for(int32_t) {
  return [](int64_t n, const std::function<void(int64_t)>& body) {
    for (int64_t i = 0; i < n; ++i) body(i);
  };
}

}  // namespace flashprime::cpu
