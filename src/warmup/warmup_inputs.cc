// SPDX-License-Identifier: Apache-2.0
#include "warmup/warmup_inputs.h"

#include <algorithm>
#include <set>

#include "checks.h"
#include "numerics/checked.h"

namespace flashprime {
namespace {

// An axis or zip group, checked and spelled out: every alternative assigns values to names.
using Alternatives = std::vector<WarmupRow>;

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void insert_names(const std::vector<WarmupParameter>& parameters, std::set<std::string>* names) {
  for (const WarmupParameter& parameter : parameters) names->insert(parameter.name);
}

void fill_defaults(const std::vector<WarmupParameter>& parameters, WarmupInputs* inputs) {
  for (const WarmupParameter& parameter : parameters) {
    if (parameter.default_value) inputs->try_emplace(parameter.name, *parameter.default_value);
  }
}

std::set<std::string> row_names(const WarmupRow& row) {
  std::set<std::string> names;
  for (const auto& [name, value] : row) names.insert(name);
  return names;
}

Status check_zip(const WarmupZip& zip) {
  FLASHPRIME_REQUIRE(!zip.rows.empty(), StatusCode::kFormat,
                     "zip: got no row, wanted at least one row of inputs");
  const std::set<std::string> names = row_names(zip.rows.front());
  FLASHPRIME_REQUIRE(!names.empty(), StatusCode::kFormat,
                     "zip: row 0 names no input, wanted at least one name");
  for (std::size_t i = 0; i < zip.rows.size(); ++i) {
    const WarmupRow& row = zip.rows[i];
    FLASHPRIME_REQUIRE(row_names(row) == names, StatusCode::kFormat, "zip: row ", i,
                       " names other inputs than row 0; all rows must use the same names");
    FLASHPRIME_REQUIRE(row.size() == names.size(), StatusCode::kFormat, "zip: row ", i,
                       ": an input is specified more than once");
  }
  FLASHPRIME_REQUIRE(!names.contains(""), StatusCode::kFormat, "zip: an input has no name");
  return ok_status();
}

// Sorts names into those that become axes and those that are ignored.
class NameFilter {
 public:
  NameFilter(const WarmupSpace& space, const WarmupSignature& signature)
      : forwards_(!signature.forwarded_fields.empty()) {
    insert_names(signature.parameters, &dispatch_);
    dispatch_.insert(signature.forwarded_fields.begin(), signature.forwarded_fields.end());
    active_ = dispatch_;
    if (space.when) insert_names(space.when->parameters, &active_);
  }

  bool active(const std::string& name) const { return active_.contains(name); }
  bool read_by_dispatch(const std::string& name) const { return dispatch_.contains(name); }

  // Notes a name that nothing reads.
  Status ignore(const std::string& name, std::vector<std::string>* ignored) const {
    FLASHPRIME_REQUIRE(!forwards_, StatusCode::kFormat, "input '", name,
                       "': names neither an input of dispatch nor a field of the key");
    if (!contains(*ignored, name)) ignored->push_back(name);
    return ok_status();
  }

  // Notes a name that becomes an axis.
  Status use(const std::string& name) {
    FLASHPRIME_REQUIRE(used_.insert(name).second, StatusCode::kFormat, "input '", name,
                       "' is specified more than once");
    return ok_status();
  }

  // Every parameter without a default was given.
  Status check_complete(const std::vector<WarmupParameter>& parameters, const char* reader) const {
    for (const WarmupParameter& parameter : parameters) {
      FLASHPRIME_REQUIRE(parameter.default_value || used_.contains(parameter.name),
                         StatusCode::kFormat, "input '", parameter.name, "': missing, and ", reader,
                         " needs it");
    }
    return ok_status();
  }

