// SPDX-License-Identifier: Apache-2.0
// A GPU as calls use it: its properties, its primary context, the kernels loaded on it.
#pragma once

#include <span>

#include "cuda/driver.h"
#include "jit/loaded_kernels.h"

namespace flashprime {

struct GpuDevice {
  const cuda::Driver* driver = nullptr;
  cuda::DeviceProperties properties;
  cuda::Context context = nullptr;  // the primary one
  uint64_t context_id = 0;
  LoadedKernels* kernels = nullptr;  // of the default kernel cache
  std::vector<Arch> archs;           // that run here, best first

  // The device of that CUDA ordinal, made once and kept. Thread-safe.
  //   kDriver  no driver    kDevice  no such device    kFormat  a setting of the kernel cache
  static StatusOr<const GpuDevice*> get(int32_t ordinal);
};

// Loads (and compiles, if it has to and may) a kernel on a device, or finds it loaded.
// `make_key(arch)` gives the wanted key for one of `archs`, best first. kNotWarm while `stream`
// records a graph: neither compiling nor loading may happen then.
template <typename MakeKey>
StatusOr<const LoadedKernel*> ready_kernel(const GpuDevice& device, std::span<const Arch> archs,
                                           const MakeKey& make_key, StreamHandle stream) {
  const KernelKey wanted = make_key(archs.front());
  if (const LoadedKernel* loaded = device.kernels->find(wanted, device.context_id)) return loaded;
  const StatusOr<bool> capturing = cuda::is_capturing(*device.driver, stream);
  if (!capturing.ok()) return capturing.status();
  if (*capturing) {
    return Status(StatusCode::kNotWarm, "stream: records a graph, and " + wanted.to_string() +
                                            " is not loaded; warm it up before the capture");
  }
  std::vector<KernelKey> keys;
  for (const Arch& arch : archs) keys.push_back(make_key(arch));
  return device.kernels->load(keys, device.properties);
}

}  // namespace flashprime
