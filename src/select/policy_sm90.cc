// SPDX-License-Identifier: Apache-2.0
#include "select/policy_sm90.h"

namespace flashprime {

// Shared memory (227 KB) and registers decide: two stages of K and V, Q once, and 2 KB a warp for
// the output where they are left.
Sm90PrefillPolicy sm90_policy(const PrefillTraits& traits) {
  const int32_t qk = traits.dims.nope + traits.dims.rope;
  if (traits.dims.v > 128) {
    return {.block_kv = 80,
            .producer_registers = 40,
            .consumer_registers = 232,
            .ordered_steps = 3,
            .trimmed_diagonal = true,
            .staged_output = false};
  }
  // Trimmed with 96 keys a step, ptxas runs out of registers (C7511).
  return {.block_kv = qk > 192 ? 96 : 128,
          .producer_registers = 56,
          .consumer_registers = 224,
          .ordered_steps = 3,
          .trimmed_diagonal = qk <= 192,
          .staged_output = true};
}

}  // namespace flashprime
