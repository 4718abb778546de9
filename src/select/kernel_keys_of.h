// SPDX-License-Identifier: Apache-2.0
// From what a call computes to the GPU kernels that it runs. The launch path asks here and nowhere
// else, so a kernel that this names is one that warmup can prepare.
#pragma once

#include <vector>

#include "flashprime/prefill.h"
#include "flashprime/warmup.h"
#include "jit/kernel_key.h"

namespace flashprime {

enum class PrefillKernel { kSm90, kSm80 };

// The faster of the kernels that compute these traits on that architecture.
PrefillKernel preferred_prefill_kernel(const PrefillTraits& traits, const Arch& arch);

// An attention kernel for these traits; the preferred one unless it is named.
KernelKey prefill_key(PrefillKernel kernel, const PrefillTraits& traits, const Arch& arch);
KernelKey prefill_key(const PrefillTraits& traits, const Arch& arch);

// What one split of a call computes: an fp32 state that combine_splits takes.
PrefillTraits partial_traits(PrefillTraits traits);

// The kernel that joins the splits of a call with these traits.
KernelKey combine_key(const PrefillTraits& traits, const Arch& arch);

KernelKey merge_key(const MergeTraits& traits, const Arch& arch);

// The kernels of prefill(): one, and where splitting is allowed also the two of a split call.
std::vector<KernelKey> call_keys(const PrefillProblem& problem, const Arch& arch);

// The kernels of prefill_layer(), whatever the context of its requests is.
std::vector<KernelKey> layer_keys(const PrefillProblem& problem, const Arch& arch);

// The problem that a compile key asks for. kUnsupported for windows and for padded V, whose key no
// longer says how q is divided.
StatusOr<PrefillProblem> problem_of(const CompileKey& key);

}  // namespace flashprime
