// SPDX-License-Identifier: Apache-2.0
// Errors are values: every fallible call returns a Status or a StatusOr<T>. Nothing throws.
#pragma once

#include "flashprime/export.h"

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace flashprime {

/// What kind of thing went wrong. The numbers are part of the C ABI (`FLASHPRIME_E_SHAPE` ...).
enum class StatusCode : int {
  kOk = 0,
  kShape = 1,            ///< rank, extent or layout of a tensor
  kUnsupported = 2,      ///< legal, but no kernel here computes it; the message lists every reason
  kDtype = 3,            ///< element type of a tensor, or an output scale present or missing
  kStride = 4,           ///< a stride is not one the call can honour
  kAlias = 5,            ///< an output overlaps another tensor
  kNull = 6,             ///< a null pointer where rows exist
  kAlignment = 7,        ///< a pointer or stride is not aligned to its element
  kRange = 8,            ///< a size or offset overflows, or leaves the stated capacity
  kCuSeqlens = 9,        ///< cu_seqlens or max_seqlen contradict the tensors
  kNumeric = 10,         ///< softmax_scale or output_scale is not a usable number
  kDevice = 11,          ///< the device does not exist or is not the tensors' device
  kStream = 12,          ///< the stream does not belong to the device
  kNotWarm = 13,         ///< a kernel would have to be compiled where that is not allowed
  kFrozen = 14,          ///< compilation is frozen
  kArch = 15,            ///< no kernel for this GPU architecture
  kDriver = 16,          ///< the GPU driver is missing or too old
  kNoCompiler = 17,      ///< NVRTC was not found
  kWorkspace = 18,       ///< workspace is null, too small or unaligned
  kPlan = 19,            ///< a context plan contradicts the call
  kOutOfMemory = 20,     ///< an allocation failed
  kPriorCudaError = 21,  ///< an earlier CUDA error, not of this call
  kFormat = 22,          ///< a file or text does not follow its format
  kIo = 23,              ///< the operating system refused a read or a write
  kInternal = 24,        ///< a defect of this library
};

/// "kShape" for StatusCode::kShape. Static storage.
FLASHPRIME_API std::string_view status_code_name(StatusCode code);

/// A code and, unless it is kOk, a message that names the argument, what was got, what is wanted
/// and where useful what to do. Thread-compatible value type.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// "kShape: out: got ..." or "kOk".
  std::string to_string() const {
    std::string text(status_code_name(code_));
    if (!message_.empty()) text += ": " + message_;
    return text;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() {
  return {};
}

/// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT: implicit, so `return value;` works
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT: implicit, as above
    assert(!status_.ok() && "a StatusOr made from a Status needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  /// The value; calling these without ok() is a defect of the caller.
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace flashprime
