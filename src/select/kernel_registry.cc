// SPDX-License-Identifier: Apache-2.0
#include "select/kernel_registry.h"

#include "checks.h"
#include "cpu/cpu_kernels.h"
#include "cpu/fast_target.h"
#include "launch/launch_prefill.h"
#include "problem/tensor_checks.h"
#include "problem/validate_problem.h"
#include "select/kernel_keys_of.h"
#include "select/select_kernel.h"

namespace flashprime {
namespace {

const std::vector<MaskKind> kAllMasks = {MaskKind::kFull, MaskKind::kCausal, MaskKind::kWindow};

std::string names(const std::vector<Dtype>& dtypes) {
  std::string text;
  for (Dtype dtype : dtypes) {
    if (!text.empty()) text += ", ";
    text += dtype_name(dtype);
  }
  return text;
}

// A row whose words follow from its data.
KernelRow with_words(KernelRow row) {
  row.info.dtypes = names(row.dtypes);
  row.info.out_dtypes = names(row.out_dtypes);
  for (MaskKind mask : row.masks) {
    if (!row.info.masks.empty()) row.info.masks += ", ";
    row.info.masks += mask_name(mask);
  }
  return row;
}

// Why a GPU kernel does not run on a device that may not be open, or empty.
std::string gpu_reason(const Device& device, int32_t min_sm, int32_t max_sm, const char* wanted) {
  const StatusOr<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver.ok()) return driver.status().message();
  const StatusOr<cuda::DeviceProperties> properties = (*driver)->device(device.index);
  if (!properties.ok()) return properties.status().message();
  const int32_t sm = properties->sm;
  if (sm >= min_sm && sm <= max_sm && !archs_for_device(sm).empty()) return {};
  return concat("device: got ", properties->name, " of compute capability ", sm / 10, '.', sm % 10,
                ", wanted ", wanted);
}

// What the GPU kernels have in common.
template <PrefillKernel kKernel>
KernelRow gpu_row() {
  KernelRow row;
  row.info.device = DeviceKind::kCuda;
  row.dtypes = {Dtype::kBf16, Dtype::kFp16};
  row.out_dtypes = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kE4m3};
  row.max_splits = kMaxSplits;
  row.run_description = [](const PrefillProblem& problem, const Device& device,
                           const std::string&) -> std::string {
    const StatusOr<const GpuDevice*> gpu = GpuDevice::get(device.index);
    if (!gpu.ok()) return gpu.status().message();
    return concat((*gpu)->properties.name, ", ",
                  prefill_key(kKernel, make_traits(problem), (*gpu)->archs.front()).to_string());
  };
  row.run = [](const KernelCall& call) {
    return launch_prefill(kKernel, *call.gpu, call.problem, make_params(call.problem, call.args),
                          {call.args.workspace, call.args.workspace_bytes}, call.stream);
  };
  row.workspace_bytes = [](const KernelCall& call) {
    return gpu_workspace_bytes(kKernel, call.problem, make_params(call.problem, call.args),
                               *call.gpu);
  };
  return row;
}

// The Hopper kernel.
KernelRow sm90_row() {
  KernelRow row = gpu_row<PrefillKernel::kSm90>();
  row.info.name = "sm90_mla_prefill";
  row.info.summary = "wgmma and TMA, persistent: compute capability 9.0";
  row.info.head_dims =
      "multiples of 64, (nope + rope, v) one of (192, 128), (256, 256), (128, 128), (256, 128)";
  row.info.tested_on = "H200 (sm_90a)";
  row.masks = {MaskKind::kFull, MaskKind::kCausal};
  row.min_sm = row.max_sm = 90;
  row.unavailable_reason = [](const Device& device) -> std::string {
    return gpu_reason(device, 90, 90, "9.0");
  };
  row.dims_reason = [](const HeadDims& dims) { return sm90_reason(dims, MaskKind::kFull); };
  return row;
}

