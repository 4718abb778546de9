// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "cli/session.h"

namespace flashprime::cli {
namespace {

TEST(ParseInteger, TakesDigitsWithinItsRangeOnly) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*parse_integer("0", 0, 10), 0);
  EXPECT_EQ(*parse_integer("9223372036854775807", 0, kMax), kMax);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "0x10", "1e3", "1.0", "nan", "inf", "1,000",
                           "9223372036854775808", "99999999999999999999999999"}) {
    EXPECT_FALSE(parse_integer(text, 0, kMax).ok()) << text;
  }
  EXPECT_FALSE(parse_integer("11", 0, 10).ok());
  EXPECT_FALSE(parse_integer("4", 5, 10).ok());
}

TEST(ParseDecimal, TakesPlainDecimalsWithinItsRangeOnly) {
  EXPECT_EQ(*parse_decimal("1.5", 0.0, 10.0), 1.5);
  EXPECT_EQ(*parse_decimal("2", 0.0, 10.0), 2.0);
  for (const char* text : {"", ".", "1.", ".5", "-1", "+1", "1e1", "1e999", "nan", "inf", "0x1p3",
                           "1,5", "1.5s", "11"}) {
    EXPECT_FALSE(parse_decimal(text, 0.0, 10.0).ok()) << text;
  }
}

TEST(ParseBytes, TakesDigitsAndOneUnitOf1024) {
  EXPECT_EQ(*parse_bytes("1"), 1);
  EXPECT_EQ(*parse_bytes("512K"), 512 << 10);
  EXPECT_EQ(*parse_bytes("16G"), int64_t{16} << 30);
  EXPECT_EQ(*parse_bytes("8388607T"), int64_t{8388607} << 40);
  EXPECT_EQ(*parse_bytes("9223372036854775807"), INT64_MAX);
  for (const char* text : {"", "0", "K", "0G", "-1", "+1", "1.5G", "1e9", "16g", "16GB", "16 G",
                           "1KK", "0x10", "8388608T", "9223372036854775808"}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

TEST(Numbers, AreGroupedAndPrefixedForPeople) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(-123), "-123");
  EXPECT_EQ(with_prefix(1.5e12), "1.50 T");
  EXPECT_EQ(with_prefix(118.4e9), "118 G");
  EXPECT_EQ(with_prefix(999.7), "1.00 k");
  EXPECT_EQ(duration_text(0.0123), "12.3 ms");
  EXPECT_EQ(duration_text(125.4), "2 min 05 s");
  EXPECT_EQ(duration_text(-1.0), "-");
}

TEST(Closest, IsTheWordOneSlipOfTheFingersAway) {
  const std::vector<std::string> verbs = {"info", "models", "run", "check", "bench", "replay"};
  EXPECT_EQ(closest("chekc", verbs), "check");  // two letters swapped
  EXPECT_EQ(closest("benc", verbs), "bench");
  EXPECT_EQ(closest("runn", verbs), "run");
  EXPECT_EQ(closest("infp", verbs), "info");
  EXPECT_EQ(closest("check", verbs), "check");
  EXPECT_EQ(closest("moedel", verbs), "models");  // two slips, in a word of six
  EXPECT_EQ(closest("frob", verbs), "");
  EXPECT_EQ(closest("", verbs), "");
  EXPECT_EQ(closest("rin", {"ran", "run"}), "ran");
  EXPECT_EQ(closest(std::string(100'000, 'x'), verbs), "");
}

TEST(CommandLine, IsQuotedForAShell) {
  const char* argv[] = {"x/flashprime", "replay", "--trace", "a b.csv", "it's", ""};
  EXPECT_EQ(quote_command_line(6, argv), R"(flashprime replay --trace 'a b.csv' 'it'\''s' '')");
}

}  // namespace
}  // namespace flashprime::cli
