// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/shared/prefill_traits.h"
#include "kernels/shared/sm90_prefill_policy.h"

namespace flashprime {

// How sm90_mla_prefill runs these traits. Depends on dims only, never on a batch. Defined for all
// dims that the kernel takes.
Sm90PrefillPolicy sm90_policy(const PrefillTraits& traits);

}  // namespace flashprime
