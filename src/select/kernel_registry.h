// SPDX-License-Identifier: Apache-2.0
// Every kernel as one row: what it is, what it supports, how to run it.
#pragma once

#include <string_view>
#include <vector>

#include "flashprime/backend.h"
#include "kernels/shared/prefill_params.h"
#include "launch/gpu_device.h"

namespace flashprime {

// A call that has been validated for the kernel that runs it.
struct KernelCall {
  const PrefillProblem& problem;
  const PrefillArgs& args;
  const ExecutionOptions& options;
  const GpuDevice* gpu = nullptr;  // nullptr: on the CPU
  StreamHandle stream = nullptr;
};

struct KernelRow {
  KernelInfo info;
  std::vector<Dtype> dtypes;
  std::vector<Dtype> out_dtypes;
  std::vector<MaskKind> masks;
  int32_t max_splits;
  // Compute capabilities of the GPUs that run it, times ten.
  int32_t min_sm = 0;
  int32_t max_sm = 0;
  // Why this machine cannot run it on that device, or empty.
  std::string (*unavailable_reason)(const Device& device);
  // Why it does not take dims that the operator defines, or empty.
  std::string (*dims_reason)(const HeadDims& dims);
  // How it runs a problem on this machine, for people; `threads` is "8 threads".
  std::string (*run_description)(const PrefillProblem& problem, const Device& device,
                                 const std::string& threads);
  Status (*run)(const KernelCall& call);
  StatusOr<int64_t> (*workspace_bytes)(const KernelCall& call);
};

std::string_view mask_name(MaskKind mask);  // "causal"

// In order of preference.
const std::vector<KernelRow>& kernel_registry();

}  // namespace flashprime
