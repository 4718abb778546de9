// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/sparse_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace flashprime::cases {

SparseMemory::SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return;
  data_ = mapped;
  // A huge page would make memory of what should stay a shared page of zeros.
  madvise(data_, bytes_, MADV_NOHUGEPAGE);
}

SparseMemory SparseMemory::folded(int64_t bytes, int64_t window) {
  const int64_t windows = (bytes + window - 1) / window;
  SparseMemory memory(windows * window);
  const int file = memfd_create("flashprime_folded", MFD_CLOEXEC);
  if (file < 0 || memory.data_ == nullptr) return SparseMemory();
  bool ok = ftruncate(file, window) == 0;
  for (int64_t w = 0; ok && w + 1 < windows; ++w) {
    void* place = static_cast<std::byte*>(memory.data_) + w * window;
    ok = mmap(place, static_cast<size_t>(window), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
              file, 0) == place;
  }
  close(file);
  return ok ? std::move(memory) : SparseMemory();
}

SparseMemory::SparseMemory(SparseMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

SparseMemory::~SparseMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace flashprime::cases
