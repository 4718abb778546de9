// SPDX-License-Identifier: Apache-2.0
// Our own declarations of the driver's entry points that are used, so that no CUDA header is
// needed. Values and layouts are those of cuda.h, which has kept them stable since CUDA 12.0.
#pragma once

#include <cstddef>

#include "flashprime/execution.h"

namespace flashprime::cuda {

using Result = int;
using DeviceId = int;
using Context = struct CudaContext*;
using Library = struct CudaLibrary*;
using Kernel = struct CudaKernel*;
using Function = struct CudaFunction*;
using DevicePointer = unsigned long long;

enum ResultCode : Result {
  kSuccess = 0,
  kErrorInvalidValue = 1,
  kErrorOutOfMemory = 2,
  kErrorNotInitialized = 3,
  kErrorStubLibrary = 34,
  kErrorNoDevice = 100,
  kErrorInvalidDevice = 101,
  kErrorInvalidImage = 200,
  kErrorInvalidContext = 201,
  kErrorNoBinaryForGpu = 209,
  kErrorUnsupportedPtxVersion = 222,
  kErrorInvalidSource = 300,
  kErrorInvalidHandle = 400,
  kErrorIllegalAddress = 700,
  kErrorLaunchTimeout = 702,
  kErrorAssert = 710,
  kErrorHardwareStackError = 714,
  kErrorLaunchFailed = 719,
  kErrorSystemDriverMismatch = 803,
  kErrorCompatNotSupportedOnDevice = 804,
  kErrorStreamCaptureUnsupported = 900,
  kErrorStreamCaptureWrongThread = 908,
};

enum DeviceAttribute : int {
  kMaxGridDimX = 5,
  kMaxGridDimY = 6,
  kMultiprocessorCount = 16,
  kL2CacheBytes = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedBytesPerBlockOptin = 97,
};
enum FunctionAttribute : int { kMaxDynamicSharedBytes = 8, kPreferredSharedCarveout = 9 };
enum PointerAttribute : int { kPointerMemoryType = 2, kPointerDeviceOrdinal = 9 };
enum MemoryType : unsigned int { kMemoryHost = 1, kMemoryDevice = 2 };
enum TensorMapDtype : int { kTensorMapFp16 = 6, kTensorMapBf16 = 9 };
enum TensorMapSwizzle : int { kTensorMapSwizzle128B = 3 };
enum TensorMapL2Promotion : int { kTensorMapL2Promotion256B = 3 };
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };

struct LaunchConfig {
  unsigned int grid_x = 1;
  unsigned int grid_y = 1;
  unsigned int grid_z = 1;
  unsigned int block_x = 1;
  unsigned int block_y = 1;
  unsigned int block_z = 1;
  unsigned int shared_bytes = 0;
  StreamHandle stream = nullptr;
  void* attributes = nullptr;
  unsigned int num_attributes = 0;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

// Every entry point, by the name in cuda.h (with the version that its macros choose).
struct DriverApi {
  Result (*cuInit)(unsigned int flags);
  Result (*cuDriverGetVersion)(int* version);
  Result (*cuGetErrorName)(Result error, const char** name);
  Result (*cuGetErrorString)(Result error, const char** text);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(DeviceId* device, int ordinal);
  Result (*cuDeviceGetName)(char* name, int length, DeviceId device);
  Result (*cuDeviceGetAttribute)(int* value, DeviceAttribute attribute, DeviceId device);
  Result (*cuDevicePrimaryCtxRetain)(Context* context, DeviceId device);
  Result (*cuCtxGetCurrent)(Context* context);
  Result (*cuCtxPushCurrent_v2)(Context context);
  Result (*cuCtxPopCurrent_v2)(Context* context);
  Result (*cuCtxGetDevice)(DeviceId* device);
  Result (*cuCtxGetId)(Context context, unsigned long long* id);
  Result (*cuStreamGetCtx)(StreamHandle stream, Context* context);
  Result (*cuStreamIsCapturing)(StreamHandle stream, CaptureStatus* status);
  Result (*cuStreamSynchronize)(StreamHandle stream);
  Result (*cuPointerGetAttributes)(unsigned int count, PointerAttribute* attributes, void** data,
                                   DevicePointer pointer);
  Result (*cuMemAlloc_v2)(DevicePointer* pointer, size_t bytes);
  Result (*cuMemFree_v2)(DevicePointer pointer);
  Result (*cuMemcpyHtoDAsync_v2)(DevicePointer to, const void* from, size_t bytes,
                                 StreamHandle stream);
  Result (*cuMemcpyDtoHAsync_v2)(void* to, DevicePointer from, size_t bytes, StreamHandle stream);
  Result (*cuLibraryLoadData)(Library* library, const void* code, int* jit_options,
                              void** jit_values, unsigned int num_jit_options, int* library_options,
                              void** library_values, unsigned int num_library_options);
  Result (*cuLibraryUnload)(Library library);
  Result (*cuLibraryGetKernel)(Kernel* kernel, Library library, const char* name);
  Result (*cuKernelGetFunction)(Function* function, Kernel kernel);
  Result (*cuKernelSetAttribute)(FunctionAttribute attribute, int value, Kernel kernel,
                                 DeviceId device);
  Result (*cuLaunchKernelEx)(const LaunchConfig* config, Function function, void** arguments,
                             void** extra);
  Result (*cuTensorMapEncodeTiled)(void* map, TensorMapDtype dtype, unsigned int rank,
                                   void* address, const unsigned long long* extents,
                                   const unsigned long long* strides, const unsigned int* box,
                                   const unsigned int* element_strides, int interleave,
                                   TensorMapSwizzle swizzle, TensorMapL2Promotion promotion,
                                   int out_of_bounds_fill);
  Result (*cuFuncLoad)(Function function);  // since CUDA 12.4; may be nullptr
};

}  // namespace flashprime::cuda
