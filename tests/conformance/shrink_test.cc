// SPDX-License-Identifier: Apache-2.0
// A failing case as one word, and as small as it goes.
#include "tests/cases/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/cases/case_spec.h"
#include "tests/cases/suite.h"
#include "tests/conformance/faulty_prefill.h"

namespace flashprime {
namespace {

using cases::Case;
using cases::CaseChecker;
using cases::CheckOptions;
using cases::parse_case_spec;
using cases::Verdict;
using testing::HasSubstr;

Case parsed(const std::string& spec) {
  StatusOr<Case> c = parse_case_spec(spec);
  EXPECT_TRUE(c.ok()) << spec << ": " << c.status().to_string();
  return c.ok() ? *c : Case{};
}

cases::Implementation with_fault(Fault fault) {
  return [fault](const PrefillProblem& problem, const PrefillArgs& args) {
    return faulty_prefill(problem, args, fault);
  };
}

Verdict judge(const Case& c, const cases::Implementation& implementation) {
  auto checker = CaseChecker::make(c, CheckOptions{});
  EXPECT_TRUE(checker.ok()) << checker.status().to_string();
  return (*checker)->check(implementation);
}

std::vector<int64_t> layout_of(const TensorView& view) {
  std::vector<int64_t> numbers(view.shape.begin(), view.shape.end());
  numbers.insert(numbers.end(), view.stride.begin(), view.stride.end());
  numbers.push_back(static_cast<int64_t>(view.dtype));
  return numbers;
}

// The same numbers, at the first and the last token, in tensors of the same layout.
void expect_same_data(const Case& got, const Case& want) {
  const cases::ValueSource a(got, 7);
  const cases::ValueSource b(want, 7);
  using Row = void (cases::ValueSource::*)(int64_t, float*) const;
  const auto compare = [&](Row row, int64_t tokens, int64_t width) {
    for (const int64_t token : {int64_t{0}, tokens - 1}) {
      if (token < 0 || tokens == 0) continue;
      std::vector<float> values(static_cast<size_t>(width));
      std::vector<float> wanted(static_cast<size_t>(width));
      (a.*row)(token, values.data());
      (b.*row)(token, wanted.data());
      EXPECT_EQ(std::memcmp(values.data(), wanted.data(), values.size() * sizeof(float)), 0)
          << want.name << " token " << token;
    }
  };
  const int64_t width = want.heads * (want.dims.nope + want.dims.rope);
  compare(&cases::ValueSource::q_row, want.total_q(), width);
  compare(&cases::ValueSource::k_row, want.total_k(), width);
  compare(&cases::ValueSource::v_row, want.total_k(), want.heads * want.dims.v);
  if (want.total_k() * want.heads > 1000) return;
  const cases::InputTensors inputs(got, 7);
  const cases::InputTensors expected(want, 7);
  for (TensorView PrefillArgs::* view :
       {&PrefillArgs::q, &PrefillArgs::q_nope, &PrefillArgs::q_pe, &PrefillArgs::k,
        &PrefillArgs::k_nope, &PrefillArgs::k_pe, &PrefillArgs::v}) {
    EXPECT_EQ(layout_of(inputs.args().*view), layout_of(expected.args().*view)) << want.name;
  }
}

TEST(CaseSpec, EveryCaseOfTheTableReadsBackAsItself) {
  for (const Case& c : cases::case_table()) {
    const std::string spec = case_spec(c);
    const StatusOr<Case> again = parse_case_spec(spec);
    ASSERT_TRUE(again.ok()) << c.name << ": " << again.status().to_string();
    EXPECT_EQ(case_spec(*again), spec) << c.name;
    EXPECT_EQ(again->q_lens, c.q_lens) << c.name;
    EXPECT_EQ(again->k_lens, c.k_lens) << c.name;
    EXPECT_EQ(again->scale(), c.scale()) << c.name;
    EXPECT_EQ(again->output_scale, c.output_scale) << c.name;
    EXPECT_EQ(again->poison.size(), c.poison.size()) << c.name;
    EXPECT_EQ(again->visible_pairs(), c.visible_pairs()) << c.name;
    EXPECT_EQ(spec.find_first_of(" '\"\\$&|;<>()*?[]#~`!"), std::string::npos) << spec;
    expect_same_data(*again, c);
  }
}

TEST(CaseSpec, SaysEverythingOnce) {
  const std::string spec =
      "dims=16/8/24,lens=3x17/513_0/5,heads=5,dtype=fp16,out=e4m3,mask=window:inf:3,"
      "lse=tokens-heads,lse_gapped=1,q_split=1,k_split=1,k_pe_rank3=1,q_layout=slice,"
      "k_layout=padded,v_layout=broadcast,out_layout=odd,data=sink_token,"
      "poison=k:0:-1:nan+v:3:4:huge,max_q=20,max_k=600,scale=0.1,out_scale=0.5";
  const Case c = parsed(spec);
  EXPECT_EQ(case_spec(c), spec);
  EXPECT_EQ(c.q_lens, (std::vector<int32_t>{17, 17, 17, 0}));
  EXPECT_EQ(c.mask.window_left, -1);
  EXPECT_EQ(c.mask.window_right, 3);
  EXPECT_EQ(c.poison[1].row, 4);
}

TEST(CaseSpec, AnErrorNamesTheFieldWhatWasGotAndWhatIsWanted) {
  const std::pair<std::string, std::string> errors[] = {
      {"", "got '', want KEY=VALUE"},
      {"heads=2", "want lens=NEW/KEYS"},
      {"lens", "got 'lens', want KEY=VALUE"},
      {"lens=1/1,", "got '', want KEY=VALUE"},
      {"lens=1/1,lens=1/1", "lens is given twice"},
      {"lens=1/1,nope=3", "got 'nope=3', want KEY=VALUE with a key of dims, lens"},
      {"lens=1", "lens: got '1', want none, or [COUNTx]NEW/KEYS"},
      {"lens=-1/1", "lens: got '-1/1'"},
      {"lens=0x1/1", "lens: got '0x1/1'"},
      {"lens=9999999x16777216/1", "lens: got"},
      {"lens=1000000x16777216/1", "lens: got"},
      {"lens=1/1,heads=0", "heads: got '0', want 1 to 65536"},
      {"lens=1/1,dims=128/64", "dims: got '128/64', want NOPE/ROPE/V"},
      {"lens=1/1,dims=0/64/128", "dims: got"},
      {"lens=1/1,dtype=e4m3", "dtype: got 'e4m3', want bf16, fp16 or fp32"},
      {"lens=1/1,mask=window:1", "mask: got"},
      {"lens=1/1,q_layout=broadcast", "q_layout: got"},
      {"lens=1/1,k_split=1,k_layout=broadcast", "wants k_split=0"},
      {"lens=1/1,data=weird\n", "data: got 'weird?'"},
      {"lens=1/1,poison=k:1:0:nan", "no such row in sequence 1"},
      {"lens=1/1,poison=q:0:1:nan", "no such row in sequence 0"},
      {"lens=1/1,scale=nan", "scale: got 'nan'"},
      {"lens=1/1,out_scale=0", "out_scale: got '0'"},
      {"lens=16777216/16777216,heads=65536", "more than 4 GiB"},
  };
  for (const auto& [spec, message] : errors) {
    const StatusOr<Case> c = parse_case_spec(spec);
    ASSERT_FALSE(c.ok()) << spec;
    EXPECT_EQ(c.status().code(), StatusCode::kFormat);
    EXPECT_THAT(c.status().message(), HasSubstr(message)) << spec;
  }
}

struct Shrinkable {
  Fault fault;
  std::string from;
  std::string to;
};

void PrintTo(const Shrinkable& value, std::ostream* out) {
  *out << value.from;
}

class Shrinking : public testing::TestWithParam<Shrinkable> {};

TEST_P(Shrinking, FindsTheSmallestCase) {
  const Shrinkable& p = GetParam();
  const Case start = parsed(p.from);
  const cases::Implementation faulty = with_fault(p.fault);
  const Verdict failing = judge(start, faulty);
  ASSERT_FALSE(failing.passed());
  const cases::ShrunkCase shrunk = shrink_case(start, failing, CheckOptions{}, faulty, {});
  EXPECT_TRUE(shrunk.minimal);
  EXPECT_EQ(case_spec(shrunk.c), p.to);
  // What a person does with the line: read it, see the failure; and the case itself is sound.
  const Case again = parsed(case_spec(shrunk.c));
  EXPECT_EQ(judge(again, faulty).violations, shrunk.verdict.violations);
  EXPECT_FALSE(shrunk.verdict.passed());
  EXPECT_TRUE(judge(again, with_fault(Fault::kNone)).passed());
}

INSTANTIATE_TEST_SUITE_P(
    SeededFaults, Shrinking,
    testing::Values(Shrinkable{Fault::kCausalTopLeft, "dims=128/64/128,lens=3x70/130_33/33,heads=4",
                               "dims=128/64/128,lens=1/2,heads=1"},
                    Shrinkable{Fault::kLseBaseTwo,
                               "dims=128/64/128,lens=70/70_33/60,heads=3,lse_gapped=1",
                               "dims=128/64/128,lens=1/1,heads=1"},
                    Shrinkable{Fault::kHeadsSwapped, "dims=64/64/128,lens=33/70_5/5,heads=6",
                               "dims=64/64/128,lens=1/1,heads=2"},
                    Shrinkable{Fault::kKeysAtQueryOffsets,
                               "dims=64/64/64,lens=9/30_12/40_7/7,heads=2",
                               "dims=64/64/64,lens=0/1_1/1,heads=1"},
                    Shrinkable{Fault::kNeighbourTimesZero,
                               "dims=64/32/64,lens=30/40_20/20_10/10,heads=2,poison=v:1:-1:nan",
                               "dims=64/32/64,lens=1/1_0/1,heads=1,poison=v:1:-1:nan"},
                    Shrinkable{Fault::kEmptyRowLsePlusInfinity, "dims=128/64/128,lens=70/30_40/40",
                               "dims=128/64/128,lens=1/0,heads=1"}),
    [](const auto& param) {
      return std::string(all_faults()[static_cast<size_t>(param.param.fault) - 1].name);
    });

TEST(Shrinking, StopsAtItsLimitsAndSaysThatItDid) {
  const Case start = parsed("dims=128/64/128,lens=70/130,heads=4");
  const cases::Implementation faulty = with_fault(Fault::kCausalTopLeft);
  const Verdict failing = judge(start, faulty);
  const auto none =
      shrink_case(start, failing, CheckOptions{}, faulty, {.runs = 0, .seconds = 30, .stop = {}});
  EXPECT_EQ(case_spec(none.c), case_spec(start));
  EXPECT_EQ(none.verdict.violations, failing.violations);
  EXPECT_FALSE(none.minimal);
  EXPECT_EQ(
      shrink_case(start, failing, CheckOptions{}, faulty, {.runs = 3, .seconds = 30, .stop = {}})
          .runs,
      3);
  const auto stopped = shrink_case(start, failing, CheckOptions{}, faulty,
                                   {.runs = 9, .seconds = 30, .stop = [] { return true; }});
  EXPECT_EQ(stopped.runs, 0);
}

TEST(Shrinking, OfASuiteGivesEachFailureItsCase) {
  cases::SuiteOptions options;
  options.filter = "heads_";
  options.implementation = with_fault(Fault::kLastKeyDropped);
  options.shrink = cases::ShrinkLimits{};
  const auto report = cases::run_suite("quick", options);
  ASSERT_TRUE(report.ok());
  ASSERT_GT(report->failed, 0);
  for (const cases::CaseReport& one : report->reports) {
    if (one.outcome != cases::Outcome::kFailed) continue;
    EXPECT_FALSE(judge(parsed(one.spec), options.implementation).passed()) << one.spec;
    EXPECT_FALSE(one.spec_violations.empty());
  }
  EXPECT_TRUE(report->reports.front().minimal);
}

}  // namespace
}  // namespace flashprime
