// SPDX-License-Identifier: Apache-2.0
// Cuts the context of five requests into chunks that fit a workspace of 1,024 rows.
#include <stdio.h>

#include "flashprime/c_api.h"

int main(void) {
  const int64_t context_lens[] = {1000, 0, 300, 5000, 200};
  flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
  options.workspace_rows = 1024;
  flashprime_plan* plan = NULL;
  if (flashprime_plan_greedy(context_lens, 5, &options, &plan) != FLASHPRIME_OK) {
    fprintf(stderr, "%s\n", flashprime_last_error_message());
    return 1;
  }

  int64_t tokens = 0;
  int right = flashprime_plan_num_chunks(plan) == 7;
  for (size_t i = 0; i < flashprime_plan_num_chunks(plan); ++i) {
    flashprime_chunk chunk = FLASHPRIME_CHUNK_INIT;
    right = right && flashprime_plan_chunk(plan, i, &chunk) == FLASHPRIME_OK &&
            chunk.num_tokens <= options.workspace_rows;
    printf("chunk %d: %lld tokens of requests [%lld, %lld)\n", (int)i, (long long)chunk.num_tokens,
           (long long)chunk.request_begin, (long long)chunk.request_end);
    tokens += chunk.num_tokens;
  }
  flashprime_plan_destroy(plan);
  right = right && tokens == 1000 + 300 + 5000 + 200;
  printf("plan_context: %lld tokens%s\n", (long long)tokens, right ? "" : ", WRONG");
  return right ? 0 : 1;
}
