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

#include "cli/session.h"
#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
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

Status AzureTraceParser::error(size_t column, const std::string& what) const {
  return {StatusCode::kFormat,
          fmt::format("{}:{} (byte {}): {}", name_, line_number_, line_offset_ + column, what)};
}

Status AzureTraceParser::parse_line(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (!header_seen_) {
    if (line.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
      line.remove_prefix(kByteOrderMark.size());
    }
    if (line != kHeader) {
      return error(0, fmt::format("header: got '{}', want '{}'", printable(line, 60), kHeader));
    }
    header_seen_ = true;
    return ok_status();
  }
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
  if (*prompt + *generated > kMaxTokens) {
    return error(first_comma + 1, fmt::format("got {} tokens in all, want at most {} a request",
                                              *prompt + *generated, kMaxTokens));
  }
  if (trace_.requests.size() >= kMaxRequests) {
    return error(0, fmt::format("want at most {} requests", kMaxRequests));
  }
  request.prompt_tokens = static_cast<int32_t>(*prompt);
  request.generated_tokens = static_cast<int32_t>(*generated);
  // No overflow: ten million requests of less than 2^31 tokens are below 2^55.
  trace_.prompt_tokens += *prompt;
  trace_.generated_tokens += *generated;
  trace_.requests.push_back(request);
  return ok_status();
}

Status AzureTraceParser::feed(std::string_view bytes) {
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

StatusOr<Trace> AzureTraceParser::finish() {
  if (!line_.empty()) {
    if (Status status = parse_line(line_); !status.ok()) return status;
    line_offset_ += line_.size();
    line_.clear();
  }
  if (trace_.requests.empty()) {
    return error(0,
                 header_seen_ ? "want at least one request after the header" : "the file is empty");
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

StatusOr<Trace> read_azure_trace(const std::string& path) {
  const std::string name = printable(path, 200);
  const auto io_error = [&](const std::string& what, int number) {
    return Status(StatusCode::kIo, fmt::format("{}: {}: {}", name, what, std::strerror(number)));
  };
  // Non-blocking, so that a FIFO without a writer is an empty file instead of a hang.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return io_error("cannot open", errno);
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return io_error("cannot stat", errno);
  if (S_ISDIR(status.st_mode)) return io_error("cannot read", EISDIR);
  const int flags = fcntl(file.get(), F_GETFL);
  if (flags < 0 || fcntl(file.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return io_error("cannot read", errno);
  }
  AzureTraceParser parser(name);
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
