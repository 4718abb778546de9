// SPDX-License-Identifier: Apache-2.0
// Numbers and tables for people, and numbers from people.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace flashprime::cli {

// Decimal digits only: no sign, space, hexadecimal or exponent.
StatusOr<int64_t> parse_integer(std::string_view text, int64_t min, int64_t max);
// Digits with at most one decimal point.
StatusOr<double> parse_decimal(std::string_view text, double min, double max);

// "1000000", "512M", "16G": powers of 1024.
StatusOr<int64_t> parse_bytes(std::string_view text);

// Options that take exactly what the three functions above take.
CLI::Option* add_integer(CLI::App& app, const std::string& name, int64_t* target, int64_t min,
                         int64_t max, const std::string& description);
CLI::Option* add_decimal(CLI::App& app, const std::string& name, double* target, double min,
                         double max, const std::string& description);
CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t* target,
                       const std::string& description);

// 1234567 -> "1,234,567"
std::string with_commas(int64_t value);
// 1.5e12 -> "1.50 T"
std::string with_prefix(double value);
// Seconds as "812 us", "12.3 ms", "4.56 s", "2 min 05 s".
std::string duration_text(double seconds);
// Text from a file or argument, safe to show: printable ASCII, at most `limit` characters.
std::string printable(std::string_view text, size_t limit = 40);

// The one of `known` that `word` is a slip of the fingers away from: of one letter, or two in words
// of six and more; empty if none is. The first of equally near ones.
std::string closest(std::string_view word, const std::vector<std::string>& known);

// Columns two spaces apart, no trailing spaces.
std::string align_columns(const std::vector<std::vector<std::string>>& rows);
// A GitHub table.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace flashprime::cli
