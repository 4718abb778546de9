// SPDX-License-Identifier: Apache-2.0
#include "flashprime/prefill_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace flashprime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr HeadDims kDeepSeek{128, 64, 128};
constexpr HeadDims kMistral{64, 64, 128};
constexpr HeadDims kGlm5{192, 64, 256};
constexpr HeadDims kGlmFlash{256, 0, 256};
constexpr HeadDims kDots{192, 64, 128};

PrefillBackendInfo picky_backend() {
  PrefillBackendInfo backend;
  backend.name = "PICKY";
  backend.dims = {kDeepSeek, kMistral};
  backend.capabilities = [](ComputeCapability capability) { return capability.major == 10; };
  backend.available = [] { return false; };
  return backend;
}

std::string chosen(const PrefillBackendRegistry& registry,
                   std::optional<ComputeCapability> capability, HeadDims dims,
                   std::optional<std::string> requested = {}, Dtype dtype = Dtype::kBf16) {
  const auto backend = select_prefill_backend(registry, capability, {dtype, dims}, requested);
  return backend.ok() ? backend->name : backend.status().message();
}

TEST(prefill_backend, reasons_come_as_capability_dtype_dependencies_dims) {
  EXPECT_THAT(
      validate_configuration(picky_backend(), ComputeCapability{7, 5}, {Dtype::kFp32, kDots}),
      ElementsAre("compute capability 7.5 not supported", "dtype torch.float32 not supported",
                  "required dependencies not available",
                  "Model does not have supported MLA dimensions (got (qk_nope_head_dim=192, "
                  "qk_rope_head_dim=64, v_head_dim=128); supported: (qk_nope_head_dim=128, "
                  "qk_rope_head_dim=64, v_head_dim=128), (qk_nope_head_dim=64, "
                  "qk_rope_head_dim=64, v_head_dim=128))"));
}

TEST(prefill_backend, an_unknown_capability_is_a_reason) {
  EXPECT_THAT(
      validate_configuration(picky_backend(), {}, {Dtype::kBf16, kDeepSeek}),
      ElementsAre("device capability not available", "required dependencies not available"));
}

TEST(prefill_backend, a_backend_may_word_what_it_lacks) {
  PrefillBackendInfo backend = picky_backend();
  backend.unavailable = "install it";
  EXPECT_THAT(validate_configuration(backend, ComputeCapability{10, 0}, {Dtype::kBf16, kDeepSeek}),
              ElementsAre("install it"));
}

TEST(prefill_backend, no_list_of_dims_means_any_and_a_rule_may_refuse_without_a_list) {
  PrefillBackendInfo backend;
  EXPECT_THAT(validate_configuration(backend, ComputeCapability{9, 0}, {Dtype::kFp16, kDots}),
              IsEmpty());
  backend.supports_dims = [](const HeadDims& dims) { return dims.nope != 192; };
  EXPECT_THAT(validate_configuration(backend, ComputeCapability{9, 0}, {Dtype::kFp16, kDots}),
              ElementsAre("Model does not have supported MLA dimensions (got "
                          "(qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=128))"));
}

TEST(prefill_backend, dims_of_flash_attn_grew) {
  const auto accepts = [](const std::vector<HeadDims>& all, HeadDims dims) {
    PrefillBackendInfo backend;
    backend.dims = all;
    return validate_configuration(backend, ComputeCapability{9, 0}, {Dtype::kBf16, dims}).empty();
  };
  for (const int32_t version : {2, 3, 4}) {
    for (const HeadDims& dims : {kDeepSeek, kGlm5, kMistral, kGlmFlash}) {
      EXPECT_TRUE(accepts(flash_attn_backend_dims(version), dims));
    }
    EXPECT_FALSE(accepts(flash_attn_backend_dims(version), kDots));
    EXPECT_EQ(accepts(flash_attn_backend_dims(version, false), kGlm5), version != 4);
    EXPECT_TRUE(accepts(flash_attn_backend_dims(version, false), kMistral));
    EXPECT_FALSE(accepts(flash_attn_backend_dims(version, false), kGlmFlash));
  }
}

