// SPDX-License-Identifier: Apache-2.0
// Request traces: when requests came, and how long their prompts and answers were.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/status.h"

namespace flashprime::cli {

// Tokens that a block id of a trace stands for.
inline constexpr int64_t kBlockTokens = 512;

struct TraceRequest {
  int64_t arrival_ns = 0;  // since the first request of the trace
  int32_t prompt_tokens = 0;
  int32_t generated_tokens = 0;
  // Names of the prompt's blocks of kBlockTokens tokens, the last of which may be shorter, in
  // Trace::block_ids. None where the trace has none.
  int32_t num_blocks = 0;
  int64_t first_block = 0;

  bool operator==(const TraceRequest&) const = default;
};

struct Trace {
  std::vector<TraceRequest> requests;  // by arrival; equal times keep the order of the file
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  std::vector<int64_t> block_ids;  // equal ids: equal prompts up to the end of the block

  std::span<const int64_t> blocks_of(const TraceRequest& request) const {
    return std::span(block_ids).subspan(static_cast<size_t>(request.first_block),
                                        static_cast<size_t>(request.num_blocks));
  }
};

// Reads either of two formats, told apart by the first byte, and never keeps more than the current
// line. Bytes are fed in pieces of any size.
//
//  - CSV of the Azure LLM inference trace 2023: the header TIMESTAMP,ContextTokens,GeneratedTokens,
//    then a request a line, with up to nine digits of a fraction of a second.
//  - JSONL of the Mooncake traces: an object a line with exactly the fields timestamp (ms),
//    input_length, output_length and hash_ids, one id for every 512 tokens of input begun.
//
// Accepted: LF and CRLF, a byte order mark, a last line without an end, requests out of order of
// time (they are sorted). Everything else is kFormat, naming file, line (from 1) and byte offset
// (from 0): another header, blank lines, missing, repeated or extra fields, signs, fractions, token
// counts outside [1, 2^31 - 1], a request of more than 2^31 - 1 tokens, a number of ids that does
// not fit the input's length, more than 100,000 ids a line or ten million in all, a line over 1 MB,
// more than ten million requests, no request at all.
class TraceParser {
 public:
  static constexpr size_t kMaxLineBytes = 1'000'000;
  static constexpr size_t kMaxRequests = 10'000'000;
  static constexpr size_t kMaxLineBlocks = 100'000;
  static constexpr size_t kMaxBlocks = 10'000'000;

  // `name` appears in errors.
  explicit TraceParser(std::string name) : name_(std::move(name)) {}

  // After an error, the parser must not be fed again.
  Status feed(std::string_view bytes);
  // The trace, once all bytes were fed.
  StatusOr<Trace> finish();

 private:
  enum class Format { kUnknown, kAzure, kMooncake };

  Status parse_line(std::string_view line);
  Status parse_azure(std::string_view line);
  Status parse_mooncake(std::string_view line);
  // `column`: where the line's error would be.
  Status add(size_t column, TraceRequest request, int64_t prompt, int64_t generated);
  Status error(size_t column, const std::string& what) const;

  std::string name_;
  std::string line_;
  uint64_t line_offset_ = 0;
  uint64_t line_number_ = 1;
  Format format_ = Format::kUnknown;
  Trace trace_;
};

// Reads a regular file or a pipe. kIo when it cannot be read, kFormat as above.
StatusOr<Trace> read_trace(const std::string& path);

}  // namespace flashprime::cli
