// SPDX-License-Identifier: Apache-2.0
// The tensors of a case in memory, every byte around them poisoned.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "flashprime/prefill.h"
#include "tests/cases/case.h"

namespace flashprime::cases {

/// Bytes with a guard zone on either side of whatever is placed in them.
class Buffer {
 public:
  /// `elements` of `dtype` between two guard zones; data() is 64-byte aligned.
  Buffer(Dtype dtype, int64_t elements);

  void* data() { return bytes_.data() + begin_; }
  Dtype dtype() const { return dtype_; }
  /// All elements, guards included, become NaN, infinities and huge numbers in turn.
  void poison();
  /// All bytes, guards included, become `value`.
  void fill(unsigned char value);
  const std::vector<std::byte>& bytes() const { return bytes_; }
  int64_t begin() const { return begin_; }

 private:
  Dtype dtype_;
  std::vector<std::byte> bytes_;
  int64_t begin_ = 0;
};

/// The value of every element of q, k and v of a case, before rounding to the dtype.
class ValueSource {
 public:
  ValueSource(const Case& c, uint64_t seed);
  /// Row `token` of the whole tensor, [heads][dim], into `row`.
  void q_row(int64_t token, float* row) const;
  void k_row(int64_t token, float* row) const;  ///< heads share the rope part where k is split
  void v_row(int64_t token, float* row) const;

 private:
  struct Position {
    int32_t sequence;
    int64_t row;  // within the sequence
  };
  void random_row(uint32_t tensor, int64_t token, int64_t count, float* row) const;
  void poison_row(Poison::Tensor tensor, Position position, int64_t count, float* row) const;

  const Case& case_;
  uint64_t seed_;
  std::vector<Position> q_positions_;
  std::vector<Position> k_positions_;
};

/// Inputs of a case, and the arguments of a call over them. Outputs are separate (OutputTensors).
class InputTensors {
 public:
  InputTensors(const Case& c, uint64_t seed);
  InputTensors(const InputTensors&) = delete;
  InputTensors& operator=(const InputTensors&) = delete;

  /// Everything but `out`, `lse` and `output_scale`.
  const PrefillArgs& args() const { return args_; }
  const TensorView& output_scale() const { return output_scale_; }
  /// Largest finite |v|, and whether all finite v have one sign.
  double max_abs_v() const { return max_abs_v_; }
  bool v_has_one_sign() const { return v_has_one_sign_; }
  /// A hash of every input byte, guards included.
  uint64_t hash() const;

 private:
  Buffer& add_buffer(Dtype dtype, int64_t elements);

  std::vector<std::unique_ptr<Buffer>> buffers_;
  PrefillArgs args_;
  TensorView output_scale_;
  double max_abs_v_ = 0;
  bool v_has_one_sign_ = true;
};

/// Output tensors of a case, filled with NaN where the call must write and with a sentinel
/// elsewhere.
class OutputTensors {
 public:
  /// `out_dtype` may differ from the case's. `garbage`: what fills the elements before the call;
  /// finite garbage where NaN is a legal result.
  OutputTensors(const Case& c, Dtype out_dtype, double garbage);

  MutableTensorView& out() { return out_; }
  MutableTensorView& lse() { return lse_; }  ///< absent where the case wants none
  /// Number of bytes outside the views that changed since construction.
  int64_t sentinels_changed() const;

 private:
  Buffer out_buffer_;
  Buffer lse_buffer_;
  MutableTensorView out_;
  MutableTensorView lse_;
  std::vector<bool> out_owned_;
  std::vector<bool> lse_owned_;
};

/// A [rows, heads, dim] view placed in a buffer as `layout` says.
struct Placement {
  int64_t offset = 0;
  int64_t stride_row = 0;
  int64_t stride_head = 0;
  int64_t elements = 0;  ///< that the buffer needs
};
Placement place(Layout layout, int64_t rows, int64_t heads, int64_t dim);

}  // namespace flashprime::cases
