// SPDX-License-Identifier: Apache-2.0
// Which device a call runs on: the caller's choice, checked against where its tensors are.
#pragma once

#include <span>

#include "flashprime/prefill.h"
#include "launch/gpu_device.h"
#include "problem/tensor_checks.h"

namespace flashprime {

// The GPU, or nullptr for the CPU. With kAuto it is the GPU that the tensors are on, or the CPU for
// host memory; no driver is loaded to find that out.
//   kDevice  a tensor is not on the device, or there is no such device    kDriver  no driver
StatusOr<const GpuDevice*> place_call(const Device& device, std::span<const NamedTensor> tensors);

}  // namespace flashprime
