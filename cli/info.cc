// SPDX-License-Identifier: Apache-2.0
// flashprime info: what this build is and what it finds on this machine.
#include <fmt/format.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>

#include "cli/session.h"
#include "cli/text.h"
#include "flashprime/backend.h"
#include "flashprime/jit.h"
#include "flashprime/version.h"

namespace flashprime::cli {
namespace {

constexpr std::string_view kPrefix = "FLASHPRIME_";

// Every variable of FlashPrime. This build acts on those that are marked so.
struct Variable {
  std::string_view name;
  bool used;
  std::string_view meaning;
};
constexpr std::array<Variable, 13> kVariables = {{
    {"CACHE_DIR", true, "kernel cache: a folder, off, or ro:FOLDER"},
    {"CACHE_SHARED", true, "group: the cache folder belongs to a group that may write it"},
    {"CACHE_MAX_MB", true, "size limit of the kernel cache (512)"},
    {"BUNDLE", true, "bundles of compiled kernels, separated by ':'"},
    {"BUNDLE_SHA256", true, "SHA-256 that each of them must have, likewise"},
    {"FREEZE", true, "when a kernel would be compiled: allow, warn or error"},
    {"THREADS", true, "CPU threads of a call, 1 to 1024"},
    {"LOCK_WAIT_S", true, "how long to wait for another process that compiles (120)"},
    {"DUMP_DIR", true, "where source, PTX, cubin and log of kernels are written"},
    {"LOG", true, "off, error, warn, info or debug, and :FILE unless it goes to stderr"},
    {"NVRTC_PATH", true, "the NVRTC library"},
    {"KERNEL_DIR", true, "a folder of kernel sources instead of the embedded kernels/"},
    {"VLLM_OVERRIDE", false, "replaces vLLM's backend choice"},
}};

struct SetVariable {
  std::string name;
  std::string value;
  std::string remark;
};

std::vector<SetVariable> set_variables() {
  std::vector<SetVariable> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.substr(0, kPrefix.size()) != kPrefix) continue;
    const size_t equals = text.find('=');
    const std::string_view name = text.substr(kPrefix.size(), equals - kPrefix.size());
    const auto* known = std::find_if(kVariables.begin(), kVariables.end(),
                                     [&](const Variable& v) { return v.name == name; });
    std::string remark = known == kVariables.end() ? "no variable of FlashPrime"
                         : known->used             ? "in force"
                                                   : "not used by this build";
    found.push_back({printable(text.substr(0, equals)),
                     printable(text.substr(std::min(equals + 1, text.size())), 200),
                     std::move(remark)});
  }
  std::sort(found.begin(), found.end(),
            [](const SetVariable& a, const SetVariable& b) { return a.name < b.name; });
  return found;
}

// The kernel cache and the compiler, or what is wrong with their settings.
struct JitFacts {
  std::string cache;
  std::string compiler;
  std::string log;
};
JitFacts jit_facts() {
  const StatusOr<KernelCache> cache = KernelCache::open();
  if (!cache.ok()) return {cache.status().message(), "not looked for", "off"};
  const JitInfo info = cache->info();
  return {info.cache, info.compiler.substr(0, info.compiler.find('\n')), info.log};
}

// The GPUs of this machine by what is compiled for them, or why there are none.
struct CudaFacts {
  std::vector<std::string> architectures;
  std::string why_none;

  std::string text() const {
    std::string devices;
    for (size_t i = 0; i < architectures.size(); ++i) {
      devices += fmt::format("{}cuda:{} ({})", i == 0 ? "" : ", ", i, architectures[i]);
    }
    return architectures.empty() ? "none: " + why_none : devices;
  }
};

CudaFacts cuda_facts() {
  CudaFacts facts;
  for (int32_t ordinal = 0;; ++ordinal) {
    const StatusOr<std::string> architecture = device_architecture(ordinal);
    if (architecture.ok()) {
      facts.architectures.push_back(*architecture);
      continue;
    }
    if (ordinal == 0) facts.why_none = architecture.status().message();
    return facts;
  }
}

int run_info(Session& session) {
  const CpuInfo cpu = cpu_info();
  const JitFacts jit = jit_facts();
  const auto& kernels = list_kernels();
  const CudaFacts cuda = cuda_facts();
  const std::vector<SetVariable> variables = set_variables();

  if (session.json) {
    Json environment = Json::array();
    for (const SetVariable& variable : variables) {
      environment.push_back(
          {{"name", variable.name}, {"value", variable.value}, {"remark", variable.remark}});
    }
    Json names = Json::array();
    for (const KernelInfo& kernel : kernels) names.push_back(kernel.name);
    session.print_json(
        {{"version", version()},
         {"build", build_description()},
         {"numerics_id", numerics_id()},
         {"cpu",
          {{"brand", cpu.brand}, {"isa_target", cpu.isa_target}, {"threads", cpu.num_threads}}},
         {"cuda_devices", cuda.architectures},
         {"no_cuda", cuda.why_none},
         {"kernel_cache", jit.cache},
         {"compiler", jit.compiler},
         {"log", jit.log},
         {"kernels", std::move(names)},
         {"environment", std::move(environment)}});
    return kExitOk;
  }
  std::string names;
  for (const KernelInfo& kernel : kernels) names += (names.empty() ? "" : ", ") + kernel.name;
  std::vector<std::vector<std::string>> rows = {
      {"version", "FlashPrime " + std::string(version())},
      {"build", std::string(build_description())},
      {"numerics id", numerics_id()},
      {"cpu", cpu.brand},
      {"", "SIMD target " + (cpu.isa_target.empty() ? "none" : cpu.isa_target) + ", " +
               std::to_string(cpu.num_threads) + " threads"},
      {"cuda", cuda.text()},
      {"kernels", names},
      {"kernel cache", jit.cache},
      {"compiler", jit.compiler},
      {"log", jit.log},
  };
  if (variables.empty()) rows.push_back({"environment", "no FLASHPRIME_ variable is set"});
  for (const SetVariable& variable : variables) {
    rows.push_back(
        {"environment", variable.name + '=' + variable.value + "  (" + variable.remark + ')'});
  }
  session.out += align_columns(rows);
  session.out += "repro: " + session.repro + '\n';
  return kExitOk;
}

}  // namespace

Status check_environment() {
  const char* threads = std::getenv("FLASHPRIME_THREADS");
  if (threads == nullptr) return ok_status();
  const StatusOr<int64_t> value = parse_integer(threads, 1, 1024);
  if (value.ok()) return ok_status();
  return {StatusCode::kFormat, "FLASHPRIME_THREADS: " + value.status().message()};
}

void add_info(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand("info", "Versions, processor, kernels, environment");
  app->add_flag("--json", session.json, "JSON on stdout");
  std::string footer = "Environment variables (with the prefix FLASHPRIME_):\n";
  std::vector<std::vector<std::string>> rows;
  for (const Variable& variable : kVariables) {
    rows.push_back({"  " + std::string(variable.name),
                    std::string(variable.meaning) + (variable.used ? "" : " (not yet used)")});
  }
  app->footer(footer + align_columns(rows));
  app->callback([&session] { session.selected = [&session] { return run_info(session); }; });
}

}  // namespace flashprime::cli
