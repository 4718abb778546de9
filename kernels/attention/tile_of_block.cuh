// SPDX-License-Identifier: Apache-2.0
// From a block index to a (sequence, query tile), without a preparation launch.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

struct QueryTile {
  int64_t sequence;
  int64_t q_begin;  // first row of the tile, counted within the sequence; may be past its end
};

// Sequence b owns the slots [cu_seqlens[b] / block_q + b, cu_seqlens[b + 1] / block_q + b + 1): at
// least as many as it has tiles, and never more than one in vain. The first slot of a sequence is
// increasing in b, so a slot's sequence is found by bisection: O(log batch) for each block, and
// total / block_q + batch slots in all. Lengths that contradict total_q are clamped to it.
__device__ __forceinline__ QueryTile tile_of_slot(const int32_t* cu_seqlens, int64_t batch,
                                                  int64_t slot, int32_t block_q) {
  int64_t low = 0;
  int64_t high = batch;  // the sequence is in [low, high)
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (cu_seqlens[middle] / block_q + middle <= slot) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return {low, (slot - cu_seqlens[low] / block_q - low) * block_q};
}

}  // namespace flashprime
