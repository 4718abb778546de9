// SPDX-License-Identifier: Apache-2.0
#include "cli/trace.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace flashprime::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

StatusOr<Trace> parse(std::string_view text, size_t piece = std::string_view::npos) {
  TraceParser parser("trace.csv");
  while (!text.empty()) {
    const std::string_view part = text.substr(0, piece);
    if (Status status = parser.feed(part); !status.ok()) return status;
    text.remove_prefix(part.size());
  }
  return parser.finish();
}

StatusOr<Trace> parse_rows(const std::string& rows) {
  return parse(std::string(kHeader) + rows);
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char pattern[] = "/tmp/flashprime_trace_XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~TemporaryDirectory() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name) {
    files_.push_back(path_ + '/' + name);
    return files_.back();
  }
  std::string write(const std::string& name, std::string_view text) {
    const std::string path = file(name);
    std::FILE* out = std::fopen(path.c_str(), "wb");
    EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), out), text.size());
    std::fclose(out);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

TEST(AzureTrace, ReadsCrlfWithoutAFinalNewlineAndSevenFractionalDigits) {
  const auto trace = parse_rows(
      "2023-11-16 18:15:46.6805900,374,44\r\n"
      "2023-11-16 18:15:50.9951690,396,109");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_THAT(trace->requests,
              ElementsAre(TraceRequest{0, 374, 44}, TraceRequest{4'314'579'000, 396, 109}));
  EXPECT_EQ(trace->prompt_tokens, 770);
  EXPECT_EQ(trace->generated_tokens, 153);
}

TEST(AzureTrace, ReadsLfAByteOrderMarkAndOtherFractions) {
  const auto trace = parse(
      "\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-02-29 23:59:59,1,1\n2024-03-01 00:00:00.5,2,2\n2024-03-01 00:00:00.123456789,3,3\n");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_THAT(trace->requests, ElementsAre(TraceRequest{0, 1, 1}, TraceRequest{1'123'456'789, 3, 3},
                                           TraceRequest{1'500'000'000, 2, 2}));
}

TEST(AzureTrace, SortsByArrivalAndKeepsTheOrderOfEqualTimes) {
  const auto trace = parse_rows(
      "2023-11-16 18:00:02,1,1\n2023-11-16 18:00:01,2,1\n2023-11-16 18:00:02,3,1\n"
      "2023-11-16 18:00:01,4,1\n");
  ASSERT_TRUE(trace.ok());
  std::vector<int32_t> order;
  for (const TraceRequest& request : trace->requests) order.push_back(request.prompt_tokens);
  EXPECT_THAT(order, ElementsAre(2, 4, 1, 3));
}

TEST(AzureTrace, DoesNotDependOnHowTheBytesArrive) {
  const std::string text = std::string(kHeader) +
                           "2023-11-16 18:15:46.6805900,374,44\r\n"
                           "2023-11-16 18:15:50.9951690,396,109";
  const auto whole = parse(text);
  ASSERT_TRUE(whole.ok());
  for (size_t piece = 1; piece < text.size(); ++piece) {
    const auto pieces = parse(text, piece);
    ASSERT_TRUE(pieces.ok()) << piece;
    EXPECT_EQ(pieces->requests, whole->requests);
  }
}

TEST(AzureTrace, AMalformedLineIsNamedByFileLineByteAndField) {
  // Line 2 of the file begins at byte 41.
  const std::pair<std::string, std::string> cases[] = {
      {"2023-11-16 18:15:46,374,44\n\n", "trace.csv:3 (byte 68): got '', want three fields"},
      {"2023-11-16 18:15:46,374\n", "trace.csv:2 (byte 41): got"},
      {"2023-11-16 18:15:46,374,44,5\n", "want three fields"},
      {"2023-11-16 18:15:46,374,44,\n", "want three fields"},
      {"18:15:46,374,44\n", "trace.csv:2 (byte 41): TIMESTAMP: got '18:15:46'"},
      {",374,44\n", "TIMESTAMP: got ''"},
      {"2023-11-16T18:15:46,374,44\n", "TIMESTAMP"},
      {"2023-13-16 18:15:46,374,44\n", "TIMESTAMP"},
      {"2023-00-16 18:15:46,374,44\n", "TIMESTAMP"},
      {"2023-02-29 18:15:46,374,44\n", "TIMESTAMP"},
      {"2023-11-31 18:15:46,374,44\n", "TIMESTAMP"},
      {"2023-11-16 24:15:46,374,44\n", "TIMESTAMP"},
      {"2023-11-16 18:60:46,374,44\n", "TIMESTAMP"},
      {"2023-11-16 18:15:60,374,44\n", "TIMESTAMP"},
      {"2023-11-16 18:15:46.,374,44\n", "TIMESTAMP"},
      {"2023-11-16 18:15:46.1234567890,374,44\n", "TIMESTAMP"},
      {"2023-11-16 18:15:46Z,374,44\n", "TIMESTAMP"},
      {" 2023-11-16 18:15:46,374,44\n", "TIMESTAMP"},
      {"1969-11-16 18:15:46,374,44\n", "TIMESTAMP"},
      {"9999-11-16 18:15:46,374,44\n", "TIMESTAMP"},
      {"2023-11-16 18:15:46,0,44\n", "trace.csv:2 (byte 61): ContextTokens: got '0'"},
      {"2023-11-16 18:15:46,-5,44\n", "ContextTokens: got '-5'"},
      {"2023-11-16 18:15:46,+5,44\n", "ContextTokens: got '+5'"},
      {"2023-11-16 18:15:46, 5,44\n", "ContextTokens: got ' 5'"},
      {"2023-11-16 18:15:46,0x5,44\n", "ContextTokens: got '0x5'"},
      {"2023-11-16 18:15:46,5.0,44\n", "ContextTokens: got '5.0'"},
      {"2023-11-16 18:15:46,1e3,44\n", "ContextTokens: got '1e3'"},
      {"2023-11-16 18:15:46,nan,44\n", "ContextTokens: got 'nan'"},
      {"2023-11-16 18:15:46,\"5\",44\n", "ContextTokens: got '\"5\"'"},
      {"2023-11-16 18:15:46,,44\n", "ContextTokens: got ''"},
      {"2023-11-16 18:15:46,2147483648,44\n", "ContextTokens: got '2147483648'"},
      {"2023-11-16 18:15:46,99999999999999999999999,44\n", "ContextTokens"},
      {"2023-11-16 18:15:46,374,0\n", "trace.csv:2 (byte 65): GeneratedTokens: got '0'"},
      {"2023-11-16 18:15:46,374,\n", "GeneratedTokens: got ''"},
      {"2023-11-16 18:15:46,374,44 \n", "GeneratedTokens: got '44 '"},
      {"2023-11-16 18:15:46,374,44\r\r\n", "GeneratedTokens: got '44?'"},
      {std::string("2023-11-16 18:15:46,374,4\0\n", 27), "GeneratedTokens: got '4?'"},
      {std::string("2023-11-16 18:15:46\0,374,44\n", 28), "TIMESTAMP: got"},
      {"2023-11-16 18:15:46,374,44\n\xef\xbb\xbf\n", "trace.csv:3 (byte 68): got '"},
      {"2023-11-16 18:15:46,2147483647,1\n", "got 2147483648 tokens in all"},
  };
  for (const auto& [rows, message] : cases) {
    const auto trace = parse_rows(rows);
    ASSERT_FALSE(trace.ok()) << rows;
    EXPECT_EQ(trace.status().code(), StatusCode::kFormat);
    EXPECT_THAT(trace.status().message(), HasSubstr(message)) << rows;
    EXPECT_THAT(trace.status().message(), testing::Not(HasSubstr("\n")));
  }
}

TEST(AzureTrace, AnotherHeaderIsRefused) {
  for (std::string_view text :
       {"timestamp,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n",
        "TIMESTAMP,ContextTokens\n", "TIMESTAMP,ContextTokens,GeneratedTokens,Extra\n",
        "2023-11-16 18:15:46,1,1\n", "\n", "[{\"timestamp\": 0}]\n", "PK\x03\x04"}) {
    const auto trace = parse(text);
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_THAT(trace.status().message(), HasSubstr("trace.csv:1 (byte 0): header: got"));
  }
}

TEST(AzureTrace, AFileWithoutRequestsIsRefused) {
  EXPECT_THAT(parse("").status().message(), HasSubstr("empty"));
  EXPECT_THAT(parse(kHeader).status().message(), HasSubstr("at least one request"));
}

TEST(AzureTrace, ALineOfMoreThanAMegabyteIsRefusedBeforeItIsKept) {
  TraceParser parser("trace.csv");
  const std::string block(65536, '7');
  Status status;
  int blocks = 0;
  while (status.ok() && blocks < 100) {
    status = parser.feed(block);
    ++blocks;
  }
  EXPECT_EQ(blocks, 16);  // 16 x 65536 is the first multiple over a million
  EXPECT_THAT(status.message(), HasSubstr("want lines of at most 1000000 bytes"));
}

TEST(AzureTrace, ControlBytesDoNotReachTheMessage) {
  const auto trace = parse_rows("2023-11-16 18:15:46,\x1b[31m,44\n");
  ASSERT_FALSE(trace.ok());
  for (char c : trace.status().message()) EXPECT_TRUE(c >= ' ' && c <= '~');
}

TEST(AzureTrace, ReadsFilesAndPipes) {
  TemporaryDirectory directory;
  const std::string text = std::string(kHeader) + "2023-11-16 18:15:46.6805900,374,44";
  const auto file = read_trace(directory.write("ok.csv", text));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->requests.size(), 1u);

  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  const auto piped = read_trace("/dev/fd/" + std::to_string(ends[0]));
  close(ends[0]);
  ASSERT_TRUE(piped.ok()) << piped.status().to_string();
  EXPECT_EQ(piped->requests, file->requests);
}

TEST(AzureTrace, RefusesWhatIsNoReadableFile) {
  TemporaryDirectory directory;
  const auto folder = read_trace(directory.path());
  EXPECT_EQ(folder.status().code(), StatusCode::kFormat);
  EXPECT_THAT(folder.status().message(),
              HasSubstr(directory.path() + ":1 (byte 0): is a directory"));
  EXPECT_EQ(read_trace(directory.path() + "/absent").status().code(), StatusCode::kIo);
  const auto empty = read_trace(directory.write("empty.csv", ""));
  EXPECT_THAT(empty.status().message(), HasSubstr("the file is empty"));
  const std::string loop = directory.file("loop");
  ASSERT_EQ(symlink(loop.c_str(), loop.c_str()), 0);
  EXPECT_EQ(read_trace(loop).status().code(), StatusCode::kIo);
}

TEST(AzureTrace, AFifoWithoutAWriterIsEmptyInsteadOfAHang) {
  TemporaryDirectory directory;
  const std::string fifo = directory.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(read_trace(fifo).status().message(), HasSubstr("the file is empty"));
}

TEST(AzureTrace, EndlessRequestsAreRefusedBeforeTheyFillTheMemory) {
  std::string block;
  for (int i = 0; i < 10'000; ++i) block += "2023-11-16 18:15:46,374,44\n";
  TraceParser parser("trace.csv");
  ASSERT_TRUE(parser.feed(std::string(kHeader)).ok());
  Status status;
  size_t blocks = 0;
  while (status.ok() && blocks < 2 * TraceParser::kMaxRequests / 10'000) {
    status = parser.feed(block);
    ++blocks;
  }
  EXPECT_EQ(blocks, TraceParser::kMaxRequests / 10'000 + 1);
  EXPECT_THAT(status.message(),
              HasSubstr("trace.csv:10000002 (byte 270000041): want at most 10000000 requests"));
}

TEST(AzureTrace, AnEndlessDeviceIsRefused) {
  EXPECT_THAT(read_trace("/dev/zero").status().message(), HasSubstr("1000000 bytes"));
}

TEST(AzureTrace, TheExcerptsInTheProjectAreWholeAndUnchanged) {
  const std::string data = FLASHPRIME_DATA_DIR;
  const auto conversation = read_trace(data + "/azure_llm_2023_conv_500.csv");
  ASSERT_TRUE(conversation.ok()) << conversation.status().to_string();
  EXPECT_EQ(conversation->requests.size(), 500u);
  EXPECT_EQ(conversation->prompt_tokens, 467'684);
  const auto code = read_trace(data + "/azure_llm_2023_code_200.csv");
  ASSERT_TRUE(code.ok()) << code.status().to_string();
  EXPECT_EQ(code->requests.size(), 200u);
  struct stat status = {};
  ASSERT_EQ(stat((data + "/azure_llm_2023_conv_500.csv").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 18653);  // with CRLF
}

std::string mooncake_line(const std::string& timestamp, const std::string& input,
                          const std::string& output, const std::string& ids) {
  return "{\"timestamp\": " + timestamp + ", \"input_length\": " + input +
         ", \"output_length\": " + output + ", \"hash_ids\": [" + ids + "]}\n";
}

TEST(MooncakeTrace, IsKnownByItsContentAndReadsBlockIds) {
  const auto trace =
      parse(mooncake_line("0", "6", "500", "0") + mooncake_line("3000", "1025", "7", "0, 14, 2"));
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].prompt_tokens, 6);
  EXPECT_EQ(trace->requests[0].generated_tokens, 500);
  EXPECT_EQ(trace->requests[1].arrival_ns, 3'000'000'000);
  EXPECT_THAT(trace->blocks_of(trace->requests[0]), ElementsAre(0));
  EXPECT_THAT(trace->blocks_of(trace->requests[1]), ElementsAre(0, 14, 2));
  EXPECT_EQ(trace->prompt_tokens, 1031);
}

TEST(MooncakeTrace, ReadsCrlfAByteOrderMarkOtherSpacingAndOtherOrder) {
  const auto trace = parse(
      "\xef\xbb\xbf{ \"hash_ids\" :[5,6] ,\"output_length\":2,\"input_length\":1024,"
      "\"timestamp\":7}\r\n{\"timestamp\":3,\"input_length\":1,\"output_length\":1,"
      "\"hash_ids\":[9]}");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  // Sorted by time, each with its own blocks.
  EXPECT_THAT(trace->blocks_of(trace->requests[0]), ElementsAre(9));
  EXPECT_EQ(trace->requests[1].arrival_ns, 4'000'000);
  EXPECT_THAT(trace->blocks_of(trace->requests[1]), ElementsAre(5, 6));
}

TEST(MooncakeTrace, DoesNotDependOnHowTheBytesArrive) {
  const std::string text =
      mooncake_line("0", "6", "500", "0") + mooncake_line("3000", "1025", "7", "0, 14, 2");
  const auto whole = parse(text);
  ASSERT_TRUE(whole.ok());
  for (size_t piece = 1; piece < text.size(); ++piece) {
    const auto pieces = parse(text, piece);
    ASSERT_TRUE(pieces.ok()) << piece;
    EXPECT_EQ(pieces->requests, whole->requests);
    EXPECT_EQ(pieces->block_ids, whole->block_ids);
  }
}

TEST(MooncakeTrace, AMalformedLineIsNamedByFileLineByteAndField) {
  const std::string first = mooncake_line("0", "6", "5", "0");  // 73 bytes
  ASSERT_EQ(first.size(), 73u);
  const std::pair<std::string, std::string> cases[] = {
      {"\n", "trace.csv:2 (byte 73): got '', want an object"},
      {"2023-11-16 18:15:46,374,44\n", "trace.csv:2 (byte 73): got '2023"},
      {"{}\n", "trace.csv:2 (byte 74): got '}', want a field's name"},
      {"{\"timestamp\": 0}\n", "trace.csv:2 (byte 73): want a field 'input_length'"},
      {"{\"timestamp\": 0, \"timestamp\": 0}\n", "(byte 90): got field 'timestamp' twice"},
      {"{\"hash_ids\": [], \"hash_ids\": []}\n", "got field 'hash_ids' twice"},
      {"{\"time\\u0073tamp\": 0}\n", "want a field's name"},
      {"{\"model\": 0}\n", "(byte 74): got field 'model', want timestamp"},
      {"{\"timestamp\" 0}\n", "got '0}', want ':'"},
      {"{timestamp: 0}\n", "want a field's name"},
      {mooncake_line("-1", "6", "5", "0"), "(byte 87): timestamp: got '-1'"},
      {mooncake_line("1.5", "6", "5", "0"), "timestamp: got '1.5'"},
      {mooncake_line("1e3", "6", "5", "0"), "timestamp: got '1e3'"},
      {mooncake_line("01", "6", "5", "0"), "got '01', want no leading zero"},
      {mooncake_line("NaN", "6", "5", "0"), "timestamp: got 'NaN'"},
      {mooncake_line("\"0\"", "6", "5", "0"), "timestamp: got '\"0\"'"},
      {mooncake_line("9000000000001", "6", "5", "0"), "timestamp: got"},
      {mooncake_line("99999999999999999999", "6", "5", "0"), "timestamp: got"},
      {mooncake_line("0", "0", "5", "0"), "input_length: got '0'"},
      {mooncake_line("0", "2147483648", "5", "0"), "input_length: got"},
      {mooncake_line("0", "6", "0", "0"), "output_length: got '0'"},
      {mooncake_line("0", "6", "2147483647", "0"), "tokens in all"},
      {mooncake_line("0", "6", "5", ""), "hash_ids: got 0, want 1"},
      {mooncake_line("0", "512", "5", "0, 1"), "hash_ids: got 2, want 1"},
      {mooncake_line("0", "513", "5", "0"), "hash_ids: got 1, want 2"},
      {mooncake_line("0", "6", "5", "-1"), "hash_ids: got '-1'"},
      {mooncake_line("0", "6", "5", "0,"), "hash_ids: got ''"},
      {mooncake_line("0", "6", "5", "[0]"), "hash_ids: got '[0'"},
      {mooncake_line("0", "6", "5", "0 1"), "got '1]}', want ',' or ']'"},
      {mooncake_line("0", "6", "5", "9223372036854775808"), "hash_ids: got"},
      {"{\"hash_ids\": 0}\n", "got '0}', want a list"},
      {first.substr(0, 72) + " x\n", "want the end of the line"},
      {first.substr(0, 72) + "\r\r\n", "want the end of the line"},
      {first.substr(0, 71), "want ',' or '}'"},
      {first.substr(0, 60), "trace.csv:2"},
      {std::string("{\"hash_ids\": ") + std::string(100'000, '[') + "\n", "hash_ids: got '[[["},
  };
  for (const auto& [line, message] : cases) {
    const auto trace = parse(first + line);
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_EQ(trace.status().code(), StatusCode::kFormat);
    EXPECT_THAT(trace.status().message(), HasSubstr(message)) << line;
    EXPECT_THAT(trace.status().message(), HasSubstr("trace.csv:2 (byte "));
    EXPECT_THAT(trace.status().message(), testing::Not(HasSubstr("\n")));
  }
}

TEST(MooncakeTrace, TheByteOfAnErrorBehindAByteOrderMarkCountsTheMark) {
  EXPECT_THAT(parse("\xef\xbb\xbf{\"x\": 0}").status().message(),
              HasSubstr("trace.csv:1 (byte 4): got field 'x'"));
}

TEST(MooncakeTrace, ATruncatedFileIsRefusedUnlessItEndsWithALine) {
  const std::string text =
      mooncake_line("0", "6", "500", "0") + mooncake_line("3000", "1025", "7", "0, 14, 2");
  const size_t first = text.find('\n');
  for (size_t size = 0; size < text.size(); ++size) {
    const auto trace = parse(text.substr(0, size));
    const bool whole_lines = size == first || size == first + 1 || size == text.size() - 1;
    EXPECT_EQ(trace.ok(), whole_lines) << size;
    if (trace.ok()) {
      EXPECT_EQ(trace->requests.size(), size == text.size() - 1 ? 2u : 1u);
    }
  }
}

TEST(MooncakeTrace, MoreThanTheMostBlocksInAllAreRefused) {
  // Lines of 90,000 blocks each; the parser keeps the ids, so this stops at its cap or not at all.
  std::string ids = "7";
  for (int i = 1; i < 90'000; ++i) ids += ",7";
  const std::string line = mooncake_line("0", std::to_string(90'000 * 512), "1", ids);
  TraceParser parser("trace.csv");
  Status status;
  size_t lines = 0;
  while (status.ok() && lines < 1000) {
    status = parser.feed(line);
    ++lines;
  }
  EXPECT_EQ(lines, TraceParser::kMaxBlocks / 90'000 + 1);
  EXPECT_THAT(status.message(), HasSubstr("hash_ids: want at most"));
}

TEST(MooncakeTrace, MoreThanAHundredThousandIdsALineAreRefused) {
  std::string ids = "0";
  for (int i = 1; i < 100'000; ++i) ids += ",0";
  EXPECT_TRUE(parse(mooncake_line("0", "51200000", "1", ids)).ok());
  EXPECT_THAT(parse(mooncake_line("0", "51200001", "1", ids + ",0")).status().message(),
              HasSubstr("hash_ids: want at most 100000 a line"));
}

TEST(MooncakeTrace, ALineOfMoreThanAMegabyteIsRefused) {
  const std::string line = mooncake_line("0", "1", "1", std::string(1'000'000, ' ') + "0");
  EXPECT_THAT(parse(line, 4096).status().message(),
              HasSubstr("trace.csv:1 (byte 0): want lines of at most 1000000 bytes"));
}

TEST(MooncakeTrace, TheExcerptInTheProjectIsRead) {
  const auto trace =
      read_trace(std::string(FLASHPRIME_DATA_DIR) + "/mooncake_conversation_200.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->requests.size(), 200u);
  EXPECT_EQ(trace->prompt_tokens, 2'782'179);
  // They come in bursts, one every three seconds.
  EXPECT_EQ(trace->requests[1].arrival_ns, 0);
  EXPECT_EQ(trace->requests.back().arrival_ns, 72'000'000'000);
}

}  // namespace
}  // namespace flashprime::cli
