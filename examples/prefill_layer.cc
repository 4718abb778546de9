// SPDX-License-Identifier: Apache-2.0
// 8 new tokens on 1,000 tokens of context, which come 256 at a time through one small buffer.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "flashprime/prefill_layer.h"

using namespace flashprime;

int main() {
  const int64_t tokens = 8, context = 1000, dim_qk = 24, dim_v = 16;
  PrefillProblem problem;
  problem.dims = {16, 8, 16};
  problem.dtype = problem.out_dtype = Dtype::kFp32;
  const auto view = [](const std::vector<float>& data, int64_t rows, int64_t dim) {
    return TensorView::contiguous(data.data(), Dtype::kFp32, {rows, 1, dim});
  };

  // All keys are equal, so a query averages the values of the keys that it sees: context values of
  // 1 and new ones of 0 give query i the output 1000 / (1000 + i + 1).
  const std::vector<float> qk(tokens * dim_qk, 1.0f), v(tokens * dim_v, 0.0f);
  const std::vector<float> chunk_k(256 * dim_qk, 1.0f), chunk_v(256 * dim_v, 1.0f);
  std::vector<float> out(tokens * dim_v);
  const std::vector<int32_t> cu_seqlens = {0, 8};
  PrefillArgs args;
  args.q = args.k = view(qk, tokens, dim_qk);
  args.v = view(v, tokens, dim_v);
  args.out = MutableTensorView::contiguous(out.data(), Dtype::kFp32, {tokens, 1, dim_v});
  args.cu_seqlens_q = args.cu_seqlens_k =
      TensorView::contiguous(cu_seqlens.data(), Dtype::kInt32, {2});
  args.softmax_scale = 0.2f;

  ContextPlanOptions options;
  options.workspace_rows = 256;
  const ContextPlan plan = *plan_context_greedy({context}, options);
  const auto produce = [&](const ContextChunk& chunk, StreamHandle) -> StatusOr<KeyValueViews> {
    // An engine gathers the chunk's rows of its KV cache and projects them up here.
    return KeyValueViews{view(chunk_k, chunk.num_tokens(), dim_qk),
                         {},
                         {},
                         view(chunk_v, chunk.num_tokens(), dim_v)};
  };
  args.workspace_bytes = *prefill_layer_workspace_bytes(problem, args, plan);
  std::vector<std::byte> memory(args.workspace_bytes + 256);
  args.workspace = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256;
  if (Status status = prefill_layer(problem, args, plan, produce); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }

  float worst = 0.0f;
  for (int64_t i = 0; i < tokens; ++i) {
    worst = std::max(worst, std::abs(out[i * dim_v] - 1000.0f / static_cast<float>(1001 + i)));
  }
  std::printf("prefill_layer: %zu context chunks, first output %g, worst error %g\n",
              plan.chunks.size(), out[0], worst);
  return worst < 1e-5f ? 0 : 1;
}