TEST(prefill_backend, flashprime_serves_every_mla_model_and_never_pads_v) {
  for (const HeadDims& dims : {kDeepSeek, kGlm5, kMistral, kGlmFlash, kDots}) {
    for (const ComputeCapability capability :
         {ComputeCapability{8, 0}, ComputeCapability{9, 0}, ComputeCapability{12, 1}}) {
      EXPECT_THAT(validate_configuration(flashprime_backend(), capability, {Dtype::kBf16, dims}),
                  IsEmpty());
    }
  }
  EXPECT_THAT(validate_configuration(flashprime_backend(), ComputeCapability{9, 0},
                                     {Dtype::kFp32, kDeepSeek}),
              ElementsAre("dtype torch.float32 not supported"));
  EXPECT_THAT(validate_configuration(flashprime_backend(), ComputeCapability{9, 0},
                                     {Dtype::kBf16, {0, 64, 128}}),
              ElementsAre(StartsWith("Model does not have supported MLA dimensions")));
  EXPECT_FALSE(flashprime_requires_v_padding());
  EXPECT_TRUE(flashprime_supports_quant_output());
}

TEST(prefill_backend, the_registry_starts_with_vllms_names) {
  EXPECT_THAT(PrefillBackendRegistry().names(),
              ElementsAre("FLASH_ATTN", "FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA",
                          "ROCM_AITER_FA", "CPU", "ZEN_CPU", "CUSTOM"));
}

TEST(prefill_backend, custom_has_no_backend_until_one_is_put_there) {
  PrefillBackendRegistry registry;
  EXPECT_THAT(registry.find("CUSTOM").status().message(), HasSubstr("must be registered"));
  ASSERT_TRUE(registry.override_backend("CUSTOM", flashprime_backend()).ok());
  EXPECT_EQ(registry.find("CUSTOM")->name, "FLASHPRIME");
  EXPECT_EQ(chosen(registry, ComputeCapability{9, 0}, kDots, "custom"), "FLASHPRIME");
}

TEST(prefill_backend, an_override_can_be_repeated_and_undone) {
  PrefillBackendRegistry registry;
  EXPECT_FALSE(registry.is_overridden("FLASH_ATTN"));
  ASSERT_TRUE(registry.override_backend("FLASH_ATTN", flashprime_backend()).ok());
  ASSERT_TRUE(registry.override_backend("FLASH_ATTN", flashprime_backend()).ok());
  EXPECT_TRUE(registry.is_overridden("FLASH_ATTN"));
  EXPECT_EQ(chosen(registry, ComputeCapability{9, 0}, kDots), "FLASHPRIME");
  ASSERT_TRUE(registry.clear_override("FLASH_ATTN").ok());
  ASSERT_TRUE(registry.clear_override("FLASH_ATTN").ok());
  EXPECT_FALSE(registry.is_overridden("FLASH_ATTN"));
  EXPECT_EQ(registry.find("FLASH_ATTN")->name, "FLASH_ATTN");
}

TEST(prefill_backend, an_unknown_name_lists_the_known_ones) {
  PrefillBackendRegistry registry;
  const std::string want =
      "Unknown MLA prefill backend: 'NOPE'. Valid options are: FLASH_ATTN, FLASHINFER, "
      "TRTLLM_RAGGED, TOKENSPEED_MLA, ROCM_AITER_FA, CPU, ZEN_CPU, CUSTOM";
  EXPECT_EQ(registry.find("NOPE").status().message(), want);
  EXPECT_EQ(registry.override_backend("NOPE", {}).message(), want);
  EXPECT_EQ(registry.clear_override("NOPE").message(), want);
  EXPECT_EQ(chosen(registry, ComputeCapability{9, 0}, kDeepSeek, "nope"), want);
}

