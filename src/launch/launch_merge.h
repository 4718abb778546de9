// SPDX-License-Identifier: Apache-2.0
// A validated merge_states() call to its kernel.
#pragma once

#include "flashprime/merge.h"
#include "kernels/shared/merge_params.h"
#include "launch/gpu_device.h"
#include "problem/tensor_checks.h"

namespace flashprime {

// Rows of the inputs begin at multiples of input_unit bytes, those of out at whole four elements.
// kAlignment or kStride.
Status check_gpu_rows(std::initializer_list<NamedTensor> inputs, const NamedTensor& out,
                      int64_t input_unit);

// Thread blocks for so many rows (token, head): a warp takes one.
int64_t merge_grid(const LoadedKernel& kernel, int64_t rows);

// Launches the merge on `stream`. kUnsupported for a head dim that the kernel does not take.
Status launch_merge(const GpuDevice& device, const MergeArgs& args, StreamHandle stream);

}  // namespace flashprime
