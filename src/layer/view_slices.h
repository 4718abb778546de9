// SPDX-License-Identifier: Apache-2.0
// Parts of views along one axis, for views whose memory has been checked.
#pragma once

#include <cstddef>
#include <type_traits>

#include "flashprime/tensor.h"

namespace flashprime {

// Entries [begin, begin + count) of an axis.
template <typename Pointer>
BasicTensorView<Pointer> slice(BasicTensorView<Pointer> view, int32_t axis, int64_t begin,
                               int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, std::byte, const std::byte>;
  // A slice without entries keeps the pointer: an offset past the last entry could leave memory.
  if (count > 0) {
    const int64_t offset = begin * view.stride[axis] * dtype_bytes(view.dtype);
    view.data = static_cast<Byte*>(view.data) + offset;
    if (view.capacity_bytes >= 0) view.capacity_bytes -= offset;
  }
  view.shape[axis] = count;
  return view;
}

// Rows of a tensor that may be absent.
template <typename Pointer>
BasicTensorView<Pointer> slice_rows(const BasicTensorView<Pointer>& view, int64_t begin,
                                    int64_t count) {
  return view.present() ? slice(view, 0, begin, count) : view;
}

// Tokens of an LSE tensor that may be absent.
template <typename Pointer>
BasicTensorView<Pointer> slice_lse(const BasicTensorView<Pointer>& view, LseLayout layout,
                                   int64_t begin, int64_t count) {
  const int32_t axis = layout == LseLayout::kHeadsTokens ? 1 : 0;
  return view.present() ? slice(view, axis, begin, count) : view;
}

}  // namespace flashprime
