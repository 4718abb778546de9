// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU and copies to and from it, for programs that have no CUDA library of their own:
// tests, tools, examples. A server has its own allocator and has no need of this.
#pragma once

#include "flashprime/export.h"

#include "flashprime/execution.h"
#include "flashprime/status.h"

namespace flashprime {

/// Bytes on a GPU, freed with the object. Copies between host and device wait for all earlier work
/// of the device's default stream and for themselves. Thread-compatible.
class FLASHPRIME_API DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// At least 256-byte aligned; contents unspecified. 0 bytes: a buffer without memory.
  ///   kDriver  there is no driver    kDevice  no device of that CUDA ordinal
  ///   kOutOfMemory  the device has no room
  static StatusOr<DeviceBuffer> allocate(int32_t device, int64_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int32_t device() const { return device_; }

  /// kRange unless [offset, offset + bytes) lies in the buffer.
  Status copy_from_host(const void* from, int64_t bytes, int64_t offset = 0);
  Status copy_to_host(void* to, int64_t bytes, int64_t offset = 0) const;

 private:
  void swap(DeviceBuffer& other) noexcept;

  int32_t device_ = 0;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Waits until all work on the stream is done. kPriorCudaError if some of it failed.
FLASHPRIME_API Status synchronize(int32_t device, StreamHandle stream = nullptr);

}  // namespace flashprime
