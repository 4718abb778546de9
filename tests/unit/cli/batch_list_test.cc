// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace flashprime::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names(std::string_view text) {
  const auto batches = parse_batch_list(text);
  EXPECT_TRUE(batches.ok()) << batches.status().to_string();
  std::vector<std::string> result;
  if (!batches.ok()) return result;
  for (const NamedBatch& batch : *batches) result.push_back(batch.name);
  return result;
}

TEST(BatchList, CommasSeparateBatchesAndUnderscoresTheRequestsOfOne) {
  const auto batches = parse_batch_list("q1k,8q512s8k_q1,q7");
  ASSERT_TRUE(batches.ok());
  ASSERT_EQ(batches->size(), 3u);
  EXPECT_EQ((*batches)[1].name, "8q512s8k_q1");
  EXPECT_EQ((*batches)[1].requests.size(), 9u);
  EXPECT_THAT((*batches)[2].requests, ElementsAre(BatchRequest{7, 7}));
}

TEST(BatchList, ARangeDoublesTheLastLengthOfItsSpec) {
  EXPECT_THAT(names("q512..8k"), ElementsAre("q512", "q1k", "q2k", "q4k", "q8k"));
  EXPECT_THAT(names("q3..20"), ElementsAre("q3", "q6", "q12"));
  EXPECT_THAT(names("8q512s1k..4k,q1"), ElementsAre("8q512s1k", "8q512s2k", "8q512s4k", "q1"));
  EXPECT_THAT(names("2q1k..1k"), ElementsAre("2q1k"));
  EXPECT_THAT(names("q1_q2s4..9"), ElementsAre("q1_q2s4", "q1_q2s8"));
}

TEST(BatchList, BadListsAreErrorsThatNameThePart) {
  const std::pair<std::string, std::string> errors[] = {
      {"", "batch '', position 1"},
      {"q1,", "batch '', position 1: got the end"},
      {"q1,,q2", "batch '', position 1"},
      {"q1k,q2x", "batch 'q2x', position 3"},
      {"q1k..512", "range 'q1k..512': want SPEC..LEN"},
      {"q0..8", "range 'q0..8'"},
      {"512..1k", "range '512..1k'"},
      {"q512..", "range 'q512..'"},
      {"..8k", "range '..8k'"},
      {"q1..99999999999", "range 'q1..99999999999'"},
      {"q1..8..16", "range 'q1..8..16'"},
      {"8q512s128..1k", "want at least as many"},
      {"2q1..2147483647", "want at most 2147483647 tokens"},
      {"600000q1,400001q1", "want at most 1000000 requests in all"},
  };
  for (const auto& [text, message] : errors) {
    const auto batches = parse_batch_list(text);
    ASSERT_FALSE(batches.ok()) << text;
    EXPECT_EQ(batches.status().code(), StatusCode::kFormat);
    EXPECT_THAT(batches.status().message(), HasSubstr(message)) << text;
  }
  std::string many = "q1";
  for (int i = 1; i < 1000; ++i) many += ",q1";
  EXPECT_EQ(names(many).size(), 1000u);
  EXPECT_FALSE(parse_batch_list(many + ",q1").ok());
}

}  // namespace
}  // namespace flashprime::cli
