// SPDX-License-Identifier: Apache-2.0
#include "cli/trace_synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/text.h"
#include "cli/trace_quantiles.h"
#include "flashprime/random.h"

namespace flashprime::cli {
namespace {

constexpr std::string_view kPrefix = "synthetic:";
constexpr int64_t kDefaultCount = 1000;
constexpr int64_t kMaxCount = 100'000;

using Quantiles = std::span<const QuantilePoint>;

struct Distributions {
  std::string_view name;
  Quantiles prompt, generated, gap, shared;
};

constexpr Distributions kDistributions[] = {
    {"azure-conv", kAzureConvPrompt, kAzureConvGenerated, kAzureConvGap, {}},
    {"azure-code", kAzureCodePrompt, kAzureCodeGenerated, kAzureCodeGap, {}},
    {"mooncake", kMooncakePrompt, kMooncakeGenerated, kMooncakeGap, kMooncakeShared},
};

double value_at(Quantiles points, double at) {
  const auto above =
      std::upper_bound(points.begin(), points.end(), at,
                       [](double share, const QuantilePoint& point) { return share < point.at; });
  if (above == points.begin()) return points.front().value;
  if (above == points.end()) return points.back().value;
  const QuantilePoint& left = above[-1];
  return left.value + (above->value - left.value) * (at - left.at) / (above->at - left.at);
}

// Uniform numbers; each purpose has a stream of its own.
class Random {
 public:
  Random(uint64_t seed, uint32_t purpose) : seed_(seed), purpose_(purpose) {}

  double unit() { return (static_cast<double>(word()) + 0.5) * 0x1p-32; }
  size_t below(size_t n) { return static_cast<size_t>(uint64_t{word()} * n >> 32); }

 private:
  uint32_t word() {
    const uint64_t at = count_++;
    return philox4x32_10(
        {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), purpose_, 0x74726163u},
        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)})[0];
  }

  uint64_t seed_;
  uint32_t purpose_;
  uint64_t count_ = 0;
};

std::vector<double> draw(Quantiles points, int64_t count, Random random) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        value_at(points, (static_cast<double>(i) + random.unit()) / static_cast<double>(count));
  }
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
  return values;
}

// Gives the last request its blocks: the first ones of an earlier prompt, then new ones.
void add_blocks(double share, int64_t* next_id, Random* random, Trace* trace) {
  TraceRequest& request = trace->requests.back();
  const auto earlier = trace->requests.size() - 1;
  const auto shared =
      std::llround(share * static_cast<double>((request.prompt_tokens - 1) / kBlockTokens));
  std::span<const int64_t> source;
  // Few prompts are long: of some tries, the longest.
  for (int tries = 0; tries < 64 && earlier > 0 && static_cast<int64_t>(source.size()) < shared;
       ++tries) {
    const TraceRequest& other = trace->requests[random->below(earlier)];
    const std::span<const int64_t> full =
        trace->blocks_of(other).first(static_cast<size_t>(other.prompt_tokens / kBlockTokens));
    if (full.size() > source.size()) source = full;
  }
  request.first_block = static_cast<int64_t>(trace->block_ids.size());
  request.num_blocks =
      static_cast<int32_t>((request.prompt_tokens + kBlockTokens - 1) / kBlockTokens);
  const std::vector<int64_t> copied(
      source.begin(),
      source.begin() + std::min<int64_t>(shared, static_cast<int64_t>(source.size())));
  trace->block_ids.insert(trace->block_ids.end(), copied.begin(), copied.end());
  for (auto i = static_cast<int32_t>(copied.size()); i < request.num_blocks; ++i) {
    trace->block_ids.push_back((*next_id)++);
  }
}

}  // namespace

bool is_synthetic_trace(std::string_view text) {
  return text.substr(0, kPrefix.size()) == kPrefix;
}

StatusOr<Trace> synthetic_trace(std::string_view text, uint64_t seed) {
  std::string_view name = text.substr(kPrefix.size());
  int64_t count = kDefaultCount;
  if (const size_t colon = name.find(':'); colon != std::string_view::npos) {
    const StatusOr<int64_t> parsed = parse_integer(name.substr(colon + 1), 1, kMaxCount);
    if (!parsed.ok()) {
      return Status(StatusCode::kRange, "--trace: requests: " + parsed.status().message());
    }
    count = *parsed;
    name = name.substr(0, colon);
  }
  const auto* const found = std::find_if(std::begin(kDistributions), std::end(kDistributions),
                                         [&](const Distributions& d) { return d.name == name; });
  if (found == std::end(kDistributions)) {
    return Status(
        StatusCode::kRange,
        fmt::format("--trace: got '{}', want synthetic:azure-conv, synthetic:azure-code or "
                    "synthetic:mooncake, with :COUNT behind it or not",
                    printable(text)));
  }
  const std::vector<double> prompts = draw(found->prompt, count, Random(seed, 0));
  const std::vector<double> answers = draw(found->generated, count, Random(seed, 1));
  const std::vector<double> gaps = draw(found->gap, count, Random(seed, 2));
  const std::vector<double> shares =
      found->shared.empty() ? std::vector<double>() : draw(found->shared, count, Random(seed, 3));
  Random sources(seed, 4);
  Trace trace;
  int64_t next_id = 0;
  int64_t arrival_ns = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    TraceRequest request;
    if (i > 0) arrival_ns += std::llround(gaps[i]);
    request.arrival_ns = arrival_ns;
    request.prompt_tokens = static_cast<int32_t>(std::max(1LL, std::llround(prompts[i])));
    request.generated_tokens = static_cast<int32_t>(std::max(1LL, std::llround(answers[i])));
    trace.prompt_tokens += request.prompt_tokens;
    trace.generated_tokens += request.generated_tokens;
    trace.requests.push_back(request);
    if (!shares.empty()) add_blocks(shares[i], &next_id, &sources, &trace);
  }
  return trace;
}

}  // namespace flashprime::cli
