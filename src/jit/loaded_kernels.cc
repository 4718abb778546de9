// SPDX-License-Identifier: Apache-2.0
#include "jit/loaded_kernels.h"

#include "checks.h"

namespace flashprime {

const LoadedKernel* LoadedKernels::find(const KernelKey& key, uint64_t context) const {
  const std::shared_lock lock(mutex_);
  const auto found = loaded_.find(Slot{key, context});
  return found == loaded_.end() ? nullptr : found->second.get();
}

StatusOr<Obtained> LoadedKernels::obtain(const std::vector<KernelKey>& keys,
                                         const ObtainOptions& options, KernelKey* chosen) {
  ObtainOptions look = options;
  look.never_compile = true;
  for (const KernelKey& key : keys) {
    StatusOr<Obtained> obtained = store_->obtain(key, look);
    if (obtained.ok()) {
      *chosen = key;
      return obtained;
    }
  }
  *chosen = keys.front();
  return store_->obtain(keys.front(), options);
}

cuda::Result LoadedKernels::load_library(const KernelKey& key, const CompiledKernel& kernel,
                                         cuda::Library* library) {
  const std::lock_guard lock(libraries_mutex_);
  const auto known = libraries_.find(key);
  if (known != libraries_.end()) {
    *library = known->second;
    return cuda::kSuccess;
  }
  const cuda::Result result = driver_.api().cuLibraryLoadData(library, kernel.cubin.data(), nullptr,
                                                              nullptr, 0, nullptr, nullptr, 0);
  if (result == cuda::kSuccess) libraries_.emplace(key, *library);
  return result;
}

StatusOr<const LoadedKernel*> LoadedKernels::load(const std::vector<KernelKey>& wanted,
                                                  const cuda::DeviceProperties& device,
                                                  const ObtainOptions& options,
                                                  Obtained* obtained_out) {
  // A policy for another architecture of the family may want more than this device has.
  std::vector<KernelKey> keys;
  for (const KernelKey& key : wanted) {
    if (key.launch_shape().shared_bytes <= device.shared_bytes_per_block) keys.push_back(key);
  }
  FLASHPRIME_REQUIRE(!keys.empty(), StatusCode::kArch, "device: no kernel fits ", device.name,
                     " (sm_", device.sm, ")");
  cuda::Context context = nullptr;
  unsigned long long context_id = 0;
  FLASHPRIME_RETURN_IF_ERROR(
      driver_.check(driver_.api().cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
  FLASHPRIME_RETURN_IF_ERROR(
      driver_.check(driver_.api().cuCtxGetId(context, &context_id), "cuCtxGetId"));

  KernelKey chosen;
  StatusOr<Obtained> obtained = obtain(keys, options, &chosen);
  if (!obtained.ok()) return obtained.status();
  cuda::Library library = nullptr;
  cuda::Result result = load_library(chosen, *obtained->kernel, &library);
  if (cuda::is_image_error(result) && obtained->origin != KernelOrigin::kCompiled &&
      !options.never_compile) {
    // A cached image that the driver does not take: once more, from the source.
    store_->reject(chosen, *obtained->kernel);
    ObtainOptions fresh = options;
    fresh.force = true;
    obtained = store_->obtain(chosen, fresh);
    if (!obtained.ok()) return obtained.status();
    result = load_library(chosen, *obtained->kernel, &library);
  }
  if (cuda::is_image_error(result)) {
    return Status(
        StatusCode::kArch,
        concat(driver_.check(result, "cuLibraryLoadData").message(), "; ", chosen.to_string(),
               " was made by ", obtained->kernel->compiler, " and needs ",
               min_driver(chosen.arch, obtained->kernel->nvrtc_version), "; this is driver CUDA ",
               driver_.version() / 1000, '.', driver_.version() % 1000 / 10, " on ", device.name,
               " (sm_", device.sm, ")"));
  }
  FLASHPRIME_RETURN_IF_ERROR(driver_.check(result, "cuLibraryLoadData"));

  auto loaded = std::make_unique<LoadedKernel>();
  loaded->shape = chosen.launch_shape();
  loaded->key = chosen;
  cuda::Kernel kernel = nullptr;
  FLASHPRIME_RETURN_IF_ERROR(driver_.check(
      driver_.api().cuLibraryGetKernel(&kernel, library, kEntryName), "cuLibraryGetKernel"));
  FLASHPRIME_RETURN_IF_ERROR(driver_.check(
      driver_.api().cuKernelSetAttribute(cuda::kMaxDynamicSharedBytes, loaded->shape.shared_bytes,
                                         kernel, device.id),
      "cuKernelSetAttribute"));
  FLASHPRIME_RETURN_IF_ERROR(driver_.check(
      driver_.api().cuKernelGetFunction(&loaded->function, kernel), "cuKernelGetFunction"));
  // The driver loads code lazily; the first launch may be within a capture, where it must not.
  if (driver_.api().cuFuncLoad != nullptr) {
    FLASHPRIME_RETURN_IF_ERROR(
        driver_.check(driver_.api().cuFuncLoad(loaded->function), "cuFuncLoad"));
  }
  store_->log().write(LogLevel::kInfo, "loaded",
                      concat(chosen.to_string(), " (", kernel_origin_name(obtained->origin),
                             ") onto ", device.name, ", device ", device.id));
  if (obtained_out != nullptr) *obtained_out = *obtained;
  const std::unique_lock lock(mutex_);
  return loaded_.emplace(Slot{wanted.front(), context_id}, std::move(loaded)).first->second.get();
}

}  // namespace flashprime
