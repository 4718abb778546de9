// SPDX-License-Identifier: Apache-2.0
// The cases of check --case.
#include "tests/cases/case_spec.h"

#include "tests/fuzz/fuzz.h"

namespace flashprime::cases {
namespace {

void check(std::string_view text) {
  const StatusOr<Case> one = parse_case_spec(text);
  if (!one.ok()) {
    FUZZ_REQUIRE(one.status().code() == StatusCode::kFormat);
    fuzz::require_message(one.status().message());
    return;
  }
  FUZZ_REQUIRE(one->q_lens.size() == one->k_lens.size() && one->q_lens.size() <= 1'000'000);
  FUZZ_REQUIRE(one->total_q() <= INT32_MAX && one->total_k() <= INT32_MAX);
  // A repro line is the case: what it says reads back as what was run.
  const std::string spec = case_spec(*one);
  const StatusOr<Case> same = parse_case_spec(spec);
  FUZZ_REQUIRE(same.ok() && case_spec(*same) == spec);
  FUZZ_REQUIRE(same->q_lens == one->q_lens && same->k_lens == one->k_lens);
}

}  // namespace
}  // namespace flashprime::cases

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::cases::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
