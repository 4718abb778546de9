// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "flashprime/warmup.h"

namespace flashprime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ComputeCapability kSm90{9, 0};
constexpr ComputeCapability kSm100{10, 0};
constexpr ComputeCapability kSm120{12, 0};
constexpr int32_t kHopperSms = 132;
constexpr int32_t kBlackwellSms = 148;

constexpr HeadDims kDeepSeek{128, 64, 128};
constexpr HeadDims kMistral{64, 64, 128};

std::vector<CompileKey> keys_of(HeadDims dims, int32_t heads, ComputeCapability capability,
                                bool batch_invariant = false) {
  MlaWarmupConfig config;
  config.dims = dims;
  config.num_heads = heads;
  config.capability = capability;
  config.batch_invariant = batch_invariant;
  const auto list = get_warmup_keys(config);
  EXPECT_TRUE(list.ok());
  EXPECT_FALSE(list->keys.empty());
  return list->keys;
}

// "tile_n/q_stage/splits" for the first key of every probe.
std::vector<std::string> decisions(const std::vector<CompileKey>& keys,
                                   ComputeCapability capability, int32_t num_sms) {
  std::vector<std::string> text;
  for (std::size_t i = 0; i < keys.size(); i += 4) {
    const auto selection = select_fa4(keys[i], capability, num_sms);
    if (!selection.ok()) {
      text.push_back(selection.status().to_string());
      continue;
    }
    text.push_back(std::to_string(selection->kernel.tile_n) + "/" +
                   std::to_string(selection->kernel.q_stage) + "/" +
                   std::to_string(selection->num_splits));
  }
  return text;
}

std::size_t distinct_kernels(const std::vector<CompileKey>& keys, ComputeCapability capability,
                             int32_t num_sms) {
  std::set<Fa4KernelIdentity> kernels;
  for (const CompileKey& key : keys) {
    const auto selection = select_fa4(key, capability, num_sms);
    EXPECT_TRUE(selection.ok()) << selection.status().to_string();
    if (selection.ok()) kernels.insert(selection->kernel);
  }
  return kernels.size();
}

FlashAttentionProblem problem_of(ComputeCapability capability, int32_t d, int32_t dv,
                                 int64_t max_q = 4096, int64_t max_k = 4096) {
  FlashAttentionProblem problem;
  problem.capability = capability;
  problem.num_sms = capability.major == 9 ? kHopperSms : kBlackwellSms;
  problem.head_dim = d;
  problem.head_dim_v = dv;
  problem.num_heads = 16;
  problem.num_kv_heads = 16;
  problem.max_seqlen_q = max_q;
  problem.max_seqlen_k = max_k;
  problem.num_splits = 1;
  return problem;
}

// "MxN".
std::string tile(const FlashAttentionProblem& problem) {
  const auto selection = select_fa4(problem);
  if (!selection.ok()) return selection.status().to_string();
  return std::to_string(selection->kernel.tile_m) + "x" + std::to_string(selection->kernel.tile_n);
}

std::string fa3_tile(FlashAttentionProblem problem) {
  const auto selection = select_fa3(problem);
  if (!selection.ok()) return selection.status().to_string();
  return std::to_string(selection->tile_m) + "x" + std::to_string(selection->tile_n);
}

FlashAttentionProblem with_mask(FlashAttentionProblem problem, Mask mask) {
  problem.mask = mask;
  return problem;
}
FlashAttentionProblem upstream(FlashAttentionProblem problem) {
  problem.tree = FlashAttentionTree::kUpstream;
  return problem;
}
constexpr Mask kFull{MaskKind::kFull, -1, -1};
constexpr Mask kLocal{MaskKind::kWindow, 64, 64};

struct DeepSeekRow {
  int32_t heads;
  const char* sm100_p5;
  const char* sm100_p6;
  std::size_t sm100_kernels;
  const char* sm90_p3;
  const char* sm90_p4;
  std::size_t sm90_kernels;
};

