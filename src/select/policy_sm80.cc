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

// The first row that holds the dims and fits the architecture's shared memory is taken. TFLOP/s are
// of an H200, 16 heads, causal, 2048x8 and 8192x2 in short bursts.
//
// 1, 2  32 rows a warp halve the reads of K and V from shared memory, two blocks hide each other's
//       waits: 331 and 369 for 128/0/128, 328 and 380 for 128/64/128.
// 3     The same where a row of q and k is longer: 329 and 359 for 192/64/128.
// 4     Q in registers: 80 KB for 128/64/128, so it fits the 99 KB of sm_86, sm_89 and sm_12x.
// 5     279 and 321 for 192/64/256.
// 6     Half of Q in registers, the rest read again, where row 5 does not fit.
// 7     All of Q in registers, where row 6 does not fit either.
//
// Compiled for sm_80, sm_86, sm_90a and sm_120a: rows 1 to 3 spill at most 76 bytes, row 7 at most
// 4, the others none.
constexpr std::array<PolicyRow, 7> kRows = {{
    {128,
     128,
     {.num_warps = 4,
      .row_blocks = 2,
      .block_kv = 64,
      .num_stages = 2,
      .q_register_steps = 0,
      .min_blocks_per_sm = 2}},
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
      .block_kv = 64,
      .num_stages = 2,
      .q_register_steps = 0,
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
