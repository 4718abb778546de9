// SPDX-License-Identifier: Apache-2.0
#include "jit/kernel_store.h"

#include <gmock/gmock.h>

#include <thread>

#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class KernelStoreTest : public ::testing::Test {
 protected:
  KernelStoreTest() {
    FakeNvrtcState& fake = fake_nvrtc();
    fake.compilations = 0;
    fake.delay_ms = 0;
    fake.result = 0;
    fake.salt = 0;
  }

  JitOptions options() {
    JitOptions options;
    options.cache_dir = dir_ / "cache";
    options.nvrtc_path = FLASHPRIME_FAKE_NVRTC;
    options.on_event = [this](const JitEvent& event) {
      const std::lock_guard lock(events_mutex_);
      events_ += event.kind + ": " + event.message + '\n';
    };
    return options;
  }
  static std::shared_ptr<KernelStore> open(const JitOptions& options) {
    StatusOr<JitSettings> settings = resolve_settings(options);
    EXPECT_TRUE(settings.ok()) << settings.status().to_string();
    StatusOr<std::shared_ptr<KernelStore>> store = KernelStore::open(*std::move(settings));
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return *store;
  }
  std::shared_ptr<KernelStore> open() { return open(options()); }
  std::string only_entry() const {
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / "cache")) {
      if (entry.path().extension() == ".fpk") return entry.path().string();
    }
    return "";
  }

  TempDir dir_;
  std::mutex events_mutex_;
  std::string events_;
  const KernelKey key_ = prefill_key("sm_90a");
};

TEST_F(KernelStoreTest, CompilesOnceThenServesFromMemoryThenFromDisk) {
  const auto store = open();
  const StatusOr<Obtained> first = store->obtain(key_);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first->origin, KernelOrigin::kCompiled);
  EXPECT_EQ(first->kernel->report.registers, 42);
  EXPECT_EQ(first->kernel->report.spill_store_bytes, 4);
  EXPECT_EQ(first->kernel->report.spill_load_bytes, 12);
  EXPECT_EQ(first->kernel->report.static_shared_bytes, 16);
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kMemory);
  const StatusOr<Obtained> again = open()->obtain(key_);
  EXPECT_EQ(again->origin, KernelOrigin::kDisk);
  EXPECT_EQ(again->kernel->cubin, first->kernel->cubin);
  EXPECT_EQ(fake_nvrtc().compilations, 1);
}

TEST_F(KernelStoreTest, TellsTheCompilerToLeaveTheProcessAlone) {
  ASSERT_TRUE(open()->obtain(key_).ok());
  EXPECT_STREQ(fake_nvrtc().last_options,
               "--gpu-architecture=sm_90a\n-std=c++20\n-default-device\n"
               "--modify-stack-limit=false\n--minimal\n--ptxas-options=-v\n"
               "--ptxas-options=--warn-on-spills\n--no-cache\n");
}

TEST_F(KernelStoreTest, ManyThreadsShareOneCompilation) {
  fake_nvrtc().delay_ms = 50;
  const auto store = open();
  std::vector<std::thread> threads;
  std::atomic<int> compiled = 0;
  std::atomic<int> shared = 0;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      const StatusOr<Obtained> obtained = store->obtain(key_);
      ASSERT_TRUE(obtained.ok());
      (obtained->origin == KernelOrigin::kCompiled ? compiled : shared)++;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(shared, 15);
  EXPECT_EQ(fake_nvrtc().compilations, 1);
}

TEST_F(KernelStoreTest, AFailureReachesAllWhoWaitAndIsNotRemembered) {
  fake_nvrtc().delay_ms = 50;
  fake_nvrtc().result = 6;
  const auto store = open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Status status = store->obtain(key_).status();
      EXPECT_THAT(status.message(), HasSubstr("the fake was told to fail"));
      EXPECT_THAT(status.message(), HasSubstr("sm80_mla_prefill{"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  fake_nvrtc().result = 0;
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kCompiled);
}

TEST_F(KernelStoreTest, ACancelledCompilationDoesNotCancelTheOthers) {
  fake_nvrtc().delay_ms = 100;
  const auto store = open();
  std::atomic<bool> cancel = false;
  std::thread pilot([&] {
    ObtainOptions how;
    how.cancelled = [&] { return cancel.load(); };
    EXPECT_EQ(store->obtain(key_, how).status().code(), StatusCode::kNotWarm);
  });
  while (fake_nvrtc().running == 0) std::this_thread::yield();
  std::thread waiter([&] { EXPECT_TRUE(store->obtain(key_).ok()); });
  cancel = true;
  pilot.join();
  waiter.join();
  EXPECT_EQ(fake_nvrtc().compilations, 1);
}

TEST_F(KernelStoreTest, HealsADamagedEntryAndSaysSo) {
  ASSERT_TRUE(open()->obtain(key_).ok());
  fs::resize_file(only_entry(), 1000);
  const auto store = open();
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kCompiled);
  EXPECT_EQ(store->counter("miss_damaged"), 1);
  EXPECT_THAT(events_, HasSubstr("quarantined"));
  EXPECT_EQ(open()->obtain(key_)->origin, KernelOrigin::kDisk);
}

