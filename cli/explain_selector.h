// SPDX-License-Identifier: Apache-2.0
// explain --selector: what FlashAttention's own rules would pick for a problem, to compare with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/batch_spec.h"
#include "cli/session.h"
#include "flashprime/flash_attention_rules.h"
#include "flashprime/prefill.h"

namespace flashprime::cli {

struct SelectorOptions {
  std::string selector;  // "fa4" or "fa3"; empty: not asked for
  std::string arch = "sm_90";
  int64_t num_sms = 0;  // 0: of an H200 (sm_90) or B200 (sm_10x)
};

// "sm_90" or "sm_90a" -> {9, 0}.
StatusOr<ComputeCapability> parse_arch(std::string_view text);

// Prints the choice for the new tokens of `batch` and, if it has context, for its largest context
// chunk under the default workspace.
int explain_selector(Session& session, const SelectorOptions& options,
                     const PrefillProblem& problem, const std::vector<BatchRequest>& batch);

}  // namespace flashprime::cli
