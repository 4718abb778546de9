// SPDX-License-Identifier: Apache-2.0
#include "launch/launch_prefill.h"

#include <algorithm>
#include <utility>

#include "checks.h"
#include "kernels/shared/merge_params.h"
#include "launch/launch.h"
#include "launch/launch_merge.h"
#include "numerics/checked.h"
#include "problem/tensor_checks.h"
#include "problem/validate_problem.h"
#include "select/kernel_keys_of.h"
#include "select/policy_sm80.h"

namespace flashprime {
namespace {

// Blocks of keys that a split has at least: below, combining costs more than the split saves.
constexpr int64_t kMinBlocksPerSplit = 4;
constexpr double kAlmost = 0.85;  // of the best use of the device
constexpr int64_t kWorkspaceAlignment = 256;

// Query tiles of a call at most; see tile_of_slot() in kernels/attention/tile_of_block.cuh.
int64_t query_slots(const PrefillParams& params, const Sm80PrefillPolicy& policy) {
  return params.total_q / policy.block_q() + params.batch;
}

StatusOr<int64_t> split_workspace_bytes(const PrefillProblem& problem, const PrefillParams& params,
                                        int32_t num_splits) {
  if (num_splits == 1) return int64_t{0};
  int64_t bytes = 0;
  FLASHPRIME_REQUIRE(checked_mul(params.total_q, params.num_heads, &bytes) &&
                         checked_mul(bytes, num_splits, &bytes) &&
                         checked_mul(bytes, 4 * (int64_t{problem.dims.v} + 1), &bytes),
                     StatusCode::kRange, "workspace: ", num_splits,
                     " partial states do not fit 64 bits");
  return bytes;
}

Status check_workspace(const Workspace& workspace, int64_t needed, int32_t num_splits) {
  if (needed == 0) return ok_status();
  FLASHPRIME_REQUIRE(workspace.data != nullptr, StatusCode::kWorkspace,
                     "workspace: got a null pointer, wanted ", needed, " bytes for ", num_splits,
                     " splits of the keys, what prefill_workspace_bytes returns");
  FLASHPRIME_REQUIRE(workspace.bytes >= needed, StatusCode::kWorkspace, "workspace_bytes: got ",
                     workspace.bytes, ", wanted at least ", needed, " for ", num_splits,
                     " splits of the keys, what prefill_workspace_bytes returns");
  FLASHPRIME_REQUIRE(reinterpret_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment == 0,
                     StatusCode::kWorkspace, "workspace: got a pointer that is not a multiple of ",
                     kWorkspaceAlignment, " bytes");
  return ok_status();
}

// Every row of [tokens, heads, dim] (or [tokens, dim]) begins at a multiple of `unit` bytes.
Status check_rows(const NamedTensor& tensor, int64_t unit) {
  const TensorView& view = tensor.view;
  if (!view.present() || view.data == nullptr || !has_elements(view)) return ok_status();
  FLASHPRIME_REQUIRE(reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(unit) == 0,
                     StatusCode::kAlignment, tensor.name,
                     ": got a pointer that is not a multiple of ", unit,
                     " bytes, which GPU kernels want");
  const int64_t elements = unit / dtype_bytes(view.dtype);
  for (int32_t axis = 0; axis + 1 < view.rank; ++axis) {
    FLASHPRIME_REQUIRE(view.shape[axis] <= 1 || view.stride[axis] % elements == 0,
                       StatusCode::kStride, tensor.name, ": got stride ", view.stride[axis],
                       " for axis ", axis, ", wanted a multiple of ", elements, " (", unit,
                       " bytes), which GPU kernels want");
  }
  return ok_status();
}

}  // namespace

Status check_gpu_rows(std::initializer_list<NamedTensor> inputs, const NamedTensor& out,
                      int64_t input_unit) {
  for (const NamedTensor& input : inputs) {
    FLASHPRIME_RETURN_IF_ERROR(check_rows(input, input_unit));
  }
  return check_rows(out, 4 * dtype_bytes(out.view.dtype));
}

Status check_gpu_layout(const PrefillArgs& args) {
  return check_gpu_rows({{"q", args.q},
                         {"q_nope", args.q_nope},
                         {"q_pe", args.q_pe},
                         {"k", args.k},
                         {"k_nope", args.k_nope},
                         {"k_pe", args.k_pe},
                         {"v", args.v}},
                        {"out", as_const(args.out)}, 16);
}

int32_t choose_num_splits(const PrefillProblem& problem, const PrefillParams& params,
                          const GpuDevice& device) {
  if (problem.batch_invariant || problem.num_splits == 1 || params.batch == 0) return 1;
  const Sm80PrefillPolicy policy = sm80_policy(make_traits(problem), device.archs.front());
  const int64_t blocks_of_keys = params.total_k / params.batch / policy.block_kv;
  if (problem.num_splits > 1) {
    return static_cast<int32_t>(std::clamp<int64_t>(blocks_of_keys, 1, problem.num_splits));
  }
  // Blocks run in waves of `room`. Of all numbers of splits the smallest that fills its waves
  // almost as well as the best; each sequence has at least its share of the tiles.
  const int64_t block_q = policy.block_q();
  const int64_t tiles =
      std::max((params.total_q + block_q - 1) / block_q, params.batch) * params.num_heads;
  const int64_t room = int64_t{device.properties.num_sms} * policy.min_blocks_per_sm;
  const int64_t most = std::clamp<int64_t>(
      std::min(4 * room / std::max<int64_t>(tiles, 1), blocks_of_keys / kMinBlocksPerSplit), 1,
      kMaxSplits);
  const auto fill = [&](int64_t splits) {
    const int64_t waves = (tiles * splits + room - 1) / room;
    return static_cast<double>(tiles * splits) / static_cast<double>(waves * room);
  };
  double best = 0;
  for (int64_t splits = 1; splits <= most; ++splits) best = std::max(best, fill(splits));
  int64_t splits = 1;
  while (splits < most && fill(splits) < kAlmost * best) ++splits;
  return static_cast<int32_t>(splits);
}

StatusOr<int64_t> gpu_workspace_bytes(const PrefillProblem& problem, const PrefillParams& params,
                                      const GpuDevice& device) {
  return split_workspace_bytes(problem, params, choose_num_splits(problem, params, device));
}

Status launch_prefill(const GpuDevice& device, const PrefillProblem& problem, PrefillParams params,
                      const Workspace& workspace, StreamHandle stream) {
  const PrefillTraits traits = make_traits(problem);
  const int32_t num_splits = choose_num_splits(problem, params, device);
  const StatusOr<int64_t> needed = split_workspace_bytes(problem, params, num_splits);
  if (!needed.ok()) return needed.status();
  FLASHPRIME_RETURN_IF_ERROR(check_workspace(workspace, *needed, num_splits));
  if (params.total_q == 0) return ok_status();
  FLASHPRIME_REQUIRE(params.batch > 0, StatusCode::kCuSeqlens,
                     "cu_seqlens_q: got no sequence, wanted ", params.total_q,
                     ", the rows of q, covered");

  const LaunchScope scope(device, stream);
  FLASHPRIME_RETURN_IF_ERROR(scope.status());
  const PrefillTraits launched = num_splits == 1 ? traits : partial_traits(traits);
  // Both kernels are there before the first is launched.
  const StatusOr<const LoadedKernel*> prefill_kernel =
      ready_kernel(device, [&](const Arch& arch) { return prefill_key(launched, arch); }, stream);
  if (!prefill_kernel.ok()) return prefill_kernel.status();
  // The loaded kernel may be one for a broader architecture, with a policy of its own.
  const auto& key = std::get<Sm80MlaPrefillKernel>((*prefill_kernel)->key.kernel);
  const int64_t grid = query_slots(params, key.policy) * params.num_heads;
  if (num_splits == 1) return launch_kernel(device, **prefill_kernel, grid, 1, &params, stream);

  const StatusOr<const LoadedKernel*> combine_kernel =
      ready_kernel(device, [&](const Arch& arch) { return combine_key(traits, arch); }, stream);
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
  float* const partial_out = static_cast<float*>(workspace.data);
  float* const partial_lse = partial_out + num_splits * rows * v;
  params.num_splits = num_splits;
  params.out = {partial_out, params.num_heads * v, v};
  params.lse = {partial_lse, 1, params.total_q};
  params.out_stride_split = combine.out_stride_split = rows * v;
  params.lse_stride_split = combine.lse_stride_split = rows;
  params.output_scale = nullptr;
  combine.partial_out = {partial_out, params.out.stride_token, params.out.stride_head};
  combine.partial_lse = {partial_lse, params.lse.stride_token, params.lse.stride_head};

  FLASHPRIME_RETURN_IF_ERROR(
      launch_kernel(device, **prefill_kernel, grid, num_splits, &params, stream));
  return launch_kernel(device, **combine_kernel, merge_grid(**combine_kernel, rows), 1, &combine,
                       stream);
}

}  // namespace flashprime
