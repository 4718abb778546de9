// SPDX-License-Identifier: Apache-2.0
// The --batch grammar: items joined by '_', each [count]q<len>[k][s<len>[k]].
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "flashprime/status.h"

namespace flashprime::cli {

struct BatchRequest {
  int64_t new_tokens = 0;
  int64_t total_keys = 0;  // the new ones included

  int64_t context() const { return total_keys - new_tokens; }
  bool operator==(const BatchRequest&) const = default;
};

// k multiplies by 1024. s is all keys of the request, so "8q512s8k" is 8 requests of 512 new tokens
// on 7,680 of context; without s there is no context. At most a million requests, and 2^31 - 1 new
// tokens and keys in all, which is what cu_seqlens can hold. Errors name the position, from 1.
StatusOr<std::vector<BatchRequest>> parse_batch_spec(std::string_view text);

}  // namespace flashprime::cli
