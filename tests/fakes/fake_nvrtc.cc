// SPDX-License-Identifier: Apache-2.0
#include "fakes/fake_nvrtc.h"

#include <elf.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#define FAKE extern "C" __attribute__((visibility("default")))

extern "C" {
__attribute__((visibility("default"))) FakeNvrtcState fake_nvrtc_state;
}

namespace {

struct Program {
  std::string source;
  std::string cubin;
  std::string log;
  int (*callback)(void*, void*) = nullptr;
  void* callback_data = nullptr;
};

int delay_ms() {
  const char* text = std::getenv("FAKE_NVRTC_DELAY_MS");
  return fake_nvrtc_state.delay_ms + (text != nullptr ? std::atoi(text) : 0);
}

// A CUDA ELF file of an ABI version that does not exist, so that only its frame is checked.
std::string make_cubin(const Program& program, const std::string& options) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_ABIVERSION] = 99;
  header.e_machine = 190;
  std::string cubin(reinterpret_cast<const char*>(&header), sizeof header);
  const std::string salt(1, static_cast<char>('0' + fake_nvrtc_state.salt));
  return cubin + salt + options + program.source;
}

int copy(const std::string& text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return 0;
}

}  // namespace

FAKE const char* nvrtcGetErrorString(int result) {
  return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR of the fake";
}
FAKE int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 7;
  return 0;
}
FAKE int nvrtcGetNumSupportedArchs(int* count) {
  *count = 6;
  return 0;
}
FAKE int nvrtcGetSupportedArchs(int* archs) {
  const int known[] = {80, 86, 89, 90, 100, 120};
  std::memcpy(archs, known, sizeof known);
  return 0;
}
FAKE int nvrtcCreateProgram(Program** program, const char* source, const char*, int,
                            const char* const*, const char* const*) {
  *program = new Program;
  (*program)->source = source;
  return 0;
}
FAKE int nvrtcDestroyProgram(Program** program) {
  delete *program;
  return 0;
}
FAKE int nvrtcSetFlowCallback(Program* program, int (*callback)(void*, void*), void* data) {
  program->callback = callback;
  program->callback_data = data;
  return 0;
}
FAKE int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  std::string all;
  for (int i = 0; i < count; ++i) all += std::string(options[i]) + '\n';
  {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    std::strncpy(fake_nvrtc_state.last_options, all.c_str(),
                 sizeof fake_nvrtc_state.last_options - 1);
  }
  ++fake_nvrtc_state.running;
  int cancelled = 0;
  for (int waited = 0; waited < delay_ms() && cancelled == 0; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (program->callback != nullptr)
      cancelled = program->callback(program->callback_data, nullptr);
  }
  --fake_nvrtc_state.running;
  if (cancelled != 0) return 16;
  ++fake_nvrtc_state.compilations;
  if (fake_nvrtc_state.result != 0) {
    program->log = "kernel.cu(1): error: the fake was told to fail";
    return fake_nvrtc_state.result;
  }
  program->cubin = make_cubin(*program, all);
  program->log =
      "ptxas info    : 0 bytes gmem\n"
      "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 42 registers, used 1 barriers, 16 bytes smem\n";
  return 0;
}
FAKE int nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = program->cubin.size();
  return 0;
}
FAKE int nvrtcGetCUBIN(Program* program, char* cubin) {
  return copy(program->cubin, cubin);
}
FAKE int nvrtcGetPTXSize(Program*, size_t* size) {
  *size = 1;
  return 0;
}
FAKE int nvrtcGetPTX(Program*, char* ptx) {
  *ptx = '\0';
  return 0;
}
FAKE int nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}
FAKE int nvrtcGetProgramLog(Program* program, char* log) {
  log[program->log.size()] = '\0';
  return copy(program->log, log);
}
