// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashprime::cli {

bool ReplayScheduler::has_arrived(size_t request) const {
  return !options_.arrival_clock ||
         static_cast<double>(requests_[request].arrival_ns) <= clock_seconds_ * 1e9;
}

bool ReplayScheduler::next(ReplayStep* step) {
  step->pieces.clear();
  for (;;) {
    while (!decode_ends_.empty() && decode_ends_.top() < iteration_) decode_ends_.pop();
    const auto decodes = static_cast<int64_t>(decode_ends_.size());
    int64_t budget = options_.token_budget - decodes;
    int64_t running = decodes + static_cast<int64_t>(begun_.size());

    std::vector<ReplayPiece> still_begun;
    const auto schedule = [&](ReplayPiece rest) {
      const int64_t total = requests_[static_cast<size_t>(rest.request)].prompt_tokens;
      const int64_t length = std::min(budget, total - rest.start);
      if (length > 0) {
        step->pieces.push_back({rest.request, rest.start, length});
        budget -= length;
        rest.start += length;
      }
      if (rest.start < total) {
        still_begun.push_back(rest);
        return;
      }
      ++finished_prompts_;
      const int64_t answers = requests_[static_cast<size_t>(rest.request)].generated_tokens;
      if (answers > 1) decode_ends_.push(iteration_ + answers - 1);
    };
    for (const ReplayPiece& rest : begun_) schedule(rest);
    while (next_waiting_ < requests_.size() && running < options_.max_seqs && budget > 0 &&
           has_arrived(next_waiting_)) {
      const TraceRequest& request = requests_[next_waiting_];
      const int64_t hit =
          prefix_cache_.hit_tokens(trace_.blocks_of(request), request.prompt_tokens);
      admitted_tokens_ += request.prompt_tokens;
      hit_tokens_ += hit;
      schedule({static_cast<int64_t>(next_waiting_), hit, 0});
      ++next_waiting_;
      ++running;
    }
    begun_ = std::move(still_begun);
    ++iteration_;
    for (const ReplayPiece& piece : step->pieces) {
      prefix_cache_.keep(trace_.blocks_of(requests_[static_cast<size_t>(piece.request)]),
                         piece.start + piece.length);
    }
    if (!step->pieces.empty()) {
      step->decode_tokens = decodes;
      return true;
    }
    if (next_waiting_ == requests_.size() && begun_.empty()) return false;
    if (!decode_ends_.empty()) {
      // This iteration only decoded, and so will all that follow until a decode ends: go to the
      // first one that has a place again.
      const int64_t resume = decode_ends_.top() + 1;
      skipped_iterations_ += resume - (iteration_ - 1);
      iteration_ = resume;
    } else {
      // Nothing runs: jump to the next arrival, then on by the ulp or two that rounding cost.
      clock_seconds_ =
          std::max(clock_seconds_, static_cast<double>(requests_[next_waiting_].arrival_ns) * 1e-9);
      while (!has_arrived(next_waiting_)) {
        clock_seconds_ = std::nextafter(clock_seconds_, std::numeric_limits<double>::infinity());
      }
    }
  }
}

}  // namespace flashprime::cli
