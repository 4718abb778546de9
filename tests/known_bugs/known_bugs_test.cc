// SPDX-License-Identifier: Apache-2.0
// Bugs reported against other libraries, rebuilt. Those that one call shows are cases of the table
// and run in tests/conformance too; the rest are scenarios.
#include "tests/cases/known_bugs.h"

#include <gtest/gtest.h>

#include <ostream>
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
  std::string all;
  for (const Case& c : known_bug_cases()) all += c.name + " ";
  for (const Scenario& scenario : known_bug_scenarios()) all += scenario.name + " ";
  for (const char* row : {"01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12",
                          "14", "15", "17", "18", "19", "21", "22", "23", "24", "25", "26", "27"}) {
    EXPECT_NE(all.find(std::string("bug_") + row + "_"), std::string::npos) << row;
  }
  EXPECT_FALSE(known_bugs_covered_elsewhere().empty());
}

}  // namespace
}  // namespace flashprime::cases
