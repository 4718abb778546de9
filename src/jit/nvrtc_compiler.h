// SPDX-License-Identifier: Apache-2.0
// NVRTC, found at run time: a translation unit to a cubin. Needs no GPU and no driver.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "jit/kernel_source.h"

namespace flashprime {

// Where to look besides the places that are always searched.
struct NvrtcSearch {
  std::string path;                  // this library and no other
  std::vector<std::string> folders;  // searched last
};

// What ptxas says about a kernel.
struct PtxasReport {
  int32_t registers = 0;
  int32_t stack_bytes = 0;
  int32_t spill_store_bytes = 0;
  int32_t spill_load_bytes = 0;
  int32_t static_shared_bytes = 0;
  std::vector<std::string> warnings;
};

struct CompileOutput {
  std::string cubin;
  std::string ptx;  // when asked for
  std::string log;
  PtxasReport report;
  double milliseconds = 0.0;
};

// Options of every compilation, in order, apart from those that some NVRTC needs to leave its
// caller's process alone.
std::vector<std::string> compile_options(const Arch& arch);

PtxasReport parse_ptxas_log(const std::string& log);

class NvrtcCompiler {
 public:
  // Order: `search.path`; one that the process has loaded; libnvrtc.so.13, .12 of the system's
  // loader; lib folders of CUDA_HOME and CUDA_PATH; the wheel in VIRTUAL_ENV; `search.folders`.
  // kNoCompiler with everything that was tried.
  static StatusOr<std::shared_ptr<const NvrtcCompiler>> load(const NvrtcSearch& search);

  // kUnsupported if this NVRTC does not know the architecture, with the version that does.
  Status supports(const Arch& arch) const;

  // Thread-safe, and parallel on threads. `cancelled` is asked now and then during the work.
  // kNotWarm when cancelled, kInternal if the unit does not compile, with the head of the log.
  StatusOr<CompileOutput> compile(const KernelSource& source, const Arch& arch, bool want_ptx,
                                  const std::function<bool()>& cancelled = {}) const;

  int32_t version() const { return version_; }  // 13000
  const std::string& path() const { return path_; }
  // 16 hexadecimal digits that name this build of NVRTC.
  const std::string& id() const { return id_; }
  const std::string& description() const { return description_; }

 private:
  struct Api;
  StatusOr<CompileOutput> compile_here(const KernelSource& source, const Arch& arch, bool want_ptx,
                                       const std::function<bool()>& cancelled) const;

  std::shared_ptr<const Api> api_;
  int32_t version_ = 0;
  std::vector<int> supported_sms_;
  std::string path_;
  std::string id_;
  std::string description_;
};

}  // namespace flashprime
