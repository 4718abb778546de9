// SPDX-License-Identifier: Apache-2.0
// How sm90_mla_prefill runs: changes speed, never results beyond tolerance.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

struct Sm90PrefillPolicy {
  int32_t block_kv = 128;            // keys per step
  int32_t producer_registers = 56;   // of a thread of the producer warpgroup
  int32_t consumer_registers = 224;  // of a thread of the two consumer warpgroups
  int32_t ordered_steps = 3;         // steps of a tile in which the warpgroups take turns
  bool trimmed_diagonal = true;      // the first 64 rows of a tile leave out what they do not see
  bool staged_output = true;         // 16-bit rows of out pass through shared memory
};

}  // namespace flashprime
