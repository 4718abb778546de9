// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "jit/arch.h"
#include "kernels/shared/prefill_traits.h"
#include "kernels/shared/sm80_prefill_policy.h"

namespace flashprime {

// How sm80_mla_prefill runs these traits there. Depends on dims and architecture only, never on a
// batch. Defined for all dims that the kernel takes.
Sm80PrefillPolicy sm80_policy(const PrefillTraits& traits, const Arch& arch);

}  // namespace flashprime
