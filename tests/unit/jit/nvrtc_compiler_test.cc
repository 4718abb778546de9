// SPDX-License-Identifier: Apache-2.0
// The real compiler. Skipped where NVRTC is not installed; ./check installs it.
#include "jit/nvrtc_compiler.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <chrono>

#include "jit/cubin.h"
#include "jit/kernel_store.h"
#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

class RealNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = FLASHPRIME_TEST_NVRTC;
    const StatusOr<std::shared_ptr<const NvrtcCompiler>> loaded = NvrtcCompiler::load({path, {}});
    if (path.empty() && !loaded.ok()) GTEST_SKIP() << loaded.status().message();
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    nvrtc_ = *loaded;
  }

  std::shared_ptr<const NvrtcCompiler> nvrtc_;
};

TEST_F(RealNvrtc, CompilesEachKernelStraightToACubinWithoutADriver) {
  // Whoever asks the loader for the driver from here on gets this one, and it takes notes.
  FakeDriverState& driver = fake_driver();
  driver.init_calls = 0;
  rlimit before = {};
  getrlimit(RLIMIT_STACK, &before);
  const Arch arch = *parse_arch("sm_90a");
  for (const KernelKey& key : {prefill_key("sm_90a", true), KernelKey{MergeStatesKernel{}, arch},
                               KernelKey{CombineSplitsKernel{}, arch}}) {
    const StatusOr<KernelSource> source = make_kernel_source(key, "");
    ASSERT_TRUE(source.ok());
    const StatusOr<CompileOutput> output = nvrtc_->compile(*source, arch, true);
    ASSERT_TRUE(output.ok()) << output.status().message();
    EXPECT_TRUE(check_cubin(output->cubin, arch, kEntryName, output->report.registers).ok());
    EXPECT_GT(output->report.registers, 0);
    EXPECT_THAT(output->ptx, HasSubstr(".target sm_90a"));
    EXPECT_THAT(output->log, HasSubstr("Used "));
  }
  rlimit after = {};
  getrlimit(RLIMIT_STACK, &after);
  EXPECT_EQ(driver.init_calls, 0);
  EXPECT_EQ(before.rlim_cur, after.rlim_cur);
}

TEST_F(RealNvrtc, MakesTheSameBytesTwice) {
  const KernelKey key{MergeStatesKernel{}, *parse_arch("sm_80")};
  const KernelSource source = *make_kernel_source(key, "");
  const StatusOr<CompileOutput> first = nvrtc_->compile(source, key.arch, false);
  const StatusOr<CompileOutput> second = nvrtc_->compile(source, key.arch, false);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->cubin, second->cubin);
}

TEST_F(RealNvrtc, RefusesAKernelThatIsNotWhatTheHostAssumes) {
  const KernelKey key = prefill_key("sm_90a");
  KernelSource source = *make_kernel_source(key, "");
  for (const char* wrong : {"kThreads == 128", "kSharedBytes == 110592", "(PrefillParams) == "}) {
    KernelSource changed = source;
    const size_t at = changed.unit.find(wrong);
    ASSERT_NE(at, std::string::npos) << wrong;
    changed.unit.insert(changed.unit.find(");", at), 1, '1');
    const Status status = nvrtc_->compile(changed, key.arch, false).status();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("static assertion failed")) << wrong;
  }
}

TEST_F(RealNvrtc, ReportsErrorsWithFileAndLine) {
  KernelSource source{"int x = ;\n", {}};
  const Status status = nvrtc_->compile(source, *parse_arch("sm_90a"), false).status();
  EXPECT_THAT(status.message(), HasSubstr("flashprime_kernel.cu(1)"));
}

TEST_F(RealNvrtc, StopsWhenCancelled) {
  const KernelKey key = prefill_key("sm_90a");
  const KernelSource source = *make_kernel_source(key, "");
  const StatusOr<CompileOutput> output =
      nvrtc_->compile(source, key.arch, false, [] { return true; });
  // NVRTC 12 finishes its work where it lacks the callback; 13 has it.
  if (nvrtc_->version() < 13000 && output.ok()) GTEST_SKIP() << nvrtc_->description();
  EXPECT_EQ(output.status().code(), StatusCode::kNotWarm);
}

