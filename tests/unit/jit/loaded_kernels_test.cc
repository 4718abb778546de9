// SPDX-License-Identifier: Apache-2.0
// The way to a device, with a driver that only takes notes.
#include "jit/loaded_kernels.h"

#include <gmock/gmock.h>

#include "unit/jit/fake_gpu.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

class LoadedKernelsTest : public FakeGpuTest {
 protected:
  const KernelKey key_ = prefill_key("sm_90a");
};

TEST_F(LoadedKernelsTest, ReadsADevicesProperties) {
  EXPECT_EQ(properties_.name, "Fake GPU");
  EXPECT_EQ(properties_.sm, 90);
  EXPECT_EQ(properties_.num_sms, 132);
  EXPECT_EQ(properties_.max_grid_x, 2147483647);
  EXPECT_EQ(driver_->device(1).status().code(), StatusCode::kDevice);
}

TEST_F(LoadedKernelsTest, LoadsOnceAndFindsItFromThenOn) {
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  unsigned long long context_id = 0;
  driver_->api().cuCtxGetId(context_, &context_id);
  EXPECT_EQ(kernels.find(key_, context_id), nullptr);
  const StatusOr<const LoadedKernel*> loaded = kernels.load({key_}, properties_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(kernels.find(key_, context_id), *loaded);
  EXPECT_EQ(*kernels.load({key_}, properties_), *loaded);
  EXPECT_EQ(kernels.find(key_, context_id + 1), nullptr);
  EXPECT_EQ((*loaded)->shape.num_threads, 128);
  EXPECT_EQ(state_->max_dynamic_shared, (*loaded)->shape.shared_bytes);
  EXPECT_EQ(state_->library_loads, 1);
  EXPECT_THAT(read_bytes(dir_ / "log"), HasSubstr("(compiled) onto Fake GPU, device 0\n"));
}

TEST_F(LoadedKernelsTest, GivesEachContextAFunctionOfOneLibrary) {
  state_->device_count = 2;
  LoadedKernels kernels(store_, *driver_);
  const cuda::Context other = *cuda::primary_context(*driver_, 1);
  cuda::Function functions[2] = {};
  for (int i = 0; i < 2; ++i) {
    const cuda::ContextScope scope(*driver_, i == 0 ? context_ : other);
    functions[i] = (*kernels.load({key_}, properties_))->function;
  }
  EXPECT_NE(functions[0], functions[1]);
  EXPECT_EQ(state_->library_loads, 1);
}

TEST_F(LoadedKernelsTest, CompilesACachedImageAnewThatTheDriverRefuses) {
  ASSERT_TRUE(store_->obtain(key_).ok());
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  state_->refused_loads = 1;
  const StatusOr<const LoadedKernel*> loaded = kernels.load({key_}, properties_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(fake_nvrtc().compilations, 2);
  EXPECT_EQ(store_->counter("refused_by_driver"), 1);
  EXPECT_THAT(read_bytes(dir_ / "log"), HasSubstr("warn quarantined: the driver refuses"));
}

TEST_F(LoadedKernelsTest, SaysWhatIsTooOldWhenAFreshImageIsRefused) {
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  state_->refused_loads = 5;
  const Status status = kernels.load({key_}, properties_).status();
  EXPECT_EQ(status.code(), StatusCode::kArch);
  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_INVALID_IMAGE"));
  EXPECT_THAT(status.message(), HasSubstr("needs CUDA 13.0 (driver 580)"));
  EXPECT_THAT(status.message(), HasSubstr("Fake GPU (sm_90)"));
}

TEST_F(LoadedKernelsTest, TakesAnotherArchitecturesKernelThatIsThereBeforeItCompiles) {
  const KernelKey plain = prefill_key("sm_90");
  ASSERT_TRUE(store_->obtain(plain).ok());
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  const StatusOr<const LoadedKernel*> loaded = kernels.load({key_, plain}, properties_);
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE((*loaded)->key == plain);
  EXPECT_EQ(fake_nvrtc().compilations, 1);
}

TEST_F(LoadedKernelsTest, SkipsKernelsThatNeedMoreThanTheDeviceHas) {
  state_->sm = 86;
  state_->shared_bytes_per_block = 101376;
  const cuda::DeviceProperties small = *driver_->device(0);
  const KernelKey wanted = prefill_key("sm_86");
  KernelKey too_large = prefill_key("sm_80");
  std::get<Sm80MlaPrefillKernel>(too_large.kernel).policy.q_register_steps = 0;
  ASSERT_GT(too_large.launch_shape().shared_bytes, small.shared_bytes_per_block);
  ASSERT_TRUE(store_->obtain(too_large).ok());
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  EXPECT_TRUE((*kernels.load({wanted, too_large}, small))->key == wanted);
  EXPECT_EQ(kernels.load({too_large}, small).status().code(), StatusCode::kArch);
}

TEST_F(LoadedKernelsTest, LoadsOnlyWhatIsThereWhenToldNotToCompile) {
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  EXPECT_EQ(kernels.load({key_}, properties_, {.never_compile = true}).status().code(),
            StatusCode::kNotWarm);
  EXPECT_EQ(fake_nvrtc().compilations, 0);
}

TEST_F(LoadedKernelsTest, LaunchesWithTheArgumentsGridAndStreamThatItIsGiven) {
  LoadedKernels kernels(store_, *driver_);
  const cuda::ContextScope scope(*driver_, context_);
  const LoadedKernel& kernel = **kernels.load({key_}, properties_);
  PrefillParams params;
  params.batch = 7;
  params.softmax_scale = 0.25f;
  state_->params_bytes = sizeof params;
  void* arguments[] = {&params};
  cuda::LaunchConfig config;
  config.grid_x = 12;
  config.grid_y = 3;
  config.block_x = static_cast<unsigned>(kernel.shape.num_threads);
  config.shared_bytes = static_cast<unsigned>(kernel.shape.shared_bytes);
  config.stream = reinterpret_cast<StreamHandle>(0x77);
  EXPECT_TRUE(
      driver_
          ->check(driver_->api().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr),
                  "cuLaunchKernelEx")
          .ok());
  EXPECT_EQ(state_->config.grid_x, 12u);
  EXPECT_EQ(state_->config.grid_y, 3u);
  EXPECT_EQ(state_->config.stream, config.stream);
  EXPECT_EQ(state_->function, kernel.function);
  EXPECT_EQ(state_->launch_context, context_);
  PrefillParams seen;
  std::memcpy(static_cast<void*>(&seen), state_->params, sizeof seen);
  EXPECT_EQ(seen.batch, 7);
  EXPECT_EQ(seen.softmax_scale, 0.25f);
}

TEST_F(LoadedKernelsTest, TurnsDriverErrorsIntoStatusInOnePlace) {
  const auto code = [&](cuda::Result result) { return driver_->check(result, "cuCall").code(); };
  EXPECT_EQ(code(cuda::kSuccess), StatusCode::kOk);
  EXPECT_EQ(code(cuda::kErrorOutOfMemory), StatusCode::kOutOfMemory);
  EXPECT_EQ(code(cuda::kErrorStubLibrary), StatusCode::kDriver);
  EXPECT_EQ(code(cuda::kErrorNoDevice), StatusCode::kDevice);
  EXPECT_EQ(code(cuda::kErrorNoBinaryForGpu), StatusCode::kArch);
  EXPECT_EQ(code(cuda::kErrorInvalidHandle), StatusCode::kStream);
  EXPECT_EQ(code(cuda::kErrorIllegalAddress), StatusCode::kPriorCudaError);
  EXPECT_EQ(code(717), StatusCode::kPriorCudaError);
  EXPECT_EQ(code(901), StatusCode::kStream);
  EXPECT_EQ(code(1), StatusCode::kInternal);
  EXPECT_THAT(driver_->check(200, "cuLibraryLoadData").message(),
              HasSubstr("cuLibraryLoadData: CUDA_ERROR_INVALID_IMAGE (200): the fake"));
}

TEST_F(LoadedKernelsTest, KnowsACaptureFromItsFailure) {
  EXPECT_FALSE(*cuda::is_capturing(*driver_, nullptr));
  state_->capture_status = cuda::kCaptureActive;
  EXPECT_TRUE(*cuda::is_capturing(*driver_, nullptr));
  state_->capture_status = cuda::kCaptureInvalidated;
  EXPECT_EQ(cuda::is_capturing(*driver_, nullptr).status().code(), StatusCode::kStream);
}

TEST_F(LoadedKernelsTest, PutsTheCallersContextBack) {
  cuda::Context current = nullptr;
  {
    const cuda::ContextScope outer(*driver_, context_);
    {
      const cuda::ContextScope inner(*driver_, *cuda::primary_context(*driver_, 1));
    }
    driver_->api().cuCtxGetCurrent(&current);
    EXPECT_EQ(current, context_);
  }
  driver_->api().cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr);
}

TEST_F(LoadedKernelsTest, ADriverThatCannotStartIsNoDriver) {
  state_->init_result = cuda::kErrorStubLibrary;
  EXPECT_EQ(cuda::Driver::open(FLASHPRIME_FAKE_DRIVER).status().code(), StatusCode::kDriver);
  state_->init_result = 0;
  const Status missing = cuda::Driver::open("libno_such_driver.so.1").status();
  EXPECT_EQ(missing.code(), StatusCode::kDriver);
  EXPECT_THAT(missing.message(), HasSubstr("libno_such_driver.so.1"));
  // A library that is no driver.
  EXPECT_THAT(cuda::Driver::open(FLASHPRIME_FAKE_NVRTC).status().message(), HasSubstr("has no cu"));
}

}  // namespace
}  // namespace flashprime
