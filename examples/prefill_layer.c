// SPDX-License-Identifier: Apache-2.0
// 8 new tokens on 1,000 tokens of context, which come 256 at a time through one small buffer.
#include <stdio.h>
#include <stdlib.h>

#include "flashprime/c_api.h"

enum { TOKENS = 8, CONTEXT = 1000, ROWS = 256, QK = 24, V = 16 };

static float qk[TOKENS * QK], v[TOKENS * V], out[TOKENS * V];
static float chunk_k[ROWS * QK], chunk_v[ROWS * V];

// An engine gathers the chunk's rows of its KV cache and projects them up here.
static int produce(void* user, const flashprime_chunk* chunk, flashprime_stream stream,
                   flashprime_key_values* key_values) {
  (void)stream;
  ++*(int*)user;
  key_values->k = flashprime_tensor_3d(chunk_k, FLASHPRIME_FP32, chunk->num_tokens, 1, QK);
  key_values->v = flashprime_tensor_3d(chunk_v, FLASHPRIME_FP32, chunk->num_tokens, 1, V);
  return FLASHPRIME_OK;
}

int main(void) {
  // All keys are equal, so a query averages the values of the keys that it sees: context values of
  // 1 and new ones of 0 give query i the output 1000 / (1000 + i + 1).
  for (int i = 0; i < ROWS * V; ++i) chunk_v[i] = 1.0f;
  int32_t cu_seqlens[] = {0, TOKENS};
  const int64_t context_lens[] = {CONTEXT};
  flashprime_problem problem = FLASHPRIME_PROBLEM_INIT;
  problem.nope = 16;
  problem.rope = 8;
  problem.v = V;
  problem.dtype = problem.out_dtype = FLASHPRIME_FP32;
  flashprime_prefill_args args = FLASHPRIME_PREFILL_ARGS_INIT;
  args.q = args.k = flashprime_tensor_3d(qk, FLASHPRIME_FP32, TOKENS, 1, QK);
  args.v = flashprime_tensor_3d(v, FLASHPRIME_FP32, TOKENS, 1, V);
  args.out = flashprime_tensor_3d(out, FLASHPRIME_FP32, TOKENS, 1, V);
  args.cu_seqlens_q = args.cu_seqlens_k = flashprime_tensor_1d(cu_seqlens, FLASHPRIME_INT32, 2);
  args.softmax_scale = 0.2f;

  flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
  options.workspace_rows = ROWS;
  flashprime_plan* plan = NULL;
  int chunks = 0;
  int status = flashprime_plan_greedy(context_lens, 1, &options, &plan);
  if (status == FLASHPRIME_OK) {
    status = flashprime_prefill_layer_workspace_bytes(&problem, &args, plan, NULL,
                                                      &args.workspace_bytes);
  }
  char* memory = malloc((size_t)args.workspace_bytes + 256);
  args.workspace = memory + 256 - (uintptr_t)memory % 256;
  if (status == FLASHPRIME_OK) {
    status = flashprime_prefill_layer(&problem, &args, plan, produce, &chunks, NULL, NULL);
  }
  if (status != FLASHPRIME_OK) fprintf(stderr, "%s\n", flashprime_last_error_message());
  free(memory);
  flashprime_plan_destroy(plan);

  float worst = 0.0f;
  for (int i = 0; i < TOKENS; ++i) {
    const float error = out[i * V] - 1000.0f / (float)(1001 + i);
    if (error > worst) worst = error;
    if (-error > worst) worst = -error;
  }
  printf("prefill_layer: %d context chunks, first output %g, worst error %g\n", chunks, out[0],
         worst);
  return status == FLASHPRIME_OK && chunks == 4 && worst < 1e-5f ? 0 : 1;
}
