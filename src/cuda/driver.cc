// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <atomic>

#include "checks.h"
#include "cuda/dynamic_library.h"

namespace flashprime::cuda {
namespace {

constexpr char kLibraryName[] = "libcuda.so.1";
constexpr int32_t kMinVersion = 12000;  // cuLibraryLoadData

StatusCode code_of(Result result) {
  switch (result) {
    case kErrorOutOfMemory: return StatusCode::kOutOfMemory;
    case kErrorNotInitialized:
    case kErrorStubLibrary:
    case kErrorSystemDriverMismatch:
    case kErrorCompatNotSupportedOnDevice: return StatusCode::kDriver;
    case kErrorNoDevice:
    case kErrorInvalidDevice:
    case kErrorInvalidContext: return StatusCode::kDevice;
    case kErrorInvalidHandle: return StatusCode::kStream;
    case kErrorIllegalAddress:
    case kErrorLaunchTimeout:
    case kErrorAssert:
    case kErrorLaunchFailed: return StatusCode::kPriorCudaError;
    default: break;
  }
  if (is_image_error(result)) return StatusCode::kArch;
  // Errors of a kernel that ran before: the context is lost.
  if (result >= kErrorHardwareStackError && result < kErrorLaunchFailed) {
    return StatusCode::kPriorCudaError;
  }
  if (result >= kErrorStreamCaptureUnsupported && result <= kErrorStreamCaptureWrongThread) {
    return StatusCode::kStream;
  }
  return StatusCode::kInternal;
}

// Name of the first entry point that is missing, or empty.
std::string load_api(const DynamicLibrary& library, DriverApi& api) {
  library.load("cuFuncLoad", api.cuFuncLoad);
#define FLASHPRIME_LOAD(name) \
  if (!library.load(#name, api.name)) return #name
  FLASHPRIME_LOAD(cuInit);
  FLASHPRIME_LOAD(cuDriverGetVersion);
  FLASHPRIME_LOAD(cuGetErrorName);
  FLASHPRIME_LOAD(cuGetErrorString);
  FLASHPRIME_LOAD(cuDeviceGetCount);
  FLASHPRIME_LOAD(cuDeviceGet);
  FLASHPRIME_LOAD(cuDeviceGetName);
  FLASHPRIME_LOAD(cuDeviceGetAttribute);
  FLASHPRIME_LOAD(cuDevicePrimaryCtxRetain);
  FLASHPRIME_LOAD(cuCtxGetCurrent);
  FLASHPRIME_LOAD(cuCtxPushCurrent_v2);
  FLASHPRIME_LOAD(cuCtxPopCurrent_v2);
  FLASHPRIME_LOAD(cuCtxGetDevice);
  FLASHPRIME_LOAD(cuCtxGetId);
  FLASHPRIME_LOAD(cuStreamGetCtx);
  FLASHPRIME_LOAD(cuStreamIsCapturing);
  FLASHPRIME_LOAD(cuStreamSynchronize);
  FLASHPRIME_LOAD(cuPointerGetAttributes);
  FLASHPRIME_LOAD(cuMemAlloc_v2);
  FLASHPRIME_LOAD(cuMemFree_v2);
  FLASHPRIME_LOAD(cuMemcpyHtoDAsync_v2);
  FLASHPRIME_LOAD(cuMemcpyDtoHAsync_v2);
  FLASHPRIME_LOAD(cuLibraryLoadData);
  FLASHPRIME_LOAD(cuLibraryUnload);
  FLASHPRIME_LOAD(cuLibraryGetKernel);
  FLASHPRIME_LOAD(cuKernelGetFunction);
  FLASHPRIME_LOAD(cuKernelSetAttribute);
  FLASHPRIME_LOAD(cuLaunchKernelEx);
  FLASHPRIME_LOAD(cuTensorMapEncodeTiled);
#undef FLASHPRIME_LOAD
  return {};
}

}  // namespace

bool is_image_error(Result result) {
  return result == kErrorInvalidImage || result == kErrorNoBinaryForGpu ||
         result == kErrorUnsupportedPtxVersion || result == kErrorInvalidSource;
}

StatusOr<const Driver*> Driver::get() {
  static const StatusOr<std::unique_ptr<Driver>> driver = open(kLibraryName);
  if (!driver.ok()) return driver.status();
  return const_cast<const Driver*>(driver->get());
}

const Driver* Driver::get_if_loaded() {
  static std::atomic<const Driver*> known = nullptr;
  if (const Driver* driver = known) return driver;
  // No process has device memory before it has loaded the driver.
  if (!DynamicLibrary::open(kLibraryName, true).ok()) return nullptr;
  const StatusOr<const Driver*> driver = get();
  if (driver.ok()) known = *driver;
  return known;
}

StatusOr<std::unique_ptr<Driver>> Driver::open(const std::string& name) {
  const StatusOr<DynamicLibrary> library = DynamicLibrary::open(name);
  if (!library.ok()) {
    return Status(StatusCode::kDriver, "driver: not found: " + library.status().message());
  }
  std::unique_ptr<Driver> driver(new Driver);
  driver->path_ = library->path();
  const std::string missing = load_api(*library, driver->api_);
  FLASHPRIME_REQUIRE(missing.empty(), StatusCode::kDriver, "driver: ", library->path(), " has no ",
                     missing, ", want CUDA 12.0 (driver 525) or later");
  FLASHPRIME_RETURN_IF_ERROR(driver->check(driver->api_.cuInit(0), "cuInit"));
  FLASHPRIME_RETURN_IF_ERROR(
      driver->check(driver->api_.cuDriverGetVersion(&driver->version_), "cuDriverGetVersion"));
  FLASHPRIME_REQUIRE(driver->version_ >= kMinVersion, StatusCode::kDriver, "driver: supports CUDA ",
                     driver->version_ / 1000, '.', driver->version_ % 1000 / 10,
                     ", want 12.0 or later");
  FLASHPRIME_RETURN_IF_ERROR(
      driver->check(driver->api_.cuDeviceGetCount(&driver->device_count_), "cuDeviceGetCount"));
  return driver;
}

Status Driver::check(Result result, const char* call) const {
  if (result == kSuccess) return ok_status();
  const char* name = nullptr;
  const char* text = nullptr;
  api_.cuGetErrorName(result, &name);
  api_.cuGetErrorString(result, &text);
  return Status(code_of(result),
                concat(call, ": ", name != nullptr ? name : "unknown error", " (", result, ')',
                       text != nullptr ? ": " : "", text != nullptr ? text : ""));
}

StatusOr<DeviceProperties> Driver::device(int32_t ordinal) const {
  FLASHPRIME_REQUIRE(ordinal >= 0 && ordinal < device_count_, StatusCode::kDevice, "device: got ",
                     ordinal, ", there are ", device_count_);
  DeviceProperties properties;
  FLASHPRIME_RETURN_IF_ERROR(check(api_.cuDeviceGet(&properties.id, ordinal), "cuDeviceGet"));
  char name[256] = {};
  FLASHPRIME_RETURN_IF_ERROR(
      check(api_.cuDeviceGetName(name, sizeof name - 1, properties.id), "cuDeviceGetName"));
  properties.name = name;
  int values[7] = {};
  constexpr DeviceAttribute kWanted[7] = {kComputeCapabilityMajor,
                                          kComputeCapabilityMinor,
                                          kMultiprocessorCount,
                                          kMaxSharedBytesPerBlockOptin,
                                          kMaxGridDimX,
                                          kMaxGridDimY,
                                          kL2CacheBytes};
  for (int i = 0; i < 7; ++i) {
    FLASHPRIME_RETURN_IF_ERROR(check(
        api_.cuDeviceGetAttribute(&values[i], kWanted[i], properties.id), "cuDeviceGetAttribute"));
  }
  properties.sm = values[0] * 10 + values[1];
  properties.num_sms = values[2];
  properties.shared_bytes_per_block = values[3];
  properties.max_grid_x = values[4];
  properties.max_grid_y = values[5];
  properties.l2_bytes = values[6];
  return properties;
}

ContextScope::ContextScope(const Driver& driver, Context context) : driver_(driver) {
  Context current = nullptr;
  status_ = driver.check(driver.api().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (!status_.ok() || current == context) return;
  status_ = driver.check(driver.api().cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
  pushed_ = status_.ok();
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (pushed_) driver_.api().cuCtxPopCurrent_v2(&popped);
}

StatusOr<Context> primary_context(const Driver& driver, DeviceId device) {
  Context context = nullptr;
  FLASHPRIME_RETURN_IF_ERROR(driver.check(driver.api().cuDevicePrimaryCtxRetain(&context, device),
                                          "cuDevicePrimaryCtxRetain"));
  return context;
}

StatusOr<bool> is_capturing(const Driver& driver, StreamHandle stream) {
  CaptureStatus status = kCaptureNone;
  FLASHPRIME_RETURN_IF_ERROR(
      driver.check(driver.api().cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing"));
  FLASHPRIME_REQUIRE(status != kCaptureInvalidated, StatusCode::kStream,
                     "stream: its capture has failed before this call");
  return status == kCaptureActive;
}

}  // namespace flashprime::cuda
