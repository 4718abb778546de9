// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "flashprime/warmup.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr HeadDims kDeepSeek{128, 64, 128};
constexpr HeadDims kMistral{64, 64, 128};
constexpr HeadDims kGlm5{192, 64, 256};
constexpr HeadDims kDots{192, 64, 128};

using Rule = FlashAttentionVersion (*)(const FlashAttentionVersionQuery&);
constexpr std::optional<int32_t> kNone;

// The three ways in which vLLM asks for the version of one model.
enum class Told { kNothing, kHeadSize, kBothSizes };

FlashAttentionVersionQuery query_of(HeadDims dims, ComputeCapability capability, Told told,
                                    std::optional<int32_t> requested = {}) {
  FlashAttentionVersionQuery query = flash_attention_version_query(dims, capability, requested);
  if (told != Told::kBothSizes) query.head_size_v.reset();
  if (told == Told::kNothing) query.head_size.reset();
  return query;
}

std::optional<int32_t> version(Rule rule, HeadDims dims, ComputeCapability capability, Told told,
                               std::optional<int32_t> requested = {}) {
  return rule(query_of(dims, capability, told, requested)).version;
}

std::size_t num_keys(HeadDims dims, ComputeCapability capability, std::optional<int32_t> fa) {
  MlaWarmupConfig config;
  config.dims = dims;
  config.num_heads = 16;
  config.capability = capability;
  config.fa_version = fa.value_or(0);
  const auto list = get_warmup_keys(config);
  EXPECT_TRUE(list.ok());
  return list->keys.size();
}

TEST(flash_attention_version, the_default_is_3_on_hopper_4_on_blackwell_and_2_elsewhere) {
  for (const Rule rule : {Rule(old_flash_attention_version), Rule(flash_attention_version)}) {
    EXPECT_EQ(version(rule, kMistral, {8, 0}, Told::kBothSizes), 2);
    EXPECT_EQ(version(rule, kMistral, {8, 9}, Told::kBothSizes), 2);
    EXPECT_EQ(version(rule, kMistral, {9, 0}, Told::kBothSizes), 3);
    EXPECT_EQ(version(rule, kMistral, {10, 0}, Told::kBothSizes), 4);
    EXPECT_EQ(version(rule, kMistral, {10, 3}, Told::kBothSizes), 4);
    EXPECT_EQ(version(rule, kMistral, {11, 0}, Told::kBothSizes), 2);
    EXPECT_EQ(version(rule, kMistral, {12, 0}, Told::kBothSizes), 2);
    EXPECT_EQ(version(rule, kMistral, {7, 5}, Told::kBothSizes), kNone);
  }
}

TEST(flash_attention_version, a_version_that_is_not_built_is_not_the_default) {
  FlashAttentionVersionQuery query = flash_attention_version_query(kDeepSeek, {9, 0});
  query.fa3_built = false;
  EXPECT_EQ(flash_attention_version(query).version, 2);
  query.capability = {10, 0};
  query.fa4_built = false;
  EXPECT_EQ(flash_attention_version(query).version, 2);
  query.requested = 4;
  const FlashAttentionVersion refused = flash_attention_version(query);
  EXPECT_FALSE(flash_attention_version(query).version == 4);
  EXPECT_FALSE(refused.notes.empty());
}

TEST(flash_attention_version, version_3_is_replaced_on_blackwell) {
  for (const Rule rule : {Rule(old_flash_attention_version), Rule(flash_attention_version)}) {
    EXPECT_EQ(version(rule, kMistral, {10, 0}, Told::kBothSizes, 3), 4);
    EXPECT_EQ(version(rule, kMistral, {12, 0}, Told::kBothSizes, 3), 2);
  }
  FlashAttentionVersionQuery query = flash_attention_version_query(kMistral, {10, 0}, 3);
  query.fa4_built = false;
  EXPECT_EQ(flash_attention_version(query).version, 2);
}

TEST(flash_attention_version, version_4_is_refused_outside_9_10_and_11) {
  for (const Rule rule : {Rule(old_flash_attention_version), Rule(flash_attention_version)}) {
    for (const ComputeCapability capability : {ComputeCapability{8, 0}, ComputeCapability{12, 0}}) {
      const FlashAttentionVersion answer =
          rule(flash_attention_version_query(kMistral, capability, 4));
      EXPECT_EQ(answer.version, kNone);
      EXPECT_THAT(
          answer.notes.back(),
          HasSubstr("only supported on devices with compute capability 9.x, 10.x, or 11.x"));
    }
    EXPECT_EQ(version(rule, kMistral, {9, 0}, Told::kBothSizes, 4), 4);
    EXPECT_EQ(version(rule, kMistral, {11, 0}, Told::kBothSizes, 4), 4);
  }
}

