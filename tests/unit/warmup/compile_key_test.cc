// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <unordered_set>
#include <vector>

#include "flashprime/warmup.h"

namespace flashprime {
namespace {

CompileKey sample() {
  CompileKey key;
  key.q_shape = {1, 128, 192};
  key.k_shape = {128, 128, 192};
  key.v_shape = {128, 128, 128};
  key.max_seqlen_q = 1;
  key.max_seqlen_k = 128;
  key.softmax_scale = 0.07216878364870322;
  key.fa_version = 4;
  key.v_stride = {32768, 256, 1};
  key.cu_seqlens_q_shape = {2};
  key.cu_seqlens_k_shape = {2};
  return key;
}

// The sample with one field changed to a greater value, for each of the 15 fields in order.
std::vector<CompileKey> greater_in_one_field() {
  const std::vector<std::function<void(CompileKey&)>> changes = {
      [](CompileKey& key) { key.q_shape[2] = 193; },
      [](CompileKey& key) { key.k_shape[2] = 193; },
      [](CompileKey& key) { key.v_shape[2] = 129; },
      [](CompileKey& key) { key.q_dtype = Dtype::kFp16; },
      [](CompileKey& key) { key.max_seqlen_q = 2; },
      [](CompileKey& key) { key.max_seqlen_k = 129; },
      [](CompileKey& key) { key.softmax_scale = 0.0721687836487033; },
      [](CompileKey& key) { key.causal = true; },
      [](CompileKey& key) { key.fa_version = 5; },
      [](CompileKey& key) { key.v_stride = {32769, 256, 1}; },
      [](CompileKey& key) { key.cu_seqlens_q_shape = {3}; },
      [](CompileKey& key) { key.cu_seqlens_k_shape = {3}; },
      [](CompileKey& key) { key.window_size = {0, 0}; },
      [](CompileKey& key) { key.return_softmax_lse = true; },
      [](CompileKey& key) { key.num_splits = 1; }};
  std::vector<CompileKey> keys(changes.size(), sample());
  for (std::size_t i = 0; i < changes.size(); ++i) changes[i](keys[i]);
  return keys;
}

TEST(compile_key, has_fifteen_fields) {
  EXPECT_EQ(std::tuple_size_v<decltype(sample().fields())>, 15u);
  EXPECT_EQ(greater_in_one_field().size(), 15u);
}

TEST(compile_key, has_the_defaults_of_what_may_be_omitted) {
  const CompileKey key;
  EXPECT_FALSE(key.v_stride || key.cu_seqlens_q_shape || key.cu_seqlens_k_shape || key.window_size);
  EXPECT_FALSE(key.return_softmax_lse);
  EXPECT_EQ(key.num_splits, 0);
}

TEST(compile_key, copies_are_equal_in_value_and_hash) {
  const CompileKey copy = sample();
  EXPECT_EQ(copy, sample());
  EXPECT_EQ(copy.hash(), sample().hash());
}

TEST(compile_key, every_field_takes_part_in_equality_order_and_hash) {
  std::unordered_set<std::size_t> hashes = {sample().hash()};
  for (const CompileKey& key : greater_in_one_field()) {
    EXPECT_NE(key, sample()) << key.to_string();
    EXPECT_GT(key, sample()) << key.to_string();
    EXPECT_TRUE(hashes.insert(key.hash()).second) << key.to_string();
  }
}

TEST(compile_key, an_earlier_field_outweighs_every_later_one) {
  const std::vector<CompileKey> keys = greater_in_one_field();
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) EXPECT_GT(keys[i], keys[i + 1]) << i;
}

TEST(compile_key, absent_options_come_before_present_ones) {
  CompileKey absent = sample();
  absent.v_stride.reset();
  EXPECT_LT(absent, sample());
}

TEST(compile_key, a_key_with_a_nan_scale_equals_itself) {
  CompileKey key = sample();
  key.softmax_scale = std::numeric_limits<double>::quiet_NaN();
  std::set<CompileKey> ordered = {key, key, sample()};
  std::unordered_set<CompileKey> hashed = {key, key, sample()};
  EXPECT_EQ(ordered.size(), 2u);
  EXPECT_EQ(hashed.size(), 2u);
}

TEST(compile_key, prints_as_a_designated_initialiser) {
  EXPECT_EQ(sample().to_string(),
            "CompileKey{.q_shape = {1, 128, 192}, .k_shape = {128, 128, 192}, "
            ".v_shape = {128, 128, 128}, .q_dtype = Dtype::kBf16, .max_seqlen_q = 1, "
            ".max_seqlen_k = 128, .softmax_scale = 0.07216878364870322, .causal = false, "
            ".fa_version = 4, .v_stride = {{32768, 256, 1}}, .cu_seqlens_q_shape = {{2}}, "
            ".cu_seqlens_k_shape = {{2}}, .window_size = {}, .return_softmax_lse = false, "
            ".num_splits = 0}");
}

TEST(compile_key, what_it_prints_is_the_key_in_cpp) {
  // The text of the test above, pasted.
  const CompileKey pasted = CompileKey{.q_shape = {1, 128, 192},
                                       .k_shape = {128, 128, 192},
                                       .v_shape = {128, 128, 128},
                                       .q_dtype = Dtype::kBf16,
                                       .max_seqlen_q = 1,
                                       .max_seqlen_k = 128,
                                       .softmax_scale = 0.07216878364870322,
                                       .causal = false,
                                       .fa_version = 4,
                                       .v_stride = {{32768, 256, 1}},
                                       .cu_seqlens_q_shape = {{2}},
                                       .cu_seqlens_k_shape = {{2}},
                                       .window_size = {},
                                       .return_softmax_lse = false,
                                       .num_splits = 0};
  EXPECT_EQ(pasted, sample());
}

TEST(compile_key, prints_as_a_python_tuple) {
  EXPECT_EQ(sample().to_python(),
            "((1, 128, 192), (128, 128, 192), (128, 128, 128), torch.bfloat16, 1, 128, "
            "0.07216878364870322, False, 4, (32768, 256, 1), (2,), (2,), None, False, 0)");
}

TEST(compile_key, numbers_print_as_python_prints_them) {
  const auto scale_text = [](double scale) {
    CompileKey key;
    key.softmax_scale = scale;
    const std::string text = key.to_python();
    const std::size_t begin = text.find("torch.bfloat16, 0, 0, ") + 22;
    return text.substr(begin, text.find(',', begin) - begin);
  };
  EXPECT_EQ(scale_text(0.0625), "0.0625");
  EXPECT_EQ(scale_text(1.0), "1.0");
  EXPECT_EQ(scale_text(0.0001), "0.0001");
  EXPECT_EQ(scale_text(0.00001), "1e-05");
  EXPECT_EQ(scale_text(1e15), "1000000000000000.0");
  EXPECT_EQ(scale_text(1e16), "1e+16");
  EXPECT_EQ(scale_text(-0.0), "-0.0");
  EXPECT_EQ(scale_text(0.1352337788608801), "0.1352337788608801");
  EXPECT_EQ(scale_text(std::numeric_limits<double>::infinity()), "inf");
}

}  // namespace
}  // namespace flashprime
