// SPDX-License-Identifier: Apache-2.0
// Two attention results over different keys become the result over all of them.
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "flashprime/merge.h"

using namespace flashprime;

int main() {
  // Two tokens, one head, one value. Token 0: weights 1 and 3 (LSE 0 and ln 3), so 1/4 of 10 and
  // 3/4 of 2. Token 1 saw no earlier key (LSE -inf): what stands in its prefix does not matter.
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> prefix = {10.0f, 777.0f}, prefix_lse = {0.0f, -infinity};
  std::vector<float> suffix = {2.0f, 5.0f}, suffix_lse = {std::log(3.0f), 0.25f};
  std::vector<float> lse(2);

  MergeArgs args;
  args.prefix_out = TensorView::contiguous(prefix.data(), Dtype::kFp32, {2, 1, 1});
  args.prefix_lse = TensorView::contiguous(prefix_lse.data(), Dtype::kFp32, {1, 2});
  args.suffix_out = TensorView::contiguous(suffix.data(), Dtype::kFp32, {2, 1, 1});
  args.suffix_lse = TensorView::contiguous(suffix_lse.data(), Dtype::kFp32, {1, 2});
  args.out = MutableTensorView::contiguous(prefix.data(), Dtype::kFp32, {2, 1, 1});  // in place
  args.lse = MutableTensorView::contiguous(lse.data(), Dtype::kFp32, {1, 2});
  if (Status status = merge_states(args); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }

  const bool right = std::abs(prefix[0] - 4.0f) < 1e-5f && prefix[1] == 5.0f &&
                     std::abs(lse[0] - std::log(4.0f)) < 1e-5f && lse[1] == 0.25f;
  std::printf("merge_states: %g and %g, LSE %g and %g%s\n", prefix[0], prefix[1], lse[0], lse[1],
              right ? "" : ", WRONG");
  return right ? 0 : 1;
}
