// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/files/file_ops.h"
#include "flashprime/status.h"

namespace flashprime::cli {

// Writes to a temporary file beside `path`, makes it durable, and renames it over `path`. Unless
// commit() gets that far, the destructor removes the temporary file and `path` is what it was;
// a process that is killed can leave the temporary file, never half of `path`. A symbolic link at
// `path` is replaced, not followed.
class AtomicFile {
 public:
  // kIo when there is a directory or device at `path`, or no file can be made beside it.
  static StatusOr<std::unique_ptr<AtomicFile>> create(const std::string& path, FileOps& ops);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status write(const void* data, int64_t bytes);
  // At most once, and nothing else after it.
  Status commit();

 private:
  AtomicFile(std::string path, std::string temporary_path, int fd, FileOps& ops)
      : path_(std::move(path)), temporary_path_(std::move(temporary_path)), fd_(fd), ops_(ops) {}

  Status io_error(const char* what, int number) const;
  Status sync_folder();

  std::string path_;
  std::string temporary_path_;  // empty once it is gone
  int fd_;                      // -1 once closed
  FileOps& ops_;
};

}  // namespace flashprime::cli
