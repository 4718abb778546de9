// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/shrink.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace flashprime::cases {
namespace {

using Clock = std::chrono::steady_clock;

std::set<std::string> criteria(const Verdict& verdict) {
  std::set<std::string> names;
  for (const std::string& line : verdict.violations) names.insert(line.substr(0, line.find(':')));
  return names;
}

// `c` without sequences [begin, end).
Case without_sequences(Case c, size_t begin, size_t end) {
  const auto first = static_cast<std::ptrdiff_t>(begin);
  const auto last = static_cast<std::ptrdiff_t>(end);
  c.q_lens.erase(c.q_lens.begin() + first, c.q_lens.begin() + last);
  c.k_lens.erase(c.k_lens.begin() + first, c.k_lens.begin() + last);
  std::vector<Poison> kept;
  for (Poison p : c.poison) {
    const auto sequence = static_cast<size_t>(p.sequence);
    if (sequence >= begin && sequence < end) continue;
    if (sequence >= end) p.sequence -= static_cast<int32_t>(end - begin);
    kept.push_back(p);
  }
  c.poison = std::move(kept);
  return c;
}

Case with_lengths(Case c, size_t sequence, int32_t q, int32_t k) {
  c.q_lens[sequence] = q;
  c.k_lens[sequence] = k;
  const auto is_gone = [&](const Poison& p) {
    return static_cast<size_t>(p.sequence) == sequence &&
           p.row >= (p.tensor == Poison::Tensor::kQ ? q : k);
  };
  c.poison.erase(std::remove_if(c.poison.begin(), c.poison.end(), is_gone), c.poison.end());
  return c;
}

class Shrinker {
 public:
  Shrinker(const Case& c, const Verdict& failing, const CheckOptions& options,
           const Implementation& implementation, const ShrinkLimits& limits)
      : options_(options), implementation_(implementation), limits_(limits) {
    best_.c = c;
    best_.verdict = failing;
    wanted_ = criteria(failing);
  }

  ShrunkCase run() {
    bool smaller = true;
    while (smaller && !spent()) {
      smaller = drop_sequences();
      smaller = drop_heads() || smaller;
      smaller = drop_tokens() || smaller;
      if (!smaller) smaller = simplify();
    }
    best_.minimal = !smaller && !spent_;
    return std::move(best_);
  }

 private:
  bool spent() {
    spent_ = spent_ || best_.runs >= limits_.runs ||
             std::chrono::duration<double>(Clock::now() - start_).count() > limits_.seconds ||
             (limits_.stop && limits_.stop());
    return spent_;
  }

  // Takes `candidate` if it fails in the way of the original.
  bool accept(Case candidate) {
    if (spent()) return false;
    ++best_.runs;
    auto checker = CaseChecker::make(candidate, options_);
    if (!checker.ok()) return false;
    Verdict verdict = (*checker)->check(implementation_);
    const std::set<std::string> found = criteria(verdict);
    if (std::none_of(found.begin(), found.end(),
                     [&](const std::string& name) { return wanted_.count(name) != 0; })) {
      return false;
    }
    best_.c = std::move(candidate);
    best_.verdict = std::move(verdict);
    return true;
  }

  bool drop_sequences() {
    bool smaller = false;
    for (size_t piece = best_.c.q_lens.size() / 2; piece >= 1; piece /= 2) {
      for (size_t begin = 0; begin + piece <= best_.c.q_lens.size();) {
        if (best_.c.q_lens.size() > piece &&
            accept(without_sequences(best_.c, begin, begin + piece))) {
          smaller = true;
        } else {
          begin += piece;
        }
      }
    }
    return smaller;
  }

  // Largest step first, for as long as any is taken; `make(step)` is the candidate.
  template <typename Make>
  bool descend(int32_t value, int32_t floor, const Make& make) {
    bool smaller = false;
    for (int32_t step = value - floor; step >= 1;) {
      if (accept(make(step))) {
        smaller = true;
        value -= step;
        step = std::min(step, value - floor);
      } else {
        step /= 2;
      }
    }
    return smaller;
  }

  bool drop_heads() {
    return descend(best_.c.heads, 1, [&](int32_t step) {
      Case c = best_.c;
      c.heads -= step;
      return c;
    });
  }

  bool drop_tokens() {
    bool smaller = false;
    for (size_t s = 0; s < best_.c.q_lens.size(); ++s) {
      const auto less = [&](int32_t new_tokens, int32_t keys) {
        return with_lengths(best_.c, s, best_.c.q_lens[s] - new_tokens, best_.c.k_lens[s] - keys);
      };
      // Together, which keeps the diagonal of the mask where it is, and each alone.
      smaller = descend(std::min(best_.c.q_lens[s], best_.c.k_lens[s]), 0,
                        [&](int32_t step) { return less(step, step); }) ||
                smaller;
      smaller =
          descend(best_.c.q_lens[s], 0, [&](int32_t step) { return less(step, 0); }) || smaller;
      smaller =
          descend(best_.c.k_lens[s], 0, [&](int32_t step) { return less(0, step); }) || smaller;
    }
    return smaller;
  }

  template <typename T>
  bool reset(T Case::* field, const T& value) {
    if (best_.c.*field == value) return false;
    Case c = best_.c;
    c.*field = value;
    return accept(std::move(c));
  }

  bool simplify() {
    const Case plain;
    bool smaller = false;
    for (size_t i = best_.c.poison.size(); i-- > 0;) {
      Case c = best_.c;
      c.poison.erase(c.poison.begin() + static_cast<std::ptrdiff_t>(i));
      smaller = accept(std::move(c)) || smaller;
    }
    smaller = reset(&Case::q_layout, plain.q_layout) || smaller;
    smaller = reset(&Case::k_layout, plain.k_layout) || smaller;
    smaller = reset(&Case::v_layout, plain.v_layout) || smaller;
    smaller = reset(&Case::out_layout, plain.out_layout) || smaller;
    smaller = reset(&Case::k_pe_rank3, plain.k_pe_rank3) || smaller;
    smaller = reset(&Case::q_split, plain.q_split) || smaller;
    smaller = reset(&Case::k_split, plain.k_split) || smaller;
    smaller = reset(&Case::lse_gapped, plain.lse_gapped) || smaller;
    smaller = reset(&Case::lse_layout, plain.lse_layout) || smaller;
    smaller = reset(&Case::stated_max_q, plain.stated_max_q) || smaller;
    smaller = reset(&Case::stated_max_k, plain.stated_max_k) || smaller;
    smaller = reset(&Case::distribution, plain.distribution) || smaller;
    return smaller;
  }

  const CheckOptions& options_;
  const Implementation& implementation_;
  const ShrinkLimits& limits_;
  const Clock::time_point start_ = Clock::now();
  bool spent_ = false;
  std::set<std::string> wanted_;
  ShrunkCase best_;
};

}  // namespace

ShrunkCase shrink_case(const Case& c, const Verdict& failing, const CheckOptions& options,
                       const Implementation& implementation, const ShrinkLimits& limits) {
  return Shrinker(c, failing, options, implementation, limits).run();
}

}  // namespace flashprime::cases
