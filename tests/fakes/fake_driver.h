// SPDX-License-Identifier: Apache-2.0
// What tests see of the fake driver: a library with the driver's entry points, one to four devices
// whose memory is the host's, and a record of what was asked of it.
#pragma once

#include <atomic>
#include <functional>

#include "cuda/driver_api.h"

// What the fake's cuTensorMapEncodeTiled writes.
struct FakeTensorMap {
  unsigned long long address = 0;
  unsigned long long extents[5] = {};
  unsigned long long strides[4] = {};
  unsigned short box[5] = {};
};
static_assert(sizeof(FakeTensorMap) <= 128);

struct FakeDriverState {
  std::atomic<int> init_calls{0};
  std::atomic<int> library_loads{0};
  std::atomic<int> launches{0};
  std::atomic<int> maps_encoded{0};

  int device_count = 1;
  int sm = 90;
  int shared_bytes_per_block = 232448;
  int init_result = 0;
  int launch_result = 0;
  std::atomic<int> refused_loads{0};  // so many cuLibraryLoadData calls return refused_result
  int refused_result = flashprime::cuda::kErrorInvalidImage;
  int capture_status = flashprime::cuda::kCaptureNone;
  int memory_device = 0;  // ordinal that cuPointerGetAttribute gives for what cuMemAlloc made
  flashprime::cuda::Context stream_context = nullptr;  // of every stream; null: the current one

  std::function<void(void** arguments)> on_launch;

  // Of the latest launch.
  flashprime::cuda::LaunchConfig config;
  flashprime::cuda::Function function = nullptr;
  unsigned char params[1024] = {};
  int params_bytes = 0;  // how many to copy; set by the test
  flashprime::cuda::Context launch_context = nullptr;
  std::atomic<int> max_dynamic_shared{-1};  // latest cuKernelSetAttribute
};
// Symbol of the state in the library.
inline constexpr char kFakeDriverState[] = "fake_driver_state";
