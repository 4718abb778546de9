// SPDX-License-Identifier: Apache-2.0
#include "jit/nvrtc_compiler.h"

#include <dirent.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "checks.h"
#include "cuda/dynamic_library.h"

namespace flashprime {
namespace {

// The few declarations of nvrtc.h that are used.
using Program = struct NvrtcProgram*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kCompilationError = 6;
constexpr Result kCancelled = 16;

// First version that knows --no-cache; older ones refuse it, and have no cache.
constexpr int32_t kFirstWithCache = 12090;
constexpr int32_t kMinVersion = 12000;  // C++20
// The front end recurses; it needs more than 64 KB and a caller's thread may have little.
constexpr size_t kStackBytes = size_t{8} << 20;
constexpr size_t kLogHead = 2000;

// Runs body() on a thread with a large stack and waits for it. Costs some 50 us.
bool run_with_large_stack(const std::function<void()>& body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread = {};
  const int error = pthread_create(
      &thread, &attributes,
      [](void* data) -> void* {
        (*static_cast<const std::function<void()>*>(data))();
        return nullptr;
      },
      const_cast<std::function<void()>*>(&body));
  pthread_attr_destroy(&attributes);
  return error == 0 && pthread_join(thread, nullptr) == 0;
}

std::vector<std::string> subfolders(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> names;
  if (DIR* dir = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(dir)) {  // NOLINT(concurrency-mt-unsafe): own stream
      if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
    }
    closedir(dir);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Folders of NVRTC's wheels below an environment of Python.
std::vector<std::string> wheel_folders(const std::string& environment) {
  std::vector<std::string> folders;
  for (const std::string& python : subfolders(environment + "/lib", "python3")) {
    const std::string nvidia = environment + "/lib/" + python + "/site-packages/nvidia/";
    for (const char* wheel : {"cu13/lib", "cuda_nvrtc/lib"}) folders.push_back(nvidia + wheel);
  }
  return folders;
}

std::string environment_folder(const char* name) {
  // Another user's environment must not choose the code that a privileged process runs.
  const char* value = secure_getenv(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

StatusOr<DynamicLibrary> find_library(const NvrtcSearch& search) {
  constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
  std::string tried;
  const auto attempt = [&](const std::string& name, bool only_if_loaded) {
    StatusOr<DynamicLibrary> library = DynamicLibrary::open(name, only_if_loaded);
    if (!library.ok() && !only_if_loaded) tried += "\n  " + library.status().message();
    return library;
  };
  const auto not_found = [&] {
    return Status(StatusCode::kNoCompiler,
                  "NVRTC: not found; install the Python package nvidia-cuda-nvrtc or a CUDA "
                  "toolkit, or set FLASHPRIME_NVRTC_PATH to the library's path. Tried:" +
                      tried);
  };
  if (!search.path.empty()) {
    StatusOr<DynamicLibrary> library = attempt(search.path, false);
    if (library.ok()) return library;
    return not_found();
  }
  for (const bool only_if_loaded : {true, false}) {
    for (const char* soname : kSonames) {
      StatusOr<DynamicLibrary> library = attempt(soname, only_if_loaded);
      if (library.ok()) return library;
    }
  }
  std::vector<std::string> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string root = environment_folder(name);
    if (root.empty()) continue;
    for (const char* lib : {"/lib64", "/lib"}) folders.push_back(root + lib);
  }
  const std::string environment = environment_folder("VIRTUAL_ENV");
  if (!environment.empty()) {
    for (std::string& folder : wheel_folders(environment)) folders.push_back(std::move(folder));
  }
  folders.insert(folders.end(), search.folders.begin(), search.folders.end());
  for (const std::string& folder : folders) {
    for (const char* soname : kSonames) {
      StatusOr<DynamicLibrary> library = attempt(folder + '/' + soname, false);
      if (library.ok()) return library;
    }
  }
  return not_found();
}

// The number before `unit` in a line like "24 bytes stack frame, 8 bytes spill stores"; or 0.
int32_t number_before(std::string_view line, std::string_view unit) {
  const size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int32_t value = 0;
  for (; begin < end && value < 100'000'000; ++begin) value = value * 10 + (line[begin] - '0');
  return value;
}

}  // namespace

struct NvrtcCompiler::Api {
  const char* (*error_string)(Result);
  Result (*version)(int*, int*);
  Result (*num_supported_archs)(int*);
  Result (*supported_archs)(int*);
  Result (*create_program)(Program*, const char*, const char*, int, const char* const*,
                           const char* const*);
  Result (*destroy_program)(Program*);
  Result (*compile_program)(Program, int, const char* const*);
  Result (*cubin_size)(Program, size_t*);
  Result (*cubin)(Program, char*);
  Result (*ptx_size)(Program, size_t*);
  Result (*ptx)(Program, char*);
  Result (*log_size)(Program, size_t*);
  Result (*log)(Program, char*);
  // Not in every version; nullptr then, and a compilation cannot be cancelled.
  Result (*set_flow_callback)(Program, int (*)(void*, void*), void*);

  // Name of the first entry point that is missing, or empty.
  const char* load(const DynamicLibrary& library) {
    library.load("nvrtcSetFlowCallback", set_flow_callback);
    if (!library.load("nvrtcGetErrorString", error_string)) return "nvrtcGetErrorString";
    if (!library.load("nvrtcVersion", version)) return "nvrtcVersion";
    if (!library.load("nvrtcGetNumSupportedArchs", num_supported_archs)) {
      return "nvrtcGetNumSupportedArchs";
    }
    if (!library.load("nvrtcGetSupportedArchs", supported_archs)) return "nvrtcGetSupportedArchs";
    if (!library.load("nvrtcCreateProgram", create_program)) return "nvrtcCreateProgram";
    if (!library.load("nvrtcDestroyProgram", destroy_program)) return "nvrtcDestroyProgram";
    if (!library.load("nvrtcCompileProgram", compile_program)) return "nvrtcCompileProgram";
    if (!library.load("nvrtcGetCUBINSize", cubin_size)) return "nvrtcGetCUBINSize";
    if (!library.load("nvrtcGetCUBIN", cubin)) return "nvrtcGetCUBIN";
    if (!library.load("nvrtcGetPTXSize", ptx_size)) return "nvrtcGetPTXSize";
    if (!library.load("nvrtcGetPTX", ptx)) return "nvrtcGetPTX";
    if (!library.load("nvrtcGetProgramLogSize", log_size)) return "nvrtcGetProgramLogSize";
    if (!library.load("nvrtcGetProgramLog", log)) return "nvrtcGetProgramLog";
    return "";
  }
};

std::vector<std::string> compile_options(const Arch& arch) {
  return {"--gpu-architecture=" + arch.to_string(),
          "-std=c++20",
          "-default-device",
          "--modify-stack-limit=false",
          "--minimal",
          "--ptxas-options=-v",
          "--ptxas-options=--warn-on-spills"};
}

PtxasReport parse_ptxas_log(const std::string& log) {
  PtxasReport report;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("bytes stack frame") != std::string::npos) {
      report.stack_bytes = number_before(line, " bytes stack frame");
      report.spill_store_bytes = number_before(line, " bytes spill stores");
      report.spill_load_bytes = number_before(line, " bytes spill loads");
    } else if (line.find(": Used ") != std::string::npos) {
      report.registers = number_before(line, " registers");
      report.static_shared_bytes = number_before(line, " bytes smem");
    } else if (line.find("warning") != std::string::npos ||
               line.find("(C75") != std::string::npos) {
      report.warnings.push_back(line);
    }
  }
  return report;
}

StatusOr<std::shared_ptr<const NvrtcCompiler>> NvrtcCompiler::load(const NvrtcSearch& search) {
  const StatusOr<DynamicLibrary> library = find_library(search);
  if (!library.ok()) return library.status();
  const auto unusable = [&](const std::string& why) {
    return Status(StatusCode::kNoCompiler, "NVRTC: " + library->path() + ": " + why);
  };
  auto api = std::make_shared<Api>();
  const std::string missing = api->load(*library);
  if (!missing.empty()) return unusable("has no " + missing);

  auto compiler = std::make_shared<NvrtcCompiler>();
  int major = 0;
  int minor = 0;
  if (api->version(&major, &minor) != kSuccess) return unusable("does not tell its version");
  compiler->version_ = major * 1000 + minor * 10;
  const std::string version = concat(major, '.', minor);
  if (compiler->version_ < kMinVersion) return unusable("is " + version + ", want 12.0 or later");

  // NVRTC loads its built-in functions by bare name and does not look in its own folder.
  const StatusOr<DynamicLibrary> builtins =
      DynamicLibrary::open(library->folder() + "/libnvrtc-builtins.so." + version);
  if (!builtins.ok()) {
    return unusable("its library of built-in functions must be beside it: " +
                    builtins.status().message());
  }
  int count = 0;
  if (api->num_supported_archs(&count) == kSuccess && count > 0 && count < 1000) {
    compiler->supported_sms_.resize(static_cast<size_t>(count));
    api->supported_archs(compiler->supported_sms_.data());
  }
  const std::string identity = concat(version, '|', library->build_id(), '|', builtins->build_id());
  compiler->id_ = hex(sha256(identity)).substr(0, 16);
  compiler->description_ = concat("NVRTC ", version, ", build ", library->build_id());
  compiler->path_ = library->path();
  compiler->api_ = std::move(api);
  return std::shared_ptr<const NvrtcCompiler>(std::move(compiler));
}

Status NvrtcCompiler::supports(const Arch& arch) const {
  const int32_t wanted = min_nvrtc_version(arch);
  const bool known =
      std::find(supported_sms_.begin(), supported_sms_.end(), arch.sm) != supported_sms_.end();
  FLASHPRIME_REQUIRE(version_ >= wanted && known, StatusCode::kUnsupported, arch.to_string(),
                     ": got NVRTC ", version_ / 1000, '.', version_ % 1000 / 10, " (", path_,
                     "), want ", wanted / 1000, '.', wanted % 1000 / 10, " or later");
  return ok_status();
}

StatusOr<CompileOutput> NvrtcCompiler::compile(const KernelSource& source, const Arch& arch,
                                               bool want_ptx,
                                               const std::function<bool()>& cancelled) const {
  FLASHPRIME_RETURN_IF_ERROR(supports(arch));
  StatusOr<CompileOutput> output(Status(StatusCode::kOutOfMemory, "NVRTC: no thread to run it on"));
  run_with_large_stack([&] {
    output = without_exceptions([&] { return compile_here(source, arch, want_ptx, cancelled); });
  });
  return output;
}

StatusOr<CompileOutput> NvrtcCompiler::compile_here(const KernelSource& source, const Arch& arch,
                                                    bool want_ptx,
                                                    const std::function<bool()>& cancelled) const {
  const auto start = std::chrono::steady_clock::now();
  const auto failed = [&](const char* what, Result result) {
    return Status(StatusCode::kInternal, concat("NVRTC: ", what, ": ", api_->error_string(result)));
  };
  std::vector<const char*> names;
  std::vector<const char*> contents;
  for (const SourceHeader& header : source.headers) {
    names.push_back(header.name.c_str());
    contents.push_back(header.content.c_str());
  }
  Program program = nullptr;
  Result result =
      api_->create_program(&program, source.unit.c_str(), kUnitName, static_cast<int>(names.size()),
                           contents.data(), names.data());
  if (result != kSuccess) return failed("cannot create a program", result);
  const std::shared_ptr<void> guard(nullptr, [&](void*) { api_->destroy_program(&program); });

  if (cancelled && api_->set_flow_callback != nullptr) {
    api_->set_flow_callback(
        program,
        [](void* data, void*) {
          return (*static_cast<const std::function<bool()>*>(data))() ? 1 : 0;
        },
        const_cast<std::function<bool()>*>(&cancelled));
  }
  std::vector<std::string> options = compile_options(arch);
  // Without it NVRTC initialises the driver for a cache of its own.
  if (version_ >= kFirstWithCache) options.push_back("--no-cache");
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());
  result = api_->compile_program(program, static_cast<int>(arguments.size()), arguments.data());

  CompileOutput output;
  const auto fetch = [&](auto size_of, auto get, std::string& text) {
    size_t size = 0;
    if (size_of(program, &size) != kSuccess || size == 0) return false;
    text.resize(size);
    return get(program, text.data()) == kSuccess;
  };
  const auto strip_end = [](std::string& text) {
    while (!text.empty() && text.back() == '\0') text.pop_back();
  };
  fetch(api_->log_size, api_->log, output.log);
  strip_end(output.log);
  if (result == kCancelled) return Status(StatusCode::kNotWarm, "NVRTC: cancelled");
  if (result != kSuccess) {
    return Status(StatusCode::kInternal,
                  concat("NVRTC: ", api_->error_string(result),
                         result == kCompilationError ? "" : " (not an error of the source)", '\n',
                         std::string_view(output.log).substr(0, kLogHead)));
  }
  if (!fetch(api_->cubin_size, api_->cubin, output.cubin)) {
    return Status(StatusCode::kInternal, "NVRTC: compiled, but gave no cubin");
  }
  if (want_ptx) {
    fetch(api_->ptx_size, api_->ptx, output.ptx);
    strip_end(output.ptx);
  }
  output.report = parse_ptxas_log(output.log);
  output.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return output;
}

}  // namespace flashprime
