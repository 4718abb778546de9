// SPDX-License-Identifier: Apache-2.0
#include "warmup/warmup_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "warmup/jit_kernel.h"

namespace flashprime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A small kernel: rounds tokens up to a power of two, so that many inputs share a key.
struct ToyKey {
  int64_t block_size = 0;
  int64_t work = 0;
  std::string mode;
  bool wide = false;

  bool operator==(const ToyKey&) const = default;
  std::string to_string() const {
    return "ToyKey{" + std::to_string(block_size) + ", " + std::to_string(work) + ", " + mode + "}";
  }
};

}  // namespace
}  // namespace flashprime

template <>
struct std::hash<flashprime::ToyKey> {
  std::size_t operator()(const flashprime::ToyKey& key) const {
    return std::hash<std::string>{}(key.to_string());
  }
};

namespace flashprime {
namespace {

class ToyKernel : public JitKernel<ToyKey, int64_t, StatusOr<std::string>(int)> {
 public:
  explicit ToyKernel(Kernel bound = {}) : JitKernel(std::move(bound)) {}

  WarmupSignature signature() const override {
    return {{{"tokens"}, {"lanes", 1}, {"mode", "default"}}, forwarded};
  }
  StatusOr<ToyKey> dispatch(const WarmupInputs& inputs) const override {
    WarmupReader read(inputs);
    const int64_t tokens = read.integer("tokens");
    const int64_t block_size =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens < 1 ? 1 : tokens)));
    ToyKey key{block_size, block_size * read.integer("lanes"), read.text("mode"),
               inputs.contains("wide") && read.flag("wide")};
    FLASHPRIME_RETURN_IF_ERROR(read.status());
    return key;
  }
  StatusOr<JitKeys<ToyKey>> warmup_keys(const int64_t& max_tokens) const override {
    WarmupSpace space;
    space.axes.push_back({"tokens", WarmupDomain::range(1, max_tokens + 1)});
    return expand(space);
  }
  Status compile(const ToyKey& key) override {
    if (key.block_size == refused_block) return Status(StatusCode::kNoCompiler, "refused");
    compiled.push_back(key.block_size);
    return ok_status();
  }

  std::vector<std::string> forwarded;
  std::vector<int64_t> compiled;
  int64_t refused_block = -1;
};

WarmupSpace axes(std::vector<WarmupAxis> list) {
  WarmupSpace space;
  space.axes = std::move(list);
  return space;
}

// "block/work/mode" of every key, or the error.
std::vector<std::string> expanded(const WarmupSpace& space, const ToyKernel& kernel = ToyKernel()) {
  const StatusOr<JitKeys<ToyKey>> keys = kernel.expand(space);
  if (!keys.ok()) return {keys.status().to_string()};
  std::vector<std::string> text;
  for (const ToyKey& key : keys->keys) {
    text.push_back(std::to_string(key.block_size) + "/" + std::to_string(key.work) + "/" +
                   key.mode);
  }
  return text;
}

std::vector<int64_t> blocks(WarmupDomain tokens) {
  std::vector<int64_t> text;
  const auto keys = ToyKernel().expand(axes({{"tokens", std::move(tokens)}}));
  if (!keys.ok()) return {-1};
  for (const ToyKey& key : keys->keys) text.push_back(key.block_size);
  return text;
}

std::string error(const WarmupSpace& space) {
  const StatusOr<JitKeys<ToyKey>> keys = ToyKernel().expand(space);
  return keys.ok() ? "" : keys.status().to_string();
}

std::string error(WarmupDomain tokens) {
  return error(axes({{"tokens", std::move(tokens)}}));
}

std::vector<int64_t> values(const WarmupDomain& domain) {
  std::vector<int64_t> integers;
  const StatusOr<std::vector<WarmupValue>> expanded_values = domain.expand("x");
  if (!expanded_values.ok()) return {-1};
  for (const WarmupValue& value : *expanded_values) {
    integers.push_back(std::get<int64_t>(value.value));
  }
  return integers;
}

TEST(warmup_inputs, a_single_value_is_an_axis_of_one) {
  EXPECT_THAT(blocks(3), ElementsAre(4));
}

