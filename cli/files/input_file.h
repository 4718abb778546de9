// SPDX-License-Identifier: Apache-2.0
// A regular file that is read at stated offsets, never mapped: a file that shrinks while it is read
// is an error, not a SIGBUS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cli/files/file_ops.h"
#include "flashprime/status.h"

namespace flashprime::cli {

class InputFile {
 public:
  // kIo when the system refuses; kFormat for directories, FIFOs, devices and sockets, none of which
  // has a size to check a header against.
  static StatusOr<std::shared_ptr<const InputFile>> open(const std::string& path, FileOps& ops);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const { return size_; }
  // Reads all of [offset, offset + bytes), which must lie within size().
  Status read(int64_t offset, void* data, int64_t bytes) const;
  // kFormat: "PATH: byte OFFSET: what".
  Status malformed(int64_t offset, std::string_view what) const;

 private:
  InputFile(std::string name, int fd, FileOps& ops) : name_(std::move(name)), fd_(fd), ops_(ops) {}

  std::string name_;  // safe to print
  int fd_;
  FileOps& ops_;
  int64_t size_ = 0;
};

// A path as messages show it.
std::string printable_path(const std::string& path);

// Whether both paths lead to one file that exists, by whatever links.
bool same_file(const std::string& a, const std::string& b);

}  // namespace flashprime::cli
