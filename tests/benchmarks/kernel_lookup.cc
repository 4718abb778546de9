// SPDX-License-Identifier: Apache-2.0
// Finding a kernel that is warmed: from traits to its key, from the key to its function. With a
// driver and a compiler that only take notes, so that it runs anywhere. Prints CSV: what, value,
// unit.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "cuda/driver.h"
#include "jit/loaded_kernels.h"
#include "jit/plan_kernels.h"
#include "select/kernel_keys_of.h"

namespace {

using namespace flashprime;  // NOLINT: a program of one file
using Clock = std::chrono::steady_clock;

// Median over rounds of the nanoseconds that one of `calls` calls takes.
template <typename Call>
double nanoseconds(int calls, const Call& call) {
  std::vector<double> rounds;
  for (int round = 0; round < 15; ++round) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) call(i);
    rounds.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
                     calls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + 7, rounds.end());
  return rounds[7];
}

int run() {
  JitOptions options;
  options.cache_dir = "off";
  options.nvrtc_path = FLASHPRIME_FAKE_NVRTC;
  const auto store = *KernelStore::open(*resolve_settings(options));
  const auto driver = *cuda::Driver::open(FLASHPRIME_FAKE_DRIVER);
  const cuda::DeviceProperties device = *driver->device(0);
  const cuda::ContextScope scope(*driver, *cuda::primary_context(*driver, device.id));
  unsigned long long context = 0;
  cuda::Context current = nullptr;
  driver->api().cuCtxGetCurrent(&current);
  driver->api().cuCtxGetId(current, &context);

  LoadedKernels kernels(store, *driver);
  const KernelSelection plan = *enumerate_kernels(
      {.dims = {128, 64, 128}, .archs = {"sm_90a", "sm_80"}, .e4m3_output = true});
  for (const KernelKey& key : plan.keys) {
    if (!kernels.load({key}, device).ok()) return 1;
  }
  const Arch arch = *parse_arch("sm_90a");
  PrefillTraits traits;
  int64_t found = 0;
  constexpr int kCalls = 1'000'000;
  const size_t count = plan.keys.size();
  const double by_key = nanoseconds(kCalls, [&](int i) {
    found += kernels.find(plan.keys[static_cast<size_t>(i) % count], context) != nullptr;
  });
  const double by_traits = nanoseconds(kCalls, [&](int i) {
    traits.return_lse = i % 2 == 0;
    found += kernels.find(prefill_key(traits, arch), context) != nullptr;
  });
  const double in_store = nanoseconds(kCalls / 10, [&](int i) {
    found += store->obtain(plan.keys[static_cast<size_t>(i) % count]).ok();
  });
  if (found != 15 * (2 * int64_t{kCalls} + kCalls / 10)) return 1;
  std::printf("loaded kernel by key,%.1f,ns\n", by_key);
  std::printf("loaded kernel by traits,%.1f,ns\n", by_traits);
  std::printf("compiled kernel in memory by key,%.1f,ns\n", in_store);
  return 0;
}

}  // namespace

int main() {
  return run();
}
