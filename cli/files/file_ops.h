// SPDX-License-Identifier: Apache-2.0
// The system calls behind the file readers and writers.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace flashprime::cli {

// Each is the call of that name. Tests replace them, to make the Nth call fail or to serve a file
// from memory.
class FileOps {
 public:
  virtual ~FileOps() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual int stat(const char* path, struct stat* result);
  virtual int fstat(int fd, struct stat* result);
  virtual ssize_t pread(int fd, void* data, size_t bytes, off_t offset);
  virtual ssize_t write(int fd, const void* data, size_t bytes);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
  // Whether the user wants to stop; asked between blocks.
  virtual bool interrupted();

  static FileOps& system();
};

// Bytes that are read or written between two looks at interrupted().
constexpr size_t kFileBlockBytes = size_t{16} << 20;

// Repeats a system call that a signal broke off.
template <typename Call>
auto retry_on_eintr(const Call& call) -> decltype(call()) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace flashprime::cli
