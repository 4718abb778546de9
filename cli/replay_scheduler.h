// SPDX-License-Identifier: Apache-2.0
// Continuous batching as an engine does it: which prompt tokens each iteration computes.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "cli/replay_prefix_cache.h"
#include "cli/trace.h"

namespace flashprime::cli {

struct SchedulerOptions {
  int64_t token_budget = 8192;       // tokens of an iteration, at least max_seqs
  int64_t max_seqs = 256;            // requests that run at once
  bool arrival_clock = false;        // a request exists only once the clock has reached its arrival
  int64_t prefix_cache_tokens = -1;  // of blocks that the trace names; -1: unlimited
};

// Prompt tokens [start, start + length) of a request; the `start` earlier ones are its context.
struct ReplayPiece {
  int64_t request = 0;  // index in the trace
  int64_t start = 0;
  int64_t length = 0;
};

// One engine iteration that computes at least one prompt token.
struct ReplayStep {
  std::vector<ReplayPiece> pieces;  // prompts that were begun first
  int64_t decode_tokens = 0;        // running decodes; each takes a token of the budget

  int64_t prompt_tokens() const {
    int64_t sum = 0;
    for (const ReplayPiece& piece : pieces) sum += piece.length;
    return sum;
  }
};

// First come, first served, with chunked prefill. In an iteration every running decode takes one
// token of the budget; then prompts that were begun continue, then waiting requests are admitted
// while fewer than max_seqs run. The iteration that computes a prompt's last token also gives its
// first answer token; each later iteration gives one more, and the request leaves with its last.
// A prompt that is admitted starts behind the blocks that the prefix cache holds of it; what a step
// computes can be hit from the next one on.
//
// Iterations without prompt tokens cost nothing: they are counted and skipped in one go to the next
// one in which a decode ends. With the arrival clock, decodes that nothing interrupts therefore
// end before the clock jumps to the next arrival.
class ReplayScheduler {
 public:
  // `trace` must outlive the scheduler.
  ReplayScheduler(const Trace& trace, const SchedulerOptions& options)
      : trace_(trace),
        requests_(trace.requests),
        options_(options),
        prefix_cache_(options.prefix_cache_tokens) {}

  // The next step; false when every prompt is computed.
  bool next(ReplayStep* step);

  // What the last step took, on the arrival clock.
  void advance_clock(double seconds) { clock_seconds_ += seconds; }
  double clock_seconds() const { return clock_seconds_; }

  int64_t skipped_iterations() const { return skipped_iterations_; }  // decodes only
  int64_t finished_prompts() const { return finished_prompts_; }
  int64_t admitted_tokens() const { return admitted_tokens_; }  // of the prompts begun so far
  int64_t hit_tokens() const { return hit_tokens_; }            // of these, found in the cache

 private:
  bool has_arrived(size_t request) const;

  const Trace& trace_;
  const std::vector<TraceRequest>& requests_;
  SchedulerOptions options_;
  PrefixCache prefix_cache_;
  size_t next_waiting_ = 0;
  std::vector<ReplayPiece> begun_;  // prompts with tokens left; start is the next token
  // Iterations in which running decodes give their last token, the earliest on top.
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> decode_ends_;
  int64_t iteration_ = 0;
  int64_t skipped_iterations_ = 0;
  int64_t finished_prompts_ = 0;
  int64_t admitted_tokens_ = 0;
  int64_t hit_tokens_ = 0;
  double clock_seconds_ = 0.0;
};

}  // namespace flashprime::cli
