// SPDX-License-Identifier: Apache-2.0
// Kernels asked for, compiled and loaded from many threads at once.
#include <thread>

#include "jit/loaded_kernels.h"
#include "unit/jit/jit_testing.h"

namespace flashprime {
namespace {

TEST(KernelStoreConcurrency, ThreadsThatLoadTheSameKernelsCompileEachOnce) {
  const TempDir dir;
  fake_nvrtc().compilations = 0;
  fake_nvrtc().delay_ms = 2;
  fake_driver().sm = 90;
  const std::unique_ptr<cuda::Driver> driver = *cuda::Driver::open(FLASHPRIME_FAKE_DRIVER);
  const cuda::DeviceProperties device = *driver->device(0);
  const cuda::Context context = *cuda::primary_context(*driver, device.id);
  unsigned long long context_id = 0;
  ASSERT_EQ(driver->api().cuCtxGetId(context, &context_id), cuda::kSuccess);
  JitOptions options;
  options.cache_dir = dir / "cache";
  options.nvrtc_path = FLASHPRIME_FAKE_NVRTC;
  const auto store = *KernelStore::open(*resolve_settings(options));
  LoadedKernels kernels(store, *driver);

  std::vector<KernelKey> keys;
  for (const bool lse : {false, true}) {
    for (const MaskKind mask : {MaskKind::kFull, MaskKind::kCausal}) {
      keys.push_back(prefill_key("sm_90a", lse, mask));
    }
  }
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const cuda::ContextScope scope(*driver, context);
      for (size_t i = 0; i < 40; ++i) {
        const KernelKey& key = keys[(t + i) % keys.size()];
        const LoadedKernel* found = kernels.find(key, context_id);
        if (found == nullptr) {
          const auto loaded = kernels.load({key}, device);
          ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
          found = *loaded;
        }
        ASSERT_TRUE(found->key == key);
        store->set_freeze(FreezePolicy::kAllow);
        (void)store->counters();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_nvrtc().compilations, 4);
}

}  // namespace
}  // namespace flashprime
