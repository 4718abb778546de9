// SPDX-License-Identifier: Apache-2.0
#include "jit/kernel_key.h"

#include <gmock/gmock.h>

#include <set>

#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

std::vector<KernelKey> some_keys() {
  std::vector<KernelKey> keys;
  for (const char* arch : {"sm_80", "sm_90", "sm_90a", "sm_120f"}) {
    for (const bool lse : {false, true}) {
      keys.push_back(prefill_key(arch, lse));
      keys.push_back(prefill_key(arch, lse, MaskKind::kFull));
      keys.push_back({MergeStatesKernel{{.return_lse = lse}}, *parse_arch(arch)});
      keys.push_back({CombineSplitsKernel{{.return_lse = lse}}, *parse_arch(arch)});
    }
  }
  return keys;
}

TEST(KernelKey, PrintsOneSortedLineForEachField) {
  KernelKey key{Sm80MlaPrefillKernel{}, *parse_arch("sm_90a")};
  std::get<Sm80MlaPrefillKernel>(key.kernel).traits.return_lse = true;
  EXPECT_EQ(key.text(),
            "flashprime kernel 1\n"
            "arch = sm_90a\n"
            "kernel = sm80_mla_prefill\n"
            "policy.block_kv = 64\n"
            "policy.min_blocks_per_sm = 1\n"
            "policy.num_stages = 2\n"
            "policy.num_warps = 8\n"
            "policy.q_register_steps = 64\n"
            "policy.row_blocks = 1\n"
            "traits.dims.nope = 128\n"
            "traits.dims.rope = 64\n"
            "traits.dims.v = 128\n"
            "traits.dtype = bf16\n"
            "traits.mask = causal\n"
            "traits.out_dtype = bf16\n"
            "traits.return_lse = true\n");
}

TEST(KernelKey, PrintsDesignatedInitialisersForPeople) {
  const KernelKey key{MergeStatesKernel{{.dim_v = 256, .out_dtype = Dtype::kE4m3}},
                      *parse_arch("sm_100f")};
  EXPECT_EQ(key.to_string(),
            "merge_states{.traits = {.dim_v = 256, .dtype = Dtype::kFp32, .out_dtype = "
            "Dtype::kE4m3, .return_lse = false}} for sm_100f");
}

TEST(KernelKey, ReadsBackEveryTextThatItPrints) {
  for (const KernelKey& key : some_keys()) {
    const StatusOr<KernelKey> read = parse_kernel_key(key.text());
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->text(), key.text());
    EXPECT_TRUE(*read == key);
  }
}

TEST(KernelKey, RefusesEveryTextThatIsNotCanonical) {
  const std::string text = prefill_key("sm_90a").text();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string shorter = text;
    shorter.erase(i, 1);
    const StatusOr<KernelKey> read = parse_kernel_key(shorter);
    // Some digits can go and leave another key; it must then be that key's own text.
    if (read.ok()) {
      EXPECT_EQ(read->text(), shorter);
    }
  }
  EXPECT_EQ(parse_kernel_key("").status().code(), StatusCode::kFormat);
  EXPECT_EQ(parse_kernel_key(text + "extra = 1\n").status().code(), StatusCode::kFormat);
  EXPECT_EQ(parse_kernel_key(text + text).status().code(), StatusCode::kFormat);
}

TEST(KernelKey, TellsKeysApartByEveryField) {
  const std::vector<KernelKey> keys = some_keys();
  std::set<KernelKey> ordered(keys.begin(), keys.end());
  std::set<size_t> hashes;
  std::set<std::string> texts;
  for (const KernelKey& key : keys) {
    hashes.insert(key.hash());
    texts.insert(key.text());
    EXPECT_TRUE(key == key);
  }
  EXPECT_EQ(ordered.size(), keys.size());
  EXPECT_EQ(hashes.size(), keys.size());
  EXPECT_EQ(texts.size(), keys.size());
}

TEST(KernelKey, SaysWhatCannotBeBuilt) {
  KernelKey key = prefill_key("sm_90a");
  auto& kernel = std::get<Sm80MlaPrefillKernel>(key.kernel);
  EXPECT_TRUE(validate_kernel_key(key).ok());

  kernel.traits.dims.rope = 24;
  EXPECT_THAT(validate_kernel_key(key).message(), HasSubstr("128/24/128"));
  kernel.traits.dims.rope = 64;
  kernel.traits.dtype = Dtype::kFp32;
  EXPECT_THAT(validate_kernel_key(key).message(), HasSubstr("fp32"));
  kernel.traits.dtype = Dtype::kBf16;
  // The policy of an H200 does not fit a consumer GPU.
  key.arch = *parse_arch("sm_86");
  EXPECT_THAT(validate_kernel_key(key).message(), HasSubstr("101376"));
}

TEST(Sm80Policy, FitsEveryArchitectureForAllDimsThatTheKernelTakes) {
  for (const Arch& arch : all_archs()) {
    for (int32_t qk = 16; qk <= 256; qk += 16) {
      for (int32_t v = 16; v <= 256; v += 16) {
        const PrefillTraits traits{.dims = {.nope = qk, .rope = 0, .v = v}};
        const KernelKey key{Sm80MlaPrefillKernel{traits, sm80_policy(traits, arch)}, arch};
        EXPECT_TRUE(validate_kernel_key(key).ok()) << key.to_string();
      }
    }
  }
}

TEST(Arch, RunsExactCodeOnThatDeviceAndPlainCodeOnLaterMinors) {
  const auto names = [](int32_t sm) {
    std::string text;
    for (const Arch& arch : archs_for_device(sm)) text += arch.to_string() + ' ';
    return text;
  };
  EXPECT_EQ(names(80), "sm_80 ");
  EXPECT_EQ(names(89), "sm_89 sm_87 sm_86 sm_80 ");
  EXPECT_EQ(names(90), "sm_90a sm_90 ");
  EXPECT_EQ(names(103), "sm_103a sm_103f sm_100f sm_103 sm_100 ");
  EXPECT_EQ(names(121), "sm_121a sm_121f sm_120f sm_121 sm_120 ");
  EXPECT_EQ(names(75), "");
}

TEST(Arch, NamesTheDriverThatACubinNeeds) {
  EXPECT_EQ(min_driver(*parse_arch("sm_80"), 13000), "CUDA 13.0 (driver 580)");
  EXPECT_EQ(min_driver(*parse_arch("sm_80"), 12090), "CUDA 12.0 (driver 525)");
  EXPECT_EQ(min_driver(*parse_arch("sm_120a"), 12090), "CUDA 12.8 (driver 570)");
  EXPECT_EQ(min_driver(*parse_arch("sm_103f"), 12090), "CUDA 12.9 (driver 575)");
}

}  // namespace
}  // namespace flashprime
