// SPDX-License-Identifier: Apache-2.0
// What one SIMD target of the fast kernel offers to fast.cc.
#pragma once

#include <cstddef>

#include "cpu/tile_enumerator.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"

namespace flashprime::cpu {

struct FastTarget {
  const char* name;  // Highway's name of the instruction set
  // Bytes of 64-byte aligned scratch that run_tile() needs for these dims; a double, because dims
  // have no upper bound and the caller compares it with what an allocation can be.
  double (*scratch_bytes)(const HeadDims& dims);
  // Computes out and lse of one tile. Never allocates.
  void (*run_tile)(const PrefillTraits& traits, const PrefillParams& params, const Tile& tile,
                   void* scratch);
};

// Query rows of a tile. It never changes a bit of the result, only how often keys are unpacked.
inline constexpr int64_t kFastBlockQ = 192;

}  // namespace flashprime::cpu
