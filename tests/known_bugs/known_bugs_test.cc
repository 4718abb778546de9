// SPDX-License-Identifier: Apache-2.0
// Bugs reported against other libraries, rebuilt. Those that one call shows are cases of the table
// and run in tests/conformance too; the rest are scenarios.
#include "tests/cases/known_bugs.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cases/staging.h"
#include "tests/cases/suite.h"

namespace flashprime::cases {

void PrintTo(const Scenario& scenario, std::ostream* out) {
  *out << scenario.name;
}

namespace {

std::vector<Scenario> scenarios(bool sparse) {
  std::vector<Scenario> result;
  for (const Scenario& scenario : known_bug_scenarios()) {
    if (scenario.sparse == sparse) result.push_back(scenario);
  }
  return result;
}

std::string name_of(const testing::TestParamInfo<Scenario>& info) {
  return info.param.name;
}

class KnownBug : public testing::TestWithParam<Scenario> {};

TEST_P(KnownBug, DoesNotComeBack) {
  for (const std::string& line : GetParam().run(execution_under_test(), 1)) ADD_FAILURE() << line;
}

INSTANTIATE_TEST_SUITE_P(Scenario, KnownBug, testing::ValuesIn(scenarios(false)), name_of);
// Address space of many GiB: label "sparse" in ctest.
INSTANTIATE_TEST_SUITE_P(Sparse, KnownBug, testing::ValuesIn(scenarios(true)), name_of);

TEST(KnownBugs, EveryReportIsACaseAScenarioOrNamedAsCoveredElsewhere) {
  std::string names;
  for (const Case& c : known_bug_cases()) names += c.name + " ";
  for (const Scenario& scenario : known_bug_scenarios()) names += scenario.name + " ";
  // Each is "13 why" or "30, 31, 32 why".
  std::set<int> elsewhere;
  for (const std::string& line : known_bugs_covered_elsewhere()) {
    std::istringstream words(line);
    std::string word;
    while (words >> word && std::isdigit(static_cast<unsigned char>(word.front())) != 0) {
      elsewhere.insert(std::stoi(word));
    }
  }
  for (int report = 1; report <= 47; ++report) {
    char prefix[16];
    std::snprintf(prefix, sizeof prefix, "bug_%02d_", report);
    EXPECT_TRUE(names.find(prefix) != std::string::npos || elsewhere.count(report) == 1) << report;
  }
  // Not a way out: only these may be covered elsewhere.
  EXPECT_EQ(elsewhere, (std::set<int>{13, 20, 22, 30, 31, 32, 35, 38, 43}));
}

}  // namespace
}  // namespace flashprime::cases
