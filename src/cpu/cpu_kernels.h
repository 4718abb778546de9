// SPDX-License-Identifier: Apache-2.0
// The CPU kernels. Both take arguments that validate_prefill() has accepted.
#pragma once

#include <vector>

#include "flashprime/execution.h"
#include "flashprime/status.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"

namespace flashprime::cpu {

// fp64 and plain loops: the definition of the operator and the oracle of every test.
// Serial. Supports every dtype and kFp64 output.
Status run_reference(const PrefillTraits& traits, const PrefillParams& params);

// One SIMD instruction set that the fast kernel is compiled for; see fast_target.h.
struct FastTarget;

// Those of this processor, best first; possibly none.
const std::vector<const FastTarget*>& fast_targets();

// Blocked online softmax in fp32 with O(tile) memory per thread.
// Supports bf16, fp16 and fp32 inputs; dtype, fp32 and e4m3 output.
Status run_fast(const FastTarget& target, const PrefillTraits& traits, const PrefillParams& params,
                const ParallelFor& parallel_for);

// The same with the best target, of which there must be one.
Status run_fast(const PrefillTraits& traits, const PrefillParams& params,
                const ParallelFor& parallel_for);

// "AVX2", "AVX3", ...: the best target, or empty if there is none.
const char* fast_isa_target();

}  // namespace flashprime::cpu
