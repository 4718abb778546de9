// SPDX-License-Identifier: Apache-2.0
#include "launch/launch_prefill.h"

#include <algorithm>
#include <utility>

#include "checks.h"
#include "kernels/shared/merge_params.h"
#include "launch/launch.h"
#include "launch/launch_merge.h"
#include "launch/launch_sm90.h"
#include "numerics/checked.h"
#include "problem/tensor_checks.h"
#include "problem/validate_problem.h"
#include "select/kernel_keys_of.h"
#include "select/policy_sm80.h"
#include "select/policy_sm90.h"

namespace flashprime {
namespace {

// Blocks of keys that a split has at least: below, combining costs more than the split saves.
constexpr int64_t kMinBlocksPerSplit = 4;
constexpr double kAlmost = 0.85;  // of the best use of the device
constexpr int64_t kWorkspaceAlignment = 256;

// What a call keeps in its workspace: the tile scheduler's state, then the partial states of its
// splits, out [split][T][H][v] and lse [split][H][T].
struct WorkspaceLayout {
  int64_t scheduler_bytes = 0;
  int64_t split_bytes = 0;
  int64_t bytes() const { return scheduler_bytes + split_bytes; }
};

StatusOr<WorkspaceLayout> lay_out(PrefillKernel kernel, const PrefillProblem& problem,
                                  PrefillParams params, int32_t num_splits,
                                  const GpuDevice& device) {
  WorkspaceLayout layout;
  if (kernel == PrefillKernel::kSm90) {
    params.num_splits = num_splits;
    const StatusOr<int64_t> tiles = sm90_max_tiles(params);
    FLASHPRIME_RETURN_IF_ERROR(tiles.status());
    layout.scheduler_bytes = sm90_scheduler_bytes(*tiles, device);
  }
  if (num_splits == 1) return layout;
  FLASHPRIME_REQUIRE(
      checked_mul(params.total_q, params.num_heads, &layout.split_bytes) &&
          checked_mul(layout.split_bytes, num_splits, &layout.split_bytes) &&
          checked_mul(layout.split_bytes, 4 * (int64_t{problem.dims.v} + 1), &layout.split_bytes) &&
          layout.split_bytes <= INT64_MAX - layout.scheduler_bytes,
      StatusCode::kRange, "workspace: ", num_splits, " partial states do not fit 64 bits");
  return layout;
}

Status check_workspace(const Workspace& workspace, int64_t needed) {
  if (needed == 0) return ok_status();
  FLASHPRIME_REQUIRE(workspace.data != nullptr, StatusCode::kWorkspace,
                     "workspace: got a null pointer, wanted ", needed,
                     " bytes, what prefill_workspace_bytes returns");
  FLASHPRIME_REQUIRE(workspace.bytes >= needed, StatusCode::kWorkspace, "workspace_bytes: got ",
                     workspace.bytes, ", wanted at least ", needed,
                     ", what prefill_workspace_bytes returns");
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

// One block for every query tile that there can be; see tile_of_slot() in
// kernels/attention/tile_of_block.cuh.
Status launch_sm80(const GpuDevice& device, const LoadedKernel& kernel, const PrefillParams& params,
                   StreamHandle stream) {
  // The loaded kernel may be one for a broader architecture, with a policy of its own.
  const auto& key = std::get<Sm80MlaPrefillKernel>(kernel.key.kernel);
  const int64_t slots = params.total_q / key.policy.block_q() + params.batch;
  return launch_kernel(device, kernel, slots * params.num_heads, params.num_splits, &params,
                       stream);
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

int32_t choose_num_splits(PrefillKernel kernel, const PrefillProblem& problem,
                          const PrefillParams& params, const GpuDevice& device) {
  if (problem.batch_invariant || problem.num_splits == 1 || params.batch == 0) return 1;
  int64_t block_q = 128;
  int64_t block_kv = 0;
  int64_t blocks_per_sm = 1;
  if (kernel == PrefillKernel::kSm90) {
    block_kv = sm90_policy(make_traits(problem)).block_kv;
  } else {
    const Sm80PrefillPolicy policy = sm80_policy(make_traits(problem), device.archs.front());
    block_q = policy.block_q();
    block_kv = policy.block_kv;
    blocks_per_sm = policy.min_blocks_per_sm;
  }
  const int64_t blocks_of_keys = params.total_k / params.batch / block_kv;
  if (problem.num_splits > 1) {
    return static_cast<int32_t>(std::clamp<int64_t>(blocks_of_keys, 1, problem.num_splits));
  }
  // Blocks run in waves of `room`. Of all numbers of splits the smallest that fills its waves
  // almost as well as the best; each sequence has at least its share of the tiles.
  const int64_t tiles =
      std::max((params.total_q + block_q - 1) / block_q, params.batch) * params.num_heads;
  const int64_t room = int64_t{device.properties.num_sms} * blocks_per_sm;
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

StatusOr<int64_t> gpu_workspace_bytes(PrefillKernel kernel, const PrefillProblem& problem,
                                      const PrefillParams& params, const GpuDevice& device) {
  const StatusOr<WorkspaceLayout> layout =
      lay_out(kernel, problem, params, choose_num_splits(kernel, problem, params, device), device);
  FLASHPRIME_RETURN_IF_ERROR(layout.status());
  return layout->bytes();
}

Status launch_prefill(PrefillKernel kernel, const GpuDevice& device, const PrefillProblem& problem,
                      PrefillParams params, const Workspace& workspace, StreamHandle stream) {
  const PrefillTraits traits = make_traits(problem);
  const int32_t num_splits = choose_num_splits(kernel, problem, params, device);
  const StatusOr<WorkspaceLayout> layout = lay_out(kernel, problem, params, num_splits, device);
  FLASHPRIME_RETURN_IF_ERROR(layout.status());
  FLASHPRIME_RETURN_IF_ERROR(check_workspace(workspace, layout->bytes()));
  if (params.total_q == 0) return ok_status();
  FLASHPRIME_REQUIRE(params.batch > 0, StatusCode::kCuSeqlens,
                     "cu_seqlens_q: got no sequence, wanted ", params.total_q,
                     ", the rows of q, covered");

  const LaunchScope scope(device, stream);
  FLASHPRIME_RETURN_IF_ERROR(scope.status());
  const PrefillTraits launched = num_splits == 1 ? traits : partial_traits(traits);
  const std::span<const Arch> archs = kernel == PrefillKernel::kSm90
                                          ? std::span<const Arch>(&kArchSm90a, 1)
                                          : std::span<const Arch>(device.archs);
  // Both kernels are there before the first is launched.
  const StatusOr<const LoadedKernel*> prefill_kernel = ready_kernel(
      device, archs, [&](const Arch& arch) { return prefill_key(kernel, launched, arch); }, stream);
  FLASHPRIME_RETURN_IF_ERROR(prefill_kernel.status());
  void* const scheduler = layout->scheduler_bytes != 0 ? workspace.data : nullptr;
  const auto launch = [&] {
    return kernel == PrefillKernel::kSm90
               ? launch_sm90(device, **prefill_kernel, params, scheduler, stream)
               : launch_sm80(device, **prefill_kernel, params, stream);
  };
  if (num_splits == 1) return launch();

  const StatusOr<const LoadedKernel*> combine_kernel = ready_kernel(
      device, device.archs, [&](const Arch& arch) { return combine_key(traits, arch); }, stream);
  FLASHPRIME_RETURN_IF_ERROR(combine_kernel.status());

  CombineParams combine;
  combine.out = params.out;
  combine.lse = params.lse;
  combine.output_scale = params.output_scale;
  combine.tokens = params.total_q;
  combine.num_heads = params.num_heads;
  combine.num_splits = num_splits;
  const int64_t v = problem.dims.v;
  const int64_t rows = params.total_q * params.num_heads;
  auto* const partial_out =
      reinterpret_cast<float*>(static_cast<char*>(workspace.data) + layout->scheduler_bytes);
  float* const partial_lse = partial_out + num_splits * rows * v;
  params.num_splits = num_splits;
  params.out = {partial_out, params.num_heads * v, v};
  params.lse = {partial_lse, 1, params.total_q};
  params.out_stride_split = combine.out_stride_split = rows * v;
  params.lse_stride_split = combine.lse_stride_split = rows;
  params.output_scale = nullptr;
  combine.partial_out = {partial_out, params.out.stride_token, params.out.stride_head};
  combine.partial_lse = {partial_lse, params.lse.stride_token, params.lse.stride_head};

  FLASHPRIME_RETURN_IF_ERROR(launch());
  return launch_kernel(device, **combine_kernel, merge_grid(**combine_kernel, rows), 1, &combine,
                       stream);
}

}  // namespace flashprime
