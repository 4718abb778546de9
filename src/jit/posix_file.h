// SPDX-License-Identifier: Apache-2.0
// File descriptors and whole files, with interruptions retried.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashprime/status.h"

namespace flashprime {

class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

// openat() with O_CLOEXEC and O_NOFOLLOW. Not ok(), and errno, on failure.
UniqueFd open_at(int folder, const std::string& name, int flags, mode_t mode = 0);

// kIo with what, the path and the system's reason.
Status io_error(const std::string& what, const std::string& path, int error);

// kIo on failure; at most `limit` bytes, more are kIo.
StatusOr<std::string> read_all(int fd, const std::string& path, int64_t limit);
StatusOr<std::string> read_file(const std::string& path, int64_t limit);

// 0, or the error number.
int write_all(int fd, std::string_view bytes);

// Writes a file under another name, then renames it: other processes see the old or the new one.
Status replace_file(const std::string& path, std::string_view bytes);

// Names in a folder, without "." and "..". Empty if it cannot be read.
std::vector<std::string> names_in(int folder, const std::string& path);

// 16 hexadecimal digits that no other process draws.
std::string random_name();

}  // namespace flashprime
