// SPDX-License-Identifier: Apache-2.0
// Kernels on a device: key to function, for each context.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "jit/kernel_store.h"

namespace flashprime {

struct LoadedKernel {
  cuda::Function function = nullptr;
  LaunchShape shape;
  KernelKey key;  // that was loaded: the wanted one, or one for a broader architecture
};

// Thread-safe. What is loaded stays loaded.
class LoadedKernels {
 public:
  LoadedKernels(std::shared_ptr<KernelStore> store, const cuda::Driver& driver)
      : store_(std::move(store)), driver_(driver) {}

  // nullptr if it is not loaded in that context. Costs well below a microsecond and never blocks
  // on a compilation. `context` is the id that cuCtxGetId() gives.
  const LoadedKernel* find(const KernelKey& key, uint64_t context) const;

  // Loads the first of `wanted` (best first) that is in memory, a bundle or a cache; where none is,
  // compiles the first that fits the device. find() has it under the front one then. The context
  // must be current, on `device`.
  // kNotWarm with never_compile, kArch if the driver refuses a fresh image too.
  StatusOr<const LoadedKernel*> load(const std::vector<KernelKey>& wanted,
                                     const cuda::DeviceProperties& device,
                                     const ObtainOptions& options = {},
                                     Obtained* obtained = nullptr);

 private:
  struct Slot {
    KernelKey key;
    uint64_t context = 0;
    bool operator==(const Slot&) const = default;
  };
  struct SlotHash {
    size_t operator()(const Slot& slot) const {
      return slot.key.hash() ^ slot.context * 0x9e3779b97f4a7c15u;
    }
  };

  StatusOr<Obtained> obtain(const std::vector<KernelKey>& keys, const ObtainOptions& options,
                            KernelKey* chosen);
  // The library of a cubin, loaded once for all contexts.
  cuda::Result load_library(const KernelKey& key, const CompiledKernel& kernel,
                            cuda::Library* library);

  std::shared_ptr<KernelStore> store_;
  const cuda::Driver& driver_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Slot, std::unique_ptr<const LoadedKernel>, SlotHash> loaded_;
  std::mutex libraries_mutex_;
  std::unordered_map<KernelKey, cuda::Library> libraries_;
};

}  // namespace flashprime
