// SPDX-License-Identifier: Apache-2.0
// What sm90_mla_prefill is given at run time beyond PrefillParams. Plain data, the same on host and
// device.
#pragma once

#include "kernels/shared/prefill_params.h"

namespace flashprime {

// A CUtensorMap, as cuTensorMapEncodeTiled writes it.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// Every map has five axes: column, row, head, wrap, token. A box that ends with row `row` of a
// sequence of `length` rows, of which the last is token `end` - 1 of the tensor, has the
// coordinates row = kRaggedRows - length + row, wrap = kRaggedRows, token = end. The axis of rows
// ends where the sequence does, so that the hardware fills what lies behind it with zeros; the
// strides of `wrap` and `row` cancel modulo 2^64.
inline constexpr int32_t kRaggedRows = 1 << 30;

// State of the tile scheduler in global memory, 16-byte aligned. Whatever it holds before a call,
// it is right for the call: the first block to come claims it for the call's nonce. The last block
// releases it.
struct TileScheduler {
  uint64_t next_item;
  uint64_t nonce;  // of the call that owns it
};

// Which of a call's tensors have rows of their own for each head; the others share theirs.
struct PerHead {
  bool q_nope, q_pe, k_nope, k_pe, v;
};

struct Sm90PrefillParams {
  TensorMap q_nope;
  TensorMap q_pe;
  TensorMap k_nope;
  TensorMap k_pe;
  TensorMap v;
  PerHead per_head = {};
  PrefillParams call;
  TileScheduler* scheduler = nullptr;  // nullptr: there are at least as many blocks as items
  uint64_t nonce = 0;                  // never 0
  int32_t section_keys = 0;            // keys, times heads, whose K and V stay in L2 together
};

}  // namespace flashprime