 private:
  std::set<std::string> dispatch_;
  std::set<std::string> active_;
  std::set<std::string> used_;
  bool forwards_;
};

StatusOr<std::vector<Alternatives>> spell_out(const WarmupSpace& space, NameFilter* filter,
                                              std::vector<std::string>* ignored) {
  std::vector<Alternatives> product;
  for (const WarmupZip& zip : space.zips) {
    FLASHPRIME_RETURN_IF_ERROR(check_zip(zip));
    bool any_active = false;
    for (const auto& [name, value] : zip.rows.front()) {
      if (filter->active(name)) {
        FLASHPRIME_RETURN_IF_ERROR(filter->use(name));
        any_active = true;
      } else {
        FLASHPRIME_RETURN_IF_ERROR(filter->ignore(name, ignored));
      }
    }
    Alternatives rows;
    for (const WarmupRow& row : zip.rows) {
      WarmupRow& kept = rows.emplace_back();
      for (const auto& [name, value] : row) {
        if (filter->active(name)) kept.emplace_back(name, value);
      }
    }
    if (!any_active) rows.resize(1);  // a group that nothing reads is one empty row
    product.push_back(std::move(rows));
  }
  for (const WarmupAxis& axis : space.axes) {
    FLASHPRIME_REQUIRE(!axis.name.empty(), StatusCode::kFormat, "axis: an input has no name");
    if (!filter->active(axis.name)) {
      FLASHPRIME_RETURN_IF_ERROR(filter->ignore(axis.name, ignored));
      continue;
    }
    FLASHPRIME_RETURN_IF_ERROR(filter->use(axis.name));
    StatusOr<std::vector<WarmupValue>> values = axis.domain.expand(axis.name);
    FLASHPRIME_RETURN_IF_ERROR(values.status());
    Alternatives rows;
    for (WarmupValue& value : *values) rows.push_back({{axis.name, std::move(value)}});
    product.push_back(std::move(rows));
  }
  return product;
}

}  // namespace

std::string WarmupValue::kind() const {
  static constexpr const char* kKinds[] = {"none", "a flag",  "an integer", "a number",
                                           "text", "a dtype", "head dims",  "a tuple"};
  return kKinds[value.index()];
}

WarmupDomain::WarmupDomain(WarmupValue value) {
  if (auto* tuple = std::get_if<WarmupValue::Tuple>(&value.value)) {
    alternatives_ = std::move(*tuple);
  } else {
    alternatives_ = std::vector<WarmupValue>{std::move(value)};
  }
}

WarmupDomain WarmupDomain::choices(std::vector<WarmupValue> values) {
  WarmupDomain domain;
  domain.alternatives_ = std::move(values);
  return domain;
}

WarmupDomain WarmupDomain::range(int64_t start, int64_t stop, int64_t step) {
  WarmupDomain domain;
  domain.alternatives_ = Range{start, stop, step, nullptr};
  return domain;
}

WarmupDomain WarmupDomain::range(int64_t start, int64_t stop,
                                 std::function<int64_t(int64_t)> advance, int64_t step) {
  WarmupDomain domain;
  domain.alternatives_ = Range{start, stop, step, std::move(advance)};
  return domain;
}

StatusOr<std::vector<WarmupValue>> WarmupDomain::expand(const std::string& name) const {
  if (const auto* values = std::get_if<std::vector<WarmupValue>>(&alternatives_)) return *values;
  const Range& range = std::get<Range>(alternatives_);
  FLASHPRIME_REQUIRE(!range.advance || range.step == 1, StatusCode::kFormat, "input '", name,
                     "': the range has both step and advance, wanted one of them");
  FLASHPRIME_REQUIRE(range.step != 0, StatusCode::kFormat, "input '", name,
                     "': got step 0, wanted another");
  std::vector<WarmupValue> values;
  int64_t value = range.start;
  while (range.step > 0 ? value < range.stop : value > range.stop) {
    FLASHPRIME_REQUIRE(static_cast<int64_t>(values.size()) < kMaxAlternatives, StatusCode::kRange,
                       "input '", name, "': the range has more than ", kMaxAlternatives,
                       " values, wanted fewer");
    values.emplace_back(value);
    if (range.advance) {
      const int64_t next = range.advance(value);
      FLASHPRIME_REQUIRE(next > value, StatusCode::kFormat, "input '", name, "': advance(", value,
                         ") gave ", next, ", but advance must return a greater value");
      value = next;
    } else if (!checked_add(value, range.step, &value)) {
      break;  // past every int64, so past stop
    }
  }
  return values;
}

Status for_each_point(const WarmupSpace& space, const WarmupSignature& signature,
                      std::vector<std::string>* ignored,
                      const std::function<Status(const WarmupInputs&)>& visit) {
  NameFilter filter(space, signature);
  StatusOr<std::vector<Alternatives>> product = spell_out(space, &filter, ignored);
  FLASHPRIME_RETURN_IF_ERROR(product.status());
  FLASHPRIME_RETURN_IF_ERROR(filter.check_complete(signature.parameters, "dispatch"));
  if (space.when) {
    FLASHPRIME_REQUIRE(space.when->keep, StatusCode::kNull, "when: got no function");
    FLASHPRIME_RETURN_IF_ERROR(filter.check_complete(space.when->parameters, "when"));
  }
  for (const Alternatives& alternatives : *product) {
    if (alternatives.empty()) return ok_status();
  }

  std::vector<std::size_t> position(product->size(), 0);
  while (true) {
    WarmupInputs point;
    for (std::size_t i = 0; i < position.size(); ++i) {
      for (const auto& [name, value] : (*product)[i][position[i]]) point[name] = value;
    }
    bool keep = true;
    if (space.when) {
      WarmupInputs seen = point;
      fill_defaults(space.when->parameters, &seen);
      const StatusOr<bool> answer = space.when->keep(seen);
      FLASHPRIME_RETURN_IF_ERROR(answer.status());
      keep = *answer;
    }
    if (keep) {
      std::erase_if(point, [&](const auto& item) { return !filter.read_by_dispatch(item.first); });
      fill_defaults(signature.parameters, &point);
      FLASHPRIME_RETURN_IF_ERROR(visit(point));
    }
    std::size_t axis = position.size();
    while (axis > 0 && ++position[axis - 1] == (*product)[axis - 1].size()) {
      position[--axis] = 0;
    }
    if (axis == 0) return ok_status();
  }
}

const WarmupValue* WarmupReader::find(const std::string& name, const char* want) {
  const auto found = inputs_.find(name);
  if (found != inputs_.end()) return &found->second;
  fail(name, "nothing", want);
  return nullptr;
}

void WarmupReader::fail(const std::string& name, const std::string& got, const char* want) {
  if (!status_.ok()) return;
  status_ = Status(StatusCode::kFormat, concat("input '", name, "': got ", got, ", wanted ", want));
}

std::pair<int64_t, int64_t> WarmupReader::integer_pair(const std::string& name) {
  static constexpr const char* kWant = "a tuple of two integers";
  const auto tuple = get<WarmupValue::Tuple>(name, kWant);
  if (!status_.ok()) return {};
  const int64_t* first = tuple.size() == 2 ? std::get_if<int64_t>(&tuple[0].value) : nullptr;
  const int64_t* second = tuple.size() == 2 ? std::get_if<int64_t>(&tuple[1].value) : nullptr;
  if (first != nullptr && second != nullptr) return {*first, *second};
  fail(name, "another tuple", kWant);
  return {};
}

std::optional<std::array<int64_t, 2>> WarmupReader::optional_integer_pair(const std::string& name) {
  const auto found = inputs_.find(name);
  if (found != inputs_.end() && std::holds_alternative<std::monostate>(found->second.value)) {
    return std::nullopt;
  }
  const auto [first, second] = integer_pair(name);
  if (!status_.ok()) return std::nullopt;
  return std::array<int64_t, 2>{first, second};
}

}  // namespace flashprime
