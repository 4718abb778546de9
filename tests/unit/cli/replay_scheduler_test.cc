// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace flashprime::cli {
namespace {

Trace make_trace(const std::vector<TraceRequest>& requests) {
  Trace trace;
  trace.requests = requests;
  for (const TraceRequest& request : requests) {
    trace.prompt_tokens += request.prompt_tokens;
    trace.generated_tokens += request.generated_tokens;
  }
  return trace;
}

// "r:start+length" of every piece, and the decodes beside them.
std::string text_of(const ReplayStep& step) {
  std::string text;
  for (const ReplayPiece& piece : step.pieces) {
    text += std::to_string(piece.request) + ':' + std::to_string(piece.start) + '+' +
            std::to_string(piece.length) + ' ';
  }
  return text + "d" + std::to_string(step.decode_tokens);
}

std::vector<std::string> all_steps(const Trace& trace, const SchedulerOptions& options) {
  ReplayScheduler scheduler(trace, options);
  std::vector<std::string> steps;
  ReplayStep step;
  while (scheduler.next(&step)) steps.push_back(text_of(step));
  return steps;
}

TEST(ReplayScheduler, APromptOverTheBudgetIsComputedInChunks) {
  const Trace trace = make_trace({{0, 25, 1}});
  EXPECT_THAT(all_steps(trace, {.token_budget = 10, .max_seqs = 4}),
              testing::ElementsAre("0:0+10 d0", "0:10+10 d0", "0:20+5 d0"));
}

TEST(ReplayScheduler, ARestOfTheBudgetStartsTheNextPrompt) {
  const Trace trace = make_trace({{0, 6, 1}, {0, 9, 1}, {0, 3, 1}});
  // Pieces with context come first.
  EXPECT_THAT(all_steps(trace, {.token_budget = 10, .max_seqs = 4}),
              testing::ElementsAre("0:0+6 1:0+4 d0", "1:4+5 2:0+3 d0"));
}

TEST(ReplayScheduler, ARunningDecodeTakesATokenUntilItsLast) {
  // Request 0 gives its first token with the step that ends its prompt, then two more.
  const Trace trace = make_trace({{0, 10, 3}, {0, 40, 1}});
  EXPECT_THAT(all_steps(trace, {.token_budget = 10, .max_seqs = 2}),
              testing::ElementsAre("0:0+10 d0", "1:0+9 d1", "1:9+9 d1", "1:18+10 d0", "1:28+10 d0",
                                   "1:38+2 d0"));
}

TEST(ReplayScheduler, IterationsThatOnlyDecodeAreSkippedAndCounted) {
  // One at a time: request 0 ends its prompt in iteration 0 and decodes in 1..999.
  const Trace trace = make_trace({{0, 5, 1000}, {0, 5, 1}});
  ReplayScheduler scheduler(trace, {.token_budget = 10, .max_seqs = 1});
  ReplayStep step;
  ASSERT_TRUE(scheduler.next(&step));
  EXPECT_EQ(text_of(step), "0:0+5 d0");
  ASSERT_TRUE(scheduler.next(&step));
  EXPECT_EQ(text_of(step), "1:0+5 d0");
  EXPECT_EQ(scheduler.skipped_iterations(), 999);
  EXPECT_FALSE(scheduler.next(&step));
  EXPECT_FALSE(scheduler.next(&step));
  EXPECT_EQ(scheduler.finished_prompts(), 2);
}

TEST(ReplayScheduler, BackToBackIgnoresArrivals) {
  const Trace trace = make_trace({{0, 5, 1}, {60'000'000'000, 5, 1}});
  EXPECT_THAT(all_steps(trace, {.token_budget = 10, .max_seqs = 4}),
              testing::ElementsAre("0:0+5 1:0+5 d0"));
}

TEST(ReplayScheduler, TheArrivalClockAdmitsARequestOnlyOnceItHasArrived) {
  const Trace trace = make_trace({{0, 5, 1}, {1'000'000'000, 5, 1}, {1'500'000'000, 5, 1}});
  ReplayScheduler scheduler(trace, {.token_budget = 10, .max_seqs = 4, .arrival_clock = true});
  ReplayStep step;
  ASSERT_TRUE(scheduler.next(&step));
  EXPECT_EQ(text_of(step), "0:0+5 d0");
  scheduler.advance_clock(0.25);
  ASSERT_TRUE(scheduler.next(&step));  // idle: jumps to the second arrival
  EXPECT_EQ(text_of(step), "1:0+5 d0");
  EXPECT_NEAR(scheduler.clock_seconds(), 1.0, 1e-12);
  scheduler.advance_clock(0.75);
  ASSERT_TRUE(scheduler.next(&step));
  EXPECT_EQ(text_of(step), "2:0+5 d0");
  EXPECT_NEAR(scheduler.clock_seconds(), 1.75, 1e-12);
  EXPECT_FALSE(scheduler.next(&step));
}

TEST(ReplayScheduler, SkippingDecodesDoesNotTakeTimeByTheirLength) {
  // 10,000 requests that each decode for two billion iterations.
  std::vector<TraceRequest> requests(10'000, TraceRequest{0, 3, 2'000'000'000});
  const Trace trace = make_trace(requests);
  const auto steps = all_steps(trace, {.token_budget = 8192, .max_seqs = 256});
  EXPECT_GE(steps.size(), 10'000u / 256u);
}

struct RandomRun {
  Trace trace;
  SchedulerOptions options;
};

RandomRun random_run() {
  RandomRun run;
  run.options.max_seqs = *rc::gen::inRange<int64_t>(1, 9);
  run.options.token_budget = run.options.max_seqs + *rc::gen::inRange<int64_t>(0, 40);
  run.options.arrival_clock = *rc::gen::arbitrary<bool>();
  const auto count = *rc::gen::inRange<size_t>(1, 40);
  int64_t arrival = 0;
  std::vector<TraceRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    requests.push_back({arrival, *rc::gen::inRange(1, 120), *rc::gen::inRange(1, 60)});
    arrival += *rc::gen::inRange<int64_t>(0, 3'000'000'000);
  }
  run.trace = make_trace(requests);
  return run;
}

TEST(ReplaySchedulerProperty, EveryPromptTokenIsComputedOnceInOrderWithinBudgetAndSlots) {
  const bool ok = rc::check([] {
    const RandomRun run = random_run();
    const auto& requests = run.trace.requests;
    ReplayScheduler scheduler(run.trace, run.options);
    std::vector<int64_t> computed(requests.size(), 0);
    int64_t first_unfinished_admission = 0;
    ReplayStep step;
    while (scheduler.next(&step)) {
      RC_ASSERT(!step.pieces.empty());
      RC_ASSERT(step.prompt_tokens() + step.decode_tokens <= run.options.token_budget);
      bool seen_fresh = false;
      int64_t previous = -1;
      int64_t running = step.decode_tokens;
      for (const ReplayPiece& piece : step.pieces) {
        auto& done = computed[static_cast<size_t>(piece.request)];
        RC_ASSERT(piece.start == done);
        RC_ASSERT(piece.length > 0);
        done += piece.length;
        RC_ASSERT(done <= requests[static_cast<size_t>(piece.request)].prompt_tokens);
        RC_ASSERT(piece.request > previous);  // first come, first served
        previous = piece.request;
        if (piece.start == 0) {
          RC_ASSERT(piece.request == first_unfinished_admission);
          ++first_unfinished_admission;
          if (run.options.arrival_clock) {
            RC_ASSERT(
                static_cast<double>(requests[static_cast<size_t>(piece.request)].arrival_ns) <=
                scheduler.clock_seconds() * 1e9);
          }
        }
        RC_ASSERT(piece.start == 0 || !seen_fresh);  // context first
        seen_fresh = seen_fresh || piece.start == 0;
        ++running;
      }
      RC_ASSERT(running <= run.options.max_seqs);
      scheduler.advance_clock(0.1);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      RC_ASSERT(computed[i] == requests[i].prompt_tokens);
    }
    RC_ASSERT(scheduler.finished_prompts() == static_cast<int64_t>(requests.size()));
  });
  EXPECT_TRUE(ok);
}

// The same engine, one iteration at a time and with a list of what runs: slow and obvious.
std::vector<std::string> iterate_plainly(const Trace& trace, const SchedulerOptions& options,
                                         int64_t* skipped) {
  struct Running {
    int64_t request;
    int64_t prompt_left;
    int64_t answers_left;
  };
  std::vector<Running> running;
  std::vector<std::string> steps;
  size_t next = 0;
  int64_t unfinished = static_cast<int64_t>(trace.requests.size());
  *skipped = 0;
  while (unfinished > 0) {
    ReplayStep step;
    int64_t budget = options.token_budget;
    for (Running& one : running) {
      if (one.prompt_left > 0) continue;
      --one.answers_left;
      --budget;
      ++step.decode_tokens;
    }
    const auto prefill = [&](Running& one) {
      const int64_t total = trace.requests[static_cast<size_t>(one.request)].prompt_tokens;
      const int64_t length = std::min(one.prompt_left, budget);
      if (length == 0) return;
      step.pieces.push_back({one.request, total - one.prompt_left, length});
      one.prompt_left -= length;
      budget -= length;
      if (one.prompt_left == 0) {
        --one.answers_left;
        --unfinished;
      }
    };
    for (Running& one : running) prefill(one);
    while (next < trace.requests.size() && budget > 0 &&
           static_cast<int64_t>(running.size()) < options.max_seqs) {
      running.push_back({static_cast<int64_t>(next), trace.requests[next].prompt_tokens,
                         trace.requests[next].generated_tokens});
      prefill(running.back());
      ++next;
    }
    std::erase_if(running,
                  [](const Running& one) { return one.prompt_left == 0 && one.answers_left == 0; });
    if (step.pieces.empty()) {
      ++*skipped;
    } else {
      steps.push_back(text_of(step));
    }
  }
  return steps;
}

TEST(ReplaySchedulerProperty, AgreesWithAPlainSimulationOfEveryIteration) {
  const bool ok = rc::check([] {
    RandomRun run = random_run();
    run.options.arrival_clock = false;
    int64_t skipped = 0;
    const auto expected = iterate_plainly(run.trace, run.options, &skipped);
    ReplayScheduler scheduler(run.trace, run.options);
    std::vector<std::string> steps;
    ReplayStep step;
    while (scheduler.next(&step)) steps.push_back(text_of(step));
    RC_ASSERT(steps == expected);
    RC_ASSERT(scheduler.skipped_iterations() == skipped);
  });
  EXPECT_TRUE(ok);
}

// Each request with its block ids.
Trace blocks_trace(std::vector<std::pair<TraceRequest, std::vector<int64_t>>> requests) {
  std::vector<TraceRequest> plain;
  std::vector<int64_t> ids;
  for (auto& [request, blocks] : requests) {
    request.first_block = static_cast<int64_t>(ids.size());
    request.num_blocks = static_cast<int32_t>(blocks.size());
    ids.insert(ids.end(), blocks.begin(), blocks.end());
    plain.push_back(request);
  }
  Trace trace = make_trace(plain);
  trace.block_ids = ids;
  return trace;
}

TEST(ReplayScheduler, AHeldPrefixBecomesContextOfTheNextPrompt) {
  const Trace trace = blocks_trace({{{0, 1100, 1}, {1, 2, 3}}, {{0, 1200, 1}, {1, 2, 9}}});
  ReplayScheduler scheduler(trace, {.token_budget = 1100, .max_seqs = 4});
  ReplayStep step;
  ASSERT_TRUE(scheduler.next(&step));
  EXPECT_EQ(text_of(step), "0:0+1100 d0");
  ASSERT_TRUE(scheduler.next(&step));
  EXPECT_EQ(text_of(step), "1:1024+176 d0");
  EXPECT_FALSE(scheduler.next(&step));
  EXPECT_EQ(scheduler.hit_tokens(), 1024);
  EXPECT_EQ(scheduler.admitted_tokens(), 2300);
}

TEST(ReplayScheduler, APromptThatIsAllHeldComputesAtLeastItsLastToken) {
  const Trace trace =
      blocks_trace({{{0, 1024, 1}, {1, 2}}, {{0, 1024, 1}, {1, 2}}, {{0, 1025, 1}, {1, 2, 3}}});
  EXPECT_THAT(all_steps(trace, {.token_budget = 1024, .max_seqs = 4}),
              testing::ElementsAre("0:0+1024 d0", "1:512+512 2:1024+1 d0"));
}

TEST(ReplayScheduler, WhatAStepComputesIsNotHitWithinIt) {
  const Trace trace = blocks_trace({{{0, 600, 1}, {1, 2}}, {{0, 600, 1}, {1, 3}}});
  EXPECT_THAT(all_steps(trace, {.token_budget = 8192, .max_seqs = 4}),
              testing::ElementsAre("0:0+600 1:0+600 d0"));
}

TEST(ReplayScheduler, APrefixCacheOfNoTokensHitsNothing) {
  const Trace trace = blocks_trace({{{0, 600, 1}, {1, 2}}, {{0, 600, 1}, {1, 3}}});
  EXPECT_THAT(all_steps(trace, {.token_budget = 600, .max_seqs = 4, .prefix_cache_tokens = 511}),
              testing::ElementsAre("0:0+600 d0", "1:0+600 d0"));
}

TEST(PrefixCache, CountsFullBlocksOnly) {
  PrefixCache cache(-1);
  const std::vector<int64_t> prompt = {7, 8, 9};
  cache.keep(prompt, 511);
  EXPECT_EQ(cache.hit_tokens(prompt, 1500), 0);
  cache.keep(prompt, 1535);  // the third is one token short
  EXPECT_EQ(cache.hit_tokens(prompt, 1536), 1024);
  cache.keep(prompt, 1536);
  EXPECT_EQ(cache.hit_tokens(prompt, 1536), 1024);
  EXPECT_EQ(cache.hit_tokens(prompt, 1537), 1536);
}

TEST(PrefixCache, AHitEndsAtTheFirstBlockThatIsNotHeld) {
  PrefixCache cache(-1);
  cache.keep(std::vector<int64_t>{1, 2, 3}, 1536);
  EXPECT_EQ(cache.hit_tokens(std::vector<int64_t>{1, 5, 3}, 2000), 512);
  EXPECT_EQ(cache.hit_tokens(std::vector<int64_t>{2, 3}, 2000), 1024);
  EXPECT_EQ(cache.hit_tokens({}, 2000), 0);
}

TEST(PrefixCache, TheLeastRecentlyUsedBlockGoesFirstAndAPromptsEndBeforeItsStart) {
  PrefixCache cache(3 * 512 + 511);
  const std::vector<int64_t> a = {1, 2}, b = {3, 4}, c = {5};
  cache.keep(a, 1024);
  cache.keep(b, 1024);  // evicts 2
  EXPECT_EQ(cache.evicted_blocks(), 1);
  EXPECT_EQ(cache.hit_tokens(a, 9999), 512);  // and 1 is recent again
  cache.keep(c, 512);                         // evicts 4
  EXPECT_EQ(cache.hit_tokens(b, 9999), 512);
  EXPECT_EQ(cache.hit_tokens(a, 9999), 512);
  EXPECT_EQ(cache.hit_tokens(c, 9999), 512);
  EXPECT_EQ(cache.evicted_blocks(), 2);
}

RC_GTEST_PROP(PrefixCache, NeverHoldsMoreThanItsCapacityAndAgreesWithAPlainList,
              (std::vector<std::vector<uint8_t>> prompts)) {
  const int64_t capacity = *rc::gen::inRange<int64_t>(0, 12);
  PrefixCache cache(capacity * 512);
  std::vector<int64_t> held;  // the most recently used last
  const auto touch = [&](const std::vector<int64_t>& blocks, size_t count) {
    for (size_t i = count; i-- > 0;) {
      std::erase(held, blocks[i]);
      held.push_back(blocks[i]);
      if (static_cast<int64_t>(held.size()) > capacity) held.erase(held.begin());
    }
  };
  for (const std::vector<uint8_t>& prompt : prompts) {
    std::vector<int64_t> blocks;
    for (uint8_t id : prompt) blocks.push_back(id % 16);
    const auto tokens = static_cast<int64_t>(blocks.size()) * 512;
    size_t hit = 0;
    while (hit + 1 < blocks.size() &&
           std::find(held.begin(), held.end(), blocks[hit]) != held.end()) {
      ++hit;
    }
    RC_ASSERT(cache.hit_tokens(blocks, std::max<int64_t>(tokens, 1)) ==
              static_cast<int64_t>(hit) * 512);
    touch(blocks, hit);
    cache.keep(blocks, tokens);
    touch(blocks, blocks.size());
  }
}

}  // namespace
}  // namespace flashprime::cli
