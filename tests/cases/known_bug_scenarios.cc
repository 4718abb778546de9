// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/known_bugs.h"

namespace flashprime::cases {

const std::vector<Scenario>& known_bug_scenarios() {
  static const std::vector<Scenario> scenarios;
  return scenarios;
}

std::vector<std::string> known_bugs_covered_elsewhere() {
  return {};
}

}  // namespace flashprime::cases
