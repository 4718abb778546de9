// SPDX-License-Identifier: Apache-2.0
#include "cli/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "cli/session.h"
#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxMilliseconds = 9'000'000'000'000;  // in nanoseconds still below 2^63
constexpr int64_t kNanoseconds = 1'000'000'000;

// Days from 1970-01-01 in the proleptic Gregorian calendar, years counted from March.
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = year / 400;  // years are positive here
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

bool is_leap_year(int64_t year) {
  return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

// Exactly `count` digits at the start of `text`, removed from it.
bool take_digits(std::string_view* text, size_t count, int64_t* value) {
  if (text->size() < count) return false;
  *value = 0;
  for (size_t i = 0; i < count; ++i) {
    const char c = (*text)[i];
    if (c < '0' || c > '9') return false;
    *value = *value * 10 + (c - '0');
  }
  text->remove_prefix(count);
  return true;
}

bool take_char(std::string_view* text, char c) {
  if (text->empty() || text->front() != c) return false;
  text->remove_prefix(1);
  return true;
}

// "2023-11-16 18:15:46.6805900" in nanoseconds since 1970.
bool parse_timestamp(std::string_view text, int64_t* nanoseconds) {
  int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, fraction = 0;
  if (!take_digits(&text, 4, &year) || !take_char(&text, '-') || !take_digits(&text, 2, &month) ||
      !take_char(&text, '-') || !take_digits(&text, 2, &day) || !take_char(&text, ' ') ||
      !take_digits(&text, 2, &hour) || !take_char(&text, ':') || !take_digits(&text, 2, &minute) ||
      !take_char(&text, ':') || !take_digits(&text, 2, &second)) {
    return false;
  }
  if (take_char(&text, '.')) {
    const size_t digits = text.size();
    if (digits < 1 || digits > 9 || !take_digits(&text, digits, &fraction)) return false;
    for (size_t i = digits; i < 9; ++i) fraction *= 10;
  }
  // Years beyond 2199 would overflow nanoseconds in 64 bits.
  if (!text.empty() || year < 1970 || year > 2199 || month < 1 || month > 12) return false;
  constexpr std::array<int64_t, 12> days = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const int64_t last_day =
      days[static_cast<size_t>(month - 1)] + (month == 2 && is_leap_year(year) ? 1 : 0);
  if (day < 1 || day > last_day || hour > 23 || minute > 59 || second > 59) return false;
  const int64_t seconds =
      ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
  *nanoseconds = seconds * kNanoseconds + fraction;
  return true;
}

// Reads the little JSON that a line needs, left to right. Each take_ skips spaces behind what it
// took.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : rest_(text), size_(text.size()) {}

  bool take(char c) {
    if (!take_char(&rest_, c)) return false;
    skip_spaces();
    return true;
  }
  // A name without escapes.
  bool take_name(std::string_view* name) {
    if (rest_.empty() || rest_.front() != '"') return false;
    const size_t end = rest_.find_first_of("\"\\", 1);
    if (end == std::string_view::npos || rest_[end] != '"') return false;
    *name = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    skip_spaces();
    return true;
  }
  // All that could belong to a number is taken for it, so that 1.5 and 1e3 are shown whole.
  StatusOr<int64_t> take_integer(int64_t min, int64_t max) {
    const std::string_view text = rest_.substr(0, rest_.find_first_of(",]} \t"));
    StatusOr<int64_t> value = parse_integer(text, min, max);
    if (!value.ok()) return value;
    if (text.size() > 1 && text.front() == '0') {
      return Status(StatusCode::kFormat,
                    fmt::format("got '{}', want no leading zero", printable(text)));
    }
    rest_.remove_prefix(text.size());
    skip_spaces();
    return value;
  }
  size_t column() const { return size_ - rest_.size(); }
  std::string_view rest() const { return rest_; }

 private:
  void skip_spaces() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size()));
  }

  std::string_view rest_;
  size_t size_;
};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Status TraceParser::error(size_t column, const std::string& what) const {
  return {StatusCode::kFormat,
          fmt::format("{}:{} (byte {}): {}", name_, line_number_, line_offset_ + column, what)};
}

