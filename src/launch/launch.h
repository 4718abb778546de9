// SPDX-License-Identifier: Apache-2.0
// One kernel launch.
#pragma once

#include "launch/gpu_device.h"

namespace flashprime {

// Launches a loaded kernel with one params struct. The device's context must be current.
// kRange where the grid is larger than the device takes.
Status launch_kernel(const GpuDevice& device, const LoadedKernel& kernel, int64_t grid_x,
                     int64_t grid_y, const void* params, StreamHandle stream);

// Makes the device's context current for a launch, and checks that the stream belongs to it
// (kStream).
class LaunchScope {
 public:
  LaunchScope(const GpuDevice& device, StreamHandle stream);
  const Status& status() const { return status_; }

 private:
  cuda::ContextScope context_;
  Status status_;
};

}  // namespace flashprime
