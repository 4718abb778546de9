// SPDX-License-Identifier: Apache-2.0
// What a layer is on every device: the problems of its calls, its memory, what a source may give.
#pragma once

#include "flashprime/prefill_layer.h"
#include "launch/gpu_device.h"

namespace flashprime {

// Attention over the new tokens of requests with context: an fp32 state.
PrefillProblem new_tokens_problem(const PrefillProblem& problem);
// Attention over one chunk of their context: an fp32 partial state, unmasked.
PrefillProblem context_problem(const PrefillProblem& problem);

// Offsets of regions in a workspace, one after another, each a multiple of its alignment.
class WorkspaceLayout {
 public:
  // The offset of a region of rows * row_bytes bytes.
  int64_t add(int64_t rows, int64_t row_bytes);
  // kRange if the regions overflow 64 bits.
  StatusOr<int64_t> total() const;

 private:
  int64_t total_ = 0;
  bool overflown_ = false;
};

// kWorkspace or kAlias unless the workspace holds `needed` bytes of its own.
Status check_layer_workspace(const PrefillArgs& args, int64_t needed);

// What can be wrong with the views of a chunk as a whole; prefill() checks the rest.
Status check_chunk_views(const PrefillProblem& problem, const PrefillArgs& args,
                         int64_t workspace_bytes, const ContextChunk& chunk,
                         const KeyValueViews& views);

// The layer on a GPU, of arguments and a plan with chunks that have been accepted.
StatusOr<int64_t> gpu_layer_workspace_bytes(const GpuDevice& gpu, const PrefillProblem& problem,
                                            const PrefillArgs& args, const ContextPlan& plan,
                                            const ExecutionOptions& options);
Status run_layer_on_gpu(const GpuDevice& gpu, const PrefillProblem& problem,
                        const PrefillArgs& args, const ContextPlan& plan,
                        const ContextSource& source, const ExecutionOptions& options,
                        StreamHandle stream);

}  // namespace flashprime
