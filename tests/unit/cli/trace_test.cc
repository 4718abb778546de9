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
  AzureTraceParser parser("trace.csv");
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
        "2023-11-16 18:15:46,1,1\n", "\n", "{\"timestamp\": 0}\n", "PK\x03\x04"}) {
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
  AzureTraceParser parser("trace.csv");
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
  const auto file = read_azure_trace(directory.write("ok.csv", text));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->requests.size(), 1u);

  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  const auto piped = read_azure_trace("/dev/fd/" + std::to_string(ends[0]));
  close(ends[0]);
  ASSERT_TRUE(piped.ok()) << piped.status().to_string();
  EXPECT_EQ(piped->requests, file->requests);
}

TEST(AzureTrace, RefusesWhatIsNoReadableFile) {
  TemporaryDirectory directory;
  EXPECT_EQ(read_azure_trace(directory.path()).status().code(), StatusCode::kIo);
  EXPECT_EQ(read_azure_trace(directory.path() + "/absent").status().code(), StatusCode::kIo);
  const auto empty = read_azure_trace(directory.write("empty.csv", ""));
  EXPECT_THAT(empty.status().message(), HasSubstr("the file is empty"));
  const std::string loop = directory.file("loop");
  ASSERT_EQ(symlink(loop.c_str(), loop.c_str()), 0);
  EXPECT_EQ(read_azure_trace(loop).status().code(), StatusCode::kIo);
}

TEST(AzureTrace, AFifoWithoutAWriterIsEmptyInsteadOfAHang) {
  TemporaryDirectory directory;
  const std::string fifo = directory.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(read_azure_trace(fifo).status().message(), HasSubstr("the file is empty"));
}

TEST(AzureTrace, AnEndlessDeviceIsRefused) {
  EXPECT_THAT(read_azure_trace("/dev/zero").status().message(), HasSubstr("1000000 bytes"));
}

TEST(AzureTrace, TheExcerptsInTheProjectAreWholeAndUnchanged) {
  const std::string data = FLASHPRIME_DATA_DIR;
  const auto conversation = read_azure_trace(data + "/azure_llm_2023_conv_500.csv");
  ASSERT_TRUE(conversation.ok()) << conversation.status().to_string();
  EXPECT_EQ(conversation->requests.size(), 500u);
  EXPECT_EQ(conversation->prompt_tokens, 467'684);
  const auto code = read_azure_trace(data + "/azure_llm_2023_code_200.csv");
  ASSERT_TRUE(code.ok()) << code.status().to_string();
  EXPECT_EQ(code->requests.size(), 200u);
  struct stat status = {};
  ASSERT_EQ(stat((data + "/azure_llm_2023_conv_500.csv").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 18653);  // with CRLF
}

}  // namespace
}  // namespace flashprime::cli