// The portable GPU kernel.
KernelRow sm80_row() {
  KernelRow row = gpu_row<PrefillKernel::kSm80>();
  row.info.name = "sm80_mla_prefill";
  row.info.summary = "mma.sync and cp.async: every GPU from compute capability 8.0 on";
  row.info.head_dims = "multiples of 16, nope + rope <= 256, v <= 256";
  row.info.tested_on =
      "H200 (sm_90a); compiled, not run: sm_80, sm_86, sm_89, sm_100a, sm_103a, "
      "sm_120a, sm_121a";
  row.masks = kAllMasks;
  row.min_sm = 80;
  row.max_sm = INT32_MAX;
  row.unavailable_reason = [](const Device& device) -> std::string {
    return gpu_reason(device, 80, INT32_MAX, "8.0 or later");
  };
  row.dims_reason = [](const HeadDims& dims) -> std::string {
    const auto fits = [](int32_t dim) { return dim % 16 == 0 && dim <= 256; };
    if (fits(dims.nope) && fits(dims.rope) && fits(dims.v) && dims.nope + dims.rope <= 256)
      return {};
    return concat("dims: got nope ", dims.nope, ", rope ", dims.rope, ", v ", dims.v,
                  ", wanted multiples of 16 with nope + rope <= 256 and v <= 256");
  };
  return row;
}

// What the CPU kernels have in common: all dims that the operator defines, no workspace.
KernelRow cpu_row() {
  KernelRow row;
  row.info.device = DeviceKind::kCpu;
  row.info.head_dims = "nope >= 1, rope >= 0, v >= 1";
  row.dtypes = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32};
  row.masks = kAllMasks;
  row.max_splits = 1;
  row.dims_reason = [](const HeadDims&) { return std::string(); };
  row.workspace_bytes = [](const KernelCall&) -> StatusOr<int64_t> { return int64_t{0}; };
  return row;
}

KernelRow fast_row() {
  KernelRow row = cpu_row();
  row.info.name = "cpu_fast";
  row.info.summary = "blocked online softmax in fp32, SIMD, all cores";
  row.info.tested_on = "x86-64: AVX2 with FMA, AVX-512";
  row.out_dtypes = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kE4m3};
  row.unavailable_reason = [](const Device&) {
    return std::string(*cpu::fast_isa_target() != '\0'
                           ? ""
                           : "processor: got none of the SIMD targets of this build, wanted AVX2 "
                             "with FMA or better");
  };
  row.run_description = [](const PrefillProblem&, const Device&, const std::string& threads) {
    return concat(cpu::fast_isa_target(), ", tiles of ", cpu::kFastBlockQ, " queries, ", threads);
  };
  row.run = [](const KernelCall& call) -> Status {
    const StatusOr<ParallelFor> parallel_for = select_parallel_for(call.options);
    FLASHPRIME_RETURN_IF_ERROR(parallel_for.status());
    return cpu::run_fast(make_traits(call.problem), make_params(call.problem, call.args),
                         *parallel_for);
  };
  return row;
}

KernelRow reference_row() {
  KernelRow row = cpu_row();
  row.info.name = "cpu_reference";
  row.info.summary = "plain loops in fp64, one thread: the definition of the operator";
  row.info.tested_on = "x86-64";
  row.out_dtypes = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kFp64, Dtype::kE4m3};
  row.unavailable_reason = [](const Device&) { return std::string(); };
  row.run_description = [](const PrefillProblem&, const Device&, const std::string&) {
    return std::string("scalar fp64, 1 thread");
  };
  row.run = [](const KernelCall& call) -> Status {
    FLASHPRIME_RETURN_IF_ERROR(select_parallel_for(call.options).status());
    return cpu::run_reference(make_traits(call.problem), make_params(call.problem, call.args));
  };
  return row;
}

std::vector<KernelRow> make_registry() {
  return {with_words(sm90_row()), with_words(sm80_row()), with_words(fast_row()),
          with_words(reference_row())};
}

}  // namespace

std::string_view mask_name(MaskKind mask) {
  switch (mask) {
    case MaskKind::kFull: return "full";
    case MaskKind::kCausal: return "causal";
    case MaskKind::kWindow: return "window";
  }
  return "unknown mask";
}

const std::vector<KernelRow>& kernel_registry() {
  static const std::vector<KernelRow> registry = make_registry();
  return registry;
}

const std::vector<KernelInfo>& list_kernels() {
  static const std::vector<KernelInfo> infos = [] {
    std::vector<KernelInfo> list;
    for (const KernelRow& row : kernel_registry()) list.push_back(row.info);
    return list;
  }();
  return infos;
}

}  // namespace flashprime
