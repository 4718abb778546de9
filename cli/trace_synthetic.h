// SPDX-License-Identifier: Apache-2.0
// Traces without a file: drawn from distributions fitted to real ones.
#pragma once

#include <cstdint>
#include <string_view>

#include "cli/trace.h"

namespace flashprime::cli {

// Whether --trace means a synthetic trace: "synthetic:...".
bool is_synthetic_trace(std::string_view text);

// "synthetic:azure-conv", "synthetic:azure-code" or "synthetic:mooncake", with ":COUNT" for other
// than 1,000 requests. kRange for another name or count.
//
// Prompt lengths, answer lengths and the times between arrivals are drawn independently of each
// other, one value from each of COUNT equal shares of their distribution, in random order, so that
// even short traces have the percentiles of the real one. Mooncake's prompts share blocks with
// earlier prompts as often as the real ones. Equal arguments give equal traces on every machine.
StatusOr<Trace> synthetic_trace(std::string_view text, uint64_t seed);

}  // namespace flashprime::cli
