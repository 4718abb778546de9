// SPDX-License-Identifier: Apache-2.0
// The work items of a ragged batch: every (sequence, head, query tile) exactly once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace flashprime::cpu {

struct Tile {
  int64_t sequence = 0;
  int32_t head = 0;
  int64_t q_begin = 0;  // first query row, counted within the sequence
  int64_t q_rows = 0;   // 1 .. block_q
};

// Random access to the tiles, so that any loop over [0, size()) is a schedule. O(batch) memory.
// Tiles of one head are numbered from the last to the first: under a causal mask the dearest come
// first, and the tail of a parallel loop is made of cheap ones.
class TileEnumerator {
 public:
  TileEnumerator(const int32_t* cu_seqlens_q, int64_t batch, int32_t num_heads, int64_t block_q)
      : cu_seqlens_q_(cu_seqlens_q), block_q_(block_q) {
    first_tile_.reserve(static_cast<size_t>(batch) + 1);
    first_tile_.push_back(0);
    for (int64_t b = 0; b < batch; ++b) {
      first_tile_.push_back(first_tile_.back() + tiles_per_head(b) * num_heads);
    }
  }

  int64_t size() const { return first_tile_.back(); }

  Tile tile(int64_t index) const {
    const auto after = std::upper_bound(first_tile_.begin(), first_tile_.end(), index);
    Tile tile;
    tile.sequence = after - first_tile_.begin() - 1;
    const int64_t within = index - first_tile_[static_cast<size_t>(tile.sequence)];
    const int64_t per_head = tiles_per_head(tile.sequence);
    tile.head = static_cast<int32_t>(within / per_head);
    tile.q_begin = (per_head - 1 - within % per_head) * block_q_;
    tile.q_rows = std::min(block_q_, q_len(tile.sequence) - tile.q_begin);
    return tile;
  }

 private:
  int64_t q_len(int64_t sequence) const {
    return int64_t{cu_seqlens_q_[sequence + 1]} - cu_seqlens_q_[sequence];
  }
  int64_t tiles_per_head(int64_t sequence) const {
    return (q_len(sequence) + block_q_ - 1) / block_q_;
  }

  const int32_t* cu_seqlens_q_;
  int64_t block_q_;
  std::vector<int64_t> first_tile_;  // [batch + 1]: index of a sequence's first tile
};

}  // namespace flashprime::cpu
