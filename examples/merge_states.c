// SPDX-License-Identifier: Apache-2.0
// Two attention results over different keys become the result over all of them.
#include <math.h>
#include <stdio.h>

#include "flashprime/c_api.h"

int main(void) {
  // Two tokens, one head, one value. Token 0: weights 1 and 3 (LSE 0 and ln 3), so 1/4 of 10 and
  // 3/4 of 2. Token 1 saw no earlier key (LSE -inf): what stands in its prefix does not matter.
  float prefix[] = {10.0f, 777.0f}, prefix_lse[] = {0.0f, -INFINITY};
  float suffix[] = {2.0f, 5.0f}, suffix_lse[] = {1.0986123f, 0.25f};
  float lse[2];

  flashprime_merge_args args = FLASHPRIME_MERGE_ARGS_INIT;
  args.prefix_out = flashprime_tensor_3d(prefix, FLASHPRIME_FP32, 2, 1, 1);
  args.prefix_lse = flashprime_tensor_2d(prefix_lse, FLASHPRIME_FP32, 1, 2);
  args.suffix_out = flashprime_tensor_3d(suffix, FLASHPRIME_FP32, 2, 1, 1);
  args.suffix_lse = flashprime_tensor_2d(suffix_lse, FLASHPRIME_FP32, 1, 2);
  args.out = args.prefix_out;  // in place
  args.lse = flashprime_tensor_2d(lse, FLASHPRIME_FP32, 1, 2);
  if (flashprime_merge_states(&args, NULL, NULL) != FLASHPRIME_OK) {
    fprintf(stderr, "%s\n", flashprime_last_error_message());
    return 1;
  }

  const float off_by = prefix[0] > 4.0f ? prefix[0] - 4.0f : 4.0f - prefix[0];
  const int right = off_by < 1e-5f && prefix[1] == 5.0f && lse[1] == 0.25f;
  printf("merge_states: %g and %g, LSE %g and %g%s\n", prefix[0], prefix[1], lse[0], lse[1],
         right ? "" : ", WRONG");
  return right ? 0 : 1;
}
