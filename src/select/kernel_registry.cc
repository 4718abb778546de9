// SPDX-License-Identifier: Apache-2.0
#include "select/kernel_registry.h"

#include "checks.h"
#include "cpu/fast_target.h"
#include "problem/tensor_checks.h"

namespace flashprime {
namespace {

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

std::vector<KernelRow> make_registry() {
  const std::vector<Dtype> inputs = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32};
  const std::vector<MaskKind> all_masks = {MaskKind::kFull, MaskKind::kCausal, MaskKind::kWindow};
  const char* any_dims = "nope >= 1, rope >= 0, v >= 1";

  KernelRow fast;
  fast.info.name = "cpu_fast";
  fast.info.device = DeviceKind::kCpu;
  fast.info.summary = "blocked online softmax in fp32, SIMD, all cores";
  fast.info.head_dims = any_dims;
  fast.info.tested_on = "x86-64: AVX2 with FMA, AVX-512";
  fast.dtypes = inputs;
  fast.out_dtypes = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kE4m3};
  fast.masks = all_masks;
  fast.max_splits = 1;
  fast.unavailable_reason = [] {
    return std::string(*cpu::fast_isa_target() != '\0'
                           ? ""
                           : "processor: got none of the SIMD targets of this build, wanted AVX2 "
                             "with FMA or better");
  };
  fast.run_description = [](const std::string& threads) {
    return concat(cpu::fast_isa_target(), ", tiles of ", cpu::kFastBlockQ, " queries, ", threads);
  };
  fast.run = [](const PrefillTraits& traits, const PrefillParams& params,
                const ParallelFor& parallel_for) {
    return cpu::run_fast(traits, params, parallel_for);
  };

  KernelRow reference;
  reference.info.name = "cpu_reference";
  reference.info.device = DeviceKind::kCpu;
  reference.info.summary = "plain loops in fp64, one thread: the definition of the operator";
  reference.info.head_dims = any_dims;
  reference.info.tested_on = "x86-64";
  reference.dtypes = inputs;
  reference.out_dtypes = {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kFp64, Dtype::kE4m3};
  reference.masks = all_masks;
  reference.max_splits = 1;
  reference.unavailable_reason = [] { return std::string(); };
  reference.run_description = [](const std::string&) {
    return std::string("scalar fp64, 1 thread");
  };
  reference.run = [](const PrefillTraits& traits, const PrefillParams& params, const ParallelFor&) {
    return cpu::run_reference(traits, params);
  };

  return {with_words(fast), with_words(reference)};
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
