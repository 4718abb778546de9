// SPDX-License-Identifier: Apache-2.0
// Checks of single tensors and of pairs of them. They look at views only, never at memory.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "flashprime/status.h"
#include "flashprime/tensor.h"

namespace flashprime {

std::string_view dtype_name(Dtype dtype);  // "bf16"

// "[3, 16, 192]".
std::string shape_text(const int64_t* extents, int32_t rank);
std::string shape_text(const TensorView& view);

enum class Access { kRead, kWrite };

// What a tensor has to be. `meaning` explains the extents in messages: "[T, H, nope + rope]".
struct TensorSpec {
  std::string_view name;
  Dtype dtype;
  int32_t rank = 0;
  std::array<int64_t, 4> shape{};
  std::string_view meaning{};
  Access access = Access::kRead;
  bool dense_last_axis = true;
};

// Everything about one tensor: rank and shape, dtype, strides, overflow, null, alignment, range
// and, when it is written, that no two of its elements overlap.
Status check_tensor(const TensorView& view, const TensorSpec& spec);

// The part of check_tensor() that does not depend on a wanted shape.
Status check_memory(const TensorView& view, const TensorSpec& spec);

// Whether two views that check_memory() has accepted share a byte. Exact for tensors whose axes
// nest, as those cut from one buffer do; a layout too tangled to decide counts as overlapping.
bool overlap(const TensorView& a, const TensorView& b);

}  // namespace flashprime
