// SPDX-License-Identifier: Apache-2.0
// A fixture with one GPU that only takes notes, a compiler that compiles nothing, and a kernel
// cache of the test's own.
#pragma once

#include <memory>

#include "cuda/driver.h"
#include "jit/kernel_store.h"
#include "unit/jit/jit_testing.h"

namespace flashprime {

class FakeGpuTest : public ::testing::Test {
 protected:
  FakeGpuTest() {
    state_->device_count = 1;
    state_->sm = 90;
    state_->shared_bytes_per_block = 232448;
    state_->init_result = 0;
    state_->launch_result = 0;
    state_->refused_loads = 0;
    state_->library_loads = 0;
    state_->launches = 0;
    state_->capture_status = cuda::kCaptureNone;
    state_->stream_context = nullptr;
    state_->params_bytes = 0;
    state_->on_launch = nullptr;
    fake_nvrtc().compilations = 0;
    fake_nvrtc().delay_ms = 0;
    fake_nvrtc().result = 0;
    StatusOr<std::unique_ptr<cuda::Driver>> driver = cuda::Driver::open(FLASHPRIME_FAKE_DRIVER);
    EXPECT_TRUE(driver.ok()) << driver.status().to_string();
    driver_ = *std::move(driver);
    properties_ = *driver_->device(0);
    context_ = *cuda::primary_context(*driver_, properties_.id);
    store_ = open_store("cache");
  }

  // Kernels in that folder, notes in the file "log".
  std::shared_ptr<KernelStore> open_store(const std::string& folder) const {
    JitOptions options;
    options.cache_dir = dir_ / folder;
    options.nvrtc_path = FLASHPRIME_FAKE_NVRTC;
    options.log = "info:" + dir_ / "log";
    return *KernelStore::open(*resolve_settings(options));
  }

  TempDir dir_;
  FakeDriverState* const state_ = &fake_driver();
  std::unique_ptr<cuda::Driver> driver_;
  cuda::DeviceProperties properties_;
  cuda::Context context_ = nullptr;
  std::shared_ptr<KernelStore> store_;
};

}  // namespace flashprime
