// SPDX-License-Identifier: Apache-2.0
#include "cli/files/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/files/input_file.h"

namespace flashprime::cli {
namespace {

// The folder of a path, with its slash; "" when the path has none.
std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);
}

Status cannot_write(const std::string& path, std::string_view why) {
  return {StatusCode::kIo, fmt::format("{}: cannot write: {}", printable_path(path), why)};
}

}  // namespace

StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::create(const std::string& path, FileOps& ops) {
  const std::string folder = folder_of(path);
  const std::string name = path.substr(folder.size());
  if (name.empty()) return cannot_write(path, "want the name of a file");
  struct stat status = {};
  if (retry_on_eintr([&] { return ops.stat(path.c_str(), &status); }) == 0) {
    // Renaming over a device such as /dev/null would replace it for everybody.
    if (!S_ISREG(status.st_mode)) {
      return cannot_write(path, S_ISDIR(status.st_mode) ? "it is a directory"
                                                        : "it exists and is not a regular file");
    }
  } else if (errno != ENOENT) {
    return cannot_write(path, std::strerror(errno));
  }
  // Names of at most 255 bytes are what file systems take.
  const std::string stem =
      folder + "." + name.substr(0, 200) + "." + std::to_string(getpid()) + "-";
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  for (int attempt = 0;; ++attempt) {
    const std::string temporary_path = stem + std::to_string(attempt) + ".part";
    const int fd = retry_on_eintr([&] { return ops.open(temporary_path.c_str(), flags, 0666); });
    if (fd >= 0) {
      return std::unique_ptr<AtomicFile>(new AtomicFile(path, temporary_path, fd, ops));
    }
    // Left by a killed process of the same number.
    if (errno != EEXIST || attempt == 100) return cannot_write(path, std::strerror(errno));
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ops_.close(fd_);
  if (!temporary_path_.empty()) {
    retry_on_eintr([&] { return ops_.unlink(temporary_path_.c_str()); });
  }
}

Status AtomicFile::write(const void* data, int64_t bytes) {
  const auto* source = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes;) {
    if (ops_.interrupted()) return cannot_write(path_, "interrupted");
    const size_t wanted = std::min(static_cast<size_t>(bytes - done), kFileBlockBytes);
    const ssize_t got = ops_.write(fd_, source + done, wanted);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("write", errno);
    if (got == 0) return io_error("write", EIO);
    done += got;
  }
  return ok_status();
}

Status AtomicFile::commit() {
  if (ops_.interrupted()) return cannot_write(path_, "interrupted");
  if (retry_on_eintr([&] { return ops_.fsync(fd_); }) != 0) return io_error("fsync", errno);
  const int closed = ops_.close(std::exchange(fd_, -1));
  // After EINTR the descriptor is closed all the same, and fsync has reported what could be lost.
  if (closed != 0 && errno != EINTR) return io_error("close", errno);
  if (retry_on_eintr([&] { return ops_.rename(temporary_path_.c_str(), path_.c_str()); }) != 0) {
    return io_error("rename", errno);
  }
  temporary_path_.clear();
  return sync_folder();
}

// Makes the rename durable.
Status AtomicFile::sync_folder() {
  const std::string folder = folder_of(path_) + ".";
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const int fd = retry_on_eintr([&] { return ops_.open(folder.c_str(), flags, 0); });
  if (fd < 0) return io_error("open folder", errno);
  const int synced = retry_on_eintr([&] { return ops_.fsync(fd); });
  const int number = errno;
  ops_.close(fd);
  // Some file systems cannot sync a folder, and say EINVAL.
  if (synced != 0 && number != EINVAL) return io_error("fsync folder", number);
  return ok_status();
}

Status AtomicFile::io_error(const char* what, int number) const {
  return cannot_write(path_, fmt::format("{}: {}", what, std::strerror(number)));
}

}  // namespace flashprime::cli