TEST(warmup_inputs, a_list_is_tried_in_its_order) {
  EXPECT_THAT(blocks(WarmupDomain::choices({8, 1, 3})), ElementsAre(8, 1, 4));
}

TEST(warmup_inputs, a_tuple_given_as_a_value_is_taken_apart_into_alternatives) {
  EXPECT_THAT(blocks(WarmupValue::Tuple{1, 8}), ElementsAre(1, 8));
}

TEST(warmup_inputs, choices_keep_a_tuple_whole) {
  const auto whole = WarmupDomain::choices({WarmupValue::Tuple{1, 8}}).expand("x");
  ASSERT_TRUE(whole.ok());
  ASSERT_THAT(*whole, SizeIs(1));
  EXPECT_EQ((*whole)[0].kind(), "a tuple");
}

TEST(warmup_inputs, a_string_is_a_single_value) {
  EXPECT_THAT(expanded(axes({{"tokens", 1}, {"mode", "fast"}})), ElementsAre("1/1/fast"));
}

TEST(warmup_inputs, a_range_is_half_open_and_starts_at_its_start) {
  EXPECT_THAT(values(WarmupDomain::range(2, 6)), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(values(WarmupDomain::range(0, 7, 3)), ElementsAre(0, 3, 6));
  EXPECT_THAT(values(WarmupDomain::range(0, 6, 3)), ElementsAre(0, 3));
}

TEST(warmup_inputs, a_negative_step_counts_down) {
  EXPECT_THAT(values(WarmupDomain::range(7, 0, -3)), ElementsAre(7, 4, 1));
}

TEST(warmup_inputs, step_zero_is_an_error) {
  EXPECT_THAT(error(WarmupDomain::range(1, 4, 0)),
              HasSubstr("kFormat: input 'tokens': got step 0"));
}

TEST(warmup_inputs, a_range_may_advance_by_a_function) {
  EXPECT_THAT(values(WarmupDomain::range(1, 100, [](int64_t value) { return 3 * value; })),
              ElementsAre(1, 3, 9, 27, 81));
}

TEST(warmup_inputs, an_advance_that_does_not_grow_is_an_error) {
  EXPECT_THAT(error(WarmupDomain::range(1, 9, [](int64_t value) { return value; })),
              HasSubstr("advance must return a greater value"));
  EXPECT_THAT(error(WarmupDomain::range(1, 9, [](int64_t value) { return value - 1; })),
              HasSubstr("advance must return a greater value"));
}

TEST(warmup_inputs, step_and_advance_together_are_an_error) {
  EXPECT_THAT(error(WarmupDomain::range(
                  1, 9, [](int64_t value) { return value + 1; }, 2)),
              HasSubstr("both step and advance"));
}

TEST(warmup_inputs, a_range_at_the_end_of_int64_stops_instead_of_overflowing) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(values(WarmupDomain::range(kMax - 3, kMax, 2)), ElementsAre(kMax - 3, kMax - 1));
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  EXPECT_THAT(values(WarmupDomain::range(kMin + 3, kMin, -2)), ElementsAre(kMin + 3, kMin + 1));
}

TEST(warmup_inputs, a_range_without_end_is_an_error_not_a_hang) {
  EXPECT_THAT(error(WarmupDomain::range(0, int64_t{1} << 60)), HasSubstr("kRange: input 'tokens'"));
}

TEST(warmup_inputs, an_empty_list_or_range_gives_no_key_and_no_error) {
  EXPECT_THAT(expanded(axes({{"tokens", WarmupDomain::choices({})}})), IsEmpty());
  EXPECT_THAT(expanded(axes({{"tokens", WarmupDomain::range(5, 5)}})), IsEmpty());
  EXPECT_THAT(expanded(axes({{"tokens", WarmupDomain::range(5, 1)}})), IsEmpty());
  EXPECT_THAT(expanded(axes({{"tokens", WarmupDomain::range(1, 5, -1)}})), IsEmpty());
  EXPECT_THAT(expanded(axes({{"tokens", 1}, {"lanes", WarmupValue::Tuple{}}})), IsEmpty());
}

