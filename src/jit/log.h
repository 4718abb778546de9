// SPDX-License-Identifier: Apache-2.0
// Lines about kernels for whoever runs a server: off unless it is asked for.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "flashprime/status.h"
#include "jit/posix_file.h"

namespace flashprime {

enum class LogLevel : int { kOff = 0, kError = 1, kWarn = 2, kInfo = 3, kDebug = 4 };

// "level" or "level:FILE", of which the level is off, error, warn, info or debug.
struct LogSetting {
  LogLevel level = LogLevel::kOff;
  std::string file;  // empty: stderr

  std::string to_string() const;  // "off", "info to stderr", "debug to /var/log/kernels"
};
// kFormat for an unknown level or a file that is not an absolute path.
StatusOr<LogSetting> parse_log_setting(std::string_view text);

// Thread-safe. A line is one write to a file opened for appending, so that lines of many processes
// do not mix. What cannot be written is lost: a log never fails a call.
class Log {
 public:
  // kIo if the file cannot be opened; it is created with rights for the user alone.
  static StatusOr<std::shared_ptr<const Log>> open(LogSetting setting);

  bool wants(LogLevel level) const { return level <= setting_.level && level != LogLevel::kOff; }
  void write(LogLevel level, std::string_view kind, std::string_view message) const;
  const LogSetting& setting() const { return setting_; }

 private:
  Log(LogSetting setting, UniqueFd file) : setting_(std::move(setting)), file_(std::move(file)) {}

  const LogSetting setting_;
  const UniqueFd file_;
};

}  // namespace flashprime
