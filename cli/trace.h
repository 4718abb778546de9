// SPDX-License-Identifier: Apache-2.0
// Request traces: when requests came, and how long their prompts and answers were.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/status.h"

namespace flashprime::cli {

struct TraceRequest {
  int64_t arrival_ns = 0;  // since the first request of the trace
  int32_t prompt_tokens = 0;
  int32_t generated_tokens = 0;

  bool operator==(const TraceRequest&) const = default;
};

struct Trace {
  std::vector<TraceRequest> requests;  // by arrival; equal times keep the order of the file
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
};

// Reads the CSV of the Azure LLM inference trace 2023: the header
// TIMESTAMP,ContextTokens,GeneratedTokens, then a request a line. Bytes are fed in pieces of any
// size; only the current line is kept.
//
// Accepted: LF and CRLF, a byte order mark, a last line without an end, fractions of a second of up
// to nine digits, requests out of order of time (they are sorted). Everything else is kFormat,
// naming file, line (from 1) and byte offset (from 0): another header, blank lines, missing or
// extra fields, signs, quotes, numbers outside [1, 2^31 - 1], a request of more than 2^31 - 1
// tokens, a line over 1 MB, more than ten million requests, no request at all.
class AzureTraceParser {
 public:
  static constexpr size_t kMaxLineBytes = 1'000'000;
  static constexpr size_t kMaxRequests = 10'000'000;

  // `name` appears in errors.
  explicit AzureTraceParser(std::string name) : name_(std::move(name)) {}

  // After an error, the parser must not be fed again.
  Status feed(std::string_view bytes);
  // The trace, once all bytes were fed.
  StatusOr<Trace> finish();

 private:
  Status parse_line(std::string_view line);
  Status error(size_t column, const std::string& what) const;

  std::string name_;
  std::string line_;
  uint64_t line_offset_ = 0;
  uint64_t line_number_ = 1;
  bool header_seen_ = false;
  Trace trace_;
};

// Reads a regular file or a pipe. kIo when it cannot be read, kFormat as above.
StatusOr<Trace> read_azure_trace(const std::string& path);

}  // namespace flashprime::cli
