// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_prefix_cache.h"

#include <algorithm>

#include "cli/trace.h"

namespace flashprime::cli {

PrefixCache::PrefixCache(int64_t capacity_tokens)
    : capacity_blocks_(capacity_tokens < 0 ? -1 : capacity_tokens / kBlockTokens) {}

int64_t PrefixCache::hit_tokens(std::span<const int64_t> blocks, int64_t prompt_tokens) {
  const int64_t most =
      std::min(static_cast<int64_t>(blocks.size()), (prompt_tokens - 1) / kBlockTokens);
  int64_t count = 0;
  while (count < most && held_.contains(blocks[static_cast<size_t>(count)])) ++count;
  touch(blocks.first(static_cast<size_t>(count)));
  return count * kBlockTokens;
}

void PrefixCache::keep(std::span<const int64_t> blocks, int64_t tokens) {
  const int64_t full = std::min(static_cast<int64_t>(blocks.size()), tokens / kBlockTokens);
  touch(blocks.first(static_cast<size_t>(full)));
}

// From the last to the first, which is then the most recent.
void PrefixCache::touch(std::span<const int64_t> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto held = held_.find(blocks[i]);
    if (held != held_.end()) {
      recent_.splice(recent_.begin(), recent_, held->second);
      continue;
    }
    recent_.push_front(blocks[i]);
    held_.emplace(blocks[i], recent_.begin());
    if (capacity_blocks_ >= 0 && static_cast<int64_t>(held_.size()) > capacity_blocks_) {
      held_.erase(recent_.back());
      recent_.pop_back();
      ++evicted_blocks_;
    }
  }
}

}  // namespace flashprime::cli
