// SPDX-License-Identifier: Apache-2.0
// What is refused, and in which words: one check per line.
#pragma once

#include <vector>

#include "flashprime/prefill.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"

namespace flashprime {

// Everything that keeps the problem from being one that the operator defines, in the order dtype,
// dims, mask, rest. Which kernels compute a problem without defects is the selector's question.
std::vector<Status> find_problem_defects(const PrefillProblem& problem);

// The first defect of the problem or, if it has none, of the arguments as far as views tell: no
// memory is read.
Status validate_views(const PrefillProblem& problem, const PrefillArgs& args);

// The first defect of cu_seqlens and output_scale, which are read: they have to be host memory.
// Only for arguments that validate_views() has accepted.
Status validate_values(const PrefillProblem& problem, const PrefillArgs& args);

// What kernels are given. Only for arguments that validate_views() has accepted.
PrefillTraits make_traits(const PrefillProblem& problem);
PrefillParams make_params(const PrefillProblem& problem, const PrefillArgs& args);

}  // namespace flashprime
