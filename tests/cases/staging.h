// SPDX-License-Identifier: Apache-2.0
// The operations with tensors in host memory, on any device: for a GPU the tensors are copied there
// and back. So every check that is written for host memory judges GPU kernels too.
#pragma once

#include "flashprime/merge.h"
#include "flashprime/prefill_layer.h"

namespace flashprime::cases {

/// Each is the library's call of that name where `options` do not ask for a GPU. On a GPU, every
/// range of bytes that some tensor spans is copied as a whole, at the same alignment and between
/// guard zones of NaN; the workspace is the function's own, full of NaN. What the call leaves comes
/// back into the same host bytes, gaps between rows included. kInternal if a guard changed.
Status staged_prefill(const PrefillProblem& problem, const PrefillArgs& args,
                      const ExecutionOptions& options);
Status staged_merge_states(const MergeArgs& args, const ExecutionOptions& options);
Status staged_prefill_layer(const PrefillProblem& problem, const PrefillArgs& args,
                            const ContextPlan& plan, const ContextSource& source,
                            const ExecutionOptions& options);

/// What the tests run: the kernel that FLASHPRIME_TEST_KERNEL names, on its device, with lengths
/// checked; without it the selector's choice on the CPU.
ExecutionOptions execution_under_test();

}  // namespace flashprime::cases
