// SPDX-License-Identifier: Apache-2.0
// Which keys a query row sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "flashprime/types.h"

namespace flashprime::cpu {

// Keys [begin, end) of a sequence; empty when begin >= end.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};

// Visible keys of query row `row` of a sequence with `q_len` queries and `k_len` keys, aligned at
// the bottom right. Every mask kind is one range per row, and both its ends never decrease with
// the row. Reaches are small enough to add to a position: make_params() sees to it.
inline KeyRange visible_keys(MaskKind kind, int64_t window_left, int64_t window_right, int64_t row,
                             int64_t q_len, int64_t k_len) {
  const int64_t diagonal = row + (k_len - q_len);
  KeyRange range{0, k_len};
  if (kind == MaskKind::kCausal) range.end = diagonal + 1;
  if (kind == MaskKind::kWindow) {
    if (window_left >= 0) range.begin = diagonal - window_left;
    if (window_right >= 0) range.end = diagonal + window_right + 1;
  }
  range.begin = std::max<int64_t>(range.begin, 0);
  range.end = std::clamp<int64_t>(range.end, 0, k_len);
  return range;
}

}  // namespace flashprime::cpu
