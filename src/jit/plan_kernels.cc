// SPDX-License-Identifier: Apache-2.0
#include "jit/plan_kernels.h"

#include <algorithm>

#include "checks.h"
#include "select/policy_sm80.h"

namespace flashprime {
namespace {

// What a layer runs. New tokens are causal, context is full; a request with context keeps its state
// in fp32 from chunk to chunk, and so do the splits of a long one. merge_states joins two states
// and makes the output of the last, combine_splits joins the splits of one call.
std::vector<KernelKey> keys_for(const PlanOptions& options, const Arch& arch) {
  std::vector<KernelKey> keys;
  const auto prefill = [&](MaskKind mask, bool lse, Dtype out_dtype) {
    const PrefillTraits traits{.dims = options.dims,
                               .dtype = options.dtype,
                               .out_dtype = out_dtype,
                               .mask = mask,
                               .return_lse = lse};
    keys.push_back({Sm80MlaPrefillKernel{traits, sm80_policy(traits, arch)}, arch});
  };
  const auto merge_traits = [&](Dtype dtype, Dtype out_dtype, bool lse) {
    return MergeTraits{
        .dim_v = options.dims.v, .dtype = dtype, .out_dtype = out_dtype, .return_lse = lse};
  };
  const auto merge = [&](Dtype dtype, Dtype out_dtype, bool lse) {
    keys.push_back({MergeStatesKernel{merge_traits(dtype, out_dtype, lse)}, arch});
  };
  const auto combine = [&](Dtype out_dtype, bool lse) {
    keys.push_back({CombineSplitsKernel{merge_traits(Dtype::kFp32, out_dtype, lse)}, arch});
  };
  std::vector<Dtype> out_dtypes = {options.dtype};
  if (options.e4m3_output) out_dtypes.push_back(Dtype::kE4m3);
  for (const Dtype out_dtype : out_dtypes) {
    prefill(MaskKind::kCausal, false, out_dtype);
    prefill(MaskKind::kCausal, true, out_dtype);
    prefill(MaskKind::kFull, true, out_dtype);
    if (options.all) prefill(MaskKind::kFull, false, out_dtype);
    merge(Dtype::kFp32, out_dtype, false);
    merge(Dtype::kFp32, out_dtype, true);
    combine(out_dtype, false);
    combine(out_dtype, true);
  }
  prefill(MaskKind::kCausal, true, Dtype::kFp32);
  prefill(MaskKind::kFull, true, Dtype::kFp32);
  merge(Dtype::kFp32, Dtype::kFp32, true);
  merge(options.dtype, options.dtype, true);
  combine(Dtype::kFp32, true);
  return keys;
}

}  // namespace

StatusOr<KernelSelection> enumerate_kernels(const PlanOptions& options) {
  FLASHPRIME_REQUIRE(!options.archs.empty(), StatusCode::kArch,
                     "archs: got none, want at least one, for example sm_90a");
  KernelSelection selection;
  for (const std::string& name : options.archs) {
    const StatusOr<Arch> arch = parse_arch(name);
    if (!arch.ok()) return arch.status();
    for (const KernelKey& key : keys_for(options, *arch)) {
      const Status valid = validate_kernel_key(key);
      if (!valid.ok()) {
        selection.skipped.push_back({key.to_string(), name, valid.message()});
      } else if (std::find(selection.keys.begin(), selection.keys.end(), key) ==
                 selection.keys.end()) {
        selection.keys.push_back(key);
      }
    }
  }
  return selection;
}

}  // namespace flashprime
