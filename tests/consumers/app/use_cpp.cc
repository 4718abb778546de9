// SPDX-License-Identifier: Apache-2.0
// A consumer's program: the answer has to come from the library, not only its headers.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "flashprime/prefill.h"
#include "flashprime/version.h"

int main() {
  using namespace flashprime;
  const std::vector<float> qk(3 * 3, 1.0f), v = {3.0f, 5.0f, 10.0f};
  const std::vector<int32_t> cu_seqlens = {0, 3};
  std::vector<float> out(3);
  PrefillProblem problem;
  problem.dims = {2, 1, 1};
  problem.dtype = problem.out_dtype = Dtype::kFp32;
  PrefillArgs args;
  args.q = args.k = TensorView::contiguous(qk.data(), Dtype::kFp32, {3, 1, 3});
  args.v = TensorView::contiguous(v.data(), Dtype::kFp32, {3, 1, 1});
  args.out = MutableTensorView::contiguous(out.data(), Dtype::kFp32, {3, 1, 1});
  args.cu_seqlens_q = args.cu_seqlens_k =
      TensorView::contiguous(cu_seqlens.data(), Dtype::kInt32, {2});
  args.softmax_scale = 1.0f;
  const Status status = prefill(problem, args);
  std::printf("FlashPrime %.*s, C++: %s, averages %g %g %g\n", static_cast<int>(version().size()),
              version().data(), status.to_string().c_str(), out[0], out[1], out[2]);
  const bool right = out[0] == 3.0f && out[1] == 4.0f && out[2] > 5.999f && out[2] < 6.001f;
  return status.ok() && right && version() == FLASHPRIME_VERSION_STRING ? 0 : 1;
}
