// SPDX-License-Identifier: Apache-2.0
// MLA prefill backends as vLLM describes and chooses them: what each supports, why not, and which
// one a configuration gets. Data and pure functions; nothing here runs a kernel.
#pragma once

#include "flashprime/export.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/flash_attention_rules.h"
#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

/// What a backend declares.
struct PrefillBackendInfo {
  std::string name;                                          ///< "FLASH_ATTN"
  std::vector<Dtype> dtypes = {Dtype::kFp16, Dtype::kBf16};  ///< of q, k and v
  std::vector<HeadDims> dims = {};                           ///< empty: as supports_dims says
  std::function<bool(const HeadDims&)> supports_dims = {};   ///< beside `dims`; empty: all
  std::function<bool(ComputeCapability)> capabilities = {};  ///< empty: all
  std::function<bool()> available = {};                      ///< its library is here; empty: yes
  std::string unavailable = "required dependencies not available";  ///< said when it is not
};

/// What is asked of a backend.
struct PrefillBackendConfig {
  Dtype dtype = Dtype::kBf16;
  HeadDims dims;
};

/// Why `backend` cannot serve, in this order: capability, dtype, dependencies, dims. Empty: it can.
FLASHPRIME_API std::vector<std::string> validate_configuration(
    const PrefillBackendInfo& backend, std::optional<ComputeCapability> capability,
    const PrefillBackendConfig& config);

/// Head dims of vLLM's FLASH_ATTN backend for a FlashAttention version: those of 0.33.0, or those
/// of the releases that introduced the compile keys.
FLASHPRIME_API std::vector<HeadDims> flash_attn_backend_dims(int32_t fa_version,
                                                             bool vllm_0_33 = true);

/// FlashPrime as a backend, "FLASHPRIME": fp16 and bf16, every dims that one of its kernels runs,
/// every capability.
FLASHPRIME_API PrefillBackendInfo flashprime_backend();
/// FlashPrime reads V through its strides: it never needs V padded, on any device.
constexpr bool flashprime_requires_v_padding() {
  return false;
}
/// FlashPrime writes static per-tensor e4m3 output itself, on every device.
constexpr bool flashprime_supports_quant_output() {
  return true;
}

/// Backends by name. Starts with the names of vLLM 0.33.0 and what they declare; "CUSTOM" has no
/// backend until one is put there. Thread-compatible value type.
class FLASHPRIME_API PrefillBackendRegistry {
 public:
  PrefillBackendRegistry();

  /// In the order of registration.
  const std::vector<std::string>& names() const { return names_; }
  /// Adds a name; kUnsupported if it exists, kFormat unless it is an upper-case identifier
  /// (configuration upper-cases what it looks up, so another name could never be chosen).
  Status add(const std::string& name, PrefillBackendInfo backend);
  /// Puts `backend` in the place of an existing name, any number of times.
  Status override_backend(const std::string& name, PrefillBackendInfo backend);
  /// Undoes the override of a name; none: nothing.
  Status clear_override(const std::string& name);
  bool is_overridden(std::string_view name) const;
  /// The backend of a name, its override first. kUnsupported for unknown names, and for "CUSTOM"
  /// while it has none.
  StatusOr<PrefillBackendInfo> find(const std::string& name) const;

 private:
  Status check_known(const std::string& name) const;

  std::vector<std::string> names_;
  std::map<std::string, PrefillBackendInfo, std::less<>> backends_;
  std::map<std::string, PrefillBackendInfo, std::less<>> overrides_;
};

/// The names that automatic choice tries, best first.
FLASHPRIME_API std::vector<std::string> prefill_backend_priorities(
    std::optional<ComputeCapability> capability, const HeadDims& dims);

/// The backend for a configuration: `requested` (upper-cased) or the first valid one by priority.
/// Without a capability FLASH_ATTN, unchecked, and no other. kUnsupported with every reason
/// otherwise.
FLASHPRIME_API StatusOr<PrefillBackendInfo> select_prefill_backend(
    const PrefillBackendRegistry& registry, std::optional<ComputeCapability> capability,
    const PrefillBackendConfig& config, const std::optional<std::string>& requested = {});

}  // namespace flashprime