TEST_F(KernelStoreTest, FrozenStoresCompileNothing) {
  JitOptions frozen = options();
  frozen.freeze = FreezePolicy::kError;
  const auto store = open(frozen);
  EXPECT_EQ(store->obtain(key_).status().code(), StatusCode::kFrozen);
  EXPECT_EQ(store->counter("refused_late"), 1);
  EXPECT_EQ(fake_nvrtc().compilations, 0);
  store->set_freeze(FreezePolicy::kWarn);
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kCompiled);
  EXPECT_EQ(store->counter("compiled_late"), 1);
  EXPECT_THAT(events_, HasSubstr("compiled_late: compiling is frozen: sm80_mla_prefill{"));
  // What is there is served all the same.
  EXPECT_EQ(open(frozen)->obtain(key_)->origin, KernelOrigin::kDisk);
}

TEST_F(KernelStoreTest, WithoutACompilerServesAnyCompilersKernels) {
  ASSERT_TRUE(open()->obtain(key_).ok());
  JitOptions bare = options();
  bare.nvrtc_path = dir_ / "no_nvrtc.so";
  const auto store = open(bare);
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kDisk);
  const Status missing = store->obtain(prefill_key("sm_90a", true)).status();
  EXPECT_EQ(missing.code(), StatusCode::kNoCompiler);
  EXPECT_THAT(missing.message(), HasSubstr(dir_ / "no_nvrtc.so"));
  EXPECT_THAT(missing.message(), HasSubstr(dir_ / "cache"));
  EXPECT_THAT(missing.message(), HasSubstr("return_lse = true"));
}

TEST_F(KernelStoreTest, RefusesAnArchitectureThatItsCompilerDoesNotKnow) {
  const Status status = open()->obtain(prefill_key("sm_103a")).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("sm_103a: got NVRTC 13.7"));
}

TEST_F(KernelStoreTest, AnUnwritableCacheMeansMemoryOnly) {
  JitOptions broken = options();
  write_bytes(dir_ / "file", "");
  broken.cache_dir = dir_ / "file/cache";
  const auto store = open(broken);
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kCompiled);
  EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kMemory);
  EXPECT_EQ(store->counter("publish_failed"), 1);
  EXPECT_THAT(events_, HasSubstr("publish_failed"));

  JitOptions off = options();
  off.cache_dir = "off";
  EXPECT_EQ(open(off)->obtain(key_)->origin, KernelOrigin::kCompiled);
}

TEST_F(KernelStoreTest, LooksIntoBundlesBeforeFolders) {
  const StatusOr<KernelCache> cache = KernelCache::open(options());
  const StatusOr<KernelPlan> plan = cache->plan({.dims = {}, .archs = {"sm_90a"}, .all = true});
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  ASSERT_TRUE(cache->pack(*plan, dir_ / "a.fpb").ok());
  JitOptions bundled = options();
  bundled.cache_dir = "off";
  bundled.nvrtc_path = dir_ / "no_nvrtc.so";
  bundled.bundles = {{dir_ / "a.fpb"}};
  EXPECT_EQ(open(bundled)->obtain(key_)->origin, KernelOrigin::kBundle);
  // A bundle that is no bundle is an error at once: somebody counts on it.
  write_bytes(dir_ / "b.fpb", "nonsense");
  bundled.bundles = {{dir_ / "b.fpb"}};
  EXPECT_EQ(KernelCache::open(bundled).status().code(), StatusCode::kFormat);
}

