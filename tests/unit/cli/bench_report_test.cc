// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace flashprime::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

BenchRow row_of(const std::string& batch, double median, double spread) {
  BenchRow row;
  row.model = "deepseek-v3";
  row.dims = "128/64/128";
  row.heads = 16;
  row.dtype = "bf16";
  row.mask = "causal";
  row.batch = batch;
  row.machine = "A \"Fast\" CPU, with a comma, AVX3";
  row.threads = 2;
  row.kernel = "cpu_fast";
  row.version = "0.1.0";
  row.seed = 7;
  row.flop = 1.5e12;
  row.ours = {.median = median, .spread = spread, .fastest = median - spread, .runs = 10};
  row.verified_rows = 16;
  return row;
}

TEST(BenchTiming, IsTheMedianAndHalfTheWidthOfTheMiddleHalf) {
  const Timing timing = summarize({5.0, 1.0, 2.0, 4.0, 3.0});
  EXPECT_DOUBLE_EQ(timing.median, 3.0);
  EXPECT_DOUBLE_EQ(timing.spread, 1.0);
  EXPECT_DOUBLE_EQ(timing.fastest, 1.0);
  EXPECT_EQ(timing.runs, 5);
  EXPECT_DOUBLE_EQ(summarize({1.0, 3.0}).median, 2.0);
  EXPECT_DOUBLE_EQ(summarize({4.0}).spread, 0.0);
  EXPECT_EQ(summarize({}).runs, 0);
  // One run in ten that took a hundred times as long moves neither.
  EXPECT_DOUBLE_EQ(summarize({1, 1, 1, 1, 1, 1, 1, 1, 1, 100}).spread, 0.0);
}

TEST(BenchTable, IsMarkdownWithTheSpreadAndTheRatioToTorch) {
  BenchRow row = row_of("q4k", 0.0125, 0.00025);
  row.torch_route = "bf16 padded";
  row.torch = {.median = 0.025, .spread = 0.001, .fastest = 0.02, .runs = 10};
  EXPECT_EQ(bench_markdown({row}, true),
            "| model | heads | dtype | mask | batch | ms (median ± spread) | FLOP/s | torch ms | "
            "torch route | vs torch |\n"
            "|---|---|---|---|---|---|---|---|---|---|\n"
            "| deepseek-v3 | 16 | bf16 | causal | q4k | 12.5 ± 0.25 | 120 T | 25 ± 1 | bf16 padded "
            "| 2.00x |\n");
  row.ours = {};
  row.failure = "wrong";
  EXPECT_THAT(bench_markdown({row}, false), HasSubstr("| q4k | WRONG | - |\n"));
}

TEST(BenchFile, CsvAndJsonReadBackAsTheyWere) {
  std::vector<BenchRow> rows = {row_of("q4k", 1.0 / 3.0, 1e-17), row_of("2q1_q5s9", 0.0, 0.0)};
  rows[1].failure = "line one,\n\"line two\"";
  const std::string csv = bench_csv(rows);
  const std::string json = Json{{"rows", bench_json(rows)}}.dump();
  for (const std::string& text : {csv, json}) {
    const auto again = parse_bench(text);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    ASSERT_EQ(again->size(), 2u);
    EXPECT_EQ(bench_csv(*again), csv);
    EXPECT_EQ((*again)[0].ours.median, 1.0 / 3.0);
    EXPECT_EQ((*again)[0].machine, rows[0].machine);
    EXPECT_EQ((*again)[1].failure, rows[1].failure);
  }
  std::string crlf = csv.substr(0, csv.find("2q1_q5s9"));
  crlf = csv.substr(0, csv.find('\n')) + "\r\n" + crlf.substr(csv.find('\n') + 1);
  EXPECT_TRUE(parse_bench(csv.substr(0, csv.find('\n', csv.find('\n') + 1))).ok());
  EXPECT_FALSE(parse_bench(crlf).ok());  // half a line
}

TEST(BenchFile, OfAnotherVersionMayHaveMoreColumnsAndLackWhatIsNotCompared) {
  const std::string text =
      "model,dims,heads,dtype,mask,batch,machine,threads,seconds,seconds_spread,runs,new\n"
      "m,16/8/16,2,bf16,causal,q8,cpu,1,0.5,0.25,10,anything\n";
  const auto rows = parse_bench(text);
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  EXPECT_EQ((*rows)[0].ours.median, 0.5);
  EXPECT_EQ((*rows)[0].ours.runs, 10);
  const size_t runs = text.find(",runs");
  EXPECT_THAT(parse_bench(std::string(text).replace(runs, 5, ",rums")).status().message(),
              HasSubstr("row 1: no 'runs'"));
  EXPECT_THAT(
      parse_bench(std::string(text).replace(text.find(",10,"), 4, ",-1,")).status().message(),
      HasSubstr("row 1: runs below 0"));
}

