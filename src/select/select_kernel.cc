// SPDX-License-Identifier: Apache-2.0
#include "select/select_kernel.h"

#include <algorithm>
#include <fstream>

#include "checks.h"
#include "cpu/cpu_kernels.h"
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
                                      const ExecutionOptions& options, const Device& device,
                                      const GpuDevice* gpu) {
  std::vector<std::string> reasons;
  const auto require = [&](bool condition, const auto&... message) {
    if (!condition) reasons.push_back(concat(message...));
  };
  const bool right_device = device.kind == DeviceKind::kAuto || device.kind == row.info.device;
  if (!right_device) {
    reasons.push_back(concat("device: got ", device_name(device), ", wanted ",
                             row.info.device == DeviceKind::kCpu ? "cpu" : "cuda"));
  }

  const std::vector<Status> defects = find_problem_defects(problem);
  for (const Status& defect : defects) reasons.push_back(defect.message());
  if (defects.empty()) {
    require(contains(row.dtypes, problem.dtype), "dtype: got ", dtype_name(problem.dtype),
            ", wanted one of ", row.info.dtypes);
    require(contains(row.out_dtypes, problem.out_dtype), "out_dtype: got ",
            dtype_name(problem.out_dtype), ", wanted one of ", row.info.out_dtypes);
    const bool runs_there =
        gpu != nullptr && gpu->properties.sm >= row.min_sm && gpu->properties.sm <= row.max_sm;
    if (right_device && !runs_there) {
      const std::string unavailable = row.unavailable_reason(device);
      require(unavailable.empty(), unavailable);
    }
    const std::string dims = row.dims_reason(problem.dims);
    require(dims.empty(), dims);
    require(contains(row.masks, problem.mask.kind), "mask: got ", mask_name(problem.mask.kind),
            ", wanted one of ", row.info.masks);
    require(problem.num_splits <= row.max_splits, "num_splits: got ", problem.num_splits,
            ", wanted at most ", row.max_splits,
            row.max_splits == 1 ? ": this kernel does not split keys" : "");
  }
  require(options.kernel.empty() || options.kernel == row.info.name, "kernel: got ", options.kernel,
          ", which the caller forces");
  return reasons;
}

StatusOr<int32_t> num_threads_of(const ExecutionOptions& options) {
  if (options.num_threads == 0) return cpu::default_num_threads();
  FLASHPRIME_REQUIRE(options.num_threads >= 1 && options.num_threads <= 1024, StatusCode::kNumeric,
                     "num_threads: got ", options.num_threads,
                     ", wanted 0 (the default) or 1 to 1024");
  return options.num_threads;
}

std::string threads_text(const ExecutionOptions& options) {
  if (options.parallel_for) return "the caller's threads";
  const StatusOr<int32_t> num_threads = num_threads_of(options);
  if (!num_threads.ok()) return num_threads.status().to_string();
  return concat(*num_threads, *num_threads == 1 ? " thread" : " threads");
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
  for (const KernelRow& row : kernel_registry()) {
    KernelVerdict verdict;
    verdict.kernel = row.info.name;
    verdict.reasons = find_reasons(row, problem, options, options.device, nullptr);
    verdict.supported = verdict.reasons.empty();
    if (verdict.supported && !explanation.supported) {
      explanation.supported = true;
      explanation.kernel = row.info.name;
      explanation.detail = row.run_description(problem, options.device, threads_text(options));
    }
    explanation.verdicts.push_back(verdict);
  }
  return explanation;
}

StatusOr<const KernelRow*> select_kernel(const PrefillProblem& problem,
                                         const ExecutionOptions& options, const GpuDevice* gpu) {
  const Device device =
      gpu == nullptr ? Device{DeviceKind::kCpu, 0} : Device{DeviceKind::kCuda, gpu->properties.id};
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
    const std::vector<std::string> reasons = find_reasons(row, problem, options, device, gpu);
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
