// SPDX-License-Identifier: Apache-2.0
// The launch of sm90_mla_prefill: tensor maps, scheduler, persistent grid.
#pragma once

#include "flashprime/prefill.h"
#include "kernels/shared/prefill_params.h"
#include "launch/gpu_device.h"

namespace flashprime {

// Tiles that a call can have at most; the lengths that decide are on the device.
StatusOr<int64_t> sm90_max_tiles(const PrefillParams& params);

// Bytes of the scheduler's state: 0 where the device runs a block for every tile at once.
int64_t sm90_scheduler_bytes(int64_t max_tiles, const GpuDevice& device);

// `scheduler` is sm90_scheduler_bytes() of device memory. kStride where a row of q, k or v is
// longer than tensor maps take.
Status launch_sm90(const GpuDevice& device, const LoadedKernel& kernel, const PrefillParams& params,
                   void* scheduler, StreamHandle stream);

}  // namespace flashprime
