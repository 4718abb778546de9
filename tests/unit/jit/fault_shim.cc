// SPDX-License-Identifier: Apache-2.0
#include "fault_shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>

namespace flashprime {

FaultPlan& fault_plan() {
  static thread_local FaultPlan plan;
  return plan;
}

namespace {

bool fails(const char* name) {
  FaultPlan& plan = fault_plan();
  if (plan.countdown == 0 || (plan.only != nullptr && std::strcmp(plan.only, name) != 0)) {
    return false;
  }
  ++plan.calls;
  if (plan.calls < plan.countdown || (plan.calls > plan.countdown && !plan.sticky)) return false;
  if (plan.kill) kill(getpid(), SIGKILL);
  errno = plan.error;
  return true;
}

template <typename Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace flashprime

extern "C" {

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  if (flashprime::fails("openat")) return -1;
  static auto* const real = flashprime::next(&openat, "openat");
  return real(folder, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  if (flashprime::fails("write")) return -1;
  static auto* const real = flashprime::next(&write, "write");
  return real(fd, data, size);
}

ssize_t read(int fd, void* data, size_t size) {
  if (flashprime::fails("read")) return -1;
  static auto* const real = flashprime::next(&read, "read");
  return real(fd, data, size);
}

int fsync(int fd) {
  if (flashprime::fails("fsync")) return -1;
  static auto* const real = flashprime::next(&fsync, "fsync");
  return real(fd);
}

int flock(int fd, int operation) noexcept {
  if (flashprime::fails("flock")) return -1;
  static auto* const real = flashprime::next(&flock, "flock");
  return real(fd, operation);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (flashprime::fails("renameat")) return -1;
  static auto* const real = flashprime::next(&renameat, "renameat");
  return real(from_folder, from, to_folder, to);
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  if (flashprime::fails("mkdirat")) return -1;
  static auto* const real = flashprime::next(&mkdirat, "mkdirat");
  return real(folder, path, mode);
}

}  // extern "C"
