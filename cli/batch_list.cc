// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_list.h"

#include <fmt/format.h>

#include <limits>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr size_t kMaxBatches = 1000;
// Of all batches together: a line of a few kilobytes could ask for gigabytes of them.
constexpr size_t kMaxRequests = 1'000'000;

// A length, as in "512" or "8k".
StatusOr<int64_t> parse_length(std::string_view text) {
  int64_t unit = 1;
  if (!text.empty() && text.back() == 'k') {
    unit = 1024;
    text.remove_suffix(1);
  }
  const auto length = parse_integer(text, 1, std::numeric_limits<int32_t>::max() / unit);
  if (!length.ok()) return length.status();
  return *length * unit;
}

std::string length_text(int64_t length) {
  return length % 1024 == 0 ? fmt::format("{}k", length / 1024) : std::to_string(length);
}

Status add_batch(std::string_view spec, std::vector<NamedBatch>* batches) {
  if (batches->size() == kMaxBatches) {
    return {StatusCode::kFormat, fmt::format("want at most {} batches", kMaxBatches)};
  }
  StatusOr<std::vector<BatchRequest>> requests = parse_batch_spec(spec);
  if (!requests.ok()) return requests.status();
  size_t total = requests->size();
  for (const NamedBatch& batch : *batches) total += batch.requests.size();
  if (total > kMaxRequests) {
    return {StatusCode::kFormat, fmt::format("want at most {} requests in all", kMaxRequests)};
  }
  batches->push_back({std::string(spec), std::move(*requests)});
  return ok_status();
}

Status add_range(std::string_view first, std::string_view last, std::vector<NamedBatch>* batches) {
  const size_t letter = first.find_last_of("qs");
  const std::string_view prefix = first.substr(0, letter + 1);
  const auto from = parse_length(letter == std::string_view::npos ? "" : first.substr(letter + 1));
  const auto to = parse_length(last);
  if (!from.ok() || !to.ok() || *to < *from) {
    return {StatusCode::kFormat,
            fmt::format("range '{}..{}': want SPEC..LEN, as in q512..8k, with a last length of "
                        "SPEC from 1 to LEN",
                        printable(first), printable(last))};
  }
  for (int64_t length = *from; length <= *to; length *= 2) {
    const std::string spec = std::string(prefix) + length_text(length);
    if (Status status = add_batch(spec, batches); !status.ok()) return status;
  }
  return ok_status();
}

}  // namespace

StatusOr<std::vector<NamedBatch>> parse_batch_list(std::string_view text) {
  std::vector<NamedBatch> batches;
  for (;;) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t dots = item.find("..");
    const Status status = dots == std::string_view::npos
                              ? add_batch(item, &batches)
                              : add_range(item.substr(0, dots), item.substr(dots + 2), &batches);
    if (!status.ok()) return status;
    if (comma == std::string_view::npos) return batches;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace flashprime::cli
