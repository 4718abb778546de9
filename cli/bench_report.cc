// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

// Linear interpolation between the sorted values.
double quantile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] * (1.0 - weight) + sorted[above] * weight;
}

std::string ms_text(const Timing& timing) {
  return fmt::format("{:.4g} ± {:.2g}", timing.median * 1e3, timing.spread * 1e3);
}

// One column of the files, in both directions. Numbers are written so that they read back as they
// were.
struct Column {
  const char* name;
  bool needed;  // by compare()
  Json (*get)(const BenchRow& row);
  void (*set)(const Json& value, BenchRow* row);  // may throw Json::exception
};

#define FLASHPRIME_COLUMN(name, needed, field)                           \
  {name, needed, [](const BenchRow& row) { return Json(row.field); },    \
   [](const Json& value, BenchRow* row) {                                \
     row->field = value.get<std::decay_t<decltype(BenchRow().field)>>(); \
   }}
const Column kColumns[] = {
    FLASHPRIME_COLUMN("model", true, model),
    FLASHPRIME_COLUMN("dims", true, dims),
    FLASHPRIME_COLUMN("heads", true, heads),
    FLASHPRIME_COLUMN("dtype", true, dtype),
    FLASHPRIME_COLUMN("mask", true, mask),
    FLASHPRIME_COLUMN("batch", true, batch),
    FLASHPRIME_COLUMN("machine", true, machine),
    FLASHPRIME_COLUMN("threads", true, threads),
    FLASHPRIME_COLUMN("kernel", false, kernel),
    FLASHPRIME_COLUMN("version", false, version),
    FLASHPRIME_COLUMN("build", false, build),
    FLASHPRIME_COLUMN("seed", false, seed),
    FLASHPRIME_COLUMN("flop", false, flop),
    FLASHPRIME_COLUMN("seconds", true, ours.median),
    FLASHPRIME_COLUMN("seconds_spread", true, ours.spread),
    FLASHPRIME_COLUMN("seconds_fastest", false, ours.fastest),
    FLASHPRIME_COLUMN("runs", true, ours.runs),
    FLASHPRIME_COLUMN("verified_rows", false, verified_rows),
    FLASHPRIME_COLUMN("failure", false, failure),
    FLASHPRIME_COLUMN("torch_version", false, torch_version),
    FLASHPRIME_COLUMN("torch_route", false, torch_route),
    FLASHPRIME_COLUMN("torch_error", false, torch_error),
    FLASHPRIME_COLUMN("torch_seconds", false, torch.median),
    FLASHPRIME_COLUMN("torch_seconds_spread", false, torch.spread),
};
#undef FLASHPRIME_COLUMN

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// The fields of the CSV line at the start of `text`, which is consumed. False for a quote that does
// not close.
bool take_csv_line(std::string_view* text, std::vector<std::string>* fields) {
  fields->assign(1, "");
  bool quoted = false;
  size_t i = 0;
  for (; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (quoted && c == '"' && i + 1 < text->size() && (*text)[i + 1] == '"') {
      fields->back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (quoted) {
      fields->back() += c;
    } else if (c == ',') {
      fields->emplace_back();
    } else if (c == '\n') {
      break;
    } else if (c != '\r') {
      fields->back() += c;
    }
  }
  text->remove_prefix(std::min(i + 1, text->size()));
  return !quoted;
}

Status bad(const std::string& what) {
  return {StatusCode::kFormat, what + "; want a file of `flashprime bench -o csv` or -o json"};
}

StatusOr<BenchRow> row_of(const Json& object, size_t number) {
  BenchRow row;
  if (!object.is_object()) return bad(fmt::format("row {}: not an object", number));
  for (const Column& column : kColumns) {
    const auto value = object.find(column.name);
    if (value == object.end()) {
      if (!column.needed) continue;
      return bad(fmt::format("row {}: no '{}'", number, column.name));
    }
    const Json sample = column.get(row);
    const bool fits = sample.is_string()         ? value->is_string()
                      : sample.is_number_float() ? value->is_number()
                                                 : value->is_number_integer();
    if (!fits) {
      return bad(
          fmt::format("row {}: '{}' is {}", number, column.name,
                      printable(value->dump(-1, ' ', true, Json::error_handler_t::replace))));
    }
    column.set(*value, &row);
  }
  if (!(row.ours.median >= 0.0) || !(row.ours.spread >= 0.0)) {
    return bad(fmt::format("row {}: seconds below 0", number));
  }
  if (row.ours.runs < 0) return bad(fmt::format("row {}: runs below 0", number));
  return row;
}

StatusOr<std::vector<BenchRow>> parse_json(std::string_view text) {
  const Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) return bad("not JSON");
  const auto found = document.find("rows");
  if (found == document.end() || !found->is_array()) return bad("no 'rows' in it");
  std::vector<BenchRow> rows;
  for (const Json& object : *found) {
    StatusOr<BenchRow> row = row_of(object, rows.size() + 1);
    if (!row.ok()) return row.status();
    rows.push_back(std::move(*row));
  }
  return rows;
}

