// SPDX-License-Identifier: Apache-2.0
#include "select/kernel_keys_of.h"

#include <algorithm>

#include "checks.h"
#include "layer/layer_parts.h"
#include "problem/validate_problem.h"
#include "select/policy_sm80.h"
#include "select/policy_sm90.h"

namespace flashprime {
namespace {

void add(const KernelKey& key, std::vector<KernelKey>& keys) {
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
}

}  // namespace

PrefillKernel preferred_prefill_kernel(const PrefillTraits& traits, const Arch& arch) {
  return arch == kArchSm90a && sm90_reason(traits.dims, traits.mask).empty() ? PrefillKernel::kSm90
                                                                             : PrefillKernel::kSm80;
}

KernelKey prefill_key(PrefillKernel kernel, const PrefillTraits& traits, const Arch& arch) {
  if (kernel == PrefillKernel::kSm90) {
    return {Sm90MlaPrefillKernel{traits, sm90_policy(traits)}, arch};
  }
  return {Sm80MlaPrefillKernel{traits, sm80_policy(traits, arch)}, arch};
}

KernelKey prefill_key(const PrefillTraits& traits, const Arch& arch) {
  return prefill_key(preferred_prefill_kernel(traits, arch), traits, arch);
}

PrefillTraits partial_traits(PrefillTraits traits) {
  traits.out_dtype = Dtype::kFp32;
  traits.return_lse = true;
  return traits;
}

KernelKey combine_key(const PrefillTraits& traits, const Arch& arch) {
  return {CombineSplitsKernel{{.dim_v = traits.dims.v,
                               .dtype = Dtype::kFp32,
                               .out_dtype = traits.out_dtype,
                               .return_lse = traits.return_lse}},
          arch};
}

KernelKey merge_key(const MergeTraits& traits, const Arch& arch) {
  return {MergeStatesKernel{traits}, arch};
}

std::vector<KernelKey> call_keys(const PrefillProblem& problem, const Arch& arch) {
  const PrefillTraits traits = make_traits(problem);
  std::vector<KernelKey> keys = {prefill_key(traits, arch)};
  if (!problem.batch_invariant && problem.num_splits != 1) {
    add(prefill_key(partial_traits(traits), arch), keys);
    add(combine_key(traits, arch), keys);
  }
  return keys;
}

std::vector<KernelKey> layer_keys(const PrefillProblem& problem, const Arch& arch) {
  // Without context the layer is one call. With context new tokens and chunks are fp32 states,
  // which the last merge turns into the output.
  std::vector<KernelKey> keys = call_keys(problem, arch);
  for (const PrefillProblem& part : {new_tokens_problem(problem), context_problem(problem)}) {
    for (const KernelKey& key : call_keys(part, arch)) add(key, keys);
  }
  for (const PrefillProblem& merged : {new_tokens_problem(problem), problem}) {
    add(merge_key({.dim_v = problem.dims.v,
                   .dtype = Dtype::kFp32,
                   .out_dtype = merged.out_dtype,
                   .return_lse = merged.return_lse},
                  arch),
        keys);
  }
  return keys;
}

StatusOr<PrefillProblem> problem_of(const CompileKey& key) {
  FLASHPRIME_REQUIRE(!key.window_size, StatusCode::kUnsupported,
                     "window_size: got a window, wanted none");
  FLASHPRIME_REQUIRE(key.v_stride, StatusCode::kUnsupported,
                     "v_stride: got none, wanted that of V in the up-projection's output");
  const int64_t qk = key.q_shape[2];
  const int64_t v = key.v_shape[2];
  const int64_t nope = (*key.v_stride)[1] - v;
  FLASHPRIME_REQUIRE(v >= 1 && v <= 1 << 16 && nope >= 1 && qk >= nope && qk <= 1 << 16,
                     StatusCode::kShape, "v_stride: got ", (*key.v_stride)[1],
                     " elements a head, wanted nope + v with v = ", v, " and nope at most ", qk);
  PrefillProblem problem;
  problem.dims = {static_cast<int32_t>(nope), static_cast<int32_t>(qk - nope),
                  static_cast<int32_t>(v)};
  problem.num_heads = static_cast<int32_t>(key.q_shape[1]);
  problem.dtype = problem.out_dtype = key.q_dtype;
  problem.mask.kind = key.causal ? MaskKind::kCausal : MaskKind::kFull;
  problem.return_lse = key.return_softmax_lse;
  problem.num_splits = key.num_splits;
  return problem;
}

}  // namespace flashprime
