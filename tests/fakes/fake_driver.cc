// SPDX-License-Identifier: Apache-2.0
#include "fakes/fake_driver.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

using namespace flashprime::cuda;
using flashprime::StreamHandle;

#define FAKE extern "C" __attribute__((visibility("default")))

extern "C" {
__attribute__((visibility("default"))) FakeDriverState fake_driver_state;
}

namespace {

FakeDriverState& state = fake_driver_state;
thread_local std::vector<Context> context_stack;
// Allocations and their sizes.
std::map<DevicePointer, size_t> device_memory;
std::mutex memory_mutex;

// Handles are numbers: contexts 0x100 + device, libraries and kernels count up.
template <typename Handle>
Handle handle(uintptr_t value) {
  return reinterpret_cast<Handle>(value);
}

}  // namespace

FAKE Result cuInit(unsigned int) {
  ++state.init_calls;
  return state.init_result;
}
FAKE Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
FAKE Result cuGetErrorName(Result error, const char** name) {
  *name = error == kErrorInvalidImage ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_FAKE";
  return kSuccess;
}
FAKE Result cuGetErrorString(Result, const char** text) {
  *text = "the fake was told to fail";
  return kSuccess;
}
FAKE Result cuDeviceGetCount(int* count) {
  *count = state.device_count;
  return kSuccess;
}
FAKE Result cuDeviceGet(DeviceId* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
FAKE Result cuDeviceGetName(char* name, int length, DeviceId) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(length));
  return kSuccess;
}
FAKE Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, DeviceId) {
  switch (attribute) {
    case kMaxGridDimX: *value = 2147483647; return kSuccess;
    case kMaxGridDimY: *value = 65535; return kSuccess;
    case kMultiprocessorCount: *value = 132; return kSuccess;
    case kL2CacheBytes: *value = 50 << 20; return kSuccess;
    case kComputeCapabilityMajor: *value = state.sm / 10; return kSuccess;
    case kComputeCapabilityMinor: *value = state.sm % 10; return kSuccess;
    case kMaxSharedBytesPerBlockOptin: *value = state.shared_bytes_per_block; return kSuccess;
  }
  return kErrorInvalidHandle;
}
FAKE Result cuDevicePrimaryCtxRetain(Context* context, DeviceId device) {
  *context = handle<Context>(0x100 + static_cast<uintptr_t>(device));
  return kSuccess;
}
FAKE Result cuCtxGetCurrent(Context* context) {
  *context = context_stack.empty() ? nullptr : context_stack.back();
  return kSuccess;
}
FAKE Result cuCtxPushCurrent_v2(Context context) {
  context_stack.push_back(context);
  return kSuccess;
}
FAKE Result cuCtxPopCurrent_v2(Context* context) {
  if (context_stack.empty()) return kErrorInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return kSuccess;
}
FAKE Result cuCtxGetDevice(DeviceId* device) {
  if (context_stack.empty()) return kErrorInvalidContext;
  *device = static_cast<DeviceId>(reinterpret_cast<uintptr_t>(context_stack.back()) - 0x100);
  return kSuccess;
}
FAKE Result cuCtxGetId(Context context, unsigned long long* id) {
  if (context == nullptr) return kErrorInvalidContext;
  *id = reinterpret_cast<uintptr_t>(context);
  return kSuccess;
}
FAKE Result cuStreamGetCtx(StreamHandle, Context* context) {
  if (state.stream_context != nullptr) {
    *context = state.stream_context;
    return kSuccess;
  }
  return cuCtxGetCurrent(context);
}
FAKE Result cuStreamIsCapturing(StreamHandle, CaptureStatus* status) {
  *status = static_cast<CaptureStatus>(state.capture_status);
  return kSuccess;
}
FAKE Result cuStreamSynchronize(StreamHandle) {
  return kSuccess;
}
FAKE Result cuPointerGetAttributes(unsigned int count, PointerAttribute* attributes, void** data,
                                   DevicePointer pointer) {
  const std::lock_guard lock(memory_mutex);
  const auto after = device_memory.upper_bound(pointer);
  const bool known = after != device_memory.begin() &&
                     pointer < std::prev(after)->first + std::prev(after)->second;
  for (unsigned int i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case kPointerMemoryType:
        *static_cast<unsigned int*>(data[i]) =
            known ? static_cast<unsigned int>(kMemoryDevice) : 0u;
        break;
      case kPointerDeviceOrdinal:
        *static_cast<int*>(data[i]) = known ? state.memory_device : -2;  // as the driver does
        break;
    }
  }
  return kSuccess;
}
// "Device" memory is host memory.
FAKE Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, StreamHandle) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
FAKE Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, StreamHandle) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}
FAKE Result cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const std::lock_guard lock(memory_mutex);
  device_memory[reinterpret_cast<DevicePointer>(memory)] = bytes;
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return memory != nullptr ? kSuccess : kErrorOutOfMemory;
}
FAKE Result cuMemFree_v2(DevicePointer pointer) {
  const std::lock_guard lock(memory_mutex);
  if (device_memory.erase(pointer) == 0) return kErrorInvalidValue;
  std::free(reinterpret_cast<void*>(pointer));
  return kSuccess;
}
FAKE Result cuLibraryLoadData(Library* library, const void*, int*, void**, unsigned int, int*,
                              void**, unsigned int) {
  const int loads = ++state.library_loads;
  if (state.refused_loads > 0) {
    --state.refused_loads;
    return state.refused_result;
  }
  *library = handle<Library>(0x1000 + static_cast<uintptr_t>(loads));
  return kSuccess;
}
FAKE Result cuLibraryUnload(Library) {
  return kSuccess;
}
FAKE Result cuLibraryGetKernel(Kernel* kernel, Library library, const char* name) {
  if (std::strcmp(name, "flashprime_kernel") != 0) return kErrorInvalidHandle;
  *kernel = handle<Kernel>(reinterpret_cast<uintptr_t>(library) + 0x1000);
  return kSuccess;
}
FAKE Result cuKernelGetFunction(Function* function, Kernel kernel) {
  if (context_stack.empty()) return kErrorInvalidContext;
  *function = handle<Function>(reinterpret_cast<uintptr_t>(kernel) * 0x1000 +
                               reinterpret_cast<uintptr_t>(context_stack.back()));
  return kSuccess;
}
FAKE Result cuKernelSetAttribute(FunctionAttribute attribute, int value, Kernel, DeviceId) {
  if (attribute == kMaxDynamicSharedBytes) state.max_dynamic_shared = value;
  return value <= state.shared_bytes_per_block ? kSuccess : 1;
}
FAKE Result cuFuncLoad(Function) {
  return kSuccess;
}
// A tensor map of the fake holds the address, the strides and the first extents.
FAKE Result cuTensorMapEncodeTiled(void* map, TensorMapDtype, unsigned int rank, void* address,
                                   const unsigned long long* extents,
                                   const unsigned long long* strides, const unsigned int* box,
                                   const unsigned int*, int, TensorMapSwizzle, TensorMapL2Promotion,
                                   int) {
  ++state.maps_encoded;
  if (rank != 5 || reinterpret_cast<uintptr_t>(address) % 16 != 0) return kErrorInvalidValue;
  FakeTensorMap fake;
  fake.address = reinterpret_cast<uintptr_t>(address);
  for (unsigned int i = 0; i < rank; ++i) {
    fake.extents[i] = extents[i];
    fake.box[i] = static_cast<unsigned short>(box[i]);
    if (i + 1 == rank) break;
    fake.strides[i] = strides[i];
    if (strides[i] % 16 != 0 || strides[i] >= 1ull << 40) return kErrorInvalidValue;
  }
  std::memcpy(map, &fake, sizeof fake);
  return kSuccess;
}
FAKE Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** arguments,
                             void**) {
  ++state.launches;
  state.config = *config;
  state.function = function;
  std::memcpy(state.params, arguments[0], static_cast<size_t>(state.params_bytes));
  state.launch_context = context_stack.empty() ? nullptr : context_stack.back();
  if (state.on_launch) state.on_launch(arguments);
  return state.launch_result;
}