Status TraceParser::parse_line(std::string_view line) {
  const size_t mark =
      format_ == Format::kUnknown && line.substr(0, kByteOrderMark.size()) == kByteOrderMark
          ? kByteOrderMark.size()
          : 0;
  line.remove_prefix(mark);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (format_ == Format::kUnknown) {
    if (line == kHeader) {
      format_ = Format::kAzure;
      return ok_status();
    }
    if (line.empty() || line.front() != '{') {
      return error(0, fmt::format("header: got '{}', want '{}', or the JSON object of a request",
                                  printable(line, 60), kHeader));
    }
    format_ = Format::kMooncake;
    line_offset_ += mark;  // columns count from here
    const Status status = parse_mooncake(line);
    line_offset_ -= mark;
    return status;
  }
  return format_ == Format::kAzure ? parse_azure(line) : parse_mooncake(line);
}

Status TraceParser::add(size_t column, TraceRequest request, int64_t prompt, int64_t generated) {
  if (prompt + generated > kMaxTokens) {
    return error(column, fmt::format("got {} tokens in all, want at most {} a request",
                                     prompt + generated, kMaxTokens));
  }
  if (trace_.requests.size() >= kMaxRequests) {
    return error(0, fmt::format("want at most {} requests", kMaxRequests));
  }
  request.prompt_tokens = static_cast<int32_t>(prompt);
  request.generated_tokens = static_cast<int32_t>(generated);
  // No overflow: ten million requests of less than 2^31 tokens are below 2^55.
  trace_.prompt_tokens += prompt;
  trace_.generated_tokens += generated;
  trace_.requests.push_back(request);
  return ok_status();
}

Status TraceParser::parse_azure(std::string_view line) {
  const size_t first_comma = line.find(',');
  const size_t second_comma = first_comma == std::string_view::npos
                                  ? std::string_view::npos
                                  : line.find(',', first_comma + 1);
  if (second_comma == std::string_view::npos ||
      line.find(',', second_comma + 1) != std::string_view::npos) {
    return error(0, fmt::format("got '{}', want three fields: {}", printable(line), kHeader));
  }
  TraceRequest request;
  const std::string_view timestamp = line.substr(0, first_comma);
  if (!parse_timestamp(timestamp, &request.arrival_ns)) {
    return error(0, fmt::format("TIMESTAMP: got '{}', want YYYY-MM-DD HH:MM:SS[.fraction] of a "
                                "year from 1970 to 2199",
                                printable(timestamp)));
  }
  const StatusOr<int64_t> prompt =
      parse_integer(line.substr(first_comma + 1, second_comma - first_comma - 1), 1, kMaxTokens);
  if (!prompt.ok()) {
    return error(first_comma + 1, "ContextTokens: " + prompt.status().message());
  }
  const StatusOr<int64_t> generated = parse_integer(line.substr(second_comma + 1), 1, kMaxTokens);
  if (!generated.ok()) {
    return error(second_comma + 1, "GeneratedTokens: " + generated.status().message());
  }
  return add(first_comma + 1, request, *prompt, *generated);
}

