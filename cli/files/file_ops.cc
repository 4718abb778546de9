// SPDX-License-Identifier: Apache-2.0
#include "cli/files/file_ops.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "cli/session.h"

namespace flashprime::cli {

int FileOps::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}

int FileOps::stat(const char* path, struct stat* result) {
  return ::stat(path, result);
}

int FileOps::fstat(int fd, struct stat* result) {
  return ::fstat(fd, result);
}

ssize_t FileOps::pread(int fd, void* data, size_t bytes, off_t offset) {
  return ::pread(fd, data, bytes, offset);
}

ssize_t FileOps::write(int fd, const void* data, size_t bytes) {
  return ::write(fd, data, bytes);
}

int FileOps::fsync(int fd) {
  return ::fsync(fd);
}

int FileOps::close(int fd) {
  return ::close(fd);
}

int FileOps::rename(const char* from, const char* to) {
  return ::rename(from, to);
}

int FileOps::unlink(const char* path) {
  return ::unlink(path);
}

bool FileOps::interrupted() {
  return cli::interrupted();
}

FileOps& FileOps::system() {
  static FileOps ops;
  return ops;
}

}  // namespace flashprime::cli
