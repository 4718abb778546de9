// SPDX-License-Identifier: Apache-2.0
#include "jit/kernel_source.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "checks.h"

namespace flashprime {
namespace {

constexpr std::string_view kKernelFolder = "kernels/";

StatusOr<std::string> read_header(const std::string& name, const std::string& kernel_dir) {
  if (!kernel_dir.empty() && name.starts_with(kKernelFolder)) {
    const std::string path = kernel_dir + '/' + name.substr(kKernelFolder.size());
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    FLASHPRIME_REQUIRE(file && content, StatusCode::kIo, "FLASHPRIME_KERNEL_DIR: cannot read ",
                       path, ": ", std::strerror(errno));
    return content.str();
  }
  for (const KernelHeader& header : embedded_headers()) {
    if (header.name == name) return std::string(header.content);
  }
  return Status(StatusCode::kInternal, "kernel sources: no header '" + name + "'");
}

// What the quoted #include directives of a source name, in order. Kernels write them plainly, one
// a line, never under a condition.
std::vector<std::string> included_names(std::string_view source) {
  constexpr std::string_view kDirective = "#include \"";
  std::vector<std::string> names;
  while (!source.empty()) {
    const std::string_view line = source.substr(0, source.find('\n'));
    source.remove_prefix(std::min(source.size(), line.size() + 1));
    if (!line.starts_with(kDirective)) continue;
    const std::string_view name = line.substr(kDirective.size());
    names.emplace_back(name.substr(0, name.find('"')));
  }
  return names;
}

// The constants of a unit, and what the host assumed about the kernel, checked where it is
// compiled.
template <typename Kernel>
std::string prefill_constants(const Kernel& kernel, const LaunchShape& shape,
                              std::string_view policy, std::string_view device_struct) {
  return concat("constexpr PrefillTraits kTraits", initialiser(kernel.traits), ";\n", "constexpr ",
                policy, " kPolicy", initialiser(kernel.policy), ";\n",
                "using Kernel = ", device_struct, "<kTraits, kPolicy>;\n",
                "static_assert(Kernel::kThreads == ", shape.num_threads, ");\n",
                "static_assert(Kernel::kSharedBytes == ", shape.shared_bytes, ");\n");
}
std::string constants_of(const Sm80MlaPrefillKernel& kernel, const LaunchShape& shape) {
  return prefill_constants(kernel, shape, "Sm80PrefillPolicy", "Sm80MlaPrefill");
}
std::string constants_of(const Sm90MlaPrefillKernel& kernel, const LaunchShape& shape) {
  return prefill_constants(kernel, shape, "Sm90PrefillPolicy", "Sm90MlaPrefill");
}
std::string constants_of(const MergeStatesKernel& kernel, const LaunchShape&) {
  return concat("constexpr MergeTraits kTraits", initialiser(kernel.traits), ";\n");
}
std::string constants_of(const CombineSplitsKernel& kernel, const LaunchShape&) {
  return concat("constexpr MergeTraits kTraits", initialiser(kernel.traits), ";\n");
}

// Name and template arguments of the device function, and its parameter.
struct Call {
  std::string_view arguments;
  std::string_view params;
};
constexpr Call call_of(const Sm80MlaPrefillKernel&) {
  return {"kTraits, kPolicy", "PrefillParams"};
}
constexpr Call call_of(const Sm90MlaPrefillKernel&) {
  return {"kTraits, kPolicy", "Sm90PrefillParams"};
}
constexpr Call call_of(const MergeStatesKernel&) {
  return {"kTraits", "MergeParams"};
}
constexpr Call call_of(const CombineSplitsKernel&) {
  return {"kTraits", "CombineParams"};
}

template <typename Kernel>
std::string unit_of(const Kernel& kernel, const LaunchShape& shape) {
  const Call call = call_of(kernel);
  return concat("#include \"", kernel.kHeader, "\"\n\nusing namespace flashprime;\n\n",
                constants_of(kernel, shape), "static_assert(sizeof(", call.params,
                ") == ", sizeof(typename Kernel::Params), ");\n\nextern \"C\" __global__ void ",
                "__launch_bounds__(", shape.num_threads, ", ", shape.min_blocks_per_sm, ") ",
                kEntryName, "(const __grid_constant__ ", call.params, " params) {\n  ",
                kernel.kName, "<", call.arguments, ">(params);\n}\n");
}

}  // namespace

StatusOr<KernelSource> make_kernel_source(const KernelKey& key, const std::string& kernel_dir) {
  KernelSource source;
  source.unit = std::visit([&](const auto& kernel) { return unit_of(kernel, key.launch_shape()); },
                           key.kernel);
  std::map<std::string, std::string> headers;
  std::vector<std::string> pending = included_names(source.unit);
  while (!pending.empty()) {
    const std::string name = pending.back();
    pending.pop_back();
    if (headers.contains(name)) continue;
    StatusOr<std::string> content = read_header(name, kernel_dir);
    if (!content.ok()) return content.status();
    for (std::string& included : included_names(*content)) pending.push_back(std::move(included));
    headers.emplace(name, *std::move(content));
  }
  for (auto& [name, content] : headers) source.headers.push_back({name, std::move(content)});
  return source;
}

Sha256 KernelSource::hash() const {
  std::string all = concat(unit.size(), '\n', unit);
  for (const SourceHeader& header : headers) {
    all += concat(header.name, ' ', header.content.size(), '\n', header.content);
  }
  return sha256(all);
}

}  // namespace flashprime
