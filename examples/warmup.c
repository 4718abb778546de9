// SPDX-License-Identifier: Apache-2.0
// Compiles DeepSeek-V3's kernels for an H100 before the first request: no GPU is needed, but NVRTC.
#include <stdio.h>

#include "flashprime/c_api.h"

static int show(void* user, const flashprime_warmup_progress* progress) {
  (void)user;
  if (progress->last != NULL) {
    printf("%d/%d %s for %s\n", (int)progress->done, (int)progress->total, progress->last->kernel,
           progress->last->arch);
  }
  return 0;  // anything else cancels
}

int main(void) {
  flashprime_cache* cache = NULL;
  flashprime_kernel_plan* plan = NULL;
  flashprime_cache_options where = FLASHPRIME_CACHE_OPTIONS_INIT;
  where.cache_dir = "off";  // only for this example: keeps its kernels in memory
  flashprime_kernel_plan_options wanted = FLASHPRIME_KERNEL_PLAN_OPTIONS_INIT;
  wanted.archs = "sm_90a";
  flashprime_warmup_options how = FLASHPRIME_WARMUP_OPTIONS_INIT;
  how.on_progress = show;
  flashprime_warmup_report report = FLASHPRIME_WARMUP_REPORT_INIT;

  int status = flashprime_cache_open(&where, &cache);
  if (status == FLASHPRIME_OK) status = flashprime_kernel_plan_create(cache, &wanted, &plan);
  if (status == FLASHPRIME_OK) status = flashprime_warmup(cache, plan, &how, &report);
  // From here on a request that would have to wait for a compiler fails instead.
  if (status == FLASHPRIME_OK) status = flashprime_cache_set_freeze(cache, FLASHPRIME_FREEZE_ERROR);
  const int planned = (int)flashprime_kernel_plan_num_kernels(plan);
  flashprime_kernel_plan_destroy(plan);
  flashprime_cache_close(cache);

  if (status == FLASHPRIME_E_NO_COMPILER) {
    printf("warmup: %d kernels planned, no NVRTC on this machine\n", planned);
    return 0;
  }
  if (status != FLASHPRIME_OK) {
    fprintf(stderr, "%s\n", flashprime_last_error_message());
    return 1;
  }
  printf("warmup: %d of %d kernels compiled in %.0f ms%s\n", (int)report.compiled, planned,
         report.wall_ms, report.complete ? "" : ", NOT ALL");
  return report.complete ? 0 : 1;
}