TEST(BenchFile, AnythingElseIsAnErrorThatNamesThePlace) {
  const std::string good = bench_csv({row_of("q4k", 1.0, 0.1)});
  const std::string header = good.substr(0, good.find('\n') + 1);
  std::string text_for_number = good;
  text_for_number.replace(text_for_number.find(",16,"), 4, ",many,");
  std::string negative = good;
  negative.replace(negative.find(",1.0,"), 5, ",-1.0,");
  const std::pair<std::string, std::string> errors[] = {
      {"", "empty"},
      {" \n\t", "empty"},
      {"{", "not JSON"},
      {"{}", "no 'rows' in it"},
      {R"({"rows": 3})", "no 'rows' in it"},
      {R"({"rows": [3]})", "row 1: not an object"},
      {R"({"rows": [{}]})", "row 1: no 'model'"},
      {R"({"rows": []})", "no row in it"},
      {"a,b\n1,2\n", "row 1: no 'model'"},
      {"a,b\n1\n", "line 2: 1 fields under 2 names"},
      {"a,\"b\n", "line 1: a quote that does not close"},
      {header, "no row in it"},
      {text_for_number, "row 1: 'heads' is"},
      {negative, "row 1: seconds below 0"},
  };
  for (const auto& [text, message] : errors) {
    const auto rows = parse_bench(text);
    ASSERT_FALSE(rows.ok()) << text;
    EXPECT_EQ(rows.status().code(), StatusCode::kFormat);
    EXPECT_THAT(rows.status().message(), HasSubstr(message)) << text;
  }
}

TEST(BenchGuard, FailsOnlyBeyondWhatIsAllowedAndBeyondTheNoise) {
  const std::vector<BenchRow> before = {row_of("q1k", 1.0, 0.02)};
  const auto slower = [&](double now, double spread, double allowed) {
    const Guard guard = compare(before, {row_of("q1k", now, spread)}, allowed);
    EXPECT_EQ(guard.lines.size(), 1u);
    EXPECT_EQ(guard.passed(), !guard.lines[0].slower);
    return guard.lines[0].slower;
  };
  EXPECT_FALSE(slower(1.0, 0.0, 0.1));
  EXPECT_FALSE(slower(0.5, 0.0, 0.1));
  EXPECT_FALSE(slower(1.09, 0.01, 0.1));  // beyond the noise, and allowed
  EXPECT_TRUE(slower(1.11, 0.01, 0.1));
  EXPECT_FALSE(slower(1.11, 0.2, 0.1));  // more than allowed, within the noise
  EXPECT_TRUE(slower(1.05, 0.01, 0.0));
  EXPECT_TRUE(slower(2.0, 0.2, 0.1));
}

TEST(BenchGuard, ComparesWhatIsTheSameMeasurementAndPassesNothingElse) {
  std::vector<BenchRow> now = {row_of("q1k", 1.0, 0.0), row_of("q2k", 1.0, 0.0)};
  const std::vector<BenchRow> before = {row_of("q1k", 1.0, 0.0)};
  const Guard guard = compare(before, now, 0.1);
  EXPECT_TRUE(guard.passed());
  EXPECT_THAT(guard.unmatched, ElementsAre("q2k"));
  EXPECT_FALSE(compare(before, {now[1]}, 0.1).passed());
  EXPECT_FALSE(compare(before, {}, 0.1).passed());
  const auto differs = [&](auto change) {
    BenchRow other = now[0];
    change(other);
    return compare(before, {other}, 0.1).lines.empty();
  };
  EXPECT_TRUE(differs([](BenchRow& r) { r.threads = 4; }));
  EXPECT_TRUE(differs([](BenchRow& r) { r.machine = "another"; }));
  EXPECT_TRUE(differs([](BenchRow& r) { r.mask = "full"; }));
  EXPECT_TRUE(differs([](BenchRow& r) { r.heads = 8; }));
  EXPECT_TRUE(differs([](BenchRow& r) { r.dtype = "fp16"; }));
  EXPECT_FALSE(differs([](BenchRow& r) { r.version = "9"; }));
  EXPECT_FALSE(differs([](BenchRow& r) { r.kernel = "another"; }));
}

}  // namespace
}  // namespace flashprime::cli
