// SPDX-License-Identifier: Apache-2.0
// What is refused, and in which words: one check per line.
#pragma once

#include <array>
#include <vector>

#include "flashprime/prefill.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"
#include "problem/tensor_checks.h"

namespace flashprime {

// The tensors of a call by their names: kNumInputs inputs, then out and lse, then the workspace as
// bytes.
inline constexpr size_t kNumInputs = 10;
inline constexpr size_t kNumTensors = kNumInputs + 2;
std::array<NamedTensor, kNumTensors + 1> tensors_of(const PrefillArgs& args);

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
