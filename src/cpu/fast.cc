// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_kernels.h"

namespace flashprime::cpu {

Status run_fast(const PrefillTraits&, const PrefillParams&, const ParallelFor&) {
  return Status(StatusCode::kUnsupported, "cpu_fast: not built");
}

const char* fast_isa_target() {
  return "";
}

}  // namespace flashprime::cpu
