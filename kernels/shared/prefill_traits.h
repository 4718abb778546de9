// SPDX-License-Identifier: Apache-2.0
// What a prefill kernel computes: everything that is fixed when a kernel is compiled.
#pragma once

#include "flashprime/types.h"

namespace flashprime {

struct PrefillTraits {
  HeadDims dims;
  Dtype dtype = Dtype::kBf16;      // of q, k and v
  Dtype out_dtype = Dtype::kBf16;  // of out
  MaskKind mask = MaskKind::kCausal;
  bool return_lse = false;
};

}  // namespace flashprime
