// SPDX-License-Identifier: Apache-2.0
// How sm80_mla_prefill runs: changes speed, never results beyond tolerance.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

struct Sm80PrefillPolicy {
  int32_t num_warps = 8;          // of 16 query rows each, or 32 with two row blocks per warp
  int32_t row_blocks = 1;         // 16-row blocks per warp
  int32_t block_kv = 64;          // keys per step
  int32_t num_stages = 2;         // K and V buffers
  int32_t q_register_steps = 64;  // 16-wide steps of q that stay in registers; the rest is reread
  int32_t min_blocks_per_sm = 1;

  constexpr int32_t block_q() const { return num_warps * row_blocks * 16; }
  constexpr int32_t num_threads() const { return num_warps * 32; }
};

}  // namespace flashprime
