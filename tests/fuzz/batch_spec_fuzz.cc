// SPDX-License-Identifier: Apache-2.0
// The --batch grammar, and lists and ranges of it.
#include "cli/batch_spec.h"

#include "cli/batch_list.h"
#include "tests/fuzz/fuzz.h"

namespace flashprime::cli {
namespace {

void check_list(std::string_view text) {
  const StatusOr<std::vector<NamedBatch>> batches = parse_batch_list(text);
  if (!batches.ok()) {
    FUZZ_REQUIRE(batches.status().code() == StatusCode::kFormat);
    fuzz::require_message(batches.status().message());
    return;
  }
  FUZZ_REQUIRE(!batches->empty() && batches->size() <= 1000);
  size_t requests = 0;
  for (const NamedBatch& batch : *batches) {
    requests += batch.requests.size();
    // Its name is its own spec.
    const StatusOr<std::vector<BatchRequest>> same = parse_batch_spec(batch.name);
    FUZZ_REQUIRE(same.ok() && *same == batch.requests);
  }
  FUZZ_REQUIRE(requests <= 1'000'000);
}

void check(std::string_view text) {
  const StatusOr<std::vector<BatchRequest>> batch = parse_batch_spec(text);
  if (!batch.ok()) {
    FUZZ_REQUIRE(batch.status().code() == StatusCode::kFormat);
    fuzz::require_message(batch.status().message());
    return;
  }
  FUZZ_REQUIRE(!batch->empty() && batch->size() <= 1'000'000);
  int64_t new_tokens = 0, keys = 0;
  for (const BatchRequest& request : *batch) {
    FUZZ_REQUIRE(request.new_tokens >= 0 && request.context() >= 0);
    new_tokens += request.new_tokens;
    keys += request.total_keys;
  }
  FUZZ_REQUIRE(new_tokens <= INT32_MAX && keys <= INT32_MAX);
  // Written out request by request, it means the same.
  if (batch->size() > 100) return;
  std::string again;
  for (const BatchRequest& request : *batch) {
    if (!again.empty()) again += '_';
    again += 'q' + std::to_string(request.new_tokens) + 's' + std::to_string(request.total_keys);
  }
  const StatusOr<std::vector<BatchRequest>> same = parse_batch_spec(again);
  FUZZ_REQUIRE(same.ok() && *same == *batch);
}

}  // namespace
}  // namespace flashprime::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  flashprime::cli::check(text);
  flashprime::cli::check_list(text);
  return 0;
}
