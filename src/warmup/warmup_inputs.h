// SPDX-License-Identifier: Apache-2.0
// The inputs of a kernel's dispatch, and spaces of them: named axes whose product is what a server
// may ask for. Errors of a space are kFormat, sizes out of hand kRange.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

// One value of one input.
struct WarmupValue {
  using Tuple = std::vector<WarmupValue>;
  std::variant<std::monostate, bool, int64_t, double, std::string, Dtype, HeadDims, Tuple> value;

  WarmupValue() = default;  // none
  WarmupValue(bool flag) : value(flag) {}
  WarmupValue(int integer) : value(int64_t{integer}) {}
  WarmupValue(int64_t integer) : value(integer) {}
  WarmupValue(double number) : value(number) {}
  WarmupValue(std::string text) : value(std::move(text)) {}
  WarmupValue(const char* text) : value(std::string(text)) {}
  WarmupValue(Dtype dtype) : value(dtype) {}
  WarmupValue(HeadDims dims) : value(dims) {}
  WarmupValue(Tuple tuple) : value(std::move(tuple)) {}

  // "none", "a flag", "an integer", ... for messages.
  std::string kind() const;
};

// What an input may be: the alternatives of one axis.
class WarmupDomain {
 public:
  // A single value. A tuple is taken apart into alternatives: a tuple that is meant as one value
  // needs choices({tuple}). Strings are single values.
  WarmupDomain(WarmupValue value);
  template <typename T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, WarmupDomain> &&
             std::is_constructible_v<WarmupValue, T>)
  WarmupDomain(T&& value) : WarmupDomain(WarmupValue(std::forward<T>(value))) {}

  // Exactly these alternatives, tuples kept whole. None: no keys.
  static WarmupDomain choices(std::vector<WarmupValue> values);
  // start, start + step, ... before stop, as in Python: step may be negative, not 0.
  static WarmupDomain range(int64_t start, int64_t stop, int64_t step = 1);
  // start, advance(start), ... before stop; advance must return a greater value. A step other than
  // 1 beside it is an error.
  static WarmupDomain range(int64_t start, int64_t stop, std::function<int64_t(int64_t)> advance,
                            int64_t step = 1);

  // All alternatives in order. kFormat for a range that is none, kRange for one of more than
  // kMaxAlternatives.
  StatusOr<std::vector<WarmupValue>> expand(const std::string& name) const;

  static constexpr int64_t kMaxAlternatives = int64_t{1} << 20;

 private:
  struct Range {
    int64_t start;
    int64_t stop;
    int64_t step;
    std::function<int64_t(int64_t)> advance;
  };
  WarmupDomain() = default;
  std::variant<std::vector<WarmupValue>, Range> alternatives_;
};

// One assignment of values to names: what dispatch and the predicate see.
using WarmupInputs = std::map<std::string, WarmupValue, std::less<>>;

// A named row of a zip group. Its values are taken as they are, tuples and all.
using WarmupRow = std::vector<std::pair<std::string, WarmupValue>>;

// Inputs that vary together: one row at a time. All rows have the same names.
struct WarmupZip {
  std::vector<WarmupRow> rows;
};

struct WarmupAxis {
  std::string name;
  WarmupDomain domain;
};

// A name that a function reads, and what it is when nobody gives it.
struct WarmupParameter {
  std::string name;
  std::optional<WarmupValue> default_value = {};
};

// Which names dispatch reads.
struct WarmupSignature {
  std::vector<WarmupParameter> parameters;
  // Fields of the key that an axis of that name sets directly, beside the parameters. Where any
  // are named, an axis that matches nothing is an error instead of being ignored.
  std::vector<std::string> forwarded_fields = {};
};

// Keeps a point of the space or drops it, before dispatch sees it. Names that only the predicate
// reads are dropped before dispatch.
struct WarmupPredicate {
  std::vector<WarmupParameter> parameters;
  std::function<StatusOr<bool>(const WarmupInputs&)> keep;
};

// The product of zip groups (in order), then axes (in order); the last varies fastest.
struct WarmupSpace {
  std::vector<WarmupZip> zips = {};
  std::vector<WarmupAxis> axes = {};
  std::optional<WarmupPredicate> when = {};
};

// Visits every point of the space in order, defaults filled in, and adds to `ignored` the names
// that neither dispatch nor the predicate reads. The space is checked first, so that a misuse shows
// even where an axis is empty. Stops at the first error of `visit`.
Status for_each_point(const WarmupSpace& space, const WarmupSignature& signature,
                      std::vector<std::string>* ignored,
                      const std::function<Status(const WarmupInputs&)>& visit);

// Reads inputs by name and type; the first misfit is kept in status().
class WarmupReader {
 public:
  explicit WarmupReader(const WarmupInputs& inputs) : inputs_(inputs) {}

  bool flag(const std::string& name) { return get<bool>(name, "a flag"); }
  int64_t integer(const std::string& name) { return get<int64_t>(name, "an integer"); }
  std::string text(const std::string& name) { return get<std::string>(name, "text"); }
  Dtype dtype(const std::string& name) { return get<Dtype>(name, "a dtype"); }
  HeadDims dims(const std::string& name) { return get<HeadDims>(name, "head dims"); }
  // Two integers, for example a shape probe or a window.
  std::pair<int64_t, int64_t> integer_pair(const std::string& name);
  // The same, or nothing where the input is none.
  std::optional<std::array<int64_t, 2>> optional_integer_pair(const std::string& name);

  const Status& status() const { return status_; }

 private:
  void fail(const std::string& name, const std::string& got, const char* want);
  const WarmupValue* find(const std::string& name, const char* want);

  template <typename T>
  T get(const std::string& name, const char* want) {
    const WarmupValue* found = find(name, want);
    if (found == nullptr) return T{};
    if (const T* typed = std::get_if<T>(&found->value)) return *typed;
    fail(name, found->kind(), want);
    return T{};
  }

  const WarmupInputs& inputs_;
  Status status_;
};

}  // namespace flashprime
