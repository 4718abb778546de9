// SPDX-License-Identifier: Apache-2.0
// Replacements for the system calls of the file readers and writers.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/file_ops.h"

namespace flashprime::cli {

// Files that are strings.
class MemoryFileOps : public FileOps {
 public:
  std::map<std::string, std::string> files;
  // Largest sum of what a pread asked for: what a reader must have had memory for.
  int64_t bytes_asked = 0;

  int open(const char* path, int, mode_t) override {
    const auto file = files.find(path);
    if (file == files.end()) {
      errno = ENOENT;
      return -1;
    }
    open_.push_back(&file->second);
    return static_cast<int>(open_.size()) + 999;
  }
  int stat(const char* path, struct stat* result) override {
    const auto file = files.find(path);
    if (file == files.end()) {
      errno = ENOENT;
      return -1;
    }
    return describe_file(file->second, result);
  }
  int fstat(int fd, struct stat* result) override { return describe_file(content(fd), result); }
  ssize_t pread(int fd, void* data, size_t bytes, off_t offset) override {
    bytes_asked += static_cast<int64_t>(bytes);
    const std::string& text = content(fd);
    const auto begin = std::min(static_cast<size_t>(offset), text.size());
    const size_t count = std::min(bytes, text.size() - begin);
    std::memcpy(data, text.data() + begin, count);
    return static_cast<ssize_t>(count);
  }
  int close(int) override { return 0; }
  bool interrupted() override { return false; }

 private:
  const std::string& content(int fd) const { return *open_[static_cast<size_t>(fd) - 1000]; }
  static int describe_file(const std::string& text, struct stat* result) {
    *result = {};
    result->st_mode = S_IFREG | 0644;
    result->st_size = static_cast<off_t>(text.size());
    return 0;
  }
  std::vector<const std::string*> open_;
};

// The real calls, of which the Nth (from 1) fails.
class FaultyFileOps : public FileOps {
 public:
  enum class Fault { kErrno, kShort, kKill, kInterrupt };

  FaultyFileOps(Fault fault, int number, int nth, bool sticky = false)
      : fault_(fault), number_(number), nth_(nth), sticky_(sticky) {}

  int calls() const { return calls_; }
  bool struck() const { return struck_; }

  int open(const char* path, int flags, mode_t mode) override {
    return strikes() ? -1 : FileOps::open(path, flags, mode);
  }
  int stat(const char* path, struct stat* result) override {
    return strikes() ? -1 : FileOps::stat(path, result);
  }
  int fstat(int fd, struct stat* result) override {
    return strikes() ? -1 : FileOps::fstat(fd, result);
  }
  ssize_t pread(int fd, void* data, size_t bytes, off_t offset) override {
    return strikes() ? -1 : FileOps::pread(fd, data, shortened(bytes), offset);
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return strikes() ? -1 : FileOps::write(fd, data, shortened(bytes));
  }
  int fsync(int fd) override { return strikes() ? -1 : FileOps::fsync(fd); }
  int close(int fd) override {
    // A close that fails has closed the descriptor.
    const bool struck = strikes();
    const int result = FileOps::close(fd);
    if (struck) errno = number_;
    return struck ? -1 : result;
  }
  int rename(const char* from, const char* to) override {
    return strikes() ? -1 : FileOps::rename(from, to);
  }
  // A disk that fails everything but this is the worst that a writer can clean up after.
  int unlink(const char* path) override {
    return !sticky_ && strikes() ? -1 : FileOps::unlink(path);
  }
  bool interrupted() override {
    return fault_ == Fault::kInterrupt && calls_ >= nth_ ? (struck_ = true) : false;
  }

 private:
  bool strikes() {
    ++calls_;
    const bool hit = calls_ == nth_ || (sticky_ && calls_ > nth_);
    if (fault_ == Fault::kInterrupt || !hit) return false;
    struck_ = true;
    if (fault_ == Fault::kKill) kill(getpid(), SIGKILL);
    errno = number_;
    return fault_ == Fault::kErrno;
  }
  size_t shortened(size_t bytes) const {
    const bool hit = calls_ == nth_ || (sticky_ && calls_ > nth_);
    return fault_ == Fault::kShort && hit ? std::max<size_t>(bytes / 2, 1) : bytes;
  }

  Fault fault_;
  int number_;
  int nth_;
  bool sticky_;
  int calls_ = 0;
  bool struck_ = false;
};

}  // namespace flashprime::cli