TEST(warmup_inputs, the_last_axis_varies_fastest) {
  EXPECT_THAT(expanded(axes({{"mode", WarmupDomain::choices({"a", "b"})},
                             {"tokens", WarmupDomain::choices({1, 2})},
                             {"lanes", WarmupDomain::choices({1, 3})}})),
              ElementsAre("1/1/a", "1/3/a", "2/2/a", "2/6/a", "1/1/b", "1/3/b", "2/2/b", "2/6/b"));
}

TEST(warmup_inputs, zip_groups_come_before_axes_and_in_their_order) {
  WarmupSpace space = axes({{"lanes", WarmupDomain::choices({1, 3})}});
  space.zips = {{{{{"mode", "a"}}, {{"mode", "b"}}}}, {{{{"tokens", 1}}, {{"tokens", 2}}}}};
  EXPECT_THAT(expanded(space),
              ElementsAre("1/1/a", "1/3/a", "2/2/a", "2/6/a", "1/1/b", "1/3/b", "2/2/b", "2/6/b"));
}

TEST(warmup_inputs, rows_of_a_zip_vary_together) {
  WarmupSpace space = axes({{"lanes", WarmupDomain::choices({1, 2})}});
  space.zips = {{{{{"tokens", 1}, {"mode", "small"}}, {{"mode", "wide"}, {"tokens", 4}}}}};
  EXPECT_THAT(expanded(space), ElementsAre("1/1/small", "1/2/small", "4/4/wide", "4/8/wide"));
}

TEST(warmup_inputs, the_values_of_a_zip_row_are_taken_as_they_are) {
  WarmupSpace space;
  space.zips = {{{{{"tokens", WarmupValue::Tuple{1, 2}}}}}};
  EXPECT_THAT(error(space), HasSubstr("input 'tokens': got a tuple, wanted an integer"));
}

TEST(warmup_inputs, a_zip_that_nothing_reads_is_one_empty_row) {
  WarmupSpace space = axes({{"tokens", WarmupDomain::choices({1, 2})}});
  space.zips = {{{{{"debug", 1}}, {{"debug", 2}}, {{"debug", 3}}}}};
  const auto keys = ToyKernel().expand(space);
  ASSERT_TRUE(keys.ok());
  EXPECT_THAT(keys->keys, SizeIs(2));
  EXPECT_THAT(keys->ignored, ElementsAre("debug"));
}

TEST(warmup_inputs, a_zip_without_rows_is_an_error) {
  WarmupSpace space = axes({{"tokens", 1}});
  space.zips = {{}};
  EXPECT_THAT(error(space), HasSubstr("kFormat: zip: got no row, wanted at least one"));
}

TEST(warmup_inputs, a_zip_row_without_names_is_an_error) {
  WarmupSpace space = axes({{"tokens", 1}});
  space.zips = {{{{}}}};
  EXPECT_THAT(error(space), HasSubstr("wanted at least one name"));
}

TEST(warmup_inputs, zip_rows_with_different_names_are_an_error) {
  WarmupSpace space;
  space.zips = {{{{{"tokens", 1}}, {{"mode", "small"}}}}};
  EXPECT_THAT(error(space), HasSubstr("zip: row 1 names other inputs than row 0"));
  space.zips = {{{{{"tokens", 1}}, {{"tokens", 2}, {"mode", "small"}}}}};
  EXPECT_THAT(error(space), HasSubstr("must use the same names"));
}

TEST(warmup_inputs, an_input_without_a_name_is_an_error) {
  WarmupSpace space = axes({{"tokens", 1}});
  space.zips = {{{{{"", 1}}}}};
  EXPECT_THAT(error(space), HasSubstr("has no name"));
  EXPECT_THAT(error(axes({{"tokens", 1}, {"", 1}})), HasSubstr("has no name"));
}

