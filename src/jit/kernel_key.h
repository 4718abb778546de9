// SPDX-License-Identifier: Apache-2.0
// What is compiled, cached and loaded: a kernel with its traits, its policy and an architecture.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "flashprime/status.h"
#include "jit/arch.h"
#include "kernels/shared/merge_params.h"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"
#include "kernels/shared/sm80_prefill_policy.h"
#include "kernels/shared/sm90_prefill_params.h"
#include "kernels/shared/sm90_prefill_policy.h"

namespace flashprime {

// One struct per kernel: its compile-time fields, and where its source is.
struct Sm80MlaPrefillKernel {
  static constexpr std::string_view kName = "sm80_mla_prefill";
  static constexpr std::string_view kHeader = "kernels/sm80_mla_prefill.cuh";
  using Params = PrefillParams;

  PrefillTraits traits;
  Sm80PrefillPolicy policy;
};

struct Sm90MlaPrefillKernel {
  static constexpr std::string_view kName = "sm90_mla_prefill";
  static constexpr std::string_view kHeader = "kernels/sm90_mla_prefill.cuh";
  using Params = Sm90PrefillParams;

  PrefillTraits traits;
  Sm90PrefillPolicy policy;
};

struct MergeStatesKernel {
  static constexpr std::string_view kName = "merge_states";
  static constexpr std::string_view kHeader = "kernels/merge_states.cuh";
  using Params = MergeParams;

  MergeTraits traits;
};

struct CombineSplitsKernel {
  static constexpr std::string_view kName = "combine_splits";
  static constexpr std::string_view kHeader = "kernels/combine_splits.cuh";
  using Params = CombineParams;

  MergeTraits traits;
};

// How a kernel is launched, as far as its key decides that.
struct LaunchShape {
  int32_t num_threads = 0;
  int32_t min_blocks_per_sm = 1;
  int32_t shared_bytes = 0;  // dynamic shared memory
};

// Value type; equal keys are the same kernel to the bit, given the same sources and compiler.
struct KernelKey {
  std::variant<Sm80MlaPrefillKernel, MergeStatesKernel, CombineSplitsKernel, Sm90MlaPrefillKernel>
      kernel;
  Arch arch;

  std::string_view name() const;
  // Designated initialisers: "sm80_mla_prefill{.traits = {...}, .policy = {...}} for sm_90a".
  std::string to_string() const;
  // The canonical form, one "field = value" a line, sorted, under a version line.
  std::string text() const;
  LaunchShape launch_shape() const;
  std::size_t hash() const;

  bool operator==(const KernelKey& other) const { return (*this <=> other) == 0; }
  std::strong_ordering operator<=>(const KernelKey& other) const;
};

// The key whose text() this is; kFormat for anything else.
StatusOr<KernelKey> parse_kernel_key(std::string_view text);

// Why sm90_mla_prefill does not take dims or a mask, or empty.
std::string sm90_reason(const HeadDims& dims, MaskKind mask);

// kUnsupported where the kernel cannot be built for that architecture, with the reason.
Status validate_kernel_key(const KernelKey& key);

// "{.num_warps = 4, ...}" for a struct that is part of a key, as in to_string().
std::string initialiser(const PrefillTraits& traits);
std::string initialiser(const MergeTraits& traits);
std::string initialiser(const Sm80PrefillPolicy& policy);
std::string initialiser(const Sm90PrefillPolicy& policy);

}  // namespace flashprime

template <>
struct std::hash<flashprime::KernelKey> {
  std::size_t operator()(const flashprime::KernelKey& key) const { return key.hash(); }
};
