// SPDX-License-Identifier: Apache-2.0
// Cuts the context of five requests into chunks that fit a workspace of 1,024 rows.
#include <cstdint>
#include <cstdio>

#include "flashprime/context_plan.h"

using namespace flashprime;

int main() {
  ContextPlanOptions options;
  options.workspace_rows = 1024;
  const StatusOr<ContextPlan> plan = plan_context_greedy({1000, 0, 300, 5000, 200}, options);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().to_string().c_str());
    return 1;
  }

  int64_t tokens = 0;
  bool fits = true;
  for (const ContextChunk& chunk : plan->chunks) {
    std::printf("chunk %d:", chunk.index);
    for (const ContextSlice& slice : chunk.slices) {
      std::printf("  request %d [%lld, %lld)", slice.request, static_cast<long long>(slice.start),
                  static_cast<long long>(slice.start + slice.length));
    }
    std::printf("\n");
    tokens += chunk.num_tokens();
    fits = fits && chunk.num_tokens() <= options.workspace_rows;
  }
  const bool right = plan->chunks.size() == 7 && tokens == 1000 + 300 + 5000 + 200 && fits;
  std::printf("plan_context: %zu chunks, %lld tokens%s\n", plan->chunks.size(),
              static_cast<long long>(tokens), right ? "" : ", WRONG");
  return right ? 0 : 1;
}
