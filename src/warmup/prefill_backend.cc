// SPDX-License-Identifier: Apache-2.0
#include "flashprime/prefill_backend.h"

#include <algorithm>

#include "checks.h"
#include "flashprime/backend.h"
#include "warmup/torch_name.h"

namespace flashprime {
namespace {

constexpr HeadDims kDeepSeek{128, 64, 128};
constexpr HeadDims kGlm5{192, 64, 256};
constexpr HeadDims kMistral{64, 64, 128};
constexpr HeadDims kGlmFlash{256, 0, 256};

bool same_dims(const HeadDims& a, const HeadDims& b) {
  return a.nope == b.nope && a.rope == b.rope && a.v == b.v;
}

bool contains(const std::vector<HeadDims>& all, const HeadDims& dims) {
  return std::any_of(all.begin(), all.end(),
                     [&](const HeadDims& known) { return same_dims(known, dims); });
}

std::string dims_text(const HeadDims& dims) {
  return concat("(qk_nope_head_dim=", dims.nope, ", qk_rope_head_dim=", dims.rope,
                ", v_head_dim=", dims.v, ")");
}

std::string config_text(const PrefillBackendConfig& config) {
  return concat("MLAPrefillSelectorConfig(dtype=", torch_name(config.dtype),
                ", mla_dimensions=", dims_text(config.dims), ")");
}

std::string joined(const std::vector<std::string>& parts, std::string_view quote = "") {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += ", ";
    text += concat(quote, part, quote);
  }
  return text;
}

std::string upper_case(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

bool is_upper_case_identifier(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && !is_digit(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; });
}

}  // namespace

std::vector<std::string> validate_configuration(const PrefillBackendInfo& backend,
                                                std::optional<ComputeCapability> capability,
                                                const PrefillBackendConfig& config) {
  std::vector<std::string> reasons;
  if (!capability) {
    reasons.push_back("device capability not available");
  } else if (backend.capabilities && !backend.capabilities(*capability)) {
    reasons.push_back(
        concat("compute capability ", capability->major, ".", capability->minor, " not supported"));
  }
  if (std::find(backend.dtypes.begin(), backend.dtypes.end(), config.dtype) ==
      backend.dtypes.end()) {
    reasons.push_back(concat("dtype ", torch_name(config.dtype), " not supported"));
  }
  if (backend.available && !backend.available()) reasons.push_back(backend.unavailable);
  const bool listed = backend.dims.empty() || contains(backend.dims, config.dims);
  if (!listed || (backend.supports_dims && !backend.supports_dims(config.dims))) {
    std::string reason =
        "Model does not have supported MLA dimensions (got " + dims_text(config.dims);
    if (!listed) {
      std::vector<std::string> supported;
      for (const HeadDims& dims : backend.dims) supported.push_back(dims_text(dims));
      reason += "; supported: " + joined(supported);
    }
    reasons.push_back(reason + ")");
  }
  return reasons;
}

std::vector<HeadDims> flash_attn_backend_dims(int32_t fa_version, bool vllm_0_33) {
  if (vllm_0_33) return {kDeepSeek, kGlm5, kMistral, kGlmFlash};
  if (fa_version == 4) return {kDeepSeek, kMistral};
  return {kDeepSeek, kMistral, kGlm5};
}

PrefillBackendInfo flashprime_backend() {
  PrefillBackendInfo backend;
  backend.name = "FLASHPRIME";
  // Asked of the selector, so that the limits are written down once.
  backend.supports_dims = [](const HeadDims& dims) {
    PrefillProblem problem;
    problem.dims = dims;
    return explain(problem).supported;
  };
  return backend;
}

PrefillBackendRegistry::PrefillBackendRegistry() {
  const auto put = [this](PrefillBackendInfo backend) {
    names_.push_back(backend.name);
    backends_.emplace(names_.back(), std::move(backend));
  };
  const auto blackwell = [](ComputeCapability capability) { return capability.major == 10; };
  // Their libraries exist on other vendors' machines only, where there is no compute capability.
  const auto nowhere = [](ComputeCapability) { return false; };
  put({.name = "FLASH_ATTN", .dims = flash_attn_backend_dims(4)});
  put({.name = "FLASHINFER", .dims = {kDeepSeek}, .capabilities = blackwell});
  put({.name = "TRTLLM_RAGGED", .dims = {kDeepSeek, kGlm5}, .capabilities = blackwell});
  put({.name = "TOKENSPEED_MLA", .dims = {kDeepSeek}, .capabilities = blackwell});
  put({.name = "ROCM_AITER_FA", .capabilities = nowhere});
  put({.name = "CPU", .capabilities = nowhere});
  put({.name = "ZEN_CPU", .capabilities = nowhere});
  names_.push_back("CUSTOM");
}

