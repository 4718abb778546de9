// SPDX-License-Identifier: Apache-2.0
// Address space without memory, for tensors whose offsets pass 2^31 and 2^32 elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashprime::cases {

/// Zero-filled address space; a page takes memory only once it is written to. Reading never does.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes);
  /// As above for writing over the whole range: all of it but the last `window` bytes is the same
  /// `window` of memory over and over, so what is written there is not kept apart.
  static SparseMemory folded(int64_t bytes, int64_t window);
  ~SparseMemory();
  SparseMemory(SparseMemory&& other) noexcept;
  SparseMemory& operator=(SparseMemory&&) = delete;

  /// Null when the system refused.
  void* data() const { return data_; }

 private:
  SparseMemory() = default;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace flashprime::cases
