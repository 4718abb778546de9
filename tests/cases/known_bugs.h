// SPDX-License-Identifier: Apache-2.0
// Bugs that were reported against other attention libraries, rebuilt: as rows of the case table
// where one call shows them, as scenarios where it takes several.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/execution.h"
#include "tests/cases/case.h"

namespace flashprime::cases {

/// Rows of the table that belong to the suite known-bugs; names start with "bug_".
std::vector<Case> known_bug_cases();

struct Scenario {
  std::string name;
  std::string why;
  /// Needs address space far beyond memory (a few touched pages): not for sanitizers.
  bool sparse = false;
  /// Runs it with a kernel and seed; one line per violation.
  std::function<std::vector<std::string>(const ExecutionOptions&, uint64_t seed)> run;
};

const std::vector<Scenario>& known_bug_scenarios();

/// Reports that no call of the operator can show here, and what covers each.
std::vector<std::string> known_bugs_covered_elsewhere();

}  // namespace flashprime::cases