Status PrefillBackendRegistry::check_known(const std::string& name) const {
  FLASHPRIME_REQUIRE(std::find(names_.begin(), names_.end(), name) != names_.end(),
                     StatusCode::kUnsupported, "Unknown MLA prefill backend: '", name,
                     "'. Valid options are: ", joined(names_));
  return ok_status();
}

Status PrefillBackendRegistry::add(const std::string& name, PrefillBackendInfo backend) {
  FLASHPRIME_REQUIRE(std::find(names_.begin(), names_.end(), name) == names_.end(),
                     StatusCode::kUnsupported, "MLA prefill backend ", name,
                     " already exists; override it instead");
  FLASHPRIME_REQUIRE(is_upper_case_identifier(name), StatusCode::kFormat,
                     "MLA prefill backend: got the name '", name,
                     "', wanted an identifier of A-Z, 0-9 and _");
  names_.push_back(name);
  backends_[name] = std::move(backend);
  return ok_status();
}

Status PrefillBackendRegistry::override_backend(const std::string& name,
                                                PrefillBackendInfo backend) {
  FLASHPRIME_RETURN_IF_ERROR(check_known(name));
  overrides_[name] = std::move(backend);
  return ok_status();
}

Status PrefillBackendRegistry::clear_override(const std::string& name) {
  FLASHPRIME_RETURN_IF_ERROR(check_known(name));
  overrides_.erase(name);
  return ok_status();
}

bool PrefillBackendRegistry::is_overridden(std::string_view name) const {
  return overrides_.find(name) != overrides_.end();
}

StatusOr<PrefillBackendInfo> PrefillBackendRegistry::find(const std::string& name) const {
  FLASHPRIME_RETURN_IF_ERROR(check_known(name));
  for (const auto* backends : {&overrides_, &backends_}) {
    if (const auto found = backends->find(name); found != backends->end()) return found->second;
  }
  return Status(StatusCode::kUnsupported,
                concat("MLA prefill backend ", name, " must be registered before use"));
}

std::vector<std::string> prefill_backend_priorities(std::optional<ComputeCapability> capability,
                                                    const HeadDims& dims) {
  if (!capability || capability->major != 10) return {"FLASH_ATTN"};
  if (same_dims(dims, kGlm5)) {
    return {"TRTLLM_RAGGED", "FLASH_ATTN", "FLASHINFER", "TOKENSPEED_MLA"};
  }
  return {"FLASH_ATTN", "TRTLLM_RAGGED", "FLASHINFER", "TOKENSPEED_MLA"};
}

StatusOr<PrefillBackendInfo> select_prefill_backend(const PrefillBackendRegistry& registry,
                                                    std::optional<ComputeCapability> capability,
                                                    const PrefillBackendConfig& config,
                                                    const std::optional<std::string>& requested) {
  return without_exceptions([&]() -> StatusOr<PrefillBackendInfo> {
    if (requested) {
      const std::string name = upper_case(*requested);
      StatusOr<PrefillBackendInfo> backend = registry.find(name);
      FLASHPRIME_RETURN_IF_ERROR(backend.status());
      if (!capability && name == "FLASH_ATTN") return backend;
      const std::vector<std::string> reasons = validate_configuration(*backend, capability, config);
      FLASHPRIME_REQUIRE(reasons.empty(), StatusCode::kUnsupported, "Selected MLA prefill backend ",
                         name, " is not valid for this configuration. Reason: [",
                         joined(reasons, "'"), "]");
      return backend;
    }
    std::vector<std::string> refusals;
    for (const std::string& name : prefill_backend_priorities(capability, config.dims)) {
      StatusOr<PrefillBackendInfo> backend = registry.find(name);
      FLASHPRIME_RETURN_IF_ERROR(backend.status());
      if (!capability) return backend;
      const std::vector<std::string> reasons = validate_configuration(*backend, capability, config);
      if (reasons.empty()) return backend;
      refusals.push_back(concat(name, ": [", joined(reasons), "]"));
    }
    return Status(StatusCode::kUnsupported,
                  concat("No valid MLA prefill backend found with ", config_text(config),
                         ". Reasons: {", joined(refusals), "}."));
  });
}

}  // namespace flashprime
