// SPDX-License-Identifier: Apache-2.0
// The C twins of jit.h against the C++ calls, with a compiler that takes no time.
#include <gmock/gmock.h>

#include <cmath>

#include "flashprime/c_api.h"
#include "unit/jit/jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CApiKernels : public ::testing::Test {
 protected:
  CApiKernels() {
    fake_nvrtc().compilations = 0;
    fake_nvrtc().delay_ms = 0;
    fake_nvrtc().result = 0;
    fake_nvrtc().salt = 0;
    options_.cache_dir = folder_.c_str();
    options_.nvrtc_path = FLASHPRIME_FAKE_NVRTC;
    plan_options_.archs = "sm_90a,sm_80";
  }
  ~CApiKernels() override {
    flashprime_kernel_plan_destroy(plan_);
    flashprime_cache_close(cache_);
  }
  void open() {
    ASSERT_EQ(flashprime_cache_open(&options_, &cache_), FLASHPRIME_OK)
        << flashprime_last_error_message();
    ASSERT_EQ(flashprime_kernel_plan_create(cache_, &plan_options_, &plan_), FLASHPRIME_OK)
        << flashprime_last_error_message();
  }
  int64_t planned() const {
    return static_cast<int64_t>(flashprime_kernel_plan_num_kernels(plan_));
  }

  TempDir dir_;
  const std::string folder_ = dir_ / "cache";
  flashprime_cache_options options_ = FLASHPRIME_CACHE_OPTIONS_INIT;
  flashprime_kernel_plan_options plan_options_ = FLASHPRIME_KERNEL_PLAN_OPTIONS_INIT;
  flashprime_cache* cache_ = nullptr;
  flashprime_kernel_plan* plan_ = nullptr;
  flashprime_warmup_report report_ = FLASHPRIME_WARMUP_REPORT_INIT;
};

TEST_F(CApiKernels, PlansWhatTheCppCallPlans) {
  plan_options_.e4m3_output = 1;
  plan_options_.all = 1;
  plan_options_.dtype = FLASHPRIME_FP16;
  open();
  const StatusOr<KernelCache> cache = KernelCache::open({.cache_dir = "off"});
  const StatusOr<KernelPlan> plan = cache->plan({.dims = {128, 64, 128},
                                                 .dtype = Dtype::kFp16,
                                                 .archs = {"sm_90a", "sm_80"},
                                                 .e4m3_output = true,
                                                 .all = true});
  ASSERT_EQ(flashprime_kernel_plan_num_kernels(plan_), plan->kernels.size());
  for (size_t i = 0; i < plan->kernels.size(); ++i) {
    flashprime_planned_kernel kernel = FLASHPRIME_PLANNED_KERNEL_INIT;
    ASSERT_EQ(flashprime_kernel_plan_kernel(plan_, i, &kernel), FLASHPRIME_OK);
    EXPECT_EQ(kernel.kernel, plan->kernels[i].kernel);
    EXPECT_EQ(kernel.arch, plan->kernels[i].arch);
    EXPECT_EQ(kernel.key, plan->kernels[i].key);
    EXPECT_EQ(kernel.kernel_id, plan->kernels[i].kernel_id);
  }
  flashprime_planned_kernel kernel = FLASHPRIME_PLANNED_KERNEL_INIT;
  EXPECT_EQ(flashprime_kernel_plan_kernel(plan_, plan->kernels.size(), &kernel),
            FLASHPRIME_E_RANGE);
}

TEST_F(CApiKernels, SaysWhatIsSkippedAndWhy) {
  plan_options_.nope = 120;
  open();
  ASSERT_GT(flashprime_kernel_plan_num_skipped(plan_), 0u);
  flashprime_skipped_kernel skipped = FLASHPRIME_SKIPPED_KERNEL_INIT;
  ASSERT_EQ(flashprime_kernel_plan_skipped(plan_, 0, &skipped), FLASHPRIME_OK);
  EXPECT_THAT(skipped.what, HasSubstr("sm80_mla_prefill"));
  EXPECT_STREQ(skipped.arch, "sm_90a");
  EXPECT_THAT(skipped.reason, HasSubstr("120/64/128"));
}

