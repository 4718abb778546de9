// SPDX-License-Identifier: Apache-2.0
// Which kernels exist, which one runs a problem, and why not the others.
#pragma once

#include "flashprime/export.h"

#include <string>
#include <vector>

#include "flashprime/execution.h"
#include "flashprime/prefill.h"

namespace flashprime {

/// One row of the kernel registry.
struct KernelInfo {
  std::string name;       ///< "cpu_fast", "cpu_reference"
  DeviceKind device;      ///< where it runs
  std::string summary;    ///< one line for people
  std::string head_dims;  ///< what it declares to support, in words
  std::string dtypes;     ///< inputs
  std::string out_dtypes;
  std::string masks;
  std::string tested_on;  ///< hardware it was seen running on, or "compiled, not run"
};

/// All kernels, in the order in which the selector prefers them.
FLASHPRIME_API const std::vector<KernelInfo>& list_kernels();

/// Why a kernel was not taken; empty reasons: it could have run.
struct KernelVerdict {
  std::string kernel;
  bool supported = false;
  std::vector<std::string> reasons;  ///< every one: device, dtype, dependencies, dims, mask, rest
};

/// The selector's answer for a problem.
struct Explanation {
  bool supported = false;
  std::string kernel;                   ///< the chosen one, or empty
  std::string detail;                   ///< how it would run: ISA target, tiles, threads
  std::vector<KernelVerdict> verdicts;  ///< one per kernel, in order of preference
};

/// What prefill() would run for `problem` under `options`. Never fails: an unsupported problem is
/// an Explanation with every reason.
FLASHPRIME_API Explanation explain(const PrefillProblem& problem,
                                   const ExecutionOptions& options = {});

/// Facts about this machine and library as the kernels see them.
struct CpuInfo {
  std::string isa_target;   ///< SIMD target that cpu_fast runs: "AVX2", "AVX3", ...
  std::string brand;        ///< processor name
  int32_t num_threads = 1;  ///< that a call uses by default
};
FLASHPRIME_API CpuInfo cpu_info();

/// Changes whenever any bit of any result may change: "1/AVX3", ...
FLASHPRIME_API std::string numerics_id();

}  // namespace flashprime
