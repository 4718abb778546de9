// SPDX-License-Identifier: Apache-2.0
#include "jit/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "checks.h"
#include "jit/posix_file.h"

namespace flashprime {
namespace {

constexpr std::array<std::string_view, 5> kLevels = {"off", "error", "warn", "info", "debug"};

// "2026-12-01T08:15:30.123Z"
std::string now_text() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  std::array<char, 64> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S.", &utc);
  const std::string millis = std::to_string(1000 + now.tv_nsec / 1'000'000).substr(1);
  return std::string(text.data(), length) + millis + 'Z';
}

}  // namespace

std::string LogSetting::to_string() const {
  const std::string name(kLevels[static_cast<size_t>(level)]);
  if (level == LogLevel::kOff) return name;
  return name + " to " + (file.empty() ? "stderr" : file);
}

StatusOr<LogSetting> parse_log_setting(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view level = text.substr(0, colon);
  LogSetting setting;
  bool known = false;
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] != level) continue;
    known = true;
    setting.level = static_cast<LogLevel>(i);
  }
  if (colon != std::string_view::npos) {
    setting.file = text.substr(colon + 1);
    known = known && setting.file.starts_with('/');
  }
  FLASHPRIME_REQUIRE(known, StatusCode::kFormat, "FLASHPRIME_LOG: got '", text.substr(0, 200),
                     "', want off, error, warn, info or debug, and maybe :FILE with an absolute "
                     "path");
  return setting;
}

StatusOr<std::shared_ptr<const Log>> Log::open(LogSetting setting) {
  UniqueFd file;
  if (setting.level != LogLevel::kOff && !setting.file.empty()) {
    // Not O_NOFOLLOW: an operator may well have put a link there. A pipe without a reader must not
    // hang the process.
    file =
        UniqueFd(::open(setting.file.c_str(),
                        O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
    if (!file.ok()) return io_error("FLASHPRIME_LOG: cannot open", setting.file, errno);
  }
  return std::shared_ptr<const Log>(new Log(std::move(setting), std::move(file)));
}

void Log::write(LogLevel level, std::string_view kind, std::string_view message) const {
  if (!wants(level)) return;
  std::string line = concat(now_text(), " flashprime[", getpid(), "] ",
                            kLevels[static_cast<size_t>(level)], ' ', kind, ": ", message);
  // One line an event, whatever a compiler or a path has put into it.
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  line += '\n';
  const int saved = errno;
  write_all(file_.ok() ? file_.get() : STDERR_FILENO, line);
  errno = saved;
}

}  // namespace flashprime
