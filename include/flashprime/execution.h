// SPDX-License-Identifier: Apache-2.0
// Where and how a call runs: device, kernel, threads, stream.
#pragma once

#include <functional>
#include <string>

#include "flashprime/types.h"

struct CUstream_st;

namespace flashprime {

/// The driver's stream handle (CUstream, cudaStream_t). Ignored on a CPU.
using StreamHandle = CUstream_st*;

enum class DeviceKind : uint8_t { kAuto = 0, kCpu = 1, kCuda = 2 };

/// kAuto runs a call where its tensors are: on the GPU that owns their memory, or on the CPU. In
/// explain(), which has no tensors, it is the first device that can run the problem, a GPU before
/// the CPU. A tensor elsewhere than on the device of the call is kDevice.
struct Device {
  DeviceKind kind = DeviceKind::kAuto;
  int32_t index = 0;  ///< CUDA ordinal
};

/// Runs body(i) for every i in [0, n), in any order, on any threads, and returns when all are done.
/// Bodies never throw and never block on each other.
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>& body)>;

/// Everything about a call that must not change its result's meaning.
struct ExecutionOptions {
  Device device{};
  /// Name of a kernel in `list_kernels()` that must run this call; empty: the selector chooses.
  /// A kernel that cannot is an error (kUnsupported), never replaced by another.
  std::string kernel{};
  /// CPU kernels run their tiles through this; empty: the library's own thread pool.
  ParallelFor parallel_for{};
  /// Threads of the library's own pool for this call; 0: FLASHPRIME_THREADS, else all cores.
  /// Never changes a bit of the result.
  int32_t num_threads = 0;
  /// GPU only: copy cu_seqlens to the host and validate them (the CPU always does).
  bool checked = false;
};

}  // namespace flashprime
