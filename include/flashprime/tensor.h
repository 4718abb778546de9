// SPDX-License-Identifier: Apache-2.0
// Tensors are views: a pointer, a shape and 64-bit strides. The library never owns or copies one.
#pragma once

#include <array>
#include <initializer_list>

#include "flashprime/types.h"

namespace flashprime {

/// A view of up to four axes. `Pointer` is `const void*` (TensorView) or `void*`
/// (MutableTensorView). Shapes and strides are in elements, outermost axis first. A view of
/// rank 0 is an absent optional tensor.
template <typename Pointer>
struct BasicTensorView {
  static constexpr int kMaxRank = 4;
  static constexpr int64_t kUnknownCapacity = -1;

  Pointer data = nullptr;
  Dtype dtype = Dtype::kBf16;
  int32_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};
  /// Bytes readable (writable) from `data` on, where the caller knows them; then every access is
  /// checked against them before the call starts (kRange).
  int64_t capacity_bytes = kUnknownCapacity;

  bool present() const { return rank != 0; }

  /// A dense row-major view. More than kMaxRank extents give a view of that rank, which every
  /// call refuses with kShape.
  static BasicTensorView contiguous(Pointer data, Dtype dtype,
                                    std::initializer_list<int64_t> shape) {
    BasicTensorView view;
    view.data = data;
    view.dtype = dtype;
    view.rank = static_cast<int32_t>(shape.size());
    int axis = 0;
    for (int64_t extent : shape) {
      if (axis < kMaxRank) view.shape[axis] = extent;
      ++axis;
    }
    // Unsigned: a product that overflows wraps here and is refused (kRange) by the call.
    uint64_t stride = 1;
    for (axis = (view.rank < kMaxRank ? view.rank : kMaxRank) - 1; axis >= 0; --axis) {
      view.stride[axis] = static_cast<int64_t>(stride);
      stride *= static_cast<uint64_t>(view.shape[axis]);
    }
    return view;
  }

  /// A view with given strides.
  static BasicTensorView strided(Pointer data, Dtype dtype, std::initializer_list<int64_t> shape,
                                 std::initializer_list<int64_t> strides) {
    BasicTensorView view = contiguous(data, dtype, shape);
    int axis = 0;
    for (int64_t stride : strides) {
      if (axis < kMaxRank) view.stride[axis] = stride;
      ++axis;
    }
    return view;
  }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

/// A read-only view of the same tensor.
inline TensorView as_const(const MutableTensorView& view) {
  TensorView result;
  result.data = view.data;
  result.dtype = view.dtype;
  result.rank = view.rank;
  result.shape = view.shape;
  result.stride = view.stride;
  result.capacity_bytes = view.capacity_bytes;
  return result;
}

}  // namespace flashprime