TEST_F(RealNvrtc, PlansAndCompilesAndPacksWithoutTouchingADriver) {
  FakeDriverState& driver = fake_driver();
  driver.init_calls = 0;
  const TempDir dir;
  JitOptions options;
  options.cache_dir = dir / "cache";
  options.nvrtc_path = nvrtc_->path();
  const StatusOr<KernelCache> cache = KernelCache::open(options);
  StatusOr<KernelPlan> plan = cache->plan({.dims = {}, .archs = {"sm_80"}});
  std::erase_if(plan->kernels,
                [](const PlannedKernel& kernel) { return kernel.kernel == "sm80_mla_prefill"; });
  ASSERT_FALSE(plan->kernels.empty());
  const StatusOr<WarmupReport> report = cache->pack(*plan, dir / "a.fpb");
  ASSERT_TRUE(report.ok() && report->complete()) << report->status.message();
  EXPECT_EQ(driver.init_calls, 0);
}

TEST(Nvrtc, ThatIsNotThereIsNamedWithAllThatWasTried) {
  const Status one = NvrtcCompiler::load({"/no/such/libnvrtc.so", {}}).status();
  EXPECT_EQ(one.code(), StatusCode::kNoCompiler);
  EXPECT_THAT(one.message(), HasSubstr("/no/such/libnvrtc.so"));
  EXPECT_THAT(one.message(), HasSubstr("FLASHPRIME_NVRTC_PATH"));
  // A path that depends on the current directory could be anybody's.
  EXPECT_THAT(NvrtcCompiler::load({"./libnvrtc.so.13", {}}).status().message(),
              HasSubstr("want an absolute path"));
}

TEST(Nvrtc, WithoutItsBuiltinsIsRefusedAtOnce) {
  const TempDir dir;
  std::filesystem::copy_file(FLASHPRIME_FAKE_NVRTC, dir / "libnvrtc.so");
  const Status status = NvrtcCompiler::load({dir / "libnvrtc.so", {}}).status();
  EXPECT_EQ(status.code(), StatusCode::kNoCompiler);
  EXPECT_THAT(status.message(), HasSubstr("libnvrtc-builtins.so.13.7"));
}

TEST(Nvrtc, IsFoundInTheFoldersThatACallerNames) {
  const TempDir dir;
  const std::filesystem::path fake = FLASHPRIME_FAKE_NVRTC;
  std::filesystem::copy_file(fake, dir / "libnvrtc.so.13");
  std::filesystem::copy_file(fake.parent_path() / "libnvrtc-builtins.so.13.7",
                             dir / "libnvrtc-builtins.so.13.7");
  const StatusOr<std::shared_ptr<const NvrtcCompiler>> loaded =
      NvrtcCompiler::load({"", {"/no/such/folder", dir.path()}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
}

TEST(Nvrtc, LogGivesRegistersSpillsAndWarnings) {
  const PtxasReport report = parse_ptxas_log(
      "ptxas warning : Registers are spilled to local memory in function 'flashprime_kernel', 36 "
      "bytes spill stores, 48 bytes spill loads\n"
      "ptxas info    : Function properties for flashprime_kernel\n"
      "ptxas         .     40 bytes stack frame, 36 bytes spill stores, 48 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size, 1024 "
      "bytes smem, 600 bytes cmem[0]\n"
      "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized\n");
  EXPECT_EQ(report.registers, 255);
  EXPECT_EQ(report.stack_bytes, 40);
  EXPECT_EQ(report.spill_store_bytes, 36);
  EXPECT_EQ(report.spill_load_bytes, 48);
  EXPECT_EQ(report.static_shared_bytes, 1024);
  ASSERT_EQ(report.warnings.size(), 2u);
  EXPECT_THAT(report.warnings[1], HasSubstr("C7512"));
}

}  // namespace
}  // namespace flashprime
