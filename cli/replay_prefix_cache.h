// SPDX-License-Identifier: Apache-2.0
// Which blocks of prompts an engine's prefix cache would still hold.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>

namespace flashprime::cli {

// Blocks are kept whole (kBlockTokens each) and the least recently used one goes first. A prompt's
// last blocks go before its first, without which they would be of no use. Running requests do not
// hold their blocks.
class PrefixCache {
 public:
  // A capacity below one block holds nothing; negative: unlimited.
  explicit PrefixCache(int64_t capacity_tokens);

  // Tokens at the start of a prompt that need not be computed: blocks held in a row, of full
  // blocks only, and never all of the prompt: its last token must be computed.
  int64_t hit_tokens(std::span<const int64_t> blocks, int64_t prompt_tokens);
  // The prompt's first `tokens` are computed: their full blocks can be hit from now on.
  void keep(std::span<const int64_t> blocks, int64_t tokens);

  int64_t evicted_blocks() const { return evicted_blocks_; }

 private:
  void touch(std::span<const int64_t> blocks);

  int64_t capacity_blocks_;    // negative: unlimited
  std::list<int64_t> recent_;  // the most recently used first
  std::unordered_map<int64_t, std::list<int64_t>::iterator> held_;
  int64_t evicted_blocks_ = 0;
};

}  // namespace flashprime::cli
