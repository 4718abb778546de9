// SPDX-License-Identifier: Apache-2.0
// A trace of either format, fed whole and in pieces.
#include "cli/trace.h"
#include "tests/fuzz/fuzz.h"

namespace flashprime::cli {
namespace {

StatusOr<Trace> parse(std::string_view bytes, size_t piece) {
  TraceParser parser("f");
  while (!bytes.empty()) {
    if (Status fed = parser.feed(bytes.substr(0, piece)); !fed.ok()) return fed;
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  return parser.finish();
}

void check(std::string_view bytes) {
  const size_t piece = bytes.empty() ? 1 : 1 + static_cast<uint8_t>(bytes.back()) % 7;
  const StatusOr<Trace> whole = parse(bytes, bytes.size() + 1);
  const StatusOr<Trace> pieces = parse(bytes, piece);
  FUZZ_REQUIRE(whole.ok() == pieces.ok());
  if (!whole.ok()) {
    FUZZ_REQUIRE(whole.status().code() == StatusCode::kFormat);
    FUZZ_REQUIRE(whole.status().message() == pieces.status().message());
    fuzz::require_message(whole.status().message());
    return;
  }
  FUZZ_REQUIRE(whole->requests == pieces->requests);
  FUZZ_REQUIRE(whole->block_ids == pieces->block_ids);
  FUZZ_REQUIRE(!whole->requests.empty());
  FUZZ_REQUIRE(whole->requests.front().arrival_ns == 0);
  int64_t prompt_tokens = 0, generated_tokens = 0, last_arrival = 0;
  for (const TraceRequest& request : whole->requests) {
    FUZZ_REQUIRE(request.prompt_tokens >= 1 && request.generated_tokens >= 1);
    FUZZ_REQUIRE(request.arrival_ns >= last_arrival);
    const auto blocks = static_cast<int64_t>(whole->blocks_of(request).size());
    FUZZ_REQUIRE(blocks == 0 ||
                 blocks == (request.prompt_tokens + kBlockTokens - 1) / kBlockTokens);
    last_arrival = request.arrival_ns;
    prompt_tokens += request.prompt_tokens;
    generated_tokens += request.generated_tokens;
  }
  FUZZ_REQUIRE(prompt_tokens == whole->prompt_tokens);
  FUZZ_REQUIRE(generated_tokens == whole->generated_tokens);
}

}  // namespace
}  // namespace flashprime::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::cli::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