TEST_F(CApiKernels, WarmsUpOnceAndThenFindsEverything) {
  open();
  ASSERT_EQ(flashprime_warmup(cache_, plan_, nullptr, &report_), FLASHPRIME_OK)
      << flashprime_last_error_message();
  EXPECT_EQ(report_.compiled, planned());
  EXPECT_EQ(report_.compiled, fake_nvrtc().compilations);
  EXPECT_EQ(report_.complete, 1);
  EXPECT_GT(report_.cubin_bytes, 0);
  EXPECT_GT(report_.peak_rss_bytes, 0);
  EXPECT_GT(report_.wall_ms, 0.0);
  ASSERT_EQ(flashprime_warmup(cache_, plan_, nullptr, &report_), FLASHPRIME_OK);
  EXPECT_EQ(report_.memory, planned());

  flashprime_cache* again = nullptr;
  ASSERT_EQ(flashprime_cache_open(&options_, &again), FLASHPRIME_OK);
  ASSERT_EQ(flashprime_warmup(again, plan_, nullptr, &report_), FLASHPRIME_OK);
  EXPECT_EQ(report_.disk, planned());
  flashprime_cache_close(again);
}

struct Seen {
  int64_t finished = 0;
  int64_t total = 0;
  int32_t origin = -1;
  std::string last;
  int64_t stop_after = 1000;
};

int see(void* user, const flashprime_warmup_progress* progress) {
  auto* seen = static_cast<Seen*>(user);
  EXPECT_EQ(progress->struct_size, sizeof(flashprime_warmup_progress));
  seen->total = progress->total;
  if (progress->last != nullptr) {
    ++seen->finished;
    seen->origin = progress->last_origin;
    seen->last = progress->last->arch;
  }
  return seen->finished >= seen->stop_after ? 1 : 0;
}

TEST_F(CApiKernels, ShowsProgressAndIsCancelledByIt) {
  open();
  Seen seen;
  flashprime_warmup_options how = FLASHPRIME_WARMUP_OPTIONS_INIT;
  how.threads = 1;
  how.on_progress = see;
  how.on_progress_user = &seen;
  ASSERT_EQ(flashprime_warmup(cache_, plan_, &how, nullptr), FLASHPRIME_OK);
  EXPECT_EQ(seen.finished, planned());
  EXPECT_EQ(seen.total, planned());
  EXPECT_EQ(seen.origin, FLASHPRIME_ORIGIN_COMPILED);
  EXPECT_EQ(seen.last, "sm_80");

  seen = {};
  seen.stop_after = 1;
  how.mode = FLASHPRIME_WARMUP_FORCE;
  fake_nvrtc().delay_ms = 20;
  ASSERT_EQ(flashprime_warmup(cache_, plan_, &how, &report_), FLASHPRIME_OK);
  fake_nvrtc().delay_ms = 0;
  EXPECT_EQ(report_.complete, 0);
  EXPECT_GT(report_.skipped, 0);
  EXPECT_GE(report_.compiled, 1);
}

TEST_F(CApiKernels, FailuresComeBackAsOneErrorBesideTheReport) {
  open();
  ASSERT_EQ(flashprime_cache_set_freeze(cache_, FLASHPRIME_FREEZE_ERROR), FLASHPRIME_OK);
  EXPECT_EQ(flashprime_warmup(cache_, plan_, nullptr, &report_), FLASHPRIME_E_FROZEN);
  EXPECT_EQ(report_.failed, planned());
  EXPECT_EQ(report_.complete, 0);
  EXPECT_THAT(flashprime_last_error_message(), HasSubstr("kernels failed"));
  EXPECT_EQ(flashprime_cache_set_freeze(cache_, 3), FLASHPRIME_E_UNSUPPORTED);
}

TEST_F(CApiKernels, PacksABundleThatCoversItsPlanAndServesWithoutACompiler) {
  open();
  const std::string bundle = dir_ / "kernels.fpb";
  ASSERT_EQ(flashprime_pack_bundle(cache_, plan_, bundle.c_str(), nullptr, &report_), FLASHPRIME_OK)
      << flashprime_last_error_message();
  int64_t missing = -1;
  ASSERT_EQ(flashprime_missing_from_bundle(bundle.c_str(), plan_, &missing), FLASHPRIME_OK);
  EXPECT_EQ(missing, 0);
  plan_options_.all = 1;
  flashprime_kernel_plan* more = nullptr;
  ASSERT_EQ(flashprime_kernel_plan_create(cache_, &plan_options_, &more), FLASHPRIME_OK);
  ASSERT_EQ(flashprime_missing_from_bundle(bundle.c_str(), more, &missing), FLASHPRIME_OK);
  EXPECT_EQ(missing, 2);
  flashprime_kernel_plan_destroy(more);
  EXPECT_EQ(flashprime_missing_from_bundle((dir_ / "none").c_str(), plan_, &missing),
            FLASHPRIME_E_IO);

  flashprime_cache_options elsewhere = FLASHPRIME_CACHE_OPTIONS_INIT;
  elsewhere.cache_dir = "off";
  elsewhere.nvrtc_path = "/no/nvrtc.so";
  elsewhere.bundles = bundle.c_str();
  flashprime_cache* cache = nullptr;
  ASSERT_EQ(flashprime_cache_open(&elsewhere, &cache), FLASHPRIME_OK);
  ASSERT_EQ(flashprime_warmup(cache, plan_, nullptr, &report_), FLASHPRIME_OK);
  EXPECT_EQ(report_.bundle, planned());
  flashprime_cache_close(cache);
}

