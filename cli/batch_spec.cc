// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_spec.h"

#include <fmt/format.h>

#include <limits>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr int64_t kMaxRequests = 1'000'000;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

class BatchSpecParser {
 public:
  explicit BatchSpecParser(std::string_view text) : text_(text) {}

  StatusOr<std::vector<BatchRequest>> parse() {
    for (;;) {
      if (Status status = parse_item(); !status.ok()) return status;
      if (position_ == text_.size()) return std::move(requests_);
      if (text_[position_] != '_') return unexpected("'_' or the end");
      ++position_;
    }
  }

 private:
  bool at(char c) const { return position_ < text_.size() && text_[position_] == c; }
  bool at_digit() const {
    return position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9';
  }

  Status error_at(size_t position, const std::string& what) const {
    return {StatusCode::kFormat,
            fmt::format("batch '{}', position {}: {}", printable(text_), position + 1, what)};
  }
  Status unexpected(const std::string& wanted) const {
    const std::string got =
        position_ == text_.size() ? "the end" : '\'' + printable(text_.substr(position_, 1)) + '\'';
    return error_at(position_, "got " + got + ", want " + wanted);
  }

  // Digits, at most `max`.
  Status parse_number(int64_t max, int64_t* value) {
    if (!at_digit()) return unexpected("a digit");
    const size_t start = position_;
    *value = 0;
    while (at_digit()) {
      *value = *value * 10 + (text_[position_++] - '0');
      if (*value > max) return error_at(start, fmt::format("want at most {}", max));
    }
    return ok_status();
  }

  Status parse_length(int64_t* value) {
    const size_t start = position_;
    if (Status status = parse_number(kMaxTokens, value); !status.ok()) return status;
    if (at('k')) {
      ++position_;
      *value *= 1024;
      if (*value > kMaxTokens) return error_at(start, fmt::format("want at most {}", kMaxTokens));
    }
    return ok_status();
  }

  Status parse_item() {
    const size_t start = position_;
    int64_t count = 1;
    if (at_digit()) {
      if (Status status = parse_number(kMaxRequests, &count); !status.ok()) return status;
      if (count == 0) return error_at(start, "got 0 requests, want at least 1");
    }
    if (!at('q')) return unexpected(position_ == start ? "a digit or 'q'" : "'q'");
    ++position_;
    BatchRequest request;
    if (Status status = parse_length(&request.new_tokens); !status.ok()) return status;
    request.total_keys = request.new_tokens;
    if (at('s')) {
      const size_t keys_start = ++position_;
      if (Status status = parse_length(&request.total_keys); !status.ok()) return status;
      if (request.total_keys < request.new_tokens) {
        return error_at(keys_start,
                        fmt::format("got {} keys with {} new tokens, want at least as many: s is "
                                    "all keys, the new ones included",
                                    request.total_keys, request.new_tokens));
      }
    }
    // No product here can overflow: a count is below 2^20, a length below 2^31.
    new_tokens_ += count * request.new_tokens;
    total_keys_ += count * request.total_keys;
    if (static_cast<int64_t>(requests_.size()) + count > kMaxRequests) {
      return error_at(start, fmt::format("want at most {} requests in all", kMaxRequests));
    }
    if (new_tokens_ > kMaxTokens || total_keys_ > kMaxTokens) {
      return error_at(start, fmt::format("want at most {} tokens in all", kMaxTokens));
    }
    requests_.insert(requests_.end(), static_cast<size_t>(count), request);
    return ok_status();
  }

  std::string_view text_;
  size_t position_ = 0;
  int64_t new_tokens_ = 0;
  int64_t total_keys_ = 0;
  std::vector<BatchRequest> requests_;
};

}  // namespace

StatusOr<std::vector<BatchRequest>> parse_batch_spec(std::string_view text) {
  return BatchSpecParser(text).parse();
}

}  // namespace flashprime::cli
