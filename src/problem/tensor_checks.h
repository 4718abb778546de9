// SPDX-License-Identifier: Apache-2.0
// Checks of single tensors and of pairs of them. They look at views only, never at memory.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
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

// An LSE tensor in that layout, strides free.
TensorSpec lse_spec(std::string_view name, Dtype dtype, LseLayout layout, int64_t tokens,
                    int64_t heads);

// Scale of an e4m3 output: present exactly when out_dtype is e4m3, fp32 [1].
Status check_output_scale(const TensorView& view, Dtype out_dtype);

// Reads the scale, if present: finite and above 0.
Status check_output_scale_value(const TensorView& view);

struct NamedTensor {
  std::string_view name;
  TensorView view;
};

// kAlias when `output` overlaps one of `others`. Absent tensors overlap nothing.
Status check_no_overlap(const NamedTensor& output, std::span<const NamedTensor> others);
Status check_no_overlap(const NamedTensor& output, std::initializer_list<NamedTensor> others);

// Whether no extent is 0, of a view whose rank has been checked. An absent tensor counts as a
// scalar.
bool has_elements(const TensorView& view);

// Whether two views that check_memory() has accepted share a byte. Exact for tensors whose axes
// nest, as those cut from one buffer do; a layout too tangled to decide counts as overlapping.
bool overlap(const TensorView& a, const TensorView& b);

}  // namespace flashprime
