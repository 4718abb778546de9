// SPDX-License-Identifier: Apache-2.0
// The GPU driver, found at run time. The only place where its results become Status.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver_api.h"
#include "flashprime/status.h"

namespace flashprime::cuda {

struct DeviceProperties {
  DeviceId id = 0;
  std::string name;
  int32_t sm = 0;  // ten times the compute capability
  int32_t num_sms = 0;
  int32_t shared_bytes_per_block = 0;
  int64_t max_grid_x = 0;
  int64_t max_grid_y = 0;
  int64_t l2_bytes = 0;
};

class Driver {
 public:
  // The system's driver, loaded and initialised by the first call; the outcome is kept.
  // kDriver where there is none, or only the toolkit's stub.
  static StatusOr<const Driver*> get();
  // The same if the process has loaded the driver already, else nullptr: a call with host memory
  // does not touch a driver.
  static const Driver* get_if_loaded();
  // A driver from a library of that name, initialised.
  static StatusOr<std::unique_ptr<Driver>> open(const std::string& library);

  const DriverApi& api() const { return api_; }
  // kOk, or the kind of error with the driver's own name and text for it.
  Status check(Result result, const char* call) const;

  int32_t version() const { return version_; }  // 13000
  const std::string& path() const { return path_; }
  int32_t device_count() const { return device_count_; }
  // kDevice unless there is a device of that ordinal.
  StatusOr<DeviceProperties> device(int32_t ordinal) const;

 private:
  Driver() = default;
  DriverApi api_ = {};
  std::string path_;
  int32_t version_ = 0;
  int32_t device_count_ = 0;
};

// Whether the image itself is at fault: made for another device or a newer driver, or damaged.
bool is_image_error(Result result);

// Makes a context current and puts the former one back. Nothing happens if it is current already.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  Status status_;
};

// The primary context of a device, which the CUDA runtime uses too; never released.
StatusOr<Context> primary_context(const Driver& driver, DeviceId device);

// Whether the stream records a graph. kStream if its capture has failed.
StatusOr<bool> is_capturing(const Driver& driver, StreamHandle stream);

}  // namespace flashprime::cuda
