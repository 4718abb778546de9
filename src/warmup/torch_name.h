// SPDX-License-Identifier: Apache-2.0
// What vLLM's keys and messages call a dtype.
#pragma once

#include <string_view>

#include "flashprime/types.h"

namespace flashprime {

inline std::string_view torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return "torch.bfloat16";
    case Dtype::kFp16: return "torch.float16";
    case Dtype::kFp32: return "torch.float32";
    case Dtype::kFp64: return "torch.float64";
    case Dtype::kE4m3: return "torch.float8_e4m3fn";
    case Dtype::kInt32: return "torch.int32";
  }
  return "?";
}

}  // namespace flashprime