TEST(flash_attention_version, version_3_is_refused_on_8_6_and_8_9) {
  EXPECT_EQ(version(flash_attention_version, kMistral, {8, 0}, Told::kBothSizes, 3), 3);
  EXPECT_EQ(version(flash_attention_version, kMistral, {8, 6}, Told::kBothSizes, 3), kNone);
  EXPECT_EQ(version(flash_attention_version, kMistral, {8, 9}, Told::kBothSizes, 3), kNone);
}

TEST(flash_attention_version, a_version_that_does_not_exist_is_refused) {
  const auto answer = flash_attention_version(flash_attention_version_query(kMistral, {9, 0}, 7));
  EXPECT_EQ(answer.version, kNone);
  EXPECT_THAT(answer.notes.back(), HasSubstr("FA7 does not exist"));
}

TEST(flash_attention_version, the_old_rule_passes_192_and_sends_256_to_2_on_blackwell) {
  for (const Told told : {Told::kHeadSize, Told::kBothSizes}) {
    EXPECT_EQ(version(old_flash_attention_version, kDeepSeek, {10, 0}, told), 4);
    EXPECT_EQ(version(old_flash_attention_version, kMistral, {10, 0}, told), 4);
    EXPECT_EQ(version(old_flash_attention_version, kGlm5, {10, 0}, told), 2);
    EXPECT_EQ(version(old_flash_attention_version, kGlm5, {9, 0}, told, 4), 4);
  }
}

TEST(flash_attention_version, the_old_rule_ignores_batch_invariance_and_the_current_one_does_not) {
  auto query = flash_attention_version_query(kDeepSeek, {10, 0}, {}, true);
  EXPECT_EQ(old_flash_attention_version(query).version, 4);
  EXPECT_EQ(flash_attention_version(query).version, 2);
  query = flash_attention_version_query(kDeepSeek, {9, 0}, 4, true);
  EXPECT_EQ(flash_attention_version(query).version, 2);
  query = flash_attention_version_query(kDeepSeek, {9, 0}, {}, true);
  EXPECT_EQ(flash_attention_version(query).version, 3);
}

TEST(flash_attention_version, the_current_rule_sends_head_size_256_to_2_on_10_and_11) {
  for (const ComputeCapability capability : {ComputeCapability{10, 0}, ComputeCapability{11, 0}}) {
    EXPECT_EQ(version(flash_attention_version, kGlm5, capability, Told::kBothSizes, 4), 2);
    EXPECT_EQ(version(flash_attention_version, kGlm5, capability, Told::kHeadSize, 4), 2);
    EXPECT_EQ(version(flash_attention_version, kDots, capability, Told::kBothSizes, 4), 2);
  }
  EXPECT_EQ(version(flash_attention_version, kGlm5, {9, 0}, Told::kBothSizes, 4), 4);
  EXPECT_EQ(version(flash_attention_version, kDots, {9, 0}, Told::kBothSizes, 4), 4);
}

TEST(flash_attention_version, head_sizes_above_256_go_from_3_to_4_on_hopper) {
  EXPECT_EQ(version(flash_attention_version, {448, 64, 512}, {9, 0}, Told::kBothSizes), 4);
  EXPECT_EQ(version(flash_attention_version, kGlm5, {9, 0}, Told::kBothSizes), 3);
}

TEST(flash_attention_version, every_change_leaves_a_note) {
  const auto answer = flash_attention_version(flash_attention_version_query(kGlm5, {10, 0}, 3));
  EXPECT_EQ(answer.version, 2);
  ASSERT_THAT(answer.notes, SizeIs(3));
  EXPECT_THAT(answer.notes[0], HasSubstr("FA4 -> FA3: asked for by configuration"));
  EXPECT_THAT(answer.notes[1], HasSubstr("FA3 -> FA4"));
  EXPECT_THAT(answer.notes[2], HasSubstr("FA4 -> FA2"));
  EXPECT_THAT(flash_attention_version(flash_attention_version_query(kDeepSeek, {9, 0})).notes,
              IsEmpty());
}

