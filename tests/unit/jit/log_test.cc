// SPDX-License-Identifier: Apache-2.0
#include "jit/log.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <string>
#include <thread>

#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<const Log> open_log(const std::string& text) {
  const StatusOr<std::shared_ptr<const Log>> log = Log::open(*parse_log_setting(text));
  EXPECT_TRUE(log.ok()) << log.status().to_string();
  return *log;
}

TEST(Log, WritesItsLevelAndWorseAndNothingElse) {
  const TempDir dir;
  const std::string file = dir / "log";
  const auto log = open_log("warn:" + file);
  log->write(LogLevel::kError, "a", "an error");
  log->write(LogLevel::kWarn, "b", "a warning");
  log->write(LogLevel::kInfo, "c", "a fact");
  log->write(LogLevel::kDebug, "d", "a detail");
  const std::string lines = read_bytes(file);
  EXPECT_THAT(lines, HasSubstr(" error a: an error\n"));
  EXPECT_THAT(lines, HasSubstr(" warn b: a warning\n"));
  EXPECT_THAT(lines, Not(HasSubstr("fact")));
  EXPECT_THAT(lines, Not(HasSubstr("detail")));
}

TEST(Log, SaysWhenAndWhichProcess) {
  const TempDir dir;
  open_log("info:" + dir / "log")->write(LogLevel::kInfo, "kind", "text");
  std::string line = read_bytes(dir / "log");
  const std::string rest = " flashprime[" + std::to_string(getpid()) + "] info kind: text\n";
  ASSERT_THAT(line, ::testing::EndsWith(rest));
  line.resize(line.size() - rest.size());
  for (char& c : line) c = c >= '0' && c <= '9' ? '9' : c;
  EXPECT_EQ(line, "9999-99-99T99:99:99.999Z");
}

TEST(Log, AnEventIsOneLineWhateverIsInIt) {
  const TempDir dir;
  open_log("info:" + dir / "log")->write(LogLevel::kInfo, "kind", "two\nlines\x1b[31m");
  const std::string text = read_bytes(dir / "log");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(text, HasSubstr("two lines [31m"));
}

TEST(Log, LinesOfManyWritersDoNotMix) {
  const TempDir dir;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto log = open_log("info:" + dir / "log");  // as if in another process
      for (int j = 0; j < 50; ++j) {
        log->write(LogLevel::kInfo, "kind", std::string(500, static_cast<char>('a' + i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(read_bytes(dir / "log"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const std::string message = line.substr(line.rfind(' ') + 1);
    EXPECT_EQ(message, std::string(500, message[0])) << line;
  }
  EXPECT_EQ(count, 400);
}

TEST(Log, GoesToStderrWithoutAFileAndNowhereWhenItIsOff) {
  ::testing::internal::CaptureStderr();
  open_log("error")->write(LogLevel::kError, "kind", "text");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("error kind: text\n"));
  ::testing::internal::CaptureStderr();
  open_log("off")->write(LogLevel::kError, "kind", "text");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Log, IsForTheUserAloneAndMustBeWritable) {
  const TempDir dir;
  const mode_t mask = umask(0);
  open_log("info:" + dir / "log");
  umask(mask);
  struct stat stat{};
  ASSERT_EQ(::stat((dir / "log").c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0600u);
  const Status status = Log::open(*parse_log_setting("info:" + dir / "no/folder")).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("FLASHPRIME_LOG"));
  // Off opens nothing.
  EXPECT_TRUE(Log::open(*parse_log_setting("off:" + dir / "no/folder")).ok());
}

TEST(Log, HasALineForEachKernelThatIsCompiledAndEachEvent) {
  const TempDir dir;
  fake_nvrtc().result = 0;
  fake_nvrtc().delay_ms = 0;
  JitOptions options;
  options.cache_dir = dir / "cache";
  options.nvrtc_path = FLASHPRIME_FAKE_NVRTC;
  options.log = "info:" + dir / "log";
  const auto log_of = [&](const std::function<void(const KernelCache&)>& work) {
    std::filesystem::remove(dir / "log");
    const StatusOr<KernelCache> cache = KernelCache::open(options);
    EXPECT_TRUE(cache.ok()) << cache.status().to_string();
    work(*cache);
    return read_bytes(dir / "log");
  };
  const auto warm = [](const KernelCache& cache) {
    cache.warmup(*cache.plan({.dims = {128, 64, 128}, .archs = {"sm_90a"}}), {.threads = 1}).ok();
  };
  std::string text = log_of([&](const KernelCache& cache) {
    EXPECT_EQ(cache.info().log, "info to " + dir / "log");
    warm(cache);
  });
  EXPECT_THAT(text, HasSubstr("info opened: kernel cache " + dir / "cache"));
  EXPECT_THAT(text, HasSubstr("info compiler: "));
  EXPECT_THAT(text, HasSubstr("info compiled: sm90_mla_prefill{"));
  EXPECT_THAT(text, HasSubstr(" 42 registers, spills 4/12 bytes"));
  // Nothing to compile: nothing to say, unless every look is asked for.
  EXPECT_THAT(log_of(warm), Not(HasSubstr("compiled")));
  options.log = "debug:" + dir / "log";
  EXPECT_THAT(log_of(warm), HasSubstr("debug hit_disk: "));

  std::filesystem::remove_all(dir / "cache");
  options.freeze = FreezePolicy::kError;
  options.log = "error:" + dir / "log";
  EXPECT_THAT(log_of(warm), HasSubstr("error refused_late: compiling is frozen"));
  options.freeze = FreezePolicy::kWarn;
  EXPECT_THAT(log_of(warm), Not(HasSubstr("compiled_late")));
  std::filesystem::remove_all(dir / "cache");
  options.log = "warn:" + dir / "log";
  EXPECT_THAT(log_of(warm), HasSubstr("warn compiled_late: "));
}

}  // namespace
}  // namespace flashprime