TEST_F(KernelStoreTest, CompilesWithoutTheLockOnceItHasWaitedLongEnough) {
  JitOptions impatient = options();
  impatient.lock_wait_seconds = 0.05;
  const auto store = open(impatient);
  const std::string id = *store->kernel_id(key_);
  const KernelLock held = store->writable()->try_lock(id);
  ASSERT_EQ(held.state(), KernelLock::State::kHeld);
  const StatusOr<Obtained> obtained = store->obtain(key_);
  ASSERT_TRUE(obtained.ok());
  EXPECT_EQ(obtained->origin, KernelOrigin::kCompiled);
  EXPECT_GE(obtained->lock_ms, 50.0);
  EXPECT_EQ(store->counter("lock_given_up"), 1);
}

TEST_F(KernelStoreTest, TakesTheEntryThatAnotherProcessPublishesMeanwhile) {
  const auto store = open();
  const auto other = open();
  const std::string id = *store->kernel_id(key_);
  auto held = std::make_unique<KernelLock>(store->writable()->try_lock(id));
  std::thread waiter([&] {
    const StatusOr<Obtained> obtained = other->obtain(key_);
    ASSERT_TRUE(obtained.ok());
    EXPECT_EQ(obtained->origin, KernelOrigin::kWaited);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CompiledKernel kernel = sample_kernel();
  kernel.kernel_id = id;
  kernel.compiler_id = (*store->compiler())->id();
  kernel.key = key_.text();
  ASSERT_TRUE(store->writable()->publish(kernel).ok());
  held.reset();
  waiter.join();
  EXPECT_EQ(fake_nvrtc().compilations, 0);
}

TEST_F(KernelStoreTest, AnEditedKernelIsAnotherKernel) {
  fs::copy(FLASHPRIME_SOURCE_DIR "/kernels", dir_ / "kernels", fs::copy_options::recursive);
  JitOptions editing = options();
  editing.kernel_dir = dir_ / "kernels";
  const auto store = open(editing);
  const std::string before = *store->kernel_id(key_);
  EXPECT_EQ(before, *open()->kernel_id(key_));
  const std::string file = dir_ / "kernels/sm80_mla_prefill.cuh";
  write_bytes(file, read_bytes(file) + "// edited\n");
  EXPECT_NE(*store->kernel_id(key_), before);
  EXPECT_EQ(store->obtain(key_)->kernel->kernel_id, *store->kernel_id(key_));
}

TEST_F(KernelStoreTest, WorksInChildrenForkedBeforeAndAfterTheFirstCompilation) {
  const auto store = open();
  const KernelKey other = prefill_key("sm_90a", true);
  EXPECT_EQ(in_child([&] {
              const StatusOr<Obtained> obtained = store->obtain(other);
              ASSERT_TRUE(obtained.ok());
              EXPECT_EQ(obtained->origin, KernelOrigin::kCompiled);
            }),
            0);
  ASSERT_TRUE(store->obtain(key_).ok());
  EXPECT_EQ(in_child([&] {
              EXPECT_EQ(store->obtain(key_)->origin, KernelOrigin::kMemory);
              EXPECT_EQ(store->obtain(other)->origin, KernelOrigin::kDisk);
            }),
            0);
}

TEST_F(KernelStoreTest, DumpsWhatItCompiles) {
  JitOptions dumping = options();
  dumping.dump_dir = dir_ / "dump";
  const auto store = open(dumping);
  ASSERT_TRUE(store->obtain(key_).ok());
  const std::string base = dir_ / "dump/" + *store->kernel_id(key_);
  EXPECT_THAT(read_bytes(base + ".cu"), HasSubstr("flashprime_kernel"));
  EXPECT_THAT(read_bytes(base + ".log"), HasSubstr("Used 42 registers"));
  EXPECT_FALSE(read_bytes(base + ".cubin").empty());
}

TEST_F(KernelStoreTest, WarmupReportsEveryKernelAndAllFailuresTogether) {
  const StatusOr<KernelCache> cache = KernelCache::open(options());
  const StatusOr<KernelPlan> plan = cache->plan({.dims = {}, .archs = {"sm_90a", "sm_103a"}});
  int64_t done = 0;
  WarmupOptions warmup;
  warmup.on_progress = [&](const WarmupProgress& progress) { done = progress.done; };
  const StatusOr<WarmupReport> report = cache->warmup(*plan, warmup);
  ASSERT_TRUE(report.ok());
  const auto half = static_cast<int64_t>(plan->kernels.size() / 2);
  EXPECT_EQ(report->count(KernelOrigin::kCompiled), half);
  EXPECT_EQ(report->count(KernelOrigin::kFailed), half);
  EXPECT_EQ(done, 2 * half);
  EXPECT_FALSE(report->complete());
  EXPECT_THAT(report->status.message(),
              HasSubstr(std::to_string(half) + " of " + std::to_string(2 * half)));
  const StatusOr<KernelPlan> good = cache->plan({.dims = {}, .archs = {"sm_90a"}});
  EXPECT_TRUE(cache->warmup(*good)->complete());
  EXPECT_EQ(cache->warmup(*good)->count(KernelOrigin::kMemory), half);
  // The plan survives a file.
  const StatusOr<KernelPlan> read = parse_plan(good->to_text());
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->kernels.size(), good->kernels.size());
  for (size_t i = 0; i < read->kernels.size(); ++i) {
    EXPECT_EQ(read->kernels[i].kernel_id, good->kernels[i].kernel_id);
  }
}

TEST_F(KernelStoreTest, WarmupHasADryRunADeadlineAndACancel) {
  const StatusOr<KernelCache> cache = KernelCache::open(options());
  const StatusOr<KernelPlan> plan = cache->plan({.dims = {}, .archs = {"sm_90a"}});
  const auto all = static_cast<int64_t>(plan->kernels.size());
  WarmupOptions dry;
  dry.mode = WarmupMode::kDryRun;
  EXPECT_EQ(cache->warmup(*plan, dry)->count(KernelOrigin::kSkipped), all);
  EXPECT_EQ(fake_nvrtc().compilations, 0);

  fake_nvrtc().delay_ms = 1000;
  WarmupOptions late;
  late.deadline_seconds = 0.05;
  const StatusOr<WarmupReport> report = cache->warmup(*plan, late);
  EXPECT_EQ(report->count(KernelOrigin::kSkipped), all);
  EXPECT_TRUE(report->status.ok());
  EXPECT_FALSE(report->complete());
  EXPECT_LT(report->wall_ms, 900.0);

  WarmupOptions cancelled;
  cancelled.cancelled = [] { return true; };
  EXPECT_EQ(cache->warmup(*plan, cancelled)->count(KernelOrigin::kSkipped), all);
  fake_nvrtc().delay_ms = 0;
  WarmupOptions force;
  ASSERT_TRUE(cache->warmup(*plan).ok());
  force.mode = WarmupMode::kForce;
  EXPECT_EQ(cache->warmup(*plan, force)->count(KernelOrigin::kCompiled), all);
}

TEST_F(KernelStoreTest, BundlesOfTwoBuildsAreTheSameBytes) {
  for (const char* name : {"a", "b"}) {
    JitOptions separate = options();
    separate.cache_dir = dir_ / name;
    const StatusOr<KernelCache> cache = KernelCache::open(separate);
    const StatusOr<KernelPlan> plan = cache->plan({.dims = {}, .archs = {"sm_90a", "sm_80"}});
    WarmupOptions how;
    how.threads = name[0] == 'a' ? 1 : 4;
    ASSERT_TRUE(cache->pack(*plan, dir_ / (std::string(name) + ".fpb"), how)->complete());
  }
  EXPECT_EQ(read_bytes(dir_ / "a.fpb"), read_bytes(dir_ / "b.fpb"));
}

TEST_F(KernelStoreTest, BundlesSayWhatTheyLackAndFillACache) {
  const StatusOr<KernelCache> cache = KernelCache::open(options());
  const StatusOr<KernelPlan> small = cache->plan({.dims = {}, .archs = {"sm_90a"}});
  const StatusOr<KernelPlan> large = cache->plan({.dims = {}, .archs = {"sm_90a"}, .all = true});
  ASSERT_TRUE(cache->pack(*small, dir_ / "a.fpb").ok());
  EXPECT_TRUE(missing_from_bundle(dir_ / "a.fpb", *small)->empty());
  const auto missing = missing_from_bundle(dir_ / "a.fpb", *large);
  ASSERT_EQ(missing->size(), large->kernels.size() - small->kernels.size());
  EXPECT_THAT(missing->front().key, HasSubstr("kernel = sm80_mla_prefill"));

  JitOptions fresh = options();
  fresh.cache_dir = dir_ / "fresh";
  EXPECT_EQ(*KernelCache::open(fresh)->unpack(dir_ / "a.fpb"),
            static_cast<int64_t>(small->kernels.size()));
  const KernelKey packed = *parse_kernel_key(small->kernels.front().key);
  EXPECT_EQ(open(fresh)->obtain(packed)->origin, KernelOrigin::kDisk);
}

}  // namespace
}  // namespace flashprime
