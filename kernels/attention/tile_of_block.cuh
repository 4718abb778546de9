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
// total / block_q + batch slots in all.
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

// Rows [first, first + length) of a sequence. Lengths are trusted to be right, but not with memory:
// whatever they are, the range stays within the rows that the tensors have.
struct RowRange {
  int64_t first;
  int64_t length;
};

__device__ __forceinline__ RowRange rows_of_sequence(const int32_t* cu_seqlens, int64_t sequence,
                                                     int64_t total) {
  int64_t first = cu_seqlens[sequence];
  int64_t end = cu_seqlens[sequence + 1];
  first = first < 0 ? 0 : (first < total ? first : total);
  end = end < first ? first : (end < total ? end : total);
  return {first, end - first};
}

}  // namespace flashprime
