// SPDX-License-Identifier: Apache-2.0
#include "jit/plan_kernels.h"

#include <algorithm>

#include "checks.h"
#include "select/kernel_keys_of.h"

namespace flashprime {
namespace {

// New tokens are causal, context is full. A request with context keeps its state in fp32 from chunk
// to chunk, and so do the splits of a long one. Callers that merge for themselves may keep states
// in the model's dtype. A merge makes a state again, or the output.
std::vector<KernelKey> keys_for(const PlanOptions& options, const Arch& arch) {
  std::vector<KernelKey> keys;
  const auto traits = [&](MaskKind mask, bool lse, Dtype out_dtype) {
    return PrefillTraits{.dims = options.dims,
                         .dtype = options.dtype,
                         .out_dtype = out_dtype,
                         .mask = mask,
                         .return_lse = lse};
  };
  const auto merge = [&](Dtype dtype, Dtype out_dtype, bool lse) {
    keys.push_back(merge_key(
        {.dim_v = options.dims.v, .dtype = dtype, .out_dtype = out_dtype, .return_lse = lse},
        arch));
  };
  // The portable kernel is a choice where another is preferred.
  const auto prefill = [&](const PrefillTraits& call) {
    keys.push_back(prefill_key(call, arch));
    if (options.all) keys.push_back(prefill_key(PrefillKernel::kSm80, call, arch));
  };
  std::vector<Dtype> out_dtypes = {options.dtype};
  if (options.e4m3_output) out_dtypes.push_back(Dtype::kE4m3);
  for (const Dtype out_dtype : out_dtypes) {
    std::vector<PrefillTraits> calls = {traits(MaskKind::kCausal, false, out_dtype),
                                        traits(MaskKind::kCausal, true, out_dtype),
                                        traits(MaskKind::kFull, true, out_dtype)};
    if (options.all) calls.push_back(traits(MaskKind::kFull, false, out_dtype));
    for (const PrefillTraits& call : calls) {
      prefill(call);
      keys.push_back(combine_key(call, arch));
    }
    for (const Dtype state : {Dtype::kFp32, options.dtype}) {
      merge(state, out_dtype, false);
      merge(state, out_dtype, true);
    }
  }
  for (const MaskKind mask : {MaskKind::kCausal, MaskKind::kFull}) {
    const PrefillTraits partial = partial_traits(traits(mask, true, Dtype::kFp32));
    prefill(partial);
    keys.push_back(combine_key(partial, arch));
  }
  merge(Dtype::kFp32, Dtype::kFp32, true);
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
