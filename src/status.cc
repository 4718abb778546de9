// SPDX-License-Identifier: Apache-2.0
#include "flashprime/status.h"

namespace flashprime {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "kOk";
    case StatusCode::kShape: return "kShape";
    case StatusCode::kUnsupported: return "kUnsupported";
    case StatusCode::kDtype: return "kDtype";
    case StatusCode::kStride: return "kStride";
    case StatusCode::kAlias: return "kAlias";
    case StatusCode::kNull: return "kNull";
    case StatusCode::kAlignment: return "kAlignment";
    case StatusCode::kRange: return "kRange";
    case StatusCode::kCuSeqlens: return "kCuSeqlens";
    case StatusCode::kNumeric: return "kNumeric";
    case StatusCode::kDevice: return "kDevice";
    case StatusCode::kStream: return "kStream";
    case StatusCode::kNotWarm: return "kNotWarm";
    case StatusCode::kFrozen: return "kFrozen";
    case StatusCode::kArch: return "kArch";
    case StatusCode::kDriver: return "kDriver";
    case StatusCode::kNoCompiler: return "kNoCompiler";
    case StatusCode::kWorkspace: return "kWorkspace";
    case StatusCode::kPlan: return "kPlan";
    case StatusCode::kOutOfMemory: return "kOutOfMemory";
    case StatusCode::kPriorCudaError: return "kPriorCudaError";
    case StatusCode::kFormat: return "kFormat";
    case StatusCode::kIo: return "kIo";
    case StatusCode::kInternal: return "kInternal";
  }
  return "unknown StatusCode";
}

}  // namespace flashprime
