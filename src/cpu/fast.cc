// SPDX-License-Identifier: Apache-2.0
// The fast CPU kernel: choice of the SIMD target, and the loop over tiles.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/fast-inl.h"
#define HWY_COMPILE_ALL_ATTAINABLE
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.h.
#include "cpu/fast-inl.h"

#if HWY_ONCE

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/fast_target.h"
#include "cpu/tile_enumerator.h"

namespace flashprime::cpu {
namespace {

// Asked of the compiler's run-time library, which also checks that the operating system saves the
// registers: Debian's Highway can be asked only through its shared library.
std::vector<const FastTarget*> find_targets() {
  std::vector<const FastTarget*> found;
#if defined(__x86_64__)
#if HWY_TARGETS & HWY_AVX3
  static constexpr FastTarget kAvx3{"AVX3", N_AVX3::scratch_bytes, N_AVX3::run_tile};
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd")) {
    found.push_back(&kAvx3);
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  static constexpr FastTarget kAvx2{"AVX2", N_AVX2::scratch_bytes, N_AVX2::run_tile};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c")) {
    found.push_back(&kAvx2);
  }
#endif
#endif
  return found;
}

// Scratch of the tiles in flight, as many as run at once, reused from tile to tile. Free pieces are
// chained through their first bytes, so that giving one back cannot fail.
class ScratchPool {
 public:
  explicit ScratchPool(size_t bytes) : bytes_(bytes) {}
  ~ScratchPool() {
    while (free_ != nullptr) std::free(std::exchange(free_, *static_cast<void**>(free_)));
  }
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // Null when memory is out.
  void* take() {
    {
      std::lock_guard lock(mutex_);
      if (free_ != nullptr) return std::exchange(free_, *static_cast<void**>(free_));
    }
    return std::aligned_alloc(64, bytes_);
  }
  void put(void* scratch) {
    std::lock_guard lock(mutex_);
    *static_cast<void**>(scratch) = std::exchange(free_, scratch);
  }

 private:
  size_t bytes_;
  std::mutex mutex_;
  void* free_ = nullptr;
};

}  // namespace

const std::vector<const FastTarget*>& fast_targets() {
  static const std::vector<const FastTarget*> targets = find_targets();
  return targets;
}

const char* fast_isa_target() {
  return fast_targets().empty() ? "" : fast_targets().front()->name;
}

Status run_fast(const PrefillTraits& traits, const PrefillParams& params,
                const ParallelFor& parallel_for) {
  return run_fast(*fast_targets().front(), traits, params, parallel_for);
}

Status run_fast(const FastTarget& target, const PrefillTraits& traits, const PrefillParams& params,
                const ParallelFor& parallel_for) {
  const double bytes = target.scratch_bytes(traits.dims);
  constexpr double kMaxScratch = 1e11;  // larger dims could not be allocated anyway
  if (bytes > kMaxScratch) {
    return Status(StatusCode::kOutOfMemory,
                  "dims: the tile of one thread would need " + std::to_string(bytes) + " bytes");
  }
  ScratchPool scratch_pool((static_cast<size_t>(bytes) + 63) / 64 * 64);
  // The first piece is allocated before any output is touched.
  if (void* first = scratch_pool.take(); first != nullptr) {
    scratch_pool.put(first);
  } else {
    return Status(StatusCode::kOutOfMemory, "scratch of the first tile");
  }
  const TileEnumerator tiles(params.cu_seqlens_q, params.batch, params.num_heads, kFastBlockQ);
  std::atomic<bool> out_of_memory{false};
  parallel_for(tiles.size(), [&](int64_t i) {
    void* scratch = scratch_pool.take();
    if (scratch == nullptr) {
      out_of_memory.store(true, std::memory_order_relaxed);
      return;
    }
    target.run_tile(traits, params, tiles.tile(i), scratch);
    scratch_pool.put(scratch);
  });
  if (out_of_memory.load()) {
    return Status(StatusCode::kOutOfMemory, "scratch of a tile; outputs are incomplete");
  }
  return ok_status();
}

}  // namespace flashprime::cpu

#endif  // HWY_ONCE
