// SPDX-License-Identifier: Apache-2.0
#include "jit/plan_kernels.h"

#include <algorithm>

#include "checks.h"
#include "select/kernel_registry.h"
#include "select/policy_sm80.h"

namespace flashprime {
namespace {

// What a layer asks of attention: new tokens are causal, with the LSE when context follows; context
// is full and always needs it.
std::vector<PrefillTraits> forms(const PlanOptions& options) {
  std::vector<PrefillTraits> forms;
  const auto add = [&](MaskKind mask, bool lse, Dtype out_dtype) {
    forms.push_back({.dims = options.dims,
                     .dtype = options.dtype,
                     .out_dtype = out_dtype,
                     .mask = mask,
                     .return_lse = lse});
  };
  std::vector<Dtype> out_dtypes = {options.dtype};
  if (options.e4m3_output) out_dtypes.push_back(Dtype::kE4m3);
  for (const Dtype out_dtype : out_dtypes) {
    add(MaskKind::kCausal, false, out_dtype);
    add(MaskKind::kCausal, true, out_dtype);
    add(MaskKind::kFull, true, out_dtype);
    if (options.all) add(MaskKind::kFull, false, out_dtype);
  }
  return forms;
}

}  // namespace

StatusOr<KernelSelection> enumerate_kernels(const PlanOptions& options) {
  FLASHPRIME_REQUIRE(!options.archs.empty(), StatusCode::kArch,
                     "archs: got none, want at least one, for example sm_90a");
  KernelSelection selection;
  for (const std::string& name : options.archs) {
    const StatusOr<Arch> arch = parse_arch(name);
    if (!arch.ok()) return arch.status();
    for (const PrefillTraits& traits : forms(options)) {
      const KernelKey key{Sm80MlaPrefillKernel{traits, sm80_policy(traits, *arch)}, *arch};
      const Status valid = validate_kernel_key(key);
      if (!valid.ok()) {
        selection.skipped.push_back(
            {concat(key.name(), " ", mask_name(traits.mask), traits.return_lse ? ", LSE" : ""),
             name, valid.message()});
      } else if (std::find(selection.keys.begin(), selection.keys.end(), key) ==
                 selection.keys.end()) {
        selection.keys.push_back(key);
      }
    }
  }
  return selection;
}

}  // namespace flashprime
