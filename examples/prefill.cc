// SPDX-License-Identifier: Apache-2.0
// Causal attention over a ragged batch of two sequences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "flashprime/prefill.h"

using namespace flashprime;

int main() {
  const int64_t tokens = 300, heads = 16;
  const uint16_t half = 0x3f00, one = 0x3f80, two = 0x4000;  // in bf16
  std::vector<uint16_t> q(tokens * heads * 192, half), k(tokens * heads * 192, half);
  std::vector<uint16_t> v(tokens * heads * 128, one), out(tokens * heads * 128);
  const std::vector<int32_t> cu_seqlens = {0, 100, 300};
  std::fill(v.begin() + cu_seqlens[1] * heads * 128, v.end(), two);

  // [readme]
  PrefillProblem problem;  // head dims 128 + 64 and 128, bf16, causal
  problem.num_heads = 16;

  PrefillArgs args;
  args.q = TensorView::contiguous(q.data(), Dtype::kBf16, {tokens, heads, 192});
  args.k = TensorView::contiguous(k.data(), Dtype::kBf16, {tokens, heads, 192});
  args.v = TensorView::contiguous(v.data(), Dtype::kBf16, {tokens, heads, 128});
  args.out = MutableTensorView::contiguous(out.data(), Dtype::kBf16, {tokens, heads, 128});
  args.cu_seqlens_q = TensorView::contiguous(cu_seqlens.data(), Dtype::kInt32, {3});
  args.cu_seqlens_k = args.cu_seqlens_q;
  args.softmax_scale = 1.0f / std::sqrt(192.0f);

  Status status = prefill(problem, args);
  // [/readme]

  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  // A weighted average of equal values is that value, in each sequence its own.
  const bool right = out == v;
  std::printf("prefill: %lld tokens of 2 sequences, %s\n", static_cast<long long>(tokens),
              right ? "every output is its sequence's value" : "WRONG");
  return right ? 0 : 1;
}
