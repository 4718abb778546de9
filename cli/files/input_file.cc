// SPDX-License-Identifier: Apache-2.0
#include "cli/files/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

// What a mode is, unless it is a regular file.
const char* special_kind(mode_t mode) {
  if (S_ISREG(mode)) return nullptr;
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO or pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

std::string printable_path(const std::string& path) {
  return printable(path, 4096);
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat of_a = {}, of_b = {};
  return stat(a.c_str(), &of_a) == 0 && stat(b.c_str(), &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

StatusOr<std::shared_ptr<const InputFile>> InputFile::open(const std::string& path, FileOps& ops) {
  // Non-blocking, so that a FIFO without a writer does not hang; regular files do not mind.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = retry_on_eintr([&] { return ops.open(path.c_str(), flags, 0); });
  if (fd < 0) {
    return Status(StatusCode::kIo, fmt::format("{}: cannot open for reading: {}",
                                               printable_path(path), std::strerror(errno)));
  }
  const std::shared_ptr<InputFile> file(new InputFile(printable_path(path), fd, ops));
  struct stat status = {};
  if (retry_on_eintr([&] { return ops.fstat(fd, &status); }) != 0) {
    return Status(StatusCode::kIo,
                  fmt::format("{}: cannot stat: {}", file->name_, std::strerror(errno)));
  }
  if (const char* kind = special_kind(status.st_mode)) {
    return file->malformed(0, fmt::format("is {}, want a regular file", kind));
  }
  file->size_ = status.st_size;
  return std::shared_ptr<const InputFile>(file);
}

InputFile::~InputFile() {
  ops_.close(fd_);
}

Status InputFile::read(int64_t offset, void* data, int64_t bytes) const {
  auto* target = static_cast<char*>(data);
  for (int64_t done = 0; done < bytes;) {
    if (ops_.interrupted()) return {StatusCode::kIo, name_ + ": reading was interrupted"};
    const size_t wanted = std::min(static_cast<size_t>(bytes - done), kFileBlockBytes);
    const ssize_t got = ops_.pread(fd_, target + done, wanted, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return {StatusCode::kIo, fmt::format("{}: byte {}: cannot read: {}", name_, offset + done,
                                           std::strerror(errno))};
    }
    if (got == 0) {
      return malformed(offset + done,
                       fmt::format("the file ends here, but had {} bytes when it was opened: it "
                                   "shrank",
                                   size_));
    }
    done += got;
  }
  return ok_status();
}

Status InputFile::malformed(int64_t offset, std::string_view what) const {
  return {StatusCode::kFormat, fmt::format("{}: byte {}: {}", name_, offset, what)};
}

}  // namespace flashprime::cli
