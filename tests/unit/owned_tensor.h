// SPDX-License-Identifier: Apache-2.0
// A tensor with memory of its own, for tests.
#pragma once

#include <cstring>
#include <functional>
#include <initializer_list>
#include <vector>

#include "flashprime/tensor.h"
#include "numerics/convert.h"

namespace flashprime {

class OwnedTensor {
 public:
  // Every byte starts as `fill`; 0xa5 is a sentinel that no result has by chance.
  OwnedTensor(Dtype dtype, std::initializer_list<int64_t> shape, int fill = 0xa5)
      : view_(MutableTensorView::contiguous(nullptr, dtype, shape)) {
    int64_t elements = 1;
    for (int64_t extent : shape) elements *= extent;
    allocate(elements, fill);
  }
  OwnedTensor(Dtype dtype, std::initializer_list<int64_t> shape,
              std::initializer_list<int64_t> strides, int fill = 0xa5)
      : view_(MutableTensorView::strided(nullptr, dtype, shape, strides)) {
    int64_t elements = 1;
    for (int axis = 0; axis < view_.rank; ++axis) {
      elements += (view_.shape[axis] - 1) * view_.stride[axis];
    }
    allocate(elements, fill);
  }
  // Views point into the memory.
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;

  MutableTensorView view() const { return view_; }
  TensorView input() const { return as_const(view_); }

  double get(int64_t i, int64_t j = 0, int64_t k = 0) const {
    return load_element_as_double(view_.data, view_.dtype, offset(i, j, k));
  }
  void set(int64_t i, int64_t j, int64_t k, double value) {
    store_element(view_.data, view_.dtype, offset(i, j, k), value);
  }
  void fill(const std::function<double(int64_t, int64_t, int64_t)>& value) {
    for (int64_t i = 0; i < view_.shape[0]; ++i) {
      for (int64_t j = 0; j < (view_.rank > 1 ? view_.shape[1] : 1); ++j) {
        for (int64_t k = 0; k < (view_.rank > 2 ? view_.shape[2] : 1); ++k) {
          set(i, j, k, value(i, j, k));
        }
      }
    }
  }
  // All bytes, gaps between rows included.
  std::vector<unsigned char> bytes() const {
    const auto* begin = static_cast<const unsigned char*>(view_.data);
    return {begin, begin + num_bytes_};
  }

 private:
  void allocate(int64_t elements, int fill) {
    num_bytes_ = elements * dtype_bytes(view_.dtype);
    memory_.resize(static_cast<size_t>(num_bytes_ / 8 + 1));
    std::memset(memory_.data(), fill, memory_.size() * 8);
    view_.data = memory_.data();
  }
  int64_t offset(int64_t i, int64_t j, int64_t k) const {
    return i * view_.stride[0] + j * view_.stride[1] + k * view_.stride[2];
  }

  MutableTensorView view_;
  std::vector<uint64_t> memory_;
  int64_t num_bytes_ = 0;
};

}  // namespace flashprime