StatusOr<std::vector<BenchRow>> parse_csv(std::string_view text) {
  std::vector<std::string> header;
  if (!take_csv_line(&text, &header)) return bad("line 1: a quote that does not close");
  std::vector<BenchRow> rows;
  while (!text.empty()) {
    const size_t line = rows.size() + 2;
    std::vector<std::string> fields;
    if (!take_csv_line(&text, &fields)) {
      return bad(fmt::format("line {}: a quote that does not close", line));
    }
    if (fields.size() != header.size()) {
      return bad(
          fmt::format("line {}: {} fields under {} names", line, fields.size(), header.size()));
    }
    Json object = Json::object();
    const BenchRow plain;
    for (size_t i = 0; i < fields.size(); ++i) {
      const auto* column = std::find_if(std::begin(kColumns), std::end(kColumns),
                                        [&](const Column& c) { return c.name == header[i]; });
      if (column == std::end(kColumns)) continue;
      if (column->get(plain).is_string()) {
        object[header[i]] = fields[i];
      } else {
        object[header[i]] = Json::parse(fields[i], nullptr, false);
      }
    }
    StatusOr<BenchRow> row = row_of(object, line - 1);
    if (!row.ok()) return row.status();
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace

Timing summarize(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  return {.median = quantile(seconds, 0.5),
          .spread = (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / 2.0,
          .fastest = seconds.front(),
          .runs = static_cast<int64_t>(seconds.size())};
}

std::string bench_markdown(const std::vector<BenchRow>& rows, bool with_torch) {
  std::vector<std::vector<std::string>> cells = {
      {"model", "heads", "dtype", "mask", "batch", "ms (median ± spread)", "FLOP/s"}};
  if (with_torch) {
    cells[0].insert(cells[0].end(), {"torch ms", "torch route", "vs torch"});
  }
  for (const BenchRow& row : rows) {
    const bool timed = row.ours.runs > 0;
    std::vector<std::string> line = {
        row.model,
        std::to_string(row.heads),
        row.dtype,
        row.mask,
        row.batch,
        timed                 ? ms_text(row.ours)
        : row.failure.empty() ? "-"
                              : "WRONG",
        timed && row.ours.median > 0 ? with_prefix(row.flop / row.ours.median) : "-"};
    if (with_torch) {
      const bool both = timed && row.torch.runs > 0 && row.ours.median > 0;
      line.push_back(row.torch.runs > 0 ? ms_text(row.torch) : "-");
      line.push_back(row.torch_route.empty() ? "-" : row.torch_route);
      line.push_back(both ? fmt::format("{:.2f}x", row.torch.median / row.ours.median) : "-");
    }
    cells.push_back(std::move(line));
  }
  return markdown_table(cells);
}

std::string bench_csv(const std::vector<BenchRow>& rows) {
  std::string text;
  for (const Column& column : kColumns) {
    if (!text.empty()) text += ',';
    text += column.name;
  }
  text += '\n';
  for (const BenchRow& row : rows) {
    std::string line;
    for (const Column& column : kColumns) {
      const Json value = column.get(row);
      if (&column != std::begin(kColumns)) line += ',';
      line += csv_field(value.is_string() ? value.get<std::string>() : value.dump());
    }
    text += line + '\n';
  }
  return text;
}

Json bench_json(const std::vector<BenchRow>& rows) {
  Json array = Json::array();
  for (const BenchRow& row : rows) {
    Json object = Json::object();
    for (const Column& column : kColumns) object[column.name] = column.get(row);
    array.push_back(std::move(object));
  }
  return array;
}

StatusOr<std::vector<BenchRow>> parse_bench(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return bad("empty");
  StatusOr<std::vector<BenchRow>> rows = text[first] == '{' ? parse_json(text) : parse_csv(text);
  if (rows.ok() && rows->empty()) return bad("no row in it");
  return rows;
}

bool Guard::passed() const {
  return !lines.empty() &&
         std::none_of(lines.begin(), lines.end(), [](const Line& line) { return line.slower; });
}

Guard compare(const std::vector<BenchRow>& before, const std::vector<BenchRow>& now,
              double allowed) {
  const auto key = [](const BenchRow& row) {
    return std::tie(row.model, row.dims, row.heads, row.dtype, row.mask, row.batch, row.machine,
                    row.threads);
  };
  Guard guard;
  for (const BenchRow& row : now) {
    if (row.ours.runs == 0) continue;
    const auto earlier = std::find_if(before.begin(), before.end(), [&](const BenchRow& other) {
      return other.ours.runs > 0 && key(other) == key(row);
    });
    if (earlier == before.end()) {
      guard.unmatched.push_back(row.batch);
      continue;
    }
    const double noise = row.ours.spread + earlier->ours.spread;
    const double more = row.ours.median - earlier->ours.median;
    guard.lines.push_back({.batch = row.batch,
                           .before = earlier->ours.median,
                           .now = row.ours.median,
                           .noise = noise,
                           .slower = more > allowed * earlier->ours.median && more > noise});
  }
  return guard;
}

}  // namespace flashprime::cli