TEST(warmup_inputs, a_name_given_twice_is_an_error_wherever_it_is_given) {
  EXPECT_THAT(error(axes({{"tokens", 1}, {"tokens", 2}})),
              HasSubstr("input 'tokens' is specified more than once"));
  WarmupSpace group_and_axis = axes({{"tokens", 1}});
  group_and_axis.zips = {{{{{"tokens", 1}}}}};
  EXPECT_THAT(error(group_and_axis), HasSubstr("specified more than once"));
  WarmupSpace two_groups;
  two_groups.zips = {{{{{"tokens", 1}}}}, {{{{"tokens", 1}}}}};
  EXPECT_THAT(error(two_groups), HasSubstr("specified more than once"));
  WarmupSpace one_row;
  one_row.zips = {{{{{"tokens", 1}, {"tokens", 1}}}}};
  EXPECT_THAT(error(one_row), HasSubstr("specified more than once"));
}

TEST(warmup_inputs, names_that_nothing_reads_multiply_no_key_and_are_returned) {
  const auto keys = ToyKernel().expand(
      axes({{"tokens", 1}, {"tokns", WarmupDomain::range(0, 100)}, {"debug", 1}, {"tokns", 3}}));
  ASSERT_TRUE(keys.ok());
  EXPECT_THAT(keys->keys, SizeIs(1));
  EXPECT_THAT(keys->ignored, ElementsAre("tokns", "debug"));
}

TEST(warmup_inputs, a_missing_input_is_named_even_beside_an_empty_axis) {
  EXPECT_THAT(error(axes({{"lanes", 1}})), HasSubstr("input 'tokens': missing"));
  EXPECT_THAT(error(axes({{"lanes", WarmupDomain::choices({})}})),
              HasSubstr("input 'tokens': missing"));
}

TEST(warmup_inputs, defaults_hold_until_an_axis_sets_them) {
  EXPECT_THAT(expanded(axes({{"tokens", 2}})), ElementsAre("2/2/default"));
  EXPECT_THAT(expanded(axes({{"tokens", 2}, {"lanes", 4}})), ElementsAre("2/8/default"));
}

TEST(warmup_inputs, a_value_of_another_type_names_input_got_and_wanted) {
  EXPECT_THAT(error(axes({{"tokens", "many"}})),
              HasSubstr("input 'tokens': got text, wanted an integer"));
  EXPECT_THAT(error(axes({{"tokens", true}})), HasSubstr("got a flag, wanted an integer"));
  EXPECT_THAT(error(axes({{"tokens", WarmupValue()}})), HasSubstr("got none, wanted an integer"));
}

TEST(warmup_inputs, equal_keys_are_kept_once_where_they_came_first) {
  EXPECT_THAT(blocks(WarmupDomain::choices({3, 1, 4, 8, 5, 1})), ElementsAre(4, 1, 8));
}

WarmupPredicate at_most_work() {
  return {{{"tokens"}, {"lanes", 1}, {"max_work"}},
          [](const WarmupInputs& inputs) -> StatusOr<bool> {
            WarmupReader read(inputs);
            const bool keep =
                read.integer("tokens") * read.integer("lanes") <= read.integer("max_work");
            FLASHPRIME_RETURN_IF_ERROR(read.status());
            return keep;
          }};
}

TEST(warmup_inputs, a_predicate_drops_points_before_dispatch) {
  WarmupSpace space = axes({{"tokens", WarmupDomain::range(1, 6)},
                            {"lanes", WarmupDomain::choices({1, 2})},
                            {"max_work", 4}});
  space.when = at_most_work();
  EXPECT_THAT(expanded(space), ElementsAre("1/1/default", "1/2/default", "2/2/default",
                                           "2/4/default", "4/4/default"));
}

TEST(warmup_inputs, names_of_the_predicate_alone_never_reach_dispatch) {
  class Recorder : public ToyKernel {
   public:
    StatusOr<ToyKey> dispatch(const WarmupInputs& inputs) const override {
      for (const auto& [name, value] : inputs) names.insert(name);
      return ToyKernel::dispatch(inputs);
    }
    mutable std::set<std::string> names;
  };
  Recorder kernel;
  WarmupSpace space = axes({{"tokens", 1}, {"max_work", 4}});
  space.when = at_most_work();
  const auto keys = kernel.expand(space);
  ASSERT_TRUE(keys.ok()) << keys.status().to_string();
  EXPECT_THAT(keys->keys, SizeIs(1));
  EXPECT_THAT(keys->ignored, IsEmpty());
  EXPECT_THAT(kernel.names, ElementsAre("lanes", "mode", "tokens"));
}

