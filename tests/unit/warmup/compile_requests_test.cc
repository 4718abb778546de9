// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "flashprime/warmup.h"

namespace flashprime {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kDeepSeekScale = 0.1352337788608801;  // with YaRN's factor

MlaCompileContext deepseek(int32_t num_splits = 0, bool padded = false) {
  MlaCompileContext context;
  context.num_heads = 16;
  context.scale = kDeepSeekScale;
  context.num_splits = num_splits;
  context.requires_v_padding = padded;
  return context;
}

std::vector<CompileKey> specs_of(CompileRequests requests) {
  std::vector<CompileKey> specs;
  while (true) {
    const auto request = requests.next();
    EXPECT_TRUE(request.ok()) << request.status().to_string();
    if (!request.ok() || !request->has_value()) return specs;
    specs.push_back((*request)->compile_spec());
  }
}

std::vector<CompileKey> specs_of(const MlaCompileContext& context, ComputeCapability capability) {
  return specs_of(mla_compile_requests(context, capability));
}

// A source that draws from a list and then ends, or fails.
CompileRequests::Source from_list(std::vector<CompileKey> keys, Status end = {}) {
  std::size_t next = 0;
  return [=]() mutable -> StatusOr<std::optional<CompileKey>> {
    if (next < keys.size()) return std::optional<CompileKey>(keys[next++]);
    if (!end.ok()) return end;
    return std::optional<CompileKey>();
  };
}

CompileKey key_with_splits(int32_t num_splits) {
  CompileKey key;
  key.fa_version = 4;
  key.num_splits = num_splits;
  return key;
}

TEST(compile_requests, deepseek_has_as_many_specs_as_the_key_list) {
  EXPECT_THAT(specs_of(deepseek(), {9, 0}), SizeIs(16));
  EXPECT_THAT(specs_of(deepseek(), {10, 0}), SizeIs(24));
  EXPECT_THAT(specs_of(deepseek(), {10, 3}), SizeIs(24));
  EXPECT_THAT(specs_of(deepseek(1), {9, 0}), SizeIs(8));
  EXPECT_THAT(specs_of(deepseek(1), {10, 0}), SizeIs(8));
  EXPECT_THAT(specs_of(deepseek(1), {12, 0}), SizeIs(8));
}

TEST(compile_requests, specs_equal_the_key_list_but_for_the_layers_scale) {
  MlaWarmupConfig config;
  config.num_heads = 16;
  config.capability = {10, 0};
  auto list = get_warmup_keys(config);
  ASSERT_TRUE(list.ok());
  for (CompileKey& key : list->keys) key.softmax_scale = kDeepSeekScale;
  EXPECT_EQ(specs_of(deepseek(), {10, 0}), list->keys);
}

TEST(compile_requests, the_first_request_key_has_the_fields_in_order) {
  auto requests = mla_compile_requests(deepseek(), {9, 0});
  const auto first = requests.next();
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->compile_spec().to_python(),
            "((1, 16, 192), (128, 16, 192), (128, 16, 128), torch.bfloat16, 1, 128, "
            "0.1352337788608801, False, 4, (4096, 256, 1), (2,), (2,), None, False, 0)");
  EXPECT_EQ((*first)->key(), (*first)->compile_spec().fields());
}

TEST(compile_requests, padded_v_has_no_stride_and_needs_no_very_long_probe) {
  const auto specs = specs_of(deepseek(0, true), {10, 0});
  ASSERT_THAT(specs, SizeIs(16));
  for (const CompileKey& spec : specs) {
    EXPECT_FALSE(spec.v_stride.has_value());
    EXPECT_EQ(spec.v_shape[2], 192);
    EXPECT_LE(spec.max_seqlen_k, 4096);
  }
}

TEST(compile_requests, a_dtype_that_is_not_standard_gives_nothing_instead_of_bf16) {
  MlaCompileContext context = deepseek();
  context.dtype = Dtype::kFp32;
  EXPECT_THAT(specs_of(context, {10, 0}), IsEmpty());
  context.dtype = Dtype::kFp16;
  EXPECT_THAT(specs_of(context, {10, 0}), SizeIs(24));
}

TEST(compile_requests, no_heads_and_splits_on_sm120_give_nothing) {
  EXPECT_THAT(specs_of(deepseek(0), {12, 0}), IsEmpty());
  MlaCompileContext context = deepseek();
  context.num_heads = 0;
  EXPECT_THAT(specs_of(context, {10, 0}), IsEmpty());
}

