// SPDX-License-Identifier: Apache-2.0
// Work of causal attention with context, counted over the pairs that the mask lets through.
#pragma once

#include <cstdint>

#include "flashprime/types.h"

namespace flashprime::cli {

// Query-key pairs of `new_tokens` causal queries that also see `context` keys. A double: exact up
// to 2^53, and never an overflow.
inline double visible_pairs(int64_t new_tokens, int64_t context) {
  const auto n = static_cast<double>(new_tokens);
  return n * static_cast<double>(context) + n * (n + 1.0) / 2.0;
}

// A multiply and an add per element of q.k and of p v.
inline double attention_flop(double pairs, int64_t heads, const HeadDims& dims) {
  return 2.0 * pairs * static_cast<double>(heads) *
         static_cast<double>(dims.nope + dims.rope + dims.v);
}

}  // namespace flashprime::cli