TEST_F(CApiKernels, TellsEventsToTheCallback) {
  std::string kinds;
  options_.freeze = FLASHPRIME_FREEZE_WARN;
  options_.on_event = [](void* user, const char* kind, const char*) {
    *static_cast<std::string*>(user) += std::string(kind) + ' ';
  };
  options_.on_event_user = &kinds;
  open();
  flashprime_warmup_options how = FLASHPRIME_WARMUP_OPTIONS_INIT;
  how.threads = 1;
  ASSERT_EQ(flashprime_warmup(cache_, plan_, &how, nullptr), FLASHPRIME_OK);
  EXPECT_THAT(kinds, HasSubstr("compiled_late "));
}

TEST_F(CApiKernels, RefusesWhatMeansNothingAndHandsOutNoHandle) {
  const auto refuse = [&](int code, const char* message, auto change) {
    flashprime_cache_options options = options_;
    change(options);
    flashprime_cache* cache = reinterpret_cast<flashprime_cache*>(&options);
    EXPECT_EQ(flashprime_cache_open(&options, &cache), code);
    EXPECT_EQ(cache, nullptr);
    EXPECT_THAT(flashprime_last_error_message(), HasSubstr(message));
  };
  refuse(FLASHPRIME_E_SHAPE, "struct_size", [](auto& o) { o.struct_size = 8; });
  refuse(FLASHPRIME_E_FORMAT, "CACHE_DIR", [](auto& o) { o.cache_dir = "relative"; });
  refuse(FLASHPRIME_E_FORMAT, "LOG", [](auto& o) { o.log = "loud"; });
  refuse(FLASHPRIME_E_FORMAT, "MAX_MB", [](auto& o) { o.max_megabytes = 0; });
  refuse(FLASHPRIME_E_FORMAT, "LOCK_WAIT", [](auto& o) { o.lock_wait_seconds = std::nan(""); });
  refuse(FLASHPRIME_E_UNSUPPORTED, "freeze", [](auto& o) { o.freeze = 9; });
  EXPECT_EQ(flashprime_cache_open(&options_, nullptr), FLASHPRIME_E_NULL);

  open();
  flashprime_kernel_plan* plan = nullptr;
  EXPECT_EQ(flashprime_kernel_plan_create(nullptr, &plan_options_, &plan), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_kernel_plan_create(cache_, nullptr, &plan), FLASHPRIME_E_NULL);
  plan_options_.archs = nullptr;
  EXPECT_EQ(flashprime_kernel_plan_create(cache_, &plan_options_, &plan), FLASHPRIME_E_ARCH);
  plan_options_.archs = "sm_9";
  EXPECT_EQ(flashprime_kernel_plan_create(cache_, &plan_options_, &plan), FLASHPRIME_E_FORMAT);
  plan_options_.dtype = 77;
  EXPECT_EQ(flashprime_kernel_plan_create(cache_, &plan_options_, &plan), FLASHPRIME_E_UNSUPPORTED);
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(flashprime_warmup(nullptr, plan_, nullptr, nullptr), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_warmup(cache_, nullptr, nullptr, nullptr), FLASHPRIME_E_NULL);
  flashprime_warmup_options how = FLASHPRIME_WARMUP_OPTIONS_INIT;
  how.mode = 4;
  EXPECT_EQ(flashprime_warmup(cache_, plan_, &how, nullptr), FLASHPRIME_E_UNSUPPORTED);
  how = FLASHPRIME_WARMUP_OPTIONS_INIT;
  how.rank = 1;
  EXPECT_EQ(flashprime_warmup(cache_, plan_, &how, nullptr), FLASHPRIME_E_RANGE);
  EXPECT_EQ(flashprime_pack_bundle(cache_, plan_, nullptr, nullptr, nullptr), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_cache_set_freeze(nullptr, 0), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_cache_set_default(nullptr), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_kernel_plan_num_kernels(nullptr), 0u);
  EXPECT_EQ(flashprime_kernel_plan_num_skipped(nullptr), 0u);
}

}  // namespace
}  // namespace flashprime
