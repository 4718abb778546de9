// SPDX-License-Identifier: Apache-2.0
#include "launch/place_call.h"

#include "checks.h"

namespace flashprime {
namespace {

constexpr int32_t kHostMemory = -1;

// CUDA ordinal of the device that owns the memory, kHostMemory for memory of the host: pageable,
// pinned or registered.
int32_t owner(const cuda::Driver& driver, const void* data) {
  unsigned int type = 0;  // what the driver gives for memory that it does not know
  int ordinal = kHostMemory;
  cuda::PointerAttribute attributes[] = {cuda::kPointerMemoryType, cuda::kPointerDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  const cuda::Result result = driver.api().cuPointerGetAttributes(
      2, attributes, values, reinterpret_cast<cuda::DevicePointer>(data));
  return result == cuda::kSuccess && type == cuda::kMemoryDevice ? ordinal : kHostMemory;
}

std::string place_name(int32_t ordinal) {
  return ordinal == kHostMemory ? "host memory" : concat("memory of cuda:", ordinal);
}

}  // namespace

StatusOr<const GpuDevice*> place_call(const Device& device, std::span<const NamedTensor> tensors) {
  const cuda::Driver* driver = nullptr;
  int32_t wanted = kHostMemory;
  const NamedTensor* decided_by = nullptr;  // kAuto: the first tensor with elements
  if (device.kind == DeviceKind::kCuda) {
    const StatusOr<const cuda::Driver*> found = cuda::Driver::get();
    if (!found.ok()) return found.status();
    driver = *found;
    wanted = device.index;
    FLASHPRIME_REQUIRE(wanted >= 0 && wanted < driver->device_count(), StatusCode::kDevice,
                       "device: got cuda:", wanted, ", there are ", driver->device_count());
  } else {
    driver = cuda::Driver::get_if_loaded();
    if (driver == nullptr) return static_cast<const GpuDevice*>(nullptr);
  }
  for (const NamedTensor& tensor : tensors) {
    const TensorView& view = tensor.view;
    if (!view.present() || view.data == nullptr || !has_elements(view)) continue;
    const int32_t found = owner(*driver, view.data);
    if (device.kind == DeviceKind::kAuto && decided_by == nullptr) {
      decided_by = &tensor;
      wanted = found;
    }
    FLASHPRIME_REQUIRE(
        found == wanted, StatusCode::kDevice, tensor.name, ": got ", place_name(found), ", wanted ",
        place_name(wanted),
        decided_by != nullptr ? ", where the tensors before it are" : ", the device of the call");
  }
  if (wanted == kHostMemory) return static_cast<const GpuDevice*>(nullptr);
  return GpuDevice::get(wanted);
}

}  // namespace flashprime