TEST(compile_requests, an_unknown_capability_is_an_error_of_the_first_item_and_stays_one) {
  for (const ComputeCapability capability : {ComputeCapability{8, 0}, ComputeCapability{9, 1},
                                             ComputeCapability{11, 0}, ComputeCapability{12, 1}}) {
    CompileRequests requests = mla_compile_requests(deepseek(1), capability);  // no error yet
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto first = requests.next();
      ASSERT_FALSE(first.ok());
      EXPECT_EQ(first.status().code(), StatusCode::kArch);
      EXPECT_EQ(first.status().message(), "FA4 warmup does not know CUDA capability " +
                                              std::to_string(capability.major) + "." +
                                              std::to_string(capability.minor));
    }
  }
}

TEST(compile_requests, the_capability_is_asked_before_the_gates) {
  MlaCompileContext context = deepseek();
  context.num_heads = 0;
  auto requests = mla_compile_requests(context, {11, 0});
  EXPECT_EQ(requests.next().status().code(), StatusCode::kArch);
}

TEST(compile_requests, injected_duplicates_are_dropped_and_the_first_is_kept) {
  const CompileKey a = key_with_splits(0);
  const CompileKey b = key_with_splits(1);
  const CompileKey c = key_with_splits(2);
  EXPECT_EQ(specs_of(CompileRequests(from_list({b, a, b, b, c, a, c}), {})),
            (std::vector<CompileKey>{b, a, c}));
}

TEST(compile_requests, specs_with_equal_nan_scales_are_one_request) {
  CompileKey nan = key_with_splits(0);
  nan.softmax_scale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(specs_of(CompileRequests(from_list({nan, nan}), {})), SizeIs(1));
}

TEST(compile_requests, requests_before_a_failing_spec_are_delivered) {
  CompileRequests requests(from_list({key_with_splits(0)}, Status(StatusCode::kRange, "too large")),
                           {});
  const auto first = requests.next();
  EXPECT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ(requests.next().status().message(), "too large");
  EXPECT_EQ(requests.next().status().message(), "too large");
}

TEST(compile_requests, nothing_is_drawn_or_compiled_before_it_is_asked_for) {
  int drawn = 0;
  int compiled = 0;
  CompileRequests requests(
      [&]() -> StatusOr<std::optional<CompileKey>> {
        return std::optional<CompileKey>(key_with_splits(drawn++));
      },
      [&](const CompileKey&) {
        ++compiled;
        return ok_status();
      });
  EXPECT_EQ(drawn, 0);
  auto request = requests.next();
  ASSERT_TRUE(request.ok() && request->has_value());
  EXPECT_EQ(drawn, 1);
  EXPECT_EQ(compiled, 0);
  EXPECT_TRUE((*request)->compile().ok());
  EXPECT_EQ(compiled, 1);
}

TEST(compile_requests, a_request_compiles_once_and_its_copies_share_the_outcome) {
  std::vector<CompileKey> compiled;
  CompileRequest request(key_with_splits(3), [&](const CompileKey& key) {
    compiled.push_back(key);
    return Status(StatusCode::kIo, "no space");
  });
  CompileRequest copy = request;
  EXPECT_EQ(request.compile().code(), StatusCode::kIo);
  EXPECT_EQ(copy.compile().message(), "no space");
  EXPECT_EQ(compiled, std::vector<CompileKey>{key_with_splits(3)});
}

TEST(compile_requests, only_version_4_compiles) {
  CompileKey key = key_with_splits(0);
  key.fa_version = 3;
  CompileRequest request(key, [](const CompileKey&) { return ok_status(); });
  const Status status = request.compile();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "Compile-only FlashAttention is only supported for FA4, got FA3");
}

TEST(compile_requests, a_request_without_a_compiler_says_so) {
  EXPECT_EQ(CompileRequest(key_with_splits(0), {}).compile().code(), StatusCode::kNoCompiler);
}

TEST(compile_requests, head_dims_that_are_none_are_an_error) {
  MlaCompileContext context = deepseek();
  context.qk_head_dim = 0;
  auto requests = mla_compile_requests(context, {9, 0});
  EXPECT_EQ(requests.next().status().code(), StatusCode::kShape);
}

}  // namespace
}  // namespace flashprime
