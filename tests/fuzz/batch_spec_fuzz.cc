// SPDX-License-Identifier: Apache-2.0
// The --batch grammar.
#include "cli/batch_spec.h"

#include "tests/fuzz/fuzz.h"

namespace flashprime::cli {
namespace {

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
  flashprime::cli::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
