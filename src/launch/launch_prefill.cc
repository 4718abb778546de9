// SPDX-License-Identifier: Apache-2.0
#include "launch/launch_prefill.h"

#include <algorithm>
#include <limits>

#include "checks.h"
#include "kernels/shared/merge_params.h"
#include "numerics/checked.h"
#include "problem/validate_problem.h"
#include "select/policy_sm80.h"

namespace flashprime {
namespace {

// Blocks of keys that a split has at least: below, the merge costs more than the split saves.
constexpr int64_t kMinBlocksPerSplit = 4;
constexpr int32_t kMaxSplits = 128;
constexpr int32_t kMergeThreads = 256;
constexpr int64_t kWorkspaceAlignment = 256;

KernelKey prefill_key(const PrefillTraits& traits, const Arch& arch) {
  return {Sm80MlaPrefillKernel{traits, sm80_policy(traits, arch)}, arch};
}

// The state that a split leaves for combine_splits.
PrefillTraits partial_traits(PrefillTraits traits) {
  traits.out_dtype = Dtype::kFp32;
  traits.return_lse = true;
  return traits;
}

int64_t query_slots(const PrefillParams& params, const Sm80PrefillPolicy& policy) {
  return params.total_q / policy.block_q() + params.batch;
}

Status launch(const GpuDevice& device, const LoadedKernel& kernel, int64_t grid_x, int32_t grid_y,
              const void* params, StreamHandle stream) {
  FLASHPRIME_REQUIRE(grid_x <= device.properties.max_grid_x, StatusCode::kRange, "problem: needs ",
                     grid_x, " thread blocks, the device takes at most ",
                     device.properties.max_grid_x);
  cuda::LaunchConfig config;
  config.grid_x = static_cast<unsigned int>(grid_x);
  config.grid_y = static_cast<unsigned int>(grid_y);
  config.block_x = static_cast<unsigned int>(kernel.shape.num_threads);
  config.shared_bytes = static_cast<unsigned int>(kernel.shape.shared_bytes);
  config.stream = stream;
  void* arguments[] = {const_cast<void*>(params)};
  return device.driver->check(
      device.driver->api().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr),
      "cuLaunchKernelEx");
}

}  // namespace

int32_t choose_num_splits(const PrefillProblem& problem, const PrefillParams& params,
                          const GpuDevice& device) {
  if (problem.batch_invariant || problem.num_splits == 1) return 1;
  const Sm80PrefillPolicy policy = sm80_policy(make_traits(problem), device.archs.front());
  const int64_t blocks_of_keys =
      params.batch == 0 ? 0 : params.total_k / params.batch / policy.block_kv;
  if (problem.num_splits > 1) {
    return static_cast<int32_t>(std::clamp<int64_t>(blocks_of_keys, 1, problem.num_splits));
  }
  const int64_t tiles = std::max<int64_t>(query_slots(params, policy) * params.num_heads, 1);
  const int64_t room = int64_t{device.properties.num_sms} * policy.min_blocks_per_sm;
  return static_cast<int32_t>(std::clamp<int64_t>(
      std::min(room / tiles, blocks_of_keys / kMinBlocksPerSplit), 1, kMaxSplits));
}

StatusOr<int64_t> split_workspace_bytes(const PrefillProblem& problem, const PrefillParams& params,
                                        int32_t num_splits) {
  if (num_splits == 1) return int64_t{0};
  int64_t rows = 0;
  int64_t bytes = 0;
  FLASHPRIME_REQUIRE(checked_mul(params.total_q, params.num_heads, &rows) &&
                         checked_mul(rows, num_splits, &rows) &&
                         checked_mul(rows, 4 * (int64_t{problem.dims.v} + 1), &bytes),
                     StatusCode::kRange, "workspace: ", num_splits,
                     " partial states do not fit 64 bits");
  return bytes;
}

Status launch_prefill(const GpuDevice& device, const PrefillProblem& problem, PrefillParams params,
                      void* workspace, int64_t workspace_bytes, StreamHandle stream) {
  const PrefillTraits traits = make_traits(problem);
  const int32_t num_splits = choose_num_splits(problem, params, device);
  const StatusOr<int64_t> needed = split_workspace_bytes(problem, params, num_splits);
  if (!needed.ok()) return needed.status();
  FLASHPRIME_REQUIRE(
      *needed == 0 || (workspace != nullptr && workspace_bytes >= *needed), StatusCode::kWorkspace,
      "workspace: got ", workspace == nullptr ? 0 : workspace_bytes, " bytes, wanted ", *needed,
      " for ", num_splits, " splits of the keys (prefill_workspace_bytes() says how many)");
  FLASHPRIME_REQUIRE(
      *needed == 0 || reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment == 0,
      StatusCode::kWorkspace, "workspace: got an address that is no multiple of ",
      kWorkspaceAlignment);
  if (params.total_q == 0 || params.num_heads == 0) return ok_status();

  const cuda::ContextScope scope(*device.driver, device.context);
  FLASHPRIME_RETURN_IF_ERROR(scope.status());
  const PrefillTraits launched = num_splits == 1 ? traits : partial_traits(traits);
  // Both kernels are there before the first is launched.
  const StatusOr<const LoadedKernel*> prefill_kernel =
      ready_kernel(device, [&](const Arch& arch) { return prefill_key(launched, arch); }, stream);
  if (!prefill_kernel.ok()) return prefill_kernel.status();
  const int64_t grid =
      query_slots(params, sm80_policy(launched, (*prefill_kernel)->key.arch)) * params.num_heads;
  if (num_splits == 1) return launch(device, **prefill_kernel, grid, 1, &params, stream);

  const MergeTraits combine_traits{problem.dims.v, Dtype::kFp32, traits.out_dtype,
                                   traits.return_lse};
  const StatusOr<const LoadedKernel*> combine_kernel = ready_kernel(
      device,
      [&](const Arch& arch) { return KernelKey{CombineSplitsKernel{combine_traits}, arch}; },
      stream);
  if (!combine_kernel.ok()) return combine_kernel.status();

  CombineParams combine;
  combine.out = params.out;
  combine.lse = params.lse;
  combine.output_scale = params.output_scale;
  combine.tokens = params.total_q;
  combine.num_heads = params.num_heads;
  combine.num_splits = num_splits;
  // Workspace: out [split][T][H][v], then lse [split][H][T].
  const int64_t v = problem.dims.v;
  const int64_t rows = params.total_q * params.num_heads;
  float* const partial_out = static_cast<float*>(workspace);
  float* const partial_lse = partial_out + num_splits * rows * v;
  params.num_splits = num_splits;
  params.out = {partial_out, params.num_heads * v, v};
  params.lse = {partial_lse, 1, params.total_q};
  params.out_stride_split = combine.out_stride_split = rows * v;
  params.lse_stride_split = combine.lse_stride_split = rows;
  params.output_scale = nullptr;
  combine.partial_out = {partial_out, params.out.stride_token, params.out.stride_head};
  combine.partial_lse = {partial_lse, params.lse.stride_token, params.lse.stride_head};

  FLASHPRIME_RETURN_IF_ERROR(launch(device, **prefill_kernel, grid, num_splits, &params, stream));
  constexpr int64_t kRowsPerBlock = kMergeThreads / 32;
  return launch(device, **combine_kernel, (rows + kRowsPerBlock - 1) / kRowsPerBlock, 1, &combine,
                stream);
}

}  // namespace flashprime
