// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "flashprime/jit.h"
#include "jit/kernel_key.h"

namespace flashprime {

struct KernelSelection {
  std::vector<KernelKey> keys;  // without duplicates
  std::vector<SkippedKernel> skipped;
};

// The kernels that calls of a model's layers run, for each architecture in turn. kFormat for an
// unknown architecture, kArch for none at all.
StatusOr<KernelSelection> enumerate_kernels(const PlanOptions& options);

}  // namespace flashprime
