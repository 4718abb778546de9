// SPDX-License-Identifier: Apache-2.0
#include "launch/gpu_device.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "checks.h"
#include "flashprime/jit.h"

namespace flashprime {
namespace {

StatusOr<std::unique_ptr<GpuDevice>> open_device(int32_t ordinal) {
  auto device = std::make_unique<GpuDevice>();
  const StatusOr<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver.ok()) return driver.status();
  device->driver = *driver;
  StatusOr<cuda::DeviceProperties> properties = device->driver->device(ordinal);
  if (!properties.ok()) return properties.status();
  device->properties = *std::move(properties);
  device->archs = archs_for_device(device->properties.sm);
  FLASHPRIME_REQUIRE(!device->archs.empty(), StatusCode::kArch, "device: ", device->properties.name,
                     " has compute capability ", device->properties.sm / 10, '.',
                     device->properties.sm % 10, ", for which no kernel can be compiled");
  const StatusOr<cuda::Context> context =
      cuda::primary_context(*device->driver, device->properties.id);
  if (!context.ok()) return context.status();
  device->context = *context;
  unsigned long long id = 0;
  FLASHPRIME_RETURN_IF_ERROR(
      device->driver->check(device->driver->api().cuCtxGetId(device->context, &id), "cuCtxGetId"));
  device->context_id = id;
  const StatusOr<KernelCache> cache = default_kernel_cache();
  if (!cache.ok()) return cache.status();
  // One table for all devices, kept for the life of the process as the functions in it are.
  static LoadedKernels* const kernels = new LoadedKernels(cache->store(), *device->driver);
  device->kernels = kernels;
  return device;
}

}  // namespace

StatusOr<const GpuDevice*> GpuDevice::get(int32_t ordinal) {
  // The devices that are open, without a lock.
  static std::array<std::atomic<const GpuDevice*>, 64> open = {};
  const bool has_place = ordinal >= 0 && static_cast<size_t>(ordinal) < open.size();
  if (has_place) {
    if (const GpuDevice* device = open[static_cast<size_t>(ordinal)]) return device;
  }
  static std::mutex mutex;
  static auto* const devices = new std::map<int32_t, std::unique_ptr<GpuDevice>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<GpuDevice>& device = (*devices)[ordinal];
  if (device == nullptr) {
    StatusOr<std::unique_ptr<GpuDevice>> opened = open_device(ordinal);
    if (!opened.ok()) {
      devices->erase(ordinal);
      return opened.status();
    }
    device = *std::move(opened);
  }
  if (has_place) open[static_cast<size_t>(ordinal)] = device.get();
  return static_cast<const GpuDevice*>(device.get());
}

}  // namespace flashprime
