// SPDX-License-Identifier: Apache-2.0
// Every (sequence, head, query tile) of any list of lengths exactly once.
#include "cpu/tile_enumerator.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "flashprime/types.h"

namespace flashprime::cpu {
namespace {

// 10^4 lists by default; the preset "scale" asks for 10^6.
int64_t number_of_lists() {
  const char* text = std::getenv("FLASHPRIME_PROPERTY_RUNS");
  return text == nullptr ? 10'000 : std::atoll(text);
}

TEST(TileEnumerator, VisitsEveryTileOfRandomLengthListsExactlyOnce) {
  std::mt19937_64 random(20240607);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const int64_t lists = number_of_lists();
  ASSERT_GT(lists, 0);
  std::vector<uint8_t> visited;
  for (int64_t list = 0; list < lists; ++list) {
    const int64_t batch = below(24);
    const auto heads = static_cast<int32_t>(1 + below(9));
    const int64_t block = int64_t{1} << below(8);
    std::vector<int32_t> cu{0};
    std::vector<int64_t> first_slot{0};
    for (int64_t s = 0; s < batch; ++s) {
      // Zero, short, a tile edge and its neighbours, or long.
      int64_t length = 0;
      switch (below(4)) {
        case 0: break;
        case 1: length = below(20); break;
        case 2: length = std::max<int64_t>(0, block * (1 + below(4)) - 1 + below(3)); break;
        default: length = below(700); break;
      }
      cu.push_back(cu.back() + static_cast<int32_t>(length));
      first_slot.push_back(first_slot.back() + (length + block - 1) / block * heads);
    }
    const TileEnumerator tiles(cu.data(), batch, heads, block);
    ASSERT_EQ(tiles.size(), first_slot.back());
    visited.assign(static_cast<size_t>(tiles.size()), 0);
    for (int64_t i = 0; i < tiles.size(); ++i) {
      const Tile tile = tiles.tile(i);
      ASSERT_GE(tile.sequence, 0);
      ASSERT_LT(tile.sequence, batch);
      ASSERT_GE(tile.head, 0);
      ASSERT_LT(tile.head, heads);
      const auto s = static_cast<size_t>(tile.sequence);
      const int64_t length = cu[s + 1] - cu[s];
      ASSERT_GE(tile.q_begin, 0);
      ASSERT_EQ(tile.q_begin % block, 0);
      ASSERT_EQ(tile.q_rows, std::min(block, length - tile.q_begin));
      ASSERT_GE(tile.q_rows, 1);
      const int64_t per_head = (length + block - 1) / block;
      const int64_t slot = first_slot[s] + tile.head * per_head + tile.q_begin / block;
      ASSERT_LT(slot, first_slot[s + 1]);
      ASSERT_EQ(visited[static_cast<size_t>(slot)]++, 0) << "list " << list << " tile " << i;
    }
  }
}

// Schedule arithmetic at lengths that no memory holds: no allocation beyond O(batch).
TEST(TileEnumerator, CountsAndAddressesTilesUpToTheLargestLengths) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t length : {3'355'443, 3'355'444, 16'777'217, kMost - 1, kMost}) {
    const std::vector<int32_t> cu{0, 0, length};
    for (const int32_t heads : {1, 128}) {
      for (const int64_t block : {int64_t{1}, int64_t{64}, int64_t{128}}) {
        const TileEnumerator tiles(cu.data(), 2, heads, block);
        const int64_t per_head = (int64_t{length} + block - 1) / block;
        ASSERT_EQ(tiles.size(), per_head * heads);
        int64_t rows = 0;
        for (const int64_t i : {int64_t{0}, per_head - 1}) {
          const Tile tile = tiles.tile((heads - 1) * per_head + i);
          EXPECT_EQ(tile.sequence, 1);
          EXPECT_EQ(tile.head, heads - 1);
          EXPECT_LE(tile.q_begin + tile.q_rows, length);
          rows = std::max(rows, tile.q_begin + tile.q_rows);
        }
        EXPECT_EQ(rows, length);
      }
    }
  }
}

}  // namespace
}  // namespace flashprime::cpu
