// SPDX-License-Identifier: Apache-2.0
// What is refused, and in which words: one check per line.
#pragma once

#include "flashprime/prefill.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"

namespace flashprime {

// Whether the problem is one that the operator defines; which kernels compute it is the selector's
// question.
Status validate_problem(const PrefillProblem& problem);

// validate_problem() and everything about the arguments. Reads cu_seqlens and output_scale, on the
// host, and no other memory.
Status validate_prefill(const PrefillProblem& problem, const PrefillArgs& args);

// What kernels are given. Only for arguments that validate_prefill() has accepted.
PrefillTraits make_traits(const PrefillProblem& problem);
PrefillParams make_params(const PrefillProblem& problem, const PrefillArgs& args);

}  // namespace flashprime
