// SPDX-License-Identifier: Apache-2.0
// The whole call: validate, select, run.
#include "flashprime/prefill.h"

#include "checks.h"
#include "problem/validate_problem.h"
#include "select/select_kernel.h"

namespace flashprime {
namespace {

Status run_prefill(const PrefillProblem& problem, const PrefillArgs& args,
                   const ExecutionOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(validate_prefill(problem, args));
  const StatusOr<const KernelRow*> kernel = select_kernel(problem, options);
  FLASHPRIME_RETURN_IF_ERROR(kernel.status());
  const StatusOr<ParallelFor> parallel_for = select_parallel_for(options);
  FLASHPRIME_RETURN_IF_ERROR(parallel_for.status());
  return (*kernel)->run(make_traits(problem), make_params(problem, args), *parallel_for);
}

}  // namespace

Status prefill(const PrefillProblem& problem, const PrefillArgs& args,
               const ExecutionOptions& options, StreamHandle /*stream*/) {
  return without_exceptions([&] { return run_prefill(problem, args, options); });
}

StatusOr<int64_t> prefill_workspace_bytes(const PrefillProblem& problem, const PrefillArgs& args,
                                          const ExecutionOptions& options) {
  return without_exceptions([&]() -> StatusOr<int64_t> {
    FLASHPRIME_RETURN_IF_ERROR(validate_prefill(problem, args));
    const StatusOr<const KernelRow*> kernel = select_kernel(problem, options);
    FLASHPRIME_RETURN_IF_ERROR(kernel.status());
    return int64_t{0};  // CPU kernels need none
  });
}

}  // namespace flashprime
