// SPDX-License-Identifier: Apache-2.0
// A validated prefill call to kernel launches on a stream: one, or two with split keys.
#pragma once

#include "flashprime/prefill.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"
#include "launch/gpu_device.h"
#include "select/kernel_keys_of.h"

namespace flashprime {

// Splits of the keys at most.
inline constexpr int32_t kMaxSplits = 128;

// What the GPU kernels ask of memory, beyond what every call has to keep: q, k and v in rows of
// whole 16-byte units, out in rows of whole four elements. kAlignment or kStride.
Status check_gpu_layout(const PrefillArgs& args);

// Into how many parts the keys of a call are split: as asked, or, with num_splits 0, so many that
// few short queries over a long context fill the device. 1 in batch-invariant mode. Depends on
// extents only, never on lengths, which stay on the device.
int32_t choose_num_splits(PrefillKernel kernel, const PrefillProblem& problem,
                          const PrefillParams& params, const GpuDevice& device);

// Bytes of workspace that the call needs: the state of the tile scheduler, where the kernel has one
// and the device does not hold all tiles at once, and the partial states of its splits.
StatusOr<int64_t> gpu_workspace_bytes(PrefillKernel kernel, const PrefillProblem& problem,
                                      const PrefillParams& params, const GpuDevice& device);

struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Launches the call on `stream`. Never synchronises, never allocates once the kernel is loaded.
Status launch_prefill(PrefillKernel kernel, const GpuDevice& device, const PrefillProblem& problem,
                      PrefillParams params, const Workspace& workspace, StreamHandle stream);

}  // namespace flashprime
