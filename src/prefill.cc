// SPDX-License-Identifier: Apache-2.0
// The whole call: validate, place, select, run.
#include "flashprime/prefill.h"

#include "checks.h"
#include "launch/device_values.h"
#include "launch/launch_prefill.h"
#include "launch/place_call.h"
#include "problem/validate_problem.h"
#include "select/select_kernel.h"

namespace flashprime {
namespace {

// The kernel of a call whose arguments it takes, and where it runs.
struct Prepared {
  const KernelRow* kernel = nullptr;
  const GpuDevice* gpu = nullptr;
};

StatusOr<Prepared> prepare(const PrefillProblem& problem, const PrefillArgs& args,
                           const ExecutionOptions& options, StreamHandle stream) {
  FLASHPRIME_RETURN_IF_ERROR(validate_views(problem, args));
  const StatusOr<const GpuDevice*> gpu = place_call(options.device, tensors_of(args));
  FLASHPRIME_RETURN_IF_ERROR(gpu.status());
  if (*gpu == nullptr) FLASHPRIME_RETURN_IF_ERROR(validate_values(problem, args));
  const StatusOr<const KernelRow*> kernel = select_kernel(problem, options, *gpu);
  FLASHPRIME_RETURN_IF_ERROR(kernel.status());
  if (*gpu != nullptr) {
    FLASHPRIME_RETURN_IF_ERROR(check_gpu_layout(args));
    if (options.checked) {
      FLASHPRIME_RETURN_IF_ERROR(validate_device_values(**gpu, problem, args, stream));
    }
  }
  return Prepared{*kernel, *gpu};
}

}  // namespace

Status prefill(const PrefillProblem& problem, const PrefillArgs& args,
               const ExecutionOptions& options, StreamHandle stream) {
  return without_exceptions([&]() -> Status {
    const StatusOr<Prepared> prepared = prepare(problem, args, options, stream);
    FLASHPRIME_RETURN_IF_ERROR(prepared.status());
    return prepared->kernel->run({problem, args, options, prepared->gpu, stream});
  });
}

StatusOr<int64_t> prefill_workspace_bytes(const PrefillProblem& problem, const PrefillArgs& args,
                                          const ExecutionOptions& options) {
  return without_exceptions([&]() -> StatusOr<int64_t> {
    const StatusOr<Prepared> prepared = prepare(problem, args, options, nullptr);
    FLASHPRIME_RETURN_IF_ERROR(prepared.status());
    return prepared->kernel->workspace_bytes({problem, args, options, prepared->gpu, nullptr});
  });
}

}  // namespace flashprime