TEST(select_fa4, decides_every_row_of_deepseeks_table) {
  for (const DeepSeekRow& row :
       {DeepSeekRow{128, "128/1/1", "128/2/1", 8, "128/1/1", "128/1/1", 4},
        DeepSeekRow{64, "64/1/2", "64/2/2", 16, "128/1/2", "128/1/1", 8},
        DeepSeekRow{32, "64/1/4", "64/2/4", 16, "128/1/4", "128/1/2", 8},
        DeepSeekRow{20, "64/1/7", "64/2/7", 16, "128/1/6", "128/1/3", 8},
        DeepSeekRow{16, "64/1/9", "64/2/9", 16, "128/1/8", "128/1/4", 8},
        DeepSeekRow{8, "64/1/18", "64/2/18", 16, "128/1/16", "128/1/8", 8}}) {
    SCOPED_TRACE(row.heads);
    const auto blackwell = keys_of(kDeepSeek, row.heads, kSm100);
    EXPECT_THAT(
        decisions(blackwell, kSm100, kBlackwellSms),
        ElementsAre("128/1/1", "128/2/1", "128/1/1", "128/2/1", row.sm100_p5, row.sm100_p6));
    EXPECT_EQ(distinct_kernels(blackwell, kSm100, kBlackwellSms), row.sm100_kernels);
    const auto hopper = keys_of(kDeepSeek, row.heads, kSm90);
    EXPECT_THAT(decisions(hopper, kSm90, kHopperSms),
                ElementsAre("128/1/1", "128/1/1", row.sm90_p3, row.sm90_p4));
    EXPECT_EQ(distinct_kernels(hopper, kSm90, kHopperSms), row.sm90_kernels);
  }
}

TEST(select_fa4, splits_mistral_by_sms_over_heads_on_blackwell) {
  struct Row {
    int32_t heads;
    const char* p3;
    const char* p4;
    std::size_t kernels;
  };
  for (const Row& row : {Row{128, "128/1/1", "128/2/1", 8}, Row{64, "128/1/2", "128/2/2", 16},
                         Row{32, "128/1/4", "128/2/4", 16}, Row{16, "128/1/9", "128/2/9", 16},
                         Row{8, "128/1/18", "128/2/18", 16}}) {
    const auto keys = keys_of(kMistral, row.heads, kSm100);
    EXPECT_THAT(decisions(keys, kSm100, kBlackwellSms),
                ElementsAre("128/1/1", "128/2/1", row.p3, row.p4));
    EXPECT_EQ(distinct_kernels(keys, kSm100, kBlackwellSms), row.kernels);
  }
}

TEST(select_fa4, needs_8_kernels_on_blackwell_and_4_elsewhere_without_splits) {
  for (const int32_t heads : {128, 16, 5}) {
    EXPECT_EQ(distinct_kernels(keys_of(kDeepSeek, heads, kSm100, true), kSm100, 148), 8u);
    EXPECT_EQ(distinct_kernels(keys_of(kDeepSeek, heads, kSm90, true), kSm90, 132), 4u);
    EXPECT_EQ(distinct_kernels(keys_of(kDeepSeek, heads, kSm120, true), kSm120, 188), 4u);
  }
}

TEST(select_fa4, tiles_of_hopper_follow_head_size_and_mask) {
  const auto p = [](int32_t d, int32_t dv) { return problem_of(kSm90, d, dv); };
  EXPECT_EQ(tile(p(64, 64)), "192x128");
  EXPECT_EQ(tile(with_mask(p(64, 64), kFull)), "192x128");
  EXPECT_EQ(tile(p(96, 96)), "192x128");
  EXPECT_EQ(tile(with_mask(p(96, 96), kLocal)), "192x128");
  EXPECT_EQ(tile(with_mask(p(96, 96), kFull)), "192x144");
  EXPECT_EQ(tile(p(128, 128)), "128x128");
  EXPECT_EQ(tile(p(192, 128)), "128x128");
  EXPECT_EQ(tile(p(192, 192)), "128x112");
  EXPECT_EQ(tile(with_mask(p(192, 128), kLocal)), "128x96");
  EXPECT_EQ(tile(p(256, 256)), "128x80");
  EXPECT_EQ(tile(with_mask(p(256, 256), kLocal)), "128x64");
  EXPECT_EQ(tile(p(512, 512)), "64x64");
}

