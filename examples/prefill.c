// SPDX-License-Identifier: Apache-2.0
// Causal attention over a ragged batch of two sequences.
#include <stdint.h>
#include <stdio.h>

#include "flashprime/c_api.h"

enum { TOKENS = 30, HEADS = 2 };

static uint16_t q[TOKENS * HEADS * 192], k[TOKENS * HEADS * 192];
static uint16_t v[TOKENS * HEADS * 128], out[TOKENS * HEADS * 128];

int main(void) {
  int32_t cu_seqlens[] = {0, 10, TOKENS};
  for (int i = 0; i < TOKENS * HEADS * 128; ++i) {
    v[i] = i < 10 * HEADS * 128 ? 0x3f80 : 0x4000;  // bf16: 1 in the first sequence, 2 in the other
  }

  flashprime_problem problem = FLASHPRIME_PROBLEM_INIT;  // head dims 128 + 64 and 128, bf16, causal
  problem.num_heads = HEADS;
  flashprime_prefill_args args = FLASHPRIME_PREFILL_ARGS_INIT;
  args.q = flashprime_tensor_3d(q, FLASHPRIME_BF16, TOKENS, HEADS, 192);
  args.k = flashprime_tensor_3d(k, FLASHPRIME_BF16, TOKENS, HEADS, 192);
  args.v = flashprime_tensor_3d(v, FLASHPRIME_BF16, TOKENS, HEADS, 128);
  args.out = flashprime_tensor_3d(out, FLASHPRIME_BF16, TOKENS, HEADS, 128);
  args.cu_seqlens_q = flashprime_tensor_1d(cu_seqlens, FLASHPRIME_INT32, 3);
  args.cu_seqlens_k = args.cu_seqlens_q;
  args.softmax_scale = 0.0722f;
  if (flashprime_prefill(&problem, &args, NULL, NULL) != FLASHPRIME_OK) {
    fprintf(stderr, "%s\n", flashprime_last_error_message());
    return 1;
  }

  int wrong = 0;  // a weighted average of equal values is that value
  for (int i = 0; i < TOKENS * HEADS * 128; ++i) wrong += out[i] != v[i];
  printf("prefill: %d tokens of 2 sequences, %d wrong values\n", TOKENS, wrong);
  return wrong == 0 ? 0 : 1;
}
