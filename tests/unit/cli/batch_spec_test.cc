// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace flashprime::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<BatchRequest> parsed(std::string_view text) {
  StatusOr<std::vector<BatchRequest>> batch = parse_batch_spec(text);
  EXPECT_TRUE(batch.ok()) << batch.status().to_string();
  return batch.ok() ? *batch : std::vector<BatchRequest>{};
}

TEST(BatchSpec, KeysIncludeTheNewTokens) {
  const auto batch = parsed("8q512s8k");
  ASSERT_EQ(batch.size(), 8u);
  for (const BatchRequest& request : batch) {
    EXPECT_EQ(request.new_tokens, 512);
    EXPECT_EQ(request.total_keys, 8192);
    EXPECT_EQ(request.context(), 7680);
  }
}

TEST(BatchSpec, WithoutKeysThereIsNoContext) {
  EXPECT_THAT(parsed("q1"), ElementsAre(BatchRequest{1, 1}));
  EXPECT_THAT(parsed("2q2k"), ElementsAre(BatchRequest{2048, 2048}, BatchRequest{2048, 2048}));
}

TEST(BatchSpec, ItemsFollowEachOther) {
  EXPECT_THAT(parsed("2q2_q0s5_q3ks4k"), ElementsAre(BatchRequest{2, 2}, BatchRequest{2, 2},
                                                     BatchRequest{0, 5}, BatchRequest{3072, 4096}));
}

TEST(BatchSpec, AnErrorNamesThePositionWhatWasGotAndWhatIsWanted) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "position 1: got the end, want a digit or 'q'"},
      {"q", "position 2: got the end, want a digit"},
      {"8", "position 2: got the end, want 'q'"},
      {"8x512", "position 2: got 'x', want 'q'"},
      {"q512_", "position 6: got the end, want a digit or 'q'"},
      {"q512__q1", "position 6: got '_', want a digit or 'q'"},
      {"q512,q1", "position 5: got ',', want '_' or the end"},
      {"q512s", "position 6: got the end, want a digit"},
      {"q512S1k", "position 5: got 'S', want '_' or the end"},
      {"q-1", "position 2: got '-', want a digit"},
      {"q+1", "position 2: got '+', want a digit"},
      {" q1", "position 1: got ' ', want a digit or 'q'"},
      {"q0x10", "position 3: got 'x', want '_' or the end"},
      {"q1e3", "position 3: got 'e', want '_' or the end"},
      {"q1.5k", "position 3: got '.', want '_' or the end"},
      {"q1kk", "position 4: got 'k', want '_' or the end"},
      {"0q5", "position 1: got 0 requests"},
      {"q512s511", "position 6: got 511 keys with 512 new tokens"},
      {"q1_4q2ks1k", "position 9: got 1024 keys with 2048 new tokens"},
  };
  for (const auto& [text, message] : cases) {
    const auto batch = parse_batch_spec(text);
    ASSERT_FALSE(batch.ok()) << text;
    EXPECT_EQ(batch.status().code(), StatusCode::kFormat);
    EXPECT_THAT(batch.status().message(), HasSubstr(message)) << text;
  }
}

TEST(BatchSpec, CountsAndLengthsAreCappedWithoutOverflow) {
  const std::pair<std::string, std::string> cases[] = {
      {"1000001q1", "position 1: want at most 1000000"},
      {"600000q1_600000q1", "position 10: want at most 1000000 requests"},
      {"99999999999999999999999q1", "position 1: want at most 1000000"},
      {"q2147483648", "position 2: want at most 2147483647"},
      {"q2097152k", "position 2: want at most 2147483647"},
      {"q99999999999999999999k", "position 2: want at most 2147483647"},
      {"q1s99999999999999999999", "position 4: want at most 2147483647"},
      {"3q1024000k", "position 1: want at most 2147483647 tokens in all"},
      {"q1s2147483647_q1", "position 15: want at most 2147483647 tokens in all"},
      {"1000000q2097151k", "position 1: want at most 2147483647 tokens in all"},
  };
  for (const auto& [text, message] : cases) {
    const auto batch = parse_batch_spec(text);
    ASSERT_FALSE(batch.ok()) << text;
    EXPECT_THAT(batch.status().message(), HasSubstr(message)) << text;
  }
  EXPECT_EQ(parsed("1000000q1").size(), 1'000'000u);
  EXPECT_EQ(parsed("q2147483647").front().new_tokens, 2147483647);
}

TEST(BatchSpec, AMillionItemsAreRead) {
  std::string text = "q1";
  for (int i = 1; i < 1'000'000; ++i) text += "_q1";
  EXPECT_EQ(parsed(text).size(), 1'000'000u);
  EXPECT_FALSE(parse_batch_spec(text + "_q1").ok());
}

TEST(BatchSpec, BytesThatAreNoTextDoNotReachTheMessage) {
  const auto batch = parse_batch_spec(std::string_view("q1\0\n\xff", 5));
  ASSERT_FALSE(batch.ok());
  for (char c : batch.status().message()) EXPECT_TRUE(c >= ' ' && c <= '~');
}

}  // namespace
}  // namespace flashprime::cli
