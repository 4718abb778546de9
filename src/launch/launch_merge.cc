// SPDX-License-Identifier: Apache-2.0
#include "launch/launch_merge.h"

#include "checks.h"
#include "launch/launch.h"
#include "numerics/checked.h"
#include "select/kernel_keys_of.h"

namespace flashprime {
namespace {

template <typename Row, typename View>
Row lse_rows(const View& view, LseLayout layout) {
  const bool heads_first = layout == LseLayout::kHeadsTokens;
  return {view.data, view.stride[heads_first ? 1 : 0], view.stride[heads_first ? 0 : 1]};
}

}  // namespace

int64_t merge_grid(const LoadedKernel& kernel, int64_t rows) {
  const int64_t rows_per_block = kernel.shape.num_threads / 32;
  return (rows + rows_per_block - 1) / rows_per_block;
}

Status launch_merge(const GpuDevice& device, const MergeArgs& args, StreamHandle stream) {
  const int64_t tokens = args.out.shape[0];
  const int64_t num_heads = args.out.shape[1];
  const int64_t dim = args.out.shape[2];
  FLASHPRIME_REQUIRE(dim % 16 == 0 && dim <= 256, StatusCode::kUnsupported,
                     "prefix_out: got D = ", dim, ", wanted a multiple of 16 up to 256 on a GPU");
  FLASHPRIME_RETURN_IF_ERROR(
      check_gpu_rows({{"prefix_out", args.prefix_out}, {"suffix_out", args.suffix_out}},
                     {"out", as_const(args.out)}, 4 * dtype_bytes(args.prefix_out.dtype)));
  int64_t rows = 0;
  FLASHPRIME_REQUIRE(checked_mul(tokens, num_heads, &rows), StatusCode::kRange,
                     "out: got T * H beyond 64 bits");
  if (rows == 0) return ok_status();

  const MergeTraits traits{static_cast<int32_t>(dim), args.prefix_out.dtype, args.out.dtype,
                           args.lse.present()};
  const LaunchScope scope(device, stream);
  FLASHPRIME_RETURN_IF_ERROR(scope.status());
  const StatusOr<const LoadedKernel*> kernel = ready_kernel(
      device, device.archs, [&](const Arch& arch) { return merge_key(traits, arch); }, stream);
  if (!kernel.ok()) return kernel.status();

  MergeParams params;
  params.prefix_out = {args.prefix_out.data, args.prefix_out.stride[0], args.prefix_out.stride[1]};
  params.suffix_out = {args.suffix_out.data, args.suffix_out.stride[0], args.suffix_out.stride[1]};
  params.out = {args.out.data, args.out.stride[0], args.out.stride[1]};
  params.prefix_lse = lse_rows<RowTensor>(args.prefix_lse, args.lse_layout);
  params.suffix_lse = lse_rows<RowTensor>(args.suffix_lse, args.lse_layout);
  if (args.lse.present()) params.lse = lse_rows<MutableRowTensor>(args.lse, args.lse_layout);
  params.tokens = tokens;
  params.tokens_with_prefix = args.tokens_with_prefix < 0 ? tokens : args.tokens_with_prefix;
  params.num_heads = static_cast<int32_t>(num_heads);
  params.output_scale = static_cast<const float*>(args.output_scale.data);
  return launch_kernel(device, **kernel, merge_grid(**kernel, rows), 1, &params, stream);
}

}  // namespace flashprime