TEST(warmup_inputs, defaults_of_the_predicate_are_its_own) {
  WarmupSpace space = axes({{"tokens", WarmupDomain::choices({1, 2, 4})}, {"max_work", 4}});
  space.when = at_most_work();
  space.when->parameters[1].default_value = 2;  // lanes, as the predicate sees it
  EXPECT_THAT(expanded(space), ElementsAre("1/1/default", "2/2/default"));
}

TEST(warmup_inputs, an_input_that_only_the_predicate_misses_is_named) {
  WarmupSpace space = axes({{"tokens", 1}});
  space.when = at_most_work();
  EXPECT_THAT(error(space), HasSubstr("input 'max_work': missing, and when needs it"));
  space.when->keep = nullptr;
  space.axes.push_back({"max_work", 1});
  EXPECT_THAT(error(space), HasSubstr("when: got no function"));
}

TEST(warmup_inputs, forwarded_fields_become_axes_and_strangers_become_errors) {
  ToyKernel kernel;
  kernel.forwarded = {"wide"};
  const auto keys =
      kernel.expand(axes({{"tokens", 1}, {"wide", WarmupDomain::choices({false, true})}}));
  ASSERT_TRUE(keys.ok()) << keys.status().to_string();
  ASSERT_THAT(keys->keys, SizeIs(2));
  EXPECT_FALSE(keys->keys[0].wide);
  EXPECT_TRUE(keys->keys[1].wide);
  const auto stranger = kernel.expand(axes({{"tokens", 1}, {"wyde", true}}));
  ASSERT_FALSE(stranger.ok());
  EXPECT_THAT(stranger.status().message(), HasSubstr("'wyde'"));
}

TEST(jit_kernel, a_call_runs_the_runtime_kernel_else_the_bound_one) {
  const ToyKernel kernel([](int) -> StatusOr<std::string> { return std::string("bound"); });
  EXPECT_EQ(*kernel.call({}, 1), "bound");
  EXPECT_EQ(*kernel.call([](int) -> StatusOr<std::string> { return std::string("runtime"); }, 1),
            "runtime");
}

TEST(jit_kernel, a_call_without_any_kernel_is_an_error) {
  EXPECT_EQ(ToyKernel().call({}, 1).status().code(), StatusCode::kNull);
}

TEST(jit_kernel, a_call_neither_dispatches_nor_compiles) {
  class Untouchable : public ToyKernel {
   public:
    using ToyKernel::ToyKernel;
    StatusOr<ToyKey> dispatch(const WarmupInputs&) const override {
      ADD_FAILURE() << "dispatched";
      return ToyKey{};
    }
    Status compile(const ToyKey&) override {
      ADD_FAILURE() << "compiled";
      return ok_status();
    }
  };
  const Untouchable kernel([](int n) -> StatusOr<std::string> { return std::to_string(n); });
  EXPECT_EQ(*kernel.call({}, 7), "7");
}

TEST(jit_kernel, warmup_compiles_every_key_once_in_order) {
  ToyKernel kernel;
  ASSERT_TRUE(kernel.warmup(9).ok());
  EXPECT_THAT(kernel.compiled, ElementsAre(1, 2, 4, 8, 16));
}

TEST(jit_kernel, a_failed_compilation_ends_warmup_and_names_its_key) {
  ToyKernel kernel;
  kernel.refused_block = 4;
  const Status status = kernel.warmup(9);
  EXPECT_EQ(status.code(), StatusCode::kNoCompiler);
  EXPECT_THAT(status.message(), HasSubstr("refused (while compiling ToyKey{4, 4, default})"));
  EXPECT_THAT(kernel.compiled, ElementsAre(1, 2));
}

}  // namespace
}  // namespace flashprime
