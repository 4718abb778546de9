// SPDX-License-Identifier: Apache-2.0
// Arguments whose values lie on the device: what `checked` reads of them.
#pragma once

#include "flashprime/prefill.h"
#include "launch/gpu_device.h"

namespace flashprime {

// validate_values() of copies of cu_seqlens and output_scale. Waits for the stream. kStream while
// the stream records a graph.
Status validate_device_values(const GpuDevice& device, const PrefillProblem& problem,
                              const PrefillArgs& args, StreamHandle stream);

}  // namespace flashprime
