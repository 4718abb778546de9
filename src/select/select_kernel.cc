// SPDX-License-Identifier: Apache-2.0
#include "select/select_kernel.h"

#include <algorithm>
#include <fstream>

#include "checks.h"
#include "cpu/thread_pool.h"
#include "problem/tensor_checks.h"
#include "problem/validate_problem.h"

namespace flashprime {
namespace {

template <typename T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string device_name(const Device& device) {
  switch (device.kind) {
    case DeviceKind::kAuto: return "auto";
    case DeviceKind::kCpu: return "cpu";
    case DeviceKind::kCuda: return concat("cuda:", device.index);
  }
  return "unknown device";
}

// Every reason why `row` cannot run the problem, in the order device, dtype, dependencies, dims,
// mask, rest.
std::vector<std::string> find_reasons(const KernelRow& row, const PrefillProblem& problem,
                                      const ExecutionOptions& options) {
  std::vector<std::string> reasons;
  const DeviceKind device = options.device.kind;
  if (device != DeviceKind::kAuto && device != row.info.device) {
    reasons.push_back(concat("device: got ", device_name(options.device),
                             ", wanted cpu; this build has no CUDA kernels"));
  }
  if (!contains(row.dtypes, problem.dtype)) {
    reasons.push_back(
        concat("dtype: got ", dtype_name(problem.dtype), ", wanted one of ", row.info.dtypes));
  }
  if (!contains(row.out_dtypes, problem.out_dtype)) {
    reasons.push_back(concat("out_dtype: got ", dtype_name(problem.out_dtype), ", wanted one of ",
                             row.info.out_dtypes));
  }
  if (std::string reason = row.unavailable_reason(); !reason.empty()) reasons.push_back(reason);
  const auto [nope, rope, dim_v] = problem.dims;
  if (nope < 1 || rope < 0 || dim_v < 1) {
    reasons.push_back(concat("dims: got (nope ", nope, ", rope ", rope, ", v ", dim_v, "), wanted ",
                             row.info.head_dims));
  }
  if (!contains(row.masks, problem.mask.kind)) {
    reasons.push_back(
        concat("mask: got ", mask_name(problem.mask.kind), ", wanted one of ", row.info.masks));
  }
  if (problem.num_splits > row.max_splits) {
    reasons.push_back(concat("num_splits: got ", problem.num_splits, ", wanted at most ",
                             row.max_splits, ": this kernel does not split keys"));
  }
  if (!options.kernel.empty() && options.kernel != row.info.name) {
    reasons.push_back(concat("kernel: got ", options.kernel, " forced by the caller"));
  }
  return reasons;
}

StatusOr<int32_t> num_threads_of(const ExecutionOptions& options) {
  if (options.num_threads == 0) return cpu::default_num_threads();
  FLASHPRIME_REQUIRE(options.num_threads >= 1 && options.num_threads <= 1024, StatusCode::kNumeric,
                     "num_threads: got ", options.num_threads,
                     ", wanted 0 (the default) or 1 to 1024");
  return options.num_threads;
}

}  // namespace

StatusOr<ParallelFor> select_parallel_for(const ExecutionOptions& options) {
  if (options.parallel_for) return options.parallel_for;
  StatusOr<int32_t> num_threads = num_threads_of(options);
  if (!num_threads.ok()) return num_threads.status();
  return cpu::pool_parallel_for(*num_threads);
}

Explanation explain(const PrefillProblem& problem, const ExecutionOptions& options) {
  Explanation explanation;
  const Status legal = validate_problem(problem);
  for (const KernelRow& row : kernel_registry()) {
    KernelVerdict verdict;
    verdict.kernel = row.info.name;
    verdict.reasons = find_reasons(row, problem, options);
    // What no kernel may compute and no column of the registry names.
    if (!legal.ok() && verdict.reasons.empty()) verdict.reasons.push_back(legal.message());
    verdict.supported = verdict.reasons.empty();
    if (verdict.supported && !explanation.supported) {
      explanation.supported = true;
      explanation.kernel = row.info.name;
      const StatusOr<int32_t> num_threads = num_threads_of(options);
      explanation.detail = row.run_description(num_threads.ok() ? *num_threads : 1);
    }
    explanation.verdicts.push_back(verdict);
  }
  return explanation;
}

StatusOr<const KernelRow*> select_kernel(const PrefillProblem& problem,
                                         const ExecutionOptions& options) {
  const std::vector<KernelRow>& registry = kernel_registry();
  if (!options.kernel.empty()) {
    std::string known;
    for (const KernelRow& row : registry) known += (known.empty() ? "" : ", ") + row.info.name;
    FLASHPRIME_REQUIRE(
        std::any_of(registry.begin(), registry.end(),
                    [&](const KernelRow& row) { return row.info.name == options.kernel; }),
        StatusCode::kUnsupported, "kernel: got ", options.kernel, ", wanted one of ", known);
  }
  std::string all_reasons;
  for (const KernelRow& row : registry) {
    const std::vector<std::string> reasons = find_reasons(row, problem, options);
    if (reasons.empty()) return &row;
    all_reasons += concat("\n  ", row.info.name, ":");
    for (const std::string& reason : reasons) all_reasons += concat("\n    ", reason);
  }
  return Status(StatusCode::kUnsupported, concat("problem: no kernel computes it", all_reasons));
}

CpuInfo cpu_info() {
  CpuInfo info;
  info.isa_target = cpu::fast_isa_target();
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; info.brand.empty() && std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (value != std::string::npos) info.brand = line.substr(value);
  }
  const StatusOr<int32_t> num_threads = cpu::default_num_threads();
  if (num_threads.ok()) info.num_threads = *num_threads;
  return info;
}

std::string numerics_id() {
  const std::string target = cpu::fast_isa_target();
  return "1/" + (target.empty() ? std::string("scalar") : target);
}

}  // namespace flashprime
