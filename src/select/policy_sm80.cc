// SPDX-License-Identifier: Apache-2.0
#include "select/policy_sm80.h"

#include <array>

#include "jit/kernel_key.h"

namespace flashprime {
namespace {

struct PolicyRow {
  int32_t max_qk;
  int32_t max_v;
  Sm80PrefillPolicy policy;
};

// The first row that holds the dims and fits the architecture's shared memory is taken.
//
// 1  32 rows a warp halve the reads of K and V from shared memory, two blocks hide each other's
//    waits. Best of eleven on an H200 for 128/64/128, causal; runner-up row 3.
// 2  The same where a row of q and k is longer.
// 3  Q in registers: 80 KB for 128/64/128, so it fits the 99 KB of sm_86, sm_89 and sm_12x.
// 4  Best on an H200 for 256 and 256: half of Q in registers, the rest read again.
// 5  All of Q in registers, where row 4 does not fit.
//
// Compiled for sm_80, sm_86, sm_90a and sm_120a: rows 1 and 2 spill at most 76 bytes, row 5 at
// most 4, the others none.
constexpr std::array<PolicyRow, 5> kRows = {{
    {192,
     128,
     {.num_warps = 4,
      .row_blocks = 2,
      .block_kv = 48,
      .num_stages = 2,
      .q_register_steps = 0,
      .min_blocks_per_sm = 2}},
    {256,
     128,
     {.num_warps = 4,
      .row_blocks = 2,
      .block_kv = 32,
      .num_stages = 2,
      .q_register_steps = 0,
      .min_blocks_per_sm = 2}},
    {256,
     128,
     {.num_warps = 8,
      .row_blocks = 1,
      .block_kv = 64,
      .num_stages = 2,
      .q_register_steps = 64,
      .min_blocks_per_sm = 1}},
    {256,
     256,
     {.num_warps = 8,
      .row_blocks = 1,
      .block_kv = 32,
      .num_stages = 2,
      .q_register_steps = 8,
      .min_blocks_per_sm = 1}},
    {256,
     256,
     {.num_warps = 8,
      .row_blocks = 1,
      .block_kv = 32,
      .num_stages = 2,
      .q_register_steps = 64,
      .min_blocks_per_sm = 1}},
}};

// The driver keeps this much for itself in every block.
constexpr int32_t kReservedBytes = 1024;

}  // namespace

Sm80PrefillPolicy sm80_policy(const PrefillTraits& traits, const Arch& arch) {
  const ArchLimits limits = arch_limits(arch);
  for (const PolicyRow& row : kRows) {
    if (traits.dims.nope + traits.dims.rope > row.max_qk || traits.dims.v > row.max_v) continue;
    const KernelKey key{Sm80MlaPrefillKernel{traits, row.policy}, arch};
    const int32_t bytes = key.launch_shape().shared_bytes;
    if (bytes <= limits.shared_bytes_per_block &&
        row.policy.min_blocks_per_sm * (bytes + kReservedBytes) <= limits.shared_bytes_per_sm) {
      return row.policy;
    }
  }
  return kRows.back().policy;
}

}  // namespace flashprime