TEST(select_fa4, tiles_elsewhere_are_fixed_but_for_small_heads_on_sm120) {
  for (const ComputeCapability capability : {ComputeCapability{8, 0}, ComputeCapability{8, 6}}) {
    EXPECT_EQ(tile(problem_of(capability, 192, 128)), "128x64");
  }
  for (const ComputeCapability capability :
       {ComputeCapability{10, 0}, ComputeCapability{10, 3}, ComputeCapability{11, 0}}) {
    EXPECT_EQ(tile(problem_of(capability, 192, 128)), "128x128");
    EXPECT_EQ(tile(problem_of(capability, 128, 128)), "128x128");
    EXPECT_EQ(tile(problem_of(capability, 256, 256)), "128x128");
  }
  EXPECT_EQ(tile(problem_of(kSm120, 64, 64)), "128x128");
  EXPECT_EQ(tile(problem_of(kSm120, 192, 128)), "128x64");
}

TEST(select_fa4, hopper_has_one_mma_warpgroup_per_64_rows_and_a_producer) {
  const auto resources = [](int32_t d, int32_t dv) {
    const auto s = select_fa4(problem_of(kSm90, d, dv));
    EXPECT_TRUE(s.ok());
    return std::vector<int32_t>{s->num_threads, s->producer_registers, s->mma_registers,
                                s->kv_stages, s->pv_from_registers ? 1 : 0};
  };
  EXPECT_THAT(resources(192, 128), ElementsAre(384, 24, 240, 2, 1));
  EXPECT_THAT(resources(256, 256), ElementsAre(384, 24, 240, 2, 1));
  EXPECT_THAT(resources(64, 64), ElementsAre(512, 32, 160, 2, 1));
  EXPECT_THAT(resources(96, 96), ElementsAre(512, 32, 160, 2, 0));
  EXPECT_THAT(resources(512, 512), ElementsAre(256, 56, 256, 1, 0));
}

TEST(select_fa4, blackwell_fits_these_stages_beside_q_and_o) {
  const auto stages = [](int32_t d, int64_t max_q, int64_t max_k, int32_t num_splits) {
    FlashAttentionProblem problem = problem_of(kSm100, d, 128, max_q, max_k);
    problem.num_splits = num_splits;
    const auto s = select_fa4(problem);
    EXPECT_TRUE(s.ok());
    return s->kv_stages;
  };
  EXPECT_EQ(stages(192, 129, 512, 1), 3);
  EXPECT_EQ(stages(192, 1, 512, 1), 3);
  EXPECT_EQ(stages(192, 129, 8192, 0), 4);  // split: key tiles of 64
  EXPECT_EQ(stages(192, 1, 8192, 0), 6);
  EXPECT_EQ(stages(128, 129, 512, 1), 3);
  EXPECT_EQ(stages(128, 1, 512, 1), 5);
}

TEST(select_fa4, shared_memory_of_sm120_holds_192_128_and_not_256_256) {
  constexpr int64_t kSm120Bytes = 99 * 1024;
  const auto deepseek = select_fa4(problem_of(kSm120, 192, 128));
  const auto glm = select_fa4(problem_of(kSm120, 256, 256));
  ASSERT_TRUE(deepseek.ok() && glm.ok());
  EXPECT_EQ(deepseek->smem_qkv_bytes, 88 * 1024);
  EXPECT_EQ(glm->smem_qkv_bytes, 128 * 1024);
  EXPECT_LE(deepseek->smem_qkv_bytes, kSm120Bytes);
  EXPECT_GT(glm->smem_qkv_bytes, kSm120Bytes);
  EXPECT_EQ(deepseek->num_threads, 128);
  EXPECT_EQ(deepseek->kv_stages, 1);
}

TEST(select_fa4, two_query_stages_start_above_128_rows_on_blackwell_only) {
  for (const auto& [max_q, stages] : {std::pair{1, 1}, {128, 1}, {129, 2}, {4096, 2}}) {
    EXPECT_EQ(select_fa4(problem_of(kSm100, 192, 128, max_q))->kernel.q_stage, stages);
    EXPECT_EQ(select_fa4(problem_of({11, 0}, 192, 128, max_q))->kernel.q_stage, stages);
    EXPECT_EQ(select_fa4(problem_of(kSm90, 192, 128, max_q))->kernel.q_stage, 1);
    EXPECT_EQ(select_fa4(problem_of(kSm120, 192, 128, max_q))->kernel.q_stage, 1);
  }
}

TEST(select_fa4, unequal_head_sizes_split_from_8065_keys_on) {
  FlashAttentionProblem problem = problem_of(kSm100, 192, 128, 1, 8064);
  problem.num_splits = 0;
  EXPECT_EQ(select_fa4(problem)->num_splits, 1);
  EXPECT_EQ(select_fa4(problem)->kernel.tile_n, 128);
  problem.max_seqlen_k = 8065;
  EXPECT_EQ(select_fa4(problem)->num_splits, 9);
  EXPECT_EQ(select_fa4(problem)->kernel.tile_n, 64);
}

TEST(select_fa4, real_prefills_do_not_split) {
  FlashAttentionProblem problem = problem_of(kSm100, 192, 128, 2048, 131072);
  problem.num_splits = 0;
  EXPECT_EQ(select_fa4(problem)->num_splits, 1);  // 16 heads * 8 tiles > 148 / 2
  problem.max_seqlen_q = 1024;
  EXPECT_EQ(select_fa4(problem)->num_splits, 2);  // 16 * 4 <= 148 / 2
  problem.batch_size = 2;
  EXPECT_EQ(select_fa4(problem)->num_splits, 1);
}

TEST(select_fa4, four_key_tiles_never_split_and_zero_tiles_neither) {
  FlashAttentionProblem problem = problem_of(kSm100, 128, 128, 1, 512);
  problem.num_splits = 0;
  EXPECT_EQ(select_fa4(problem)->num_splits, 1);
  problem.max_seqlen_k = 513;
  EXPECT_EQ(select_fa4(problem)->num_splits, 5);  // as many as key tiles
  problem.batch_size = 0;
  EXPECT_EQ(select_fa4(problem)->num_splits, 1);
}

TEST(select_fa4, asked_splits_are_used_as_given) {
  FlashAttentionProblem problem = problem_of(kSm100, 128, 128, 4096, 128);
  problem.num_splits = 3;
  EXPECT_EQ(select_fa4(problem)->num_splits, 3);
  EXPECT_TRUE(select_fa4(problem)->kernel.is_split);
}

TEST(select_fa4, the_256_kernel_never_splits_and_uses_two_ctas) {
  FlashAttentionProblem problem = problem_of(kSm100, 256, 256, 1, 65536);
  problem.num_splits = 8;
  const auto selection = select_fa4(problem);
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->num_splits, 1);
  EXPECT_TRUE(selection->kernel.two_cta);
  EXPECT_EQ(selection->kv_stages, 4);
  EXPECT_FALSE(select_fa4(problem_of(kSm100, 192, 128))->kernel.two_cta);
}

TEST(select_fa4, windows_bound_the_keys_that_are_loaded) {
  const auto n_blocks = [](Mask mask, FlashAttentionTree tree) {
    FlashAttentionProblem problem = problem_of(kSm100, 128, 128, 4096, 65536);
    problem.mask = mask;
    problem.tree = tree;
    return select_fa4(problem)->num_n_blocks;
  };
  constexpr auto kFork = FlashAttentionTree::kVllmFork;
  constexpr auto kUpstream = FlashAttentionTree::kUpstream;
  EXPECT_EQ(n_blocks({MaskKind::kWindow, 500, 10}, kFork), 5);  // 500 + 10 + 1 + 128 keys
  EXPECT_EQ(n_blocks({MaskKind::kWindow, 500, -1}, kFork), 512);
  EXPECT_EQ(n_blocks({MaskKind::kWindow, 500, 0}, kUpstream), 5);
  EXPECT_EQ(n_blocks({MaskKind::kWindow, 500, 0}, kFork), 512);  // 0 counts as missing
  EXPECT_EQ(n_blocks(kFull, kFork), 512);
}

TEST(select_fa4, a_window_up_to_the_diagonal_is_causal_and_one_without_bounds_is_full) {
  const auto kernel = [](Mask mask) {
    return select_fa4(with_mask(problem_of(kSm100, 128, 128), mask))->kernel;
  };
  EXPECT_EQ(kernel({MaskKind::kWindow, -1, 0}), kernel({MaskKind::kCausal, -1, -1}));
  EXPECT_EQ(kernel({MaskKind::kWindow, -1, -1}), kernel(kFull));
  EXPECT_NE(kernel(kLocal), kernel(kFull));
  EXPECT_TRUE(kernel({MaskKind::kWindow, 64, -1}).window_left);
  EXPECT_FALSE(kernel({MaskKind::kWindow, 64, -1}).window_right);
}

TEST(select_fa4, batch_heads_and_lengths_of_one_regime_share_a_kernel) {
  FlashAttentionProblem small = problem_of(kSm100, 192, 128, 300, 300);
  FlashAttentionProblem large = problem_of(kSm100, 192, 128, 8192, 8192);
  large.num_heads = large.num_kv_heads = 128;
  large.batch_size = 64;
  EXPECT_EQ(select_fa4(small)->kernel, select_fa4(large)->kernel);
  small.return_lse = true;
  EXPECT_NE(select_fa4(small)->kernel, select_fa4(large)->kernel);
}

TEST(select_fa4, refuses_in_flash_attentions_words) {
  const auto refusal = [](const FlashAttentionProblem& problem) {
    const auto selection = select_fa4(problem);
    return selection.ok() ? std::string("accepted") : selection.status().to_string();
  };
  EXPECT_THAT(refusal(problem_of(kSm90, 100, 128)),
              HasSubstr("(head_dim, head_dim_v)=(100, 128) is not supported on SM90"));
  EXPECT_THAT(refusal(upstream(problem_of(kSm90, 512, 512))), HasSubstr("between 8 and 256"));
  EXPECT_THAT(refusal(problem_of(kSm100, 256, 128)),
              HasSubstr("(256, 128) is not supported on SM100/SM110"));
  EXPECT_THAT(refusal(problem_of(kSm100, 192, 192)), HasSubstr("or (192, 128) for DeepSeek"));
  FlashAttentionProblem problem = problem_of(kSm120, 192, 128);
  for (const int32_t splits : {0, 2}) {
    problem.num_splits = splits;
    EXPECT_EQ(refusal(problem), "kUnsupported: SM120 forward only supports num_splits=1");
  }
  problem = problem_of({8, 0}, 192, 128, 1, 65536);
  problem.num_splits = 0;
  EXPECT_EQ(refusal(problem), "kUnsupported: SplitKV not supported on SM 8.0");
  problem = problem_of(kSm90, 192, 128, 1, 65536);
  problem.num_splits = 2;
  EXPECT_EQ(refusal(problem), "accepted");
  EXPECT_EQ(refusal(upstream(problem)), "kUnsupported: SplitKV not supported on SM 9.0");
  EXPECT_THAT(refusal(problem_of({7, 5}, 192, 128)), HasSubstr("kArch: capability: got 7.5"));
  problem = problem_of(kSm90, 192, 128);
  problem.dtype = Dtype::kFp32;
  EXPECT_THAT(refusal(problem), HasSubstr("kDtype"));
  problem = problem_of(kSm90, 192, 128);
  problem.num_kv_heads = 3;
  EXPECT_THAT(refusal(problem), HasSubstr("heads: got 16 over 3"));
  problem = problem_of(kSm90, 192, 128, -1);
  EXPECT_THAT(refusal(problem), HasSubstr("kRange"));
}

TEST(select_fa4, a_key_without_cu_seqlens_is_refused) {
  CompileKey key = keys_of(kDeepSeek, 16, kSm90).front();
  key.cu_seqlens_k_shape.reset();
  EXPECT_EQ(select_fa4(key, kSm90, kHopperSms).status().code(), StatusCode::kUnsupported);
}

TEST(select_fa4, a_window_in_a_key_reaches_the_kernel) {
  CompileKey key = keys_of(kDeepSeek, 16, kSm90).front();
  key.window_size = {64, 64};
  const auto selection = select_fa4(key, kSm90, kHopperSms);
  ASSERT_TRUE(selection.ok());
  EXPECT_TRUE(selection->kernel.window_left && selection->kernel.window_right);
  EXPECT_EQ(selection->kernel.tile_n, 96);
}

TEST(select_fa3, tiles_follow_head_size_mask_and_tree) {
  const auto p = [](int32_t d, int32_t dv) { return problem_of(kSm90, d, dv); };
  EXPECT_EQ(fa3_tile(p(64, 64)), "192x128");
  EXPECT_EQ(fa3_tile(with_mask(p(64, 64), kLocal)), "192x128");
  EXPECT_EQ(fa3_tile(with_mask(p(64, 64), kFull)), "192x192");
  EXPECT_EQ(fa3_tile(p(96, 96)), "192x144");
  EXPECT_EQ(fa3_tile(with_mask(p(96, 96), kLocal)), "192x128");
  EXPECT_EQ(fa3_tile(p(128, 128)), "128x128");
  EXPECT_EQ(fa3_tile(with_mask(p(128, 128), kFull)), "128x160");
  EXPECT_EQ(fa3_tile(with_mask(upstream(p(128, 128)), kFull)), "128x176");
  EXPECT_EQ(fa3_tile(p(192, 128)), "128x128");
  EXPECT_EQ(fa3_tile(p(192, 192)), "128x96");
  EXPECT_EQ(fa3_tile(upstream(p(192, 192))), "128x112");
  EXPECT_EQ(fa3_tile(with_mask(p(192, 128), kLocal)), "128x96");
  EXPECT_EQ(fa3_tile(p(256, 256)), "128x80");
  EXPECT_EQ(fa3_tile(with_mask(p(256, 256), kLocal)), "128x64");
}

TEST(select_fa3, the_fork_serves_up_to_64_rows_with_one_warpgroup) {
  const auto p = [](int32_t d, int64_t max_q) { return problem_of(kSm90, d, d, max_q); };
  EXPECT_EQ(fa3_tile(p(128, 64)), "64x128");
  EXPECT_EQ(fa3_tile(p(128, 65)), "128x128");
  EXPECT_EQ(fa3_tile(p(64, 1)), "64x128");
  EXPECT_EQ(fa3_tile(p(96, 1)), "192x144");
  EXPECT_EQ(fa3_tile(problem_of(kSm90, 192, 128, 1)), "128x128");
  EXPECT_EQ(fa3_tile(upstream(p(128, 64))), "128x128");
  EXPECT_EQ(fa3_tile(with_mask(p(128, 64), kLocal)), "128x128");
}

int32_t fa3_splits(int32_t heads, int64_t max_q, int64_t max_k, Mask mask = {}) {
  FlashAttentionProblem problem = problem_of(kSm90, 192, 128, max_q, max_k);
  problem.num_heads = problem.num_kv_heads = heads;
  problem.num_splits = 0;
  problem.mask = mask;
  return select_fa3(problem)->num_splits;
}

TEST(select_fa3, splits_until_the_sms_are_well_filled) {
  EXPECT_EQ(fa3_splits(128, 1, 8192), 1);  // 128 tiles >= 0.8 * 132
  EXPECT_EQ(fa3_splits(106, 1, 8192), 1);
  EXPECT_EQ(fa3_splits(105, 1, 512), 1);  // four key tiles
  EXPECT_EQ(fa3_splits(66, 1, 8192), 2);  // one full wave
  EXPECT_EQ(fa3_splits(16, 1, 8192), 8);  // 128 of 132; 0.97 is the best of one wave
  EXPECT_EQ(fa3_splits(1, 1, 1024), 7);   // 8 tiles of keys; 7 reach 85 % of 8
}

TEST(select_fa3, keys_beyond_the_l2_cache_split_only_with_many_rows_and_no_mask) {
  // One KV head of 128k keys is 80 MiB; 264 row tiles are two per SM.
  EXPECT_EQ(fa3_splits(1, 264 * 128, 131072, kFull), 2);
  EXPECT_EQ(fa3_splits(1, 264 * 128, 131072), 1);
  EXPECT_EQ(fa3_splits(1, 263 * 128, 131072, kFull), 1);
  EXPECT_EQ(fa3_splits(1, 264 * 128, 65536, kFull), 1);
}

TEST(select_fa3, refuses_other_devices_and_head_sizes) {
  EXPECT_THAT(fa3_tile(problem_of(kSm100, 192, 128)), HasSubstr("kArch: capability: got 10.0"));
  EXPECT_THAT(fa3_tile(problem_of(kSm90, 256, 128)), HasSubstr("kUnsupported"));
  EXPECT_THAT(fa3_tile(problem_of(kSm90, 128, 64)), HasSubstr("kUnsupported"));
  EXPECT_THAT(fa3_tile(problem_of(kSm90, 512, 512)), HasSubstr("head_dim: got 512"));
}

}  // namespace
}  // namespace flashprime
