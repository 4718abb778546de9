// SPDX-License-Identifier: Apache-2.0
// A validated prefill call to kernel launches on a stream: one, or two with split keys.
#pragma once

#include "flashprime/prefill.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"
#include "launch/gpu_device.h"

namespace flashprime {

// Into how many parts the keys of a call are split: as asked, or, with num_splits 0, so many that
// few short queries over a long context fill the device. 1 in batch-invariant mode. Depends on
// extents only, never on lengths, which stay on the device.
int32_t choose_num_splits(const PrefillProblem& problem, const PrefillParams& params,
                          const GpuDevice& device);

// Bytes of workspace that so many splits need.
StatusOr<int64_t> split_workspace_bytes(const PrefillProblem& problem, const PrefillParams& params,
                                        int32_t num_splits);

// Launches the call on `stream`. Never synchronises, never allocates once the kernel is loaded.
Status launch_prefill(const GpuDevice& device, const PrefillProblem& problem, PrefillParams params,
                      void* workspace, int64_t workspace_bytes, StreamHandle stream);

}  // namespace flashprime
