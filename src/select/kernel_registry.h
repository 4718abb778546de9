// SPDX-License-Identifier: Apache-2.0
// Every kernel as one row: what it is, what it supports, how to run it.
#pragma once

#include <string_view>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "flashprime/backend.h"

namespace flashprime {

struct KernelRow {
  KernelInfo info;
  std::vector<Dtype> dtypes;
  std::vector<Dtype> out_dtypes;
  std::vector<MaskKind> masks;
  int32_t max_splits;
  // Why this machine cannot run it, or empty.
  std::string (*unavailable_reason)();
  // How it runs on this machine, for people; `threads` is "8 threads".
  std::string (*run_description)(const std::string& threads);
  Status (*run)(const PrefillTraits& traits, const PrefillParams& params,
                const ParallelFor& parallel_for);
};

std::string_view mask_name(MaskKind mask);  // "causal"

// In order of preference.
const std::vector<KernelRow>& kernel_registry();

}  // namespace flashprime
