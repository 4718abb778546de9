// SPDX-License-Identifier: Apache-2.0
#include "jit/machine_limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace flashprime {
namespace {

constexpr int64_t kMaxThreads = 8;
constexpr int64_t kBytesPerCompilation = int64_t{256} << 20;

int64_t affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Quota of the control group in whole cores, or a large number. Version 2 as containers see it.
int64_t cgroup_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0.0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0.0) return kMaxThreads;
  return std::max<int64_t>(1, static_cast<int64_t>(std::atof(quota.c_str()) / period));
}

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (int64_t kilobytes = 0; file >> name >> kilobytes; file.ignore(1000, '\n')) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return kMaxThreads * kBytesPerCompilation;
}

}  // namespace

int32_t default_compile_threads() {
  const int64_t threads = std::min(
      {affinity_cores(), cgroup_cores(), kMaxThreads, available_bytes() / kBytesPerCompilation});
  return static_cast<int32_t>(std::max<int64_t>(threads, 1));
}

int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

double process_cpu_ms() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return 1000.0 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_usec);
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

}  // namespace flashprime
