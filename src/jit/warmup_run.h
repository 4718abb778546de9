// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "flashprime/jit.h"
#include "jit/cache_entry.h"

namespace flashprime {

// KernelCache::warmup(). `compiled`, if not null, receives the kernels in the order of the plan,
// null where there is none.
StatusOr<WarmupReport> run_warmup(const KernelCache& cache, const KernelPlan& plan,
                                  const WarmupOptions& options,
                                  std::vector<std::shared_ptr<const CompiledKernel>>* compiled);

}  // namespace flashprime
