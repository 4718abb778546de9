// SPDX-License-Identifier: Apache-2.0
#include "flashprime/random.h"

#include <cmath>

#include "checks.h"
#include "numerics/convert.h"
#include "problem/tensor_checks.h"

namespace flashprime {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

namespace {

float nearly_normal(uint32_t word, float scale) {
  const uint32_t sum =
      (word & 0xffu) + ((word >> 8) & 0xffu) + ((word >> 16) & 0xffu) + (word >> 24);
  return (static_cast<float>(sum) - 510.0f) * 0x1.bb688cp-8f * scale;
}

}  // namespace

Status fill_random(const MutableTensorView& view, const RandomSpec& spec) {
  FLASHPRIME_REQUIRE(
      view.dtype == Dtype::kBf16 || view.dtype == Dtype::kFp16 || view.dtype == Dtype::kFp32,
      StatusCode::kDtype, "view: got ", dtype_name(view.dtype), ", wanted bf16, fp16 or fp32");
  FLASHPRIME_REQUIRE(std::isfinite(spec.scale), StatusCode::kNumeric, "scale: got ", spec.scale,
                     ", wanted a finite number");
  TensorSpec memory{"view", view.dtype};
  memory.access = Access::kWrite;
  memory.dense_last_axis = false;
  FLASHPRIME_RETURN_IF_ERROR(check_memory(as_const(view), memory));

  std::array<int64_t, 4> shape = {1, 1, 1, 1}, stride = {0, 0, 0, 0};
  shape[0] = view.shape[0];
  stride[0] = view.stride[0];
  for (int32_t axis = 1; axis < view.rank; ++axis) {  // inner axes at the right end
    shape[4 - view.rank + axis] = view.shape[axis];
    stride[4 - view.rank + axis] = view.stride[axis];
  }
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(spec.seed),
                                       static_cast<uint32_t>(spec.seed >> 32)};
  for (int64_t row = 0; row < shape[0]; ++row) {
    const uint64_t r = spec.first_row + static_cast<uint64_t>(row);
    uint32_t element = 0;
    std::array<uint32_t, 4> words{};
    for (int64_t i = 0; i < shape[1]; ++i) {
      for (int64_t j = 0; j < shape[2]; ++j) {
        for (int64_t c = 0; c < shape[3]; ++c, ++element) {
          if (element % 4 == 0) {
            words = philox4x32_10({element / 4, static_cast<uint32_t>(r),
                                   static_cast<uint32_t>(r >> 32), spec.tensor_id},
                                  key);
          }
          store_element(view.data, view.dtype,
                        row * stride[0] + i * stride[1] + j * stride[2] + c * stride[3],
                        nearly_normal(words[element % 4], spec.scale));
        }
      }
    }
  }
  return ok_status();
}

}  // namespace flashprime
