// SPDX-License-Identifier: Apache-2.0
// Lists and ranges of --batch specs: "q1k,q4k,8q512s1k..32k".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/batch_spec.h"

namespace flashprime::cli {

struct NamedBatch {
  std::string name;  // its own spec
  std::vector<BatchRequest> requests;
};

// Batches joined by ','. "SPEC..LEN" doubles the last length of SPEC until it would exceed LEN:
// "q512..2k" is q512, q1k and q2k. At most 1000 batches, and a
// million requests in all.
StatusOr<std::vector<NamedBatch>> parse_batch_list(std::string_view text);

}  // namespace flashprime::cli
