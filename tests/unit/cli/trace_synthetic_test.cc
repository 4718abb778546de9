// SPDX-License-Identifier: Apache-2.0
#include "cli/trace_synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cli/replay_prefix_cache.h"

namespace flashprime::cli {
namespace {

using testing::HasSubstr;

// What the whole real traces have.
struct Published {
  const char* name;
  int count;
  std::vector<std::pair<double, double>> prompt_percentiles;
  double mean_gap_seconds;
};
const Published kPublished[] = {
    {"azure-conv", 19'366, {{0.5, 1'020}, {0.9, 2'734}, {0.99, 4'142}}, 3501.72 / 19'365},
    {"azure-code", 8'819, {{0.5, 1'469}, {0.9, 5'186}, {0.99, 7'436}}, 3435.95 / 8'818},
    {"mooncake", 12'031, {{0.5, 6'909}, {0.9, 27'367}, {0.99, 85'400}}, 3536.999 / 12'030},
};

Trace make(const std::string& text, uint64_t seed = 0) {
  StatusOr<Trace> trace = synthetic_trace(text, seed);
  EXPECT_TRUE(trace.ok()) << trace.status().to_string();
  return trace.ok() ? *trace : Trace{};
}

double percentile(const Trace& trace, double p) {
  std::vector<int32_t> lengths;
  for (const TraceRequest& request : trace.requests) lengths.push_back(request.prompt_tokens);
  std::sort(lengths.begin(), lengths.end());
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(lengths.size())));
  return lengths[rank - 1];
}

double hit_rate(const Trace& trace) {
  PrefixCache cache(-1);
  int64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    hits += cache.hit_tokens(trace.blocks_of(request), request.prompt_tokens);
    cache.keep(trace.blocks_of(request), request.prompt_tokens);
  }
  return static_cast<double>(hits) / static_cast<double>(trace.prompt_tokens);
}

TEST(SyntheticTrace, PromptPercentilesAreThoseOfTheRealTraceWithinFivePercent) {
  for (const Published& real : kPublished) {
    for (int count : {1000, real.count}) {
      for (uint64_t seed : {0u, 1u, 2u}) {
        const Trace trace =
            make("synthetic:" + std::string(real.name) + ':' + std::to_string(count), seed);
        ASSERT_EQ(trace.requests.size(), static_cast<size_t>(count));
        for (const auto& [p, want] : real.prompt_percentiles) {
          EXPECT_NEAR(percentile(trace, p), want, 0.05 * want)
              << real.name << ':' << count << " p" << p << " seed " << seed;
        }
      }
    }
  }
}

TEST(SyntheticTrace, ArrivesAtTheRateOfTheRealTrace) {
  for (const Published& real : kPublished) {
    const Trace trace =
        make("synthetic:" + std::string(real.name) + ':' + std::to_string(real.count));
    const double mean =
        static_cast<double>(trace.requests.back().arrival_ns) * 1e-9 / (real.count - 1);
    EXPECT_NEAR(mean, real.mean_gap_seconds, 0.05 * real.mean_gap_seconds) << real.name;
    EXPECT_EQ(trace.requests.front().arrival_ns, 0);
  }
}

TEST(SyntheticTrace, MooncakeComesInBurstsThreeSecondsApart) {
  const Trace trace = make("synthetic:mooncake:12031");
  int64_t together = 0, three_seconds = 0;
  for (size_t i = 1; i < trace.requests.size(); ++i) {
    const int64_t gap = trace.requests[i].arrival_ns - trace.requests[i - 1].arrival_ns;
    together += gap == 0;
    three_seconds += gap > 2'990'000'000 && gap < 3'010'000'000;
  }
  EXPECT_NEAR(static_cast<double>(three_seconds), 1179, 12);  // as in the real trace
  EXPECT_GE(together + three_seconds, 12'030 - 3);
}

TEST(SyntheticTrace, MooncakeHitsThePrefixCacheAboutAsOftenAsTheRealTrace) {
  const Trace trace = make("synthetic:mooncake:12031");
  for (const TraceRequest& request : trace.requests) {
    ASSERT_EQ(request.num_blocks, (request.prompt_tokens + kBlockTokens - 1) / kBlockTokens);
  }
  EXPECT_NEAR(hit_rate(trace), 0.37, 0.04);
  EXPECT_TRUE(make("synthetic:azure-conv").block_ids.empty());
}

TEST(SyntheticTrace, DependsOnTheSeedAlone) {
  const Trace once = make("synthetic:mooncake:50", 7);
  const Trace again = make("synthetic:mooncake:50", 7);
  const Trace other = make("synthetic:mooncake:50", 8);
  EXPECT_EQ(once.requests, again.requests);
  EXPECT_EQ(once.block_ids, again.block_ids);
  EXPECT_NE(once.requests, other.requests);
}

TEST(SyntheticTrace, ASingleRequestIsATrace) {
  for (const Published& real : kPublished) {
    const Trace trace = make("synthetic:" + std::string(real.name) + ":1");
    ASSERT_EQ(trace.requests.size(), 1u);
    EXPECT_GE(trace.requests[0].prompt_tokens, 1);
    EXPECT_GE(trace.requests[0].generated_tokens, 1);
  }
}

TEST(SyntheticTrace, UnknownNamesAndCountsAreRefused) {
  for (const char* text : {"synthetic:", "synthetic:azure", "synthetic:Mooncake", "synthetic::5"}) {
    const StatusOr<Trace> trace = synthetic_trace(text, 0);
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_EQ(trace.status().code(), StatusCode::kRange);
    EXPECT_THAT(trace.status().message(), HasSubstr("want synthetic:azure-conv"));
  }
  for (const char* count : {"", "0", "-1", "100001", "1e3", "5:6", "99999999999999999999"}) {
    EXPECT_EQ(synthetic_trace("synthetic:mooncake:" + std::string(count), 0).status().code(),
              StatusCode::kRange)
        << count;
  }
  EXPECT_TRUE(is_synthetic_trace("synthetic:x"));
  EXPECT_FALSE(is_synthetic_trace("./synthetic:x"));
  EXPECT_FALSE(is_synthetic_trace("synthetic"));
}

}  // namespace
}  // namespace flashprime::cli
