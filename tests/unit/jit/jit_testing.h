// SPDX-License-Identifier: Apache-2.0
// What the tests of src/jit share.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "fakes/fake_driver.h"
#include "fakes/fake_nvrtc.h"
#include "flashprime/jit.h"
#include "jit/cache_entry.h"
#include "jit/kernel_key.h"
#include "select/policy_sm80.h"

namespace flashprime {

// A folder of its own for a test, gone afterwards.
class TempDir {
 public:
  TempDir() {
    // In memory if possible: the tests synchronise many files.
    const std::filesystem::path parent = access("/dev/shm", W_OK) == 0
                                             ? std::filesystem::path("/dev/shm")
                                             : std::filesystem::temp_directory_path();
    std::string name = (parent / "flashprime_jit.XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + '/' + name; }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string golden_cubin(const std::string& name) {
  return read_bytes(FLASHPRIME_SOURCE_DIR "/tests/unit/jit/golden/" + name + ".cubin");
}

// State of a fake library, which the call loads if need be.
template <typename State>
State& fake_state(const char* library, const char* symbol) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << dlerror();
  return *static_cast<State*>(dlsym(handle, symbol));
}
inline FakeNvrtcState& fake_nvrtc() {
  return fake_state<FakeNvrtcState>(FLASHPRIME_FAKE_NVRTC, kFakeNvrtcState);
}
inline FakeDriverState& fake_driver() {
  return fake_state<FakeDriverState>(FLASHPRIME_FAKE_DRIVER, kFakeDriverState);
}

inline KernelKey prefill_key(const std::string& arch, bool lse = false,
                             MaskKind mask = MaskKind::kCausal) {
  PrefillTraits traits;
  traits.mask = mask;
  traits.return_lse = lse;
  const Arch target = *parse_arch(arch);
  return {Sm80MlaPrefillKernel{traits, sm80_policy(traits, target)}, target};
}

// An entry around a real cubin of a one-line kernel. `number` tells entries apart.
inline CompiledKernel sample_kernel(int number = 0, const std::string& arch = "sm_90a") {
  CompiledKernel kernel;
  kernel.kernel_id = hex(sha256("kernel " + std::to_string(number)));
  kernel.compiler_id = "0123456789abcdef";
  kernel.compiler = "a compiler";
  kernel.nvrtc_version = 13000;
  kernel.arch = *parse_arch(arch);
  kernel.key = prefill_key(arch).text();
  kernel.options = compile_options(kernel.arch);
  kernel.report.warnings = {"a warning"};
  kernel.compile_us = 1234;
  kernel.created = 5678;
  kernel.cubin = golden_cubin("nvrtc_13.0_" + arch);
  return kernel;
}

// Runs body() in a child process; its exit status as waitpid() gives it.
inline int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace flashprime
