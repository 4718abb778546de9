// SPDX-License-Identifier: Apache-2.0
#include "launch/launch.h"

#include "checks.h"

namespace flashprime {

Status launch_kernel(const GpuDevice& device, const LoadedKernel& kernel, int64_t grid_x,
                     int64_t grid_y, const void* params, StreamHandle stream) {
  FLASHPRIME_REQUIRE(
      grid_x <= device.properties.max_grid_x && grid_y <= device.properties.max_grid_y,
      StatusCode::kRange, "problem: needs a grid of ", grid_x, " x ", grid_y,
      " thread blocks, the device takes at most ", device.properties.max_grid_x, " x ",
      device.properties.max_grid_y);
  cuda::LaunchConfig config;
  config.grid_x = static_cast<unsigned int>(grid_x);
  config.grid_y = static_cast<unsigned int>(grid_y);
  config.block_x = static_cast<unsigned int>(kernel.shape.num_threads);
  config.shared_bytes = static_cast<unsigned int>(kernel.shape.shared_bytes);
  config.stream = stream;
  void* arguments[] = {const_cast<void*>(params)};
  return device.driver->check(
      device.driver->api().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr),
      "cuLaunchKernelEx");
}

LaunchScope::LaunchScope(const GpuDevice& device, StreamHandle stream)
    : context_(*device.driver, device.context), status_(context_.status()) {
  if (!status_.ok() || stream == nullptr) return;
  cuda::Context context = nullptr;
  status_ = device.driver->check(device.driver->api().cuStreamGetCtx(stream, &context),
                                 "stream: cuStreamGetCtx");
  if (status_.ok() && context != device.context) {
    status_ = Status(StatusCode::kStream,
                     concat("stream: got one of another context, wanted a stream of cuda:",
                            device.properties.id, "'s primary context"));
  }
}

}  // namespace flashprime
