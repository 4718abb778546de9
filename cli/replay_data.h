// SPDX-License-Identifier: Apache-2.0
// The tensors of a replay. Token t of request r has the same values in every step, so that the
// context of a later step is exactly what an earlier step attended to, without keeping it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cli/replay_scheduler.h"
#include "flashprime/context_plan.h"
#include "flashprime/prefill.h"
#include "flashprime/prefill_layer.h"

namespace flashprime::cli {

// Memory that grows and is never cleared. Throws std::bad_alloc.
class ScratchBuffer {
 public:
  static constexpr size_t kAlignment = 256;

  // At least `bytes`, with unspecified contents.
  void* reserve(int64_t bytes);
  template <typename T>
  T* data() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t bytes_ = 0;
};

struct ReplayShape {
  HeadDims dims;
  int32_t heads = 1;
  Dtype dtype = Dtype::kBf16;
};

// q joined; k in two parts, k_pe shared by the heads; k_nope and v interleaved in one tensor
// [T, H, nope + v], as the up-projection of an engine leaves them.
class ReplayTensors {
 public:
  ReplayTensors(const ReplayShape& shape, uint64_t seed, int32_t threads)
      : shape_(shape), seed_(seed), threads_(threads) {}

  // Queries of the pieces' tokens, one piece after the other.
  StatusOr<TensorView> queries(int32_t layer, const std::vector<ReplayPiece>& pieces);
  // Keys and values of the pieces' tokens. Valid until the next call.
  StatusOr<KeyValueViews> keys(int32_t layer, const std::vector<ReplayPiece>& pieces);

  int64_t bytes() const { return q_.bytes() + kv_.bytes() + k_pe_.bytes(); }

 private:
  ReplayShape shape_;
  uint64_t seed_;
  int32_t threads_;
  ScratchBuffer q_;
  ScratchBuffer kv_;
  ScratchBuffer k_pe_;
};

// The same numbers for one query row and one head: what the oracle needs. Serial.
class ReplayRow {
 public:
  ReplayRow(const ReplayShape& shape, uint64_t seed) : shape_(shape), seed_(seed) {}

  // out [v] and lse of query `position` of `request`, which sees keys [0, position], by the
  // cpu_reference kernel in fp64.
  Status oracle(int32_t layer, int64_t request, int64_t position, int32_t head, float softmax_scale,
                std::vector<double>* out, double* lse);

 private:
  ReplayShape shape_;
  uint64_t seed_;
  ScratchBuffer q_;
  ScratchBuffer k_nope_;
  ScratchBuffer k_pe_;
  ScratchBuffer v_;
};

}  // namespace flashprime::cli
