// SPDX-License-Identifier: Apache-2.0
// Reproducible test data, specified to the bit so that C++, the device and Python make the same
// tensors from the same seed.
#pragma once

#include "flashprime/export.h"

#include <array>

#include "flashprime/status.h"
#include "flashprime/tensor.h"

namespace flashprime {

/// Philox4x32-10 (Salmon et al., SC 2011): 128 random bits for a counter and a key.
FLASHPRIME_API std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                     std::array<uint32_t, 2> key);

/// Which numbers fill_random() makes.
struct RandomSpec {
  uint64_t seed = 0;
  uint32_t tensor_id = 0;  ///< tells tensors of one seed apart
  uint64_t first_row = 0;  ///< row index (axis 0) of the view's first row in the whole tensor
  float scale = 1.0f;      ///< multiplies every value
};

/// Fills a view of bf16, fp16 or fp32 with nearly normal numbers: element e of row r (elements of
/// a row counted densely, strides ignored) takes word e % 4 of
///   philox({e / 4, r low, r high, tensor_id}, {seed low, seed high}),
/// sums the word's four bytes, and is fp32(fp32((sum - 510) * 0x1.bb688cp-8f) * scale), rounded to
/// nearest even. Mean 0, standard deviation 1 (times scale), largest magnitude 3.46.
FLASHPRIME_API Status fill_random(const MutableTensorView& view, const RandomSpec& spec);

}  // namespace flashprime