// A backend that asks with (d, dv) and a warmup that asks with (d) are answered 4 and 2: the
// backend then runs FlashAttention 4 with nothing warmed.
TEST(flash_attention_version, less_dims_than_the_backend_tells_empties_the_list_on_blackwell) {
  const auto current = [](HeadDims dims, Told told) {
    return version(flash_attention_version, dims, {10, 0}, told);
  };
  EXPECT_EQ(current(kDeepSeek, Told::kNothing), 4);
  EXPECT_EQ(current(kDeepSeek, Told::kHeadSize), 2);
  EXPECT_EQ(current(kDeepSeek, Told::kBothSizes), 4);
  EXPECT_EQ(num_keys(kDeepSeek, {10, 0}, current(kDeepSeek, Told::kHeadSize)), 0u);
  EXPECT_EQ(num_keys(kDeepSeek, {10, 0}, current(kDeepSeek, Told::kBothSizes)), 24u);

  for (const Told told : {Told::kNothing, Told::kHeadSize, Told::kBothSizes}) {
    EXPECT_EQ(current(kMistral, told), 4);
  }
  EXPECT_EQ(num_keys(kMistral, {10, 0}, current(kMistral, Told::kHeadSize)), 16u);

  EXPECT_EQ(current(kGlm5, Told::kNothing), 4);
  EXPECT_EQ(current(kGlm5, Told::kHeadSize), 2);
  EXPECT_EQ(current(kGlm5, Told::kBothSizes), 2);

  for (const Told told : {Told::kNothing, Told::kHeadSize, Told::kBothSizes}) {
    EXPECT_EQ(version(old_flash_attention_version, kDeepSeek, {10, 0}, told), 4);
  }
}

TEST(flash_attention_version, batch_invariance_empties_every_list_of_the_current_rule) {
  for (const HeadDims& dims : {kDeepSeek, kMistral, kGlm5, kDots}) {
    for (const ComputeCapability capability :
         {ComputeCapability{9, 0}, ComputeCapability{10, 0}, ComputeCapability{12, 0}}) {
      const auto query = flash_attention_version_query(dims, capability, {}, true);
      EXPECT_EQ(num_keys(dims, capability, flash_attention_version(query).version), 0u);
    }
  }
}

TEST(flash_attention_version, the_query_tells_both_head_sizes) {
  for (const HeadDims& dims : {kDeepSeek, kMistral, kGlm5, kDots}) {
    const auto query = flash_attention_version_query(dims, {10, 0});
    EXPECT_EQ(query.head_size, dims.nope + dims.rope);
    EXPECT_EQ(query.head_size_v, dims.v);
  }
}

TEST(flash_attention_version, v_is_padded_unless_3_runs_on_hopper_or_4_anywhere) {
  EXPECT_TRUE(flash_attention_requires_v_padding({}, {9, 0}));
  EXPECT_TRUE(flash_attention_requires_v_padding(2, {9, 0}));
  EXPECT_TRUE(flash_attention_requires_v_padding(2, {10, 0}));
  EXPECT_TRUE(flash_attention_requires_v_padding(3, {8, 0}));
  EXPECT_FALSE(flash_attention_requires_v_padding(3, {9, 0}));
  EXPECT_FALSE(flash_attention_requires_v_padding(4, {9, 0}));
  EXPECT_FALSE(flash_attention_requires_v_padding(4, {10, 0}));
  EXPECT_FALSE(flash_attention_requires_v_padding(4, {12, 0}));
}

TEST(flash_attention_version, quantised_output_needs_version_4_on_10_or_11_in_vllms_build) {
  EXPECT_TRUE(flash_attention_supports_quant_output(4, {10, 0}));
  EXPECT_TRUE(flash_attention_supports_quant_output(4, {11, 0}));
  EXPECT_FALSE(flash_attention_supports_quant_output(4, {9, 0}));
  EXPECT_FALSE(flash_attention_supports_quant_output(4, {12, 0}));
  EXPECT_FALSE(flash_attention_supports_quant_output(3, {10, 0}));
  EXPECT_FALSE(flash_attention_supports_quant_output({}, {10, 0}));
  EXPECT_FALSE(flash_attention_supports_quant_output(4, {10, 0}, false));
}

}  // namespace
}  // namespace flashprime
