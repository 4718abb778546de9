// SPDX-License-Identifier: Apache-2.0
// The files that bench writes, in CSV and JSON, and --guard reads.
#include "cli/bench_report.h"
#include "tests/fuzz/fuzz.h"

namespace flashprime::cli {
namespace {

void check(std::string_view text) {
  const StatusOr<std::vector<BenchRow>> rows = parse_bench(text);
  if (!rows.ok()) {
    FUZZ_REQUIRE(rows.status().code() == StatusCode::kFormat);
    fuzz::require_message(rows.status().message());
    return;
  }
  FUZZ_REQUIRE(!rows->empty());
  for (const BenchRow& row : *rows) FUZZ_REQUIRE(row.ours.median >= 0 && row.ours.spread >= 0);
  const Guard guard = compare(*rows, *rows, 0.1);
  FUZZ_REQUIRE(guard.unmatched.empty());
  // What was read can be written and read again.
  const std::string csv = bench_csv(*rows);
  const StatusOr<std::vector<BenchRow>> same = parse_bench(csv);
  FUZZ_REQUIRE(same.ok() && bench_csv(*same) == csv);
}

}  // namespace
}  // namespace flashprime::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::cli::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
