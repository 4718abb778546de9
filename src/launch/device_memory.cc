// SPDX-License-Identifier: Apache-2.0
#include "flashprime/device_memory.h"

#include <utility>

#include "checks.h"
#include "launch/gpu_device.h"

namespace flashprime {
namespace {

cuda::DevicePointer device_pointer(void* data, int64_t offset = 0) {
  return reinterpret_cast<cuda::DevicePointer>(data) + static_cast<cuda::DevicePointer>(offset);
}

// Calls body(device) with the device's context current.
template <typename Body>
Status on_device(int32_t ordinal, const Body& body) {
  return without_exceptions([&]() -> Status {
    const StatusOr<const GpuDevice*> device = GpuDevice::get(ordinal);
    if (!device.ok()) return device.status();
    const cuda::ContextScope scope(*(*device)->driver, (*device)->context);
    FLASHPRIME_RETURN_IF_ERROR(scope.status());
    return body(*(*device)->driver);
  });
}

Status check_range(int64_t bytes, int64_t offset, int64_t capacity) {
  FLASHPRIME_REQUIRE(bytes >= 0 && offset >= 0 && offset <= capacity && bytes <= capacity - offset,
                     StatusCode::kRange, "bytes: got ", bytes, " at offset ", offset,
                     ", wanted a range within the ", capacity, " bytes of the buffer");
  return ok_status();
}

}  // namespace

StatusOr<DeviceBuffer> DeviceBuffer::allocate(int32_t device, int64_t bytes) {
  FLASHPRIME_REQUIRE(bytes >= 0, StatusCode::kRange, "bytes: got ", bytes, ", wanted 0 or more");
  DeviceBuffer buffer;
  buffer.device_ = device;
  const Status allocated = on_device(device, [&](const cuda::Driver& driver) -> Status {
    if (bytes == 0) return ok_status();
    cuda::DevicePointer pointer = 0;
    FLASHPRIME_RETURN_IF_ERROR(driver.check(
        driver.api().cuMemAlloc_v2(&pointer, static_cast<size_t>(bytes)), "cuMemAlloc"));
    buffer.data_ = reinterpret_cast<void*>(pointer);
    buffer.bytes_ = bytes;
    return ok_status();
  });
  if (!allocated.ok()) return allocated;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  // What cannot be freed (the context was lost) is lost with the process.
  (void)on_device(device_, [&](const cuda::Driver& driver) {
    return driver.check(driver.api().cuMemFree_v2(device_pointer(data_)), "cuMemFree");
  });
}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

Status DeviceBuffer::copy_from_host(const void* from, int64_t bytes, int64_t offset) {
  FLASHPRIME_RETURN_IF_ERROR(check_range(bytes, offset, bytes_));
  if (bytes == 0) return ok_status();
  return on_device(device_, [&](const cuda::Driver& driver) -> Status {
    FLASHPRIME_RETURN_IF_ERROR(
        driver.check(driver.api().cuMemcpyHtoDAsync_v2(device_pointer(data_, offset), from,
                                                       static_cast<size_t>(bytes), nullptr),
                     "cuMemcpyHtoDAsync"));
    return driver.check(driver.api().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  });
}

Status DeviceBuffer::copy_to_host(void* to, int64_t bytes, int64_t offset) const {
  FLASHPRIME_RETURN_IF_ERROR(check_range(bytes, offset, bytes_));
  if (bytes == 0) return ok_status();
  return on_device(device_, [&](const cuda::Driver& driver) -> Status {
    FLASHPRIME_RETURN_IF_ERROR(
        driver.check(driver.api().cuMemcpyDtoHAsync_v2(to, device_pointer(data_, offset),
                                                       static_cast<size_t>(bytes), nullptr),
                     "cuMemcpyDtoHAsync"));
    return driver.check(driver.api().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
  });
}

Status synchronize(int32_t device, StreamHandle stream) {
  return on_device(device, [&](const cuda::Driver& driver) {
    return driver.check(driver.api().cuStreamSynchronize(stream), "cuStreamSynchronize");
  });
}

}  // namespace flashprime
