// SPDX-License-Identifier: Apache-2.0
// A call of prefill() cut into smaller calls that compute the same bits.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "flashprime/prefill.h"

namespace flashprime::cli {

// Some sequences, in some heads.
struct CallSlice {
  int64_t sequence_begin = 0;
  int64_t sequence_end = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;

  bool operator==(const CallSlice&) const = default;
};

// Floating-point operations of a sequence and head, over the pairs that the mask lets through.
double sequence_flop(const PrefillProblem& problem, const PrefillArgs& args, int64_t sequence);

// Slices that cover every sequence and head once, each of about `max_flop` at most, which a single
// sequence and head may exceed. `args` must be valid, with cu_seqlens on the host.
std::vector<CallSlice> slice_call(const PrefillProblem& problem, const PrefillArgs& args,
                                  double max_flop);

// The problem and arguments of one slice: views of the same memory, and cu_seqlens of its own.
class SlicedCall {
 public:
  SlicedCall(const PrefillProblem& problem, const PrefillArgs& args, const CallSlice& slice);
  SlicedCall(const SlicedCall&) = delete;
  SlicedCall& operator=(const SlicedCall&) = delete;

  const PrefillProblem& problem() const { return problem_; }
  const PrefillArgs& args() const { return args_; }

 private:
  PrefillProblem problem_;
  PrefillArgs args_;
  std::vector<int32_t> cu_seqlens_q_;
  std::vector<int32_t> cu_seqlens_k_;
};

// Extents [begin, end) of one axis of a view.
template <typename View>
View narrow(View view, int32_t axis, int64_t begin, int64_t end) {
  const auto i = static_cast<size_t>(axis);
  const int64_t bytes = begin * view.stride[i] * dtype_bytes(view.dtype);
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  view.data = static_cast<Byte*>(view.data) + bytes;
  if (view.capacity_bytes != View::kUnknownCapacity) view.capacity_bytes -= bytes;
  view.shape[i] = end - begin;
  return view;
}

// The same over an axis of rows and one of heads; an absent view stays absent.
template <typename View>
View narrow(View view, int32_t row_axis, int64_t row_begin, int64_t row_end, int32_t head_axis,
            int64_t head_begin, int64_t head_end) {
  if (!view.present()) return view;
  return narrow(narrow(view, row_axis, row_begin, row_end), head_axis, head_begin, head_end);
}

// Entry i of cu_seqlens on the host.
int64_t seqlen_offset(const TensorView& cu_seqlens, int64_t i);

}  // namespace flashprime::cli
