// SPDX-License-Identifier: Apache-2.0
#include "jit/posix_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "checks.h"
#include "jit/sha256.h"

namespace flashprime {

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

UniqueFd open_at(int folder, const std::string& name, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = openat(folder, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode);
  } while (fd < 0 && errno == EINTR);
  return UniqueFd(fd);
}

Status io_error(const std::string& what, const std::string& path, int error) {
  return Status(StatusCode::kIo, what + ' ' + path + ": " + std::strerror(error));
}

StatusOr<std::string> read_all(int fd, const std::string& path, int64_t limit) {
  std::string bytes;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("cannot read", path, errno);
    if (count == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(count));
    if (static_cast<int64_t>(bytes.size()) > limit) {
      return Status(StatusCode::kIo, concat(path, ": longer than ", limit, " bytes"));
    }
  }
}

StatusOr<std::string> read_file(const std::string& path, int64_t limit) {
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  const UniqueFd file(fd);
  if (!file.ok()) return io_error("cannot open", path, errno);
  return read_all(file.get(), path, limit);
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return EIO;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

Status replace_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + '.' + random_name();
  const UniqueFd file = open_at(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (!file.ok()) return io_error("cannot create", temporary, errno);
  int error = write_all(file.get(), bytes);
  if (error == 0 && fsync(file.get()) != 0) error = errno;
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return ok_status();
  unlink(temporary.c_str());
  return io_error("cannot write", path, error);
}

std::vector<std::string> names_in(int folder, const std::string& path) {
  std::vector<std::string> names;
  UniqueFd fd = open_at(folder, path, O_RDONLY | O_DIRECTORY);
  if (!fd.ok()) return names;
  DIR* dir = fdopendir(dup(fd.get()));
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {  // NOLINT(concurrency-mt-unsafe): own stream
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

std::string random_name() {
  uint8_t bytes[8];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    // Early in the boot of a machine, or without the system call: the names only have to differ.
    static std::atomic<uint32_t> counter = 0;
    const uint32_t parts[2] = {static_cast<uint32_t>(getpid()),
                               counter++ + static_cast<uint32_t>(std::time(nullptr)) * 1000u};
    std::memcpy(bytes, parts, sizeof bytes);
  }
  return hex(bytes, sizeof bytes);
}

}  // namespace flashprime
