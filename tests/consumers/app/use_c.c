/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "flashprime/c_api.h"

int main(void) {
  const int64_t context_lens[] = {1025};
  flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
  flashprime_plan* plan = NULL;
  options.workspace_rows = 1024;
  const int status = flashprime_plan_greedy(context_lens, 1, &options, &plan);
  const size_t chunks = flashprime_plan_num_chunks(plan);
  flashprime_plan_destroy(plan);
  const int refused = flashprime_plan_greedy(NULL, 1, &options, &plan);
  printf("FlashPrime %s, C: %s, %d chunks; then %s: %s\n", flashprime_version(),
         flashprime_status_name(status), (int)chunks, flashprime_status_name(refused),
         flashprime_last_error_message());
  return status == FLASHPRIME_OK && chunks == 2 && refused == FLASHPRIME_E_NULL &&
                 strlen(flashprime_last_error_message()) > 0
             ? 0
             : 1;
}
