// SPDX-License-Identifier: Apache-2.0
// Every SIMD target of the fast kernel that this processor has, not only the best one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/fast_target.h"
#include "cpu/thread_pool.h"
#include "flashprime/random.h"

namespace flashprime {
namespace {

constexpr int32_t kHeads = 3;

struct Shape {
  HeadDims dims;
  Mask mask;
  std::vector<int32_t> cu_q;
  std::vector<int32_t> cu_k;
};

const Shape kShapes[] = {
    {{128, 64, 128}, {MaskKind::kCausal}, {0, 1, 131, 131, 524}, {0, 1, 131, 188, 581}},
    {{64, 64, 128}, {MaskKind::kFull}, {0, 17, 30}, {0, 300, 300}},
    {{17, 3, 5}, {MaskKind::kWindow, 40, 3}, {0, 200, 207}, {0, 220, 230}},
    {{256, 0, 256}, {MaskKind::kCausal}, {0, 13}, {0, 400}},
};

MutableTensorView filled(std::vector<float>& data, int64_t rows, int64_t columns, uint32_t id) {
  data.resize(static_cast<size_t>(rows * kHeads * columns));
  const auto view =
      MutableTensorView::contiguous(data.data(), Dtype::kFp32, {rows, kHeads, columns});
  EXPECT_TRUE(fill_random(view, {.seed = 5, .tensor_id = id}).ok());
  return view;
}

RowTensor rows_of(const MutableTensorView& view, int64_t first = 0) {
  return {static_cast<const float*>(view.data) + first, view.stride[0], view.stride[1]};
}

TEST(FastTargets, EachAgreesWithTheReference) {
  if (cpu::fast_targets().empty()) GTEST_SKIP() << "this processor has none";
  for (const cpu::FastTarget* target : cpu::fast_targets()) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << target->name << " nope " << shape.dims.nope);
      const int64_t total_q = shape.cu_q.back();
      const int64_t total_k = shape.cu_k.back();
      const int64_t d_qk = int64_t{shape.dims.nope} + shape.dims.rope;
      std::vector<float> q, k, v;
      const MutableTensorView q_view = filled(q, total_q, d_qk, 0);
      const MutableTensorView k_view = filled(k, total_k, d_qk, 1);
      const MutableTensorView v_view = filled(v, total_k, shape.dims.v, 2);
      const size_t out_size = static_cast<size_t>(total_q * kHeads * shape.dims.v);
      std::vector<float> out(out_size, NAN), lse(static_cast<size_t>(total_q * kHeads), NAN);
      std::vector<double> wanted(out_size, NAN), wanted_lse(lse.size(), NAN);

      PrefillTraits traits{shape.dims, Dtype::kFp32, Dtype::kFp32, shape.mask.kind, true};
      PrefillParams params;
      params.q_nope = rows_of(q_view);
      params.q_pe = rows_of(q_view, shape.dims.nope);
      params.k_nope = rows_of(k_view);
      params.k_pe = rows_of(k_view, shape.dims.nope);
      params.v = rows_of(v_view);
      params.out = {out.data(), kHeads * int64_t{shape.dims.v}, shape.dims.v};
      params.lse = {lse.data(), kHeads, 1};
      params.cu_seqlens_q = shape.cu_q.data();
      params.cu_seqlens_k = shape.cu_k.data();
      params.batch = static_cast<int64_t>(shape.cu_q.size()) - 1;
      params.total_q = total_q;
      params.total_k = total_k;
      params.num_heads = kHeads;
      params.window_left = shape.mask.window_left;
      params.window_right = shape.mask.window_right;
      params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(d_qk));
      ASSERT_TRUE(cpu::run_fast(*target, traits, params, cpu::pool_parallel_for(2)).ok());

      traits.out_dtype = Dtype::kFp64;
      params.out.data = wanted.data();
      params.lse.data = wanted_lse.data();
      ASSERT_TRUE(cpu::run_reference(traits, params).ok());
      // fp32 throughout: 2e-6 is some twenty roundings of values of size 1.
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], wanted[i], 2e-6) << i;
      for (size_t i = 0; i < lse.size(); ++i) {
        if (std::isinf(wanted_lse[i])) {
          ASSERT_EQ(lse[i], wanted_lse[i]) << i;
        } else {
          ASSERT_NEAR(lse[i], wanted_lse[i], 5e-6) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashprime
