// SPDX-License-Identifier: Apache-2.0
// The lists of compile keys, row by row, as vLLM 0.33.0 gives them with the version set to 4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flashprime/warmup.h"
#include "warmup/mla_prefill_kernel.h"

namespace flashprime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr HeadDims kDeepSeek{128, 64, 128};
constexpr HeadDims kMistral{64, 64, 128};
constexpr HeadDims kGlm5{192, 64, 256};
constexpr HeadDims kGlmFlash{256, 0, 256};
constexpr HeadDims kDots{192, 64, 128};

MlaWarmupConfig config_of(HeadDims dims, int32_t num_heads, ComputeCapability capability,
                          int num_splits) {
  MlaWarmupConfig config;
  config.dims = dims;
  config.num_heads = num_heads;
  config.capability = capability;
  config.batch_invariant = num_splits == 1;
  return config;
}

std::vector<CompileKey> keys_of(const MlaWarmupConfig& config) {
  const StatusOr<WarmupKeyList> list = get_warmup_keys(config);
  EXPECT_TRUE(list.ok()) << list.status().to_string();
  return list.ok() ? list->keys : std::vector<CompileKey>{};
}

std::string why_empty(const MlaWarmupConfig& config) {
  const StatusOr<WarmupKeyList> list = get_warmup_keys(config);
  EXPECT_TRUE(list.ok()) << list.status().to_string();
  EXPECT_THAT(list->keys, IsEmpty());
  return list->why_empty;
}

// "P1 P2 P4" for the probes of a list, provided that each has its four variants in order and
// num_splits as asked; else what is wrong.
std::string probes_of(const std::vector<CompileKey>& keys, int num_splits) {
  static const std::vector<std::pair<int64_t, int64_t>> kProbes = {
      {1, 128}, {129, 512}, {1, 4096}, {129, 4096}, {1, 8192}, {129, 8192}};
  if (keys.size() % 4 != 0) return "not a multiple of 4";
  std::string text;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const CompileKey& key = keys[i];
    const std::pair<int64_t, int64_t> lengths(key.max_seqlen_q, key.max_seqlen_k);
    if (i % 4 == 0) {
      std::size_t p = 0;
      while (p < kProbes.size() && kProbes[p] != lengths) ++p;
      text += (text.empty() ? "P" : " P") + std::to_string(p + 1);
    } else if (lengths.first != keys[i - 1].max_seqlen_q ||
               lengths.second != keys[i - 1].max_seqlen_k) {
      return "variants of a probe are not together";
    }
    if (key.causal != (i % 4 >= 2) || key.return_softmax_lse != (i % 2 == 1)) {
      return "causal and LSE out of order";
    }
    if (key.num_splits != num_splits || key.fa_version != 4 || key.window_size) {
      return "wrong num_splits, fa_version or window";
    }
    if (key.q_shape[0] != lengths.first || key.k_shape[0] != lengths.second ||
        key.v_shape[0] != lengths.second) {
      return "shapes do not follow the lengths";
    }
  }
  return text;
}

struct Row {
  const char* name;
  std::vector<HeadDims> dims;
  std::vector<ComputeCapability> capabilities;
  int num_splits;
  const char* probes;
  std::size_t count;
};

const std::vector<ComputeCapability> kSm90 = {{9, 0}};
const std::vector<ComputeCapability> kSm100 = {{10, 0}, {10, 3}};
const std::vector<ComputeCapability> kSm120 = {{12, 0}, {12, 1}};
const std::vector<ComputeCapability> kOther = {{7, 5}, {8, 0},  {8, 6}, {8, 9},
                                               {9, 1}, {11, 0}, {13, 0}};
constexpr const char* kFour = "P1 P2 P3 P4";
constexpr const char* kSix = "P1 P2 P3 P4 P5 P6";

std::vector<Row> table() {
  return {{"192/128 sm90", {kDeepSeek}, kSm90, 0, kFour, 16},
          {"192/128 sm90", {kDeepSeek}, kSm90, 1, "P1 P2", 8},
          {"192/128 sm100", {kDeepSeek}, kSm100, 0, kSix, 24},
          {"192/128 sm100", {kDeepSeek}, kSm100, 1, "P1 P2", 8},
          {"192/128 sm120", {kDeepSeek}, kSm120, 0, "", 0},
          {"192/128 sm120", {kDeepSeek}, kSm120, 1, "P1 P2", 8},
          {"128/128 sm90", {kMistral}, kSm90, 0, kFour, 16},
          {"128/128 sm100", {kMistral}, kSm100, 0, kFour, 16},
          {"128/128 sm90", {kMistral}, kSm90, 1, "P1 P2", 8},
          {"128/128 sm100", {kMistral}, kSm100, 1, "P1 P2", 8},
          {"128/128 sm120", {kMistral}, kSm120, 0, "", 0},
          {"128/128 sm120", {kMistral}, kSm120, 1, "P1 P2", 8},
          {"256/256 sm120", {kGlm5, kGlmFlash}, kSm120, 0, "", 0},
          {"256/256 sm120", {kGlm5, kGlmFlash}, kSm120, 1, "P1 P2", 8},
          {"256/256 sm90", {kGlm5, kGlmFlash}, kSm90, 0, kFour, 16},
          {"256/256 sm90", {kGlm5, kGlmFlash}, kSm90, 1, "P1 P2", 8},
          {"256/256 sm100", {kGlm5, kGlmFlash}, kSm100, 0, kFour, 16},
          {"256/256 sm100", {kGlm5, kGlmFlash}, kSm100, 1, "P1 P2", 8},
          {"256/128 sm90", {kDots}, kSm90, 0, kFour, 16},
          {"256/128 sm90", {kDots}, kSm90, 1, "P1 P2", 8},
          {"256/128 sm100", {kDots}, kSm100, 0, kSix, 24},
          {"256/128 sm100", {kDots}, kSm100, 1, "P1 P2", 8},
          {"256/128 sm120", {kDots}, kSm120, 0, "", 0},
          {"256/128 sm120", {kDots}, kSm120, 1, "P1 P2", 8},
          {"any", {kDeepSeek, kMistral, kGlm5, kGlmFlash, kDots}, kOther, 0, "", 0},
          {"any", {kDeepSeek, kMistral, kGlm5, kGlmFlash, kDots}, kOther, 1, "", 0}};
}

TEST(warmup_keys, every_row_of_the_table_has_its_probes_variants_and_order) {
  for (const Row& row : table()) {
    for (const HeadDims& dims : row.dims) {
      for (const ComputeCapability& capability : row.capabilities) {
        SCOPED_TRACE(std::string(row.name) + " splits " + std::to_string(row.num_splits));
        const auto keys = keys_of(config_of(dims, 16, capability, row.num_splits));
        EXPECT_THAT(keys, SizeIs(row.count));
        EXPECT_EQ(probes_of(keys, row.num_splits), row.probes);
      }
    }
  }
}

TEST(warmup_keys, the_form_with_a_list_of_probes_gives_the_same_lists_as_the_zipped_rows) {
  const MlaPrefillKernel list_axis({}, {}, ProbeForm::kListAxis);
  const MlaPrefillKernel zipped_rows({}, {}, ProbeForm::kZippedRows);
  std::size_t compared = 0;
  for (const Row& row : table()) {
    for (const HeadDims& dims : row.dims) {
      for (const ComputeCapability& capability : row.capabilities) {
        const MlaWarmupConfig config = config_of(dims, 20, capability, row.num_splits);
        const auto first = list_axis.warmup_keys(config);
        const auto second = zipped_rows.warmup_keys(config);
        ASSERT_TRUE(first.ok() && second.ok());
        EXPECT_EQ(first->keys, second->keys) << row.name;
        EXPECT_THAT(first->ignored, IsEmpty());
        EXPECT_THAT(second->ignored, IsEmpty());
        compared += first->keys.size();
      }
    }
  }
  EXPECT_GT(compared, 0u);
}

TEST(warmup_keys, the_first_key_of_deepseek_has_these_fifteen_fields) {
  const auto keys = keys_of(config_of(kDeepSeek, 128, {10, 0}, 0));
  ASSERT_THAT(keys, SizeIs(24));
  EXPECT_EQ(keys[0].to_python(),
            "((1, 128, 192), (128, 128, 192), (128, 128, 128), torch.bfloat16, 1, 128, "
            "0.07216878364870322, False, 4, (32768, 256, 1), (2,), (2,), None, False, 0)");
  EXPECT_EQ(keys[7].to_python(),
            "((129, 128, 192), (512, 128, 192), (512, 128, 128), torch.bfloat16, 129, 512, "
            "0.07216878364870322, True, 4, (32768, 256, 1), (2,), (2,), None, True, 0)");
}

TEST(warmup_keys, key_rows_of_deepseek_follow_the_probes) {
  const auto keys = keys_of(config_of(kDeepSeek, 128, {10, 3}, 0));
  ASSERT_THAT(keys, SizeIs(24));
  std::vector<int64_t> rows;
  for (std::size_t i = 0; i < keys.size(); i += 4) rows.push_back(keys[i].k_shape[0]);
  EXPECT_THAT(rows, ElementsAre(128, 512, 4096, 4096, 8192, 8192));
}

TEST(warmup_keys, heads_and_dims_set_shapes_strides_and_scale) {
  struct Case {
    HeadDims dims;
    int32_t heads;
    int64_t d;
    std::array<int64_t, 3> v_stride;
    double scale;
  };
  for (const Case& c : {Case{kDeepSeek, 16, 192, {4096, 256, 1}, 0.07216878364870322},
                        Case{kMistral, 32, 128, {6144, 192, 1}, 0.08838834764831845},
                        Case{kGlm5, 64, 256, {28672, 448, 1}, 0.0625},
                        Case{kGlmFlash, 64, 256, {32768, 512, 1}, 0.0625},
                        Case{kDots, 64, 256, {20480, 320, 1}, 0.0625},
                        Case{kDeepSeek, 5, 192, {1280, 256, 1}, 0.07216878364870322}}) {
    for (const CompileKey& key : keys_of(config_of(c.dims, c.heads, {9, 0}, 0))) {
      EXPECT_EQ(key.q_shape, (std::array<int64_t, 3>{key.max_seqlen_q, c.heads, c.d}));
      EXPECT_EQ(key.k_shape, (std::array<int64_t, 3>{key.max_seqlen_k, c.heads, c.d}));
      EXPECT_EQ(key.v_shape, (std::array<int64_t, 3>{key.max_seqlen_k, c.heads, c.dims.v}));
      EXPECT_EQ(key.v_stride, c.v_stride);
      EXPECT_EQ(key.softmax_scale, c.scale);
    }
  }
}

TEST(warmup_keys, fp16_stays_and_every_other_dtype_becomes_bf16_with_a_note) {
  MlaWarmupConfig config = config_of(kDeepSeek, 16, {9, 0}, 0);
  config.dtype = Dtype::kFp16;
  for (const CompileKey& key : keys_of(config)) EXPECT_EQ(key.q_dtype, Dtype::kFp16);
  config.dtype = Dtype::kFp32;
  const auto list = get_warmup_keys(config);
  ASSERT_TRUE(list.ok());
  ASSERT_THAT(list->keys, SizeIs(16));
  for (const CompileKey& key : list->keys) EXPECT_EQ(key.q_dtype, Dtype::kBf16);
  EXPECT_THAT(list->notes, ElementsAre(HasSubstr("warmed as bf16")));
}

TEST(warmup_keys, an_empty_list_names_the_first_gate_that_closed) {
  MlaWarmupConfig config = config_of(kDeepSeek, 0, {11, 0}, 0);
  for (const int32_t version : {0, 2, 3, 5}) {
    config.fa_version = version;
    EXPECT_THAT(why_empty(config), HasSubstr("fa_version: got " + std::to_string(version)));
  }
  config.fa_version = 4;
  EXPECT_THAT(why_empty(config), HasSubstr("capability: got 11.0"));
  config.capability = {12, 1};
  EXPECT_THAT(why_empty(config), HasSubstr("num_splits 1"));
  config.batch_invariant = true;
  EXPECT_THAT(why_empty(config), HasSubstr("num_heads: got 0"));
  config.num_heads = -3;
  EXPECT_THAT(why_empty(config), HasSubstr("num_heads: got -3"));
  config.num_heads = 1;
  const auto list = get_warmup_keys(config);
  ASSERT_TRUE(list.ok());
  EXPECT_THAT(list->keys, SizeIs(8));
  EXPECT_EQ(list->why_empty, "");
}

TEST(warmup_keys, dims_that_are_none_are_an_error) {
  for (const HeadDims& dims :
       {HeadDims{0, 64, 128}, HeadDims{128, -1, 128}, HeadDims{128, 64, 0}}) {
    const auto list = get_warmup_keys(config_of(dims, 16, {9, 0}, 0));
    ASSERT_FALSE(list.ok());
    EXPECT_EQ(list.status().code(), StatusCode::kShape);
  }
}

TEST(warmup_keys, batch_as_an_axis_doubles_the_list_of_sm90) {
  const MlaPrefillKernel kernel({}, {}, ProbeForm::kListAxis);
  WarmupSpace space;
  space.axes = {{"batch_size", WarmupDomain::choices({1, 2})},
                {"dtype", Dtype::kBf16},
                {"num_heads", 16},
                {"mla_dims", kDeepSeek},
                {"shape_probe", WarmupDomain::choices(
                                    {WarmupValue::Tuple{1, 128}, WarmupValue::Tuple{129, 512},
                                     WarmupValue::Tuple{1, 4096}, WarmupValue::Tuple{129, 4096}})},
                {"requires_v_padding", false},
                {"causal", WarmupDomain::choices({false, true})},
                {"return_lse", WarmupDomain::choices({false, true})},
                {"fa_version", 4}};
  const auto keys = kernel.expand(space);
  ASSERT_TRUE(keys.ok()) << keys.status().to_string();
  ASSERT_THAT(keys->keys, SizeIs(32));
  EXPECT_EQ(keys->keys[16].q_shape[0], 2);
  EXPECT_EQ(keys->keys[16].k_shape[0], 256);
  EXPECT_EQ((*keys->keys[16].cu_seqlens_q_shape)[0], 3);
  EXPECT_EQ(keys->keys[16].max_seqlen_q, 1);
  EXPECT_EQ(keys->keys[0].num_splits, 0);  // the default
}

TEST(warmup_keys, a_window_meant_as_one_value_needs_choices) {
  const MlaPrefillKernel kernel({}, {}, ProbeForm::kZippedRows);
  WarmupSpace space;
  space.axes = {{"batch_size", 1},       {"dtype", Dtype::kBf16},      {"num_heads", 16},
                {"mla_dims", kDeepSeek}, {"max_seqlen_q", 1},          {"max_seqlen_k", 128},
                {"causal", false},       {"requires_v_padding", true}, {"fa_version", 4}};
  space.axes.push_back({"window_size", WarmupDomain::choices({WarmupValue::Tuple{64, 0}})});
  const auto keys = kernel.expand(space);
  ASSERT_TRUE(keys.ok()) << keys.status().to_string();
  ASSERT_THAT(keys->keys, SizeIs(1));
  EXPECT_EQ(keys->keys[0].window_size, (std::array<int64_t, 2>{64, 0}));
  space.axes.back() = {"window_size", WarmupValue::Tuple{64, 0}};
  EXPECT_FALSE(kernel.expand(space).ok());  // two windows, 64 and 0
}

TEST(warmup_keys, a_padded_v_is_as_wide_as_k_and_dense) {
  MlaDispatchInputs inputs;
  inputs.batch_size = 1;
  inputs.num_heads = 16;
  inputs.probe = {1, 128};
  inputs.requires_v_padding = true;
  inputs.fa_version = 4;
  const auto key = make_compile_key(inputs);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->v_shape, (std::array<int64_t, 3>{128, 16, 192}));
  EXPECT_FALSE(key->v_stride.has_value());
}

TEST(warmup_keys, shapes_that_overflow_are_an_error) {
  MlaDispatchInputs inputs;
  inputs.batch_size = int64_t{1} << 40;
  inputs.num_heads = 16;
  inputs.probe = {int64_t{1} << 40, 128};
  EXPECT_EQ(make_compile_key(inputs).status().code(), StatusCode::kRange);
  inputs.probe = {1, 128};
  inputs.num_heads = int64_t{1} << 60;
  EXPECT_EQ(make_compile_key(inputs).status().code(), StatusCode::kRange);
}

TEST(warmup_keys, warmup_hands_every_key_to_the_compiler_in_order) {
  std::vector<CompileKey> compiled;
  MlaPrefillKernel kernel({}, [&](const CompileKey& key) {
    compiled.push_back(key);
    return ok_status();
  });
  const MlaWarmupConfig config = config_of(kDeepSeek, 16, {10, 0}, 0);
  ASSERT_TRUE(kernel.warmup(config).ok());
  EXPECT_EQ(compiled, keys_of(config));
  EXPECT_EQ(MlaPrefillKernel().warmup(config).code(), StatusCode::kNoCompiler);
}

TEST(warmup_keys, a_call_runs_the_kernel_it_brings_else_the_bound_one) {
  const auto answer = [](StatusCode code) {
    return [code](const PrefillProblem&, const PrefillArgs&, const ExecutionOptions&,
                  StreamHandle) { return Status(code, "ran"); };
  };
  const MlaPrefillKernel kernel(answer(StatusCode::kDevice));
  EXPECT_EQ(kernel.call({}, {}, {}, {}, nullptr).code(), StatusCode::kDevice);
  EXPECT_EQ(kernel.call(answer(StatusCode::kStream), {}, {}, {}, nullptr).code(),
            StatusCode::kStream);
}

}  // namespace
}  // namespace flashprime
