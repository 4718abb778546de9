// SPDX-License-Identifier: Apache-2.0
// A tile of 16-bit rows in shared memory, in 16-byte units whose place is exclusive-ored with the
// row, so that ldmatrix (eight rows, one unit column) and row-wise copies meet no bank conflict.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

// kColumns elements a row, rounded up to 64 so that a row is a multiple of eight units.
template <int kColumns>
struct SwizzledTile {
  static constexpr int kUnitsPerRow = (kColumns + 63) / 64 * 8;

  // Byte offset of the 16-byte unit `unit` of row `row`.
  static __device__ __forceinline__ uint32_t offset(int row, int unit) {
    return static_cast<uint32_t>(row * kUnitsPerRow + (unit ^ (row & 7))) * 16;
  }

  // What one lane of a warp adds to a tile's address to read 16x16 elements with ldmatrix, for each
  // of the four even units of a group of eight. `row` in [0, 16) and `unit` in {0, 1} are the
  // lane's place in the 16x16 square.
  struct LaneOffsets {
    uint32_t at[4];
    __device__ __forceinline__ LaneOffsets(uint32_t tile, int row, int unit) {
#pragma unroll
      for (int i = 0; i < 4; ++i) at[i] = tile + offset(row, i * 2 + unit);
    }
    // Address for the square whose first row is 16 * row_step and whose first column is
    // 16 * column_step, both known at compile time.
    __device__ __forceinline__ uint32_t square(int row_step, int column_step) const {
      return at[column_step % 4] +
             static_cast<uint32_t>(row_step * 16 * kUnitsPerRow + column_step / 4 * 8) * 16;
    }
  };

  static constexpr uint32_t bytes(int rows) {
    return static_cast<uint32_t>(rows) * kUnitsPerRow * 16;
  }
};

}  // namespace flashprime