TEST(prefill_backend, a_new_name_is_upper_case_and_new) {
  PrefillBackendRegistry registry;
  EXPECT_TRUE(registry.add("MINE_2", flashprime_backend()).ok());
  EXPECT_EQ(registry.names().back(), "MINE_2");
  EXPECT_EQ(chosen(registry, ComputeCapability{9, 0}, kDots, "mine_2"), "FLASHPRIME");
  EXPECT_THAT(registry.add("MINE_2", {}).message(), HasSubstr("already exists"));
  EXPECT_THAT(registry.add("FLASH_ATTN", {}).message(), HasSubstr("already exists"));
  for (const char* name : {"", "mine", "2ND", "MY-OWN", "MY OWN"}) {
    EXPECT_EQ(registry.add(name, {}).code(), StatusCode::kFormat) << name;
  }
}

TEST(prefill_backend, priorities_depend_on_the_capability_and_on_glm) {
  EXPECT_THAT(prefill_backend_priorities(ComputeCapability{10, 3}, kDeepSeek),
              ElementsAre("FLASH_ATTN", "TRTLLM_RAGGED", "FLASHINFER", "TOKENSPEED_MLA"));
  EXPECT_THAT(prefill_backend_priorities(ComputeCapability{10, 0}, kGlm5),
              ElementsAre("TRTLLM_RAGGED", "FLASH_ATTN", "FLASHINFER", "TOKENSPEED_MLA"));
  for (const int32_t major : {8, 9, 11, 12}) {
    EXPECT_THAT(prefill_backend_priorities(ComputeCapability{major, 0}, kGlm5),
                ElementsAre("FLASH_ATTN"));
  }
  EXPECT_THAT(prefill_backend_priorities({}, kDeepSeek), ElementsAre("FLASH_ATTN"));
}

TEST(prefill_backend, automatic_choice_takes_the_first_valid_one) {
  PrefillBackendRegistry registry;
  EXPECT_EQ(chosen(registry, ComputeCapability{9, 0}, kDeepSeek), "FLASH_ATTN");
  EXPECT_EQ(chosen(registry, ComputeCapability{10, 0}, kGlm5), "TRTLLM_RAGGED");
  PrefillBackendInfo missing = picky_backend();
  ASSERT_TRUE(registry.override_backend("FLASH_ATTN", missing).ok());
  EXPECT_EQ(chosen(registry, ComputeCapability{10, 0}, kDeepSeek), "TRTLLM_RAGGED");
}

TEST(prefill_backend, without_a_capability_flash_attn_is_taken_unchecked) {
  EXPECT_EQ(chosen(PrefillBackendRegistry(), {}, kDots, {}, Dtype::kFp32), "FLASH_ATTN");
  EXPECT_EQ(chosen(PrefillBackendRegistry(), {}, kDots, "flash_attn"), "FLASH_ATTN");
  EXPECT_THAT(chosen(PrefillBackendRegistry(), {}, kDeepSeek, "flashinfer"),
              HasSubstr("device capability not available"));
}

TEST(prefill_backend, an_invalid_choice_says_every_reason) {
  EXPECT_EQ(chosen(PrefillBackendRegistry(), ComputeCapability{9, 0}, kDeepSeek, "FlashInfer",
                   Dtype::kFp32),
            "Selected MLA prefill backend FLASHINFER is not valid for this configuration. Reason: "
            "['compute capability 9.0 not supported', 'dtype torch.float32 not supported']");
}

TEST(prefill_backend, no_valid_backend_says_every_reason_of_every_candidate) {
  const std::string message = chosen(PrefillBackendRegistry(), ComputeCapability{10, 0}, kDots);
  EXPECT_THAT(message,
              StartsWith("No valid MLA prefill backend found with "
                         "MLAPrefillSelectorConfig(dtype=torch.bfloat16, "
                         "mla_dimensions=(qk_nope_head_dim=192, qk_rope_head_dim=64, "
                         "v_head_dim=128)). Reasons: {FLASH_ATTN: [Model does not have supported "
                         "MLA dimensions (got "));
  for (const char* name : {"TRTLLM_RAGGED: [", "FLASHINFER: [", "TOKENSPEED_MLA: ["}) {
    EXPECT_THAT(message, HasSubstr(name));
  }
  EXPECT_THAT(message, ::testing::EndsWith("]}."));
}

}  // namespace
}  // namespace flashprime