Status TraceParser::parse_mooncake(std::string_view line) {
  JsonCursor cursor(line);
  const auto expected = [&](const std::string& what) {
    return error(cursor.column(),
                 fmt::format("got '{}', want {}", printable(cursor.rest(), 20), what));
  };
  constexpr std::array<std::string_view, 4> names = {"timestamp", "input_length", "output_length",
                                                     "hash_ids"};
  std::array<std::optional<int64_t>, 3> numbers;
  std::array<size_t, 4> columns = {};
  bool ids_seen = false;
  TraceRequest request;
  request.first_block = static_cast<int64_t>(trace_.block_ids.size());
  if (!cursor.take('{')) return expected("an object");
  do {
    const size_t name_column = cursor.column();
    std::string_view name;
    if (!cursor.take_name(&name)) return expected("a field's name");
    const size_t field =
        static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (field == names.size()) {
      return error(name_column, fmt::format("got field '{}', want timestamp, input_length, "
                                            "output_length and hash_ids",
                                            printable(name)));
    }
    if (field == 3 ? ids_seen : numbers[field].has_value()) {
      return error(name_column, fmt::format("got field '{}' twice", name));
    }
    if (!cursor.take(':')) return expected("':'");
    columns[field] = cursor.column();
    if (field < 3) {
      const int64_t min = field == 0 ? 0 : 1;
      const int64_t max = field == 0 ? kMaxMilliseconds : kMaxTokens;
      const StatusOr<int64_t> number = cursor.take_integer(min, max);
      if (!number.ok()) {
        return error(columns[field], fmt::format("{}: {}", name, number.status().message()));
      }
      numbers[field] = *number;
      continue;
    }
    ids_seen = true;
    if (!cursor.take('[')) return expected("a list");
    if (cursor.take(']')) continue;
    do {
      if (request.num_blocks == static_cast<int32_t>(kMaxLineBlocks)) {
        return error(columns[3], fmt::format("hash_ids: want at most {} a line", kMaxLineBlocks));
      }
      if (trace_.block_ids.size() == kMaxBlocks) {
        return error(columns[3], fmt::format("hash_ids: want at most {} in all", kMaxBlocks));
      }
      const size_t column = cursor.column();
      const StatusOr<int64_t> id = cursor.take_integer(0, std::numeric_limits<int64_t>::max());
      if (!id.ok()) return error(column, "hash_ids: " + id.status().message());
      trace_.block_ids.push_back(*id);
      ++request.num_blocks;
    } while (cursor.take(','));
    if (!cursor.take(']')) return expected("',' or ']'");
  } while (cursor.take(','));
  if (!cursor.take('}')) return expected("',' or '}'");
  if (!cursor.rest().empty()) return expected("the end of the line");
  for (size_t field = 0; field < names.size(); ++field) {
    if (field == 3 ? !ids_seen : !numbers[field].has_value()) {
      return error(0, fmt::format("want a field '{}'", names[field]));
    }
  }
  const int64_t blocks = (*numbers[1] + kBlockTokens - 1) / kBlockTokens;
  if (request.num_blocks != blocks) {
    return error(columns[3], fmt::format("hash_ids: got {}, want {}: one for each {} of {} tokens",
                                         request.num_blocks, blocks, kBlockTokens, *numbers[1]));
  }
  request.arrival_ns = *numbers[0] * 1'000'000;
  return add(columns[1], request, *numbers[1], *numbers[2]);
}

Status TraceParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + part.size() > kMaxLineBytes) {
      return error(0, fmt::format("want lines of at most {} bytes", kMaxLineBytes));
    }
    line_ += part;
    if (end == std::string_view::npos) return ok_status();
    if (Status status = parse_line(line_); !status.ok()) return status;
    line_offset_ += line_.size() + 1;
    ++line_number_;
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
  return ok_status();
}

StatusOr<Trace> TraceParser::finish() {
  if (!line_.empty()) {
    if (Status status = parse_line(line_); !status.ok()) return status;
    line_offset_ += line_.size();
    line_.clear();
  }
  if (trace_.requests.empty()) {
    return error(0, format_ == Format::kUnknown ? "the file is empty"
                                                : "want at least one request after the header");
  }
  // By time, then by line. (std::stable_sort warns of a deprecated call inside libstdc++ 12.)
  std::vector<size_t> order(trace_.requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int64_t time_a = trace_.requests[a].arrival_ns;
    const int64_t time_b = trace_.requests[b].arrival_ns;
    return time_a != time_b ? time_a < time_b : a < b;
  });
  const int64_t first = trace_.requests[order.front()].arrival_ns;
  std::vector<TraceRequest> sorted;
  sorted.reserve(order.size());
  for (size_t index : order) {
    sorted.push_back(trace_.requests[index]);
    sorted.back().arrival_ns -= first;
  }
  trace_.requests = std::move(sorted);
  return std::move(trace_);
}

StatusOr<Trace> read_trace(const std::string& path) {
  const std::string name = printable(path, 200);
  const auto io_error = [&](const std::string& what, int number) {
    return Status(StatusCode::kIo, fmt::format("{}: {}: {}", name, what, std::strerror(number)));
  };
  // Non-blocking, so that a FIFO without a writer is an empty file instead of a hang.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return io_error("cannot open", errno);
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return io_error("cannot stat", errno);
  if (S_ISDIR(status.st_mode)) {
    return Status(StatusCode::kFormat, name + ":1 (byte 0): is a directory, want a trace");
  }
  const int flags = fcntl(file.get(), F_GETFL);
  if (flags < 0 || fcntl(file.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return io_error("cannot read", errno);
  }
  TraceParser parser(name);
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR && !interrupted()) continue;
    if (count < 0) return io_error("cannot read", errno);
    if (count == 0) return parser.finish();
    const Status fed = parser.feed({buffer.data(), static_cast<size_t>(count)});
    if (!fed.ok()) return fed;
  }
}

}  // namespace flashprime::cli
