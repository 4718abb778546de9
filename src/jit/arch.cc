// SPDX-License-Identifier: Apache-2.0
#include "jit/arch.h"

#include <algorithm>
#include <array>

#include "checks.h"

namespace flashprime {
namespace {

// From the compute-capability tables of the CUDA programming guide and the release notes of the
// toolkits.
struct ArchRow {
  int32_t sm;
  int32_t shared_kb_per_block;
  int32_t shared_kb_per_sm;
  int32_t nvrtc_plain;   // first version that knows sm_XX and, where it exists, sm_XXa
  int32_t nvrtc_family;  // first that knows sm_XXf; 0: there is none
  bool has_exact;
};
constexpr std::array<ArchRow, 10> kArchs = {{
    {80, 163, 164, 11000, 0, false},
    {86, 99, 100, 11010, 0, false},
    {87, 163, 164, 11040, 0, false},
    {89, 99, 100, 11080, 0, false},
    {90, 227, 228, 11080, 0, true},
    {100, 227, 228, 12080, 12090, true},
    {103, 227, 228, 12090, 12090, true},
    {110, 227, 228, 13000, 13000, true},
    {120, 99, 100, 12080, 12090, true},
    {121, 99, 100, 12090, 12090, true},
}};

const ArchRow* find_row(int32_t sm) {
  const auto* row =
      std::find_if(kArchs.begin(), kArchs.end(), [&](const ArchRow& r) { return r.sm == sm; });
  return row == kArchs.end() ? nullptr : row;
}

}  // namespace

std::string Arch::to_string() const {
  std::string text = "sm_" + std::to_string(sm);
  if (suffix != ' ') text += suffix;
  return text;
}

bool Arch::runs_on(int32_t device_sm) const {
  if (suffix == 'a') return device_sm == sm;
  // A family ends with its major version here: 12.1 is of 12.0's, 11.0 not of 10.0's.
  return device_sm / 10 == sm / 10 && device_sm >= sm;
}

std::vector<Arch> all_archs() {
  std::vector<Arch> archs;
  for (const ArchRow& row : kArchs) {
    archs.push_back({row.sm, ' '});
    if (row.has_exact) archs.push_back({row.sm, 'a'});
    if (row.nvrtc_family != 0) archs.push_back({row.sm, 'f'});
  }
  return archs;
}

StatusOr<Arch> parse_arch(std::string_view text) {
  std::string known;
  for (const Arch& arch : all_archs()) {
    if (arch.to_string() == text) return arch;
    known += (known.empty() ? "" : ", ") + arch.to_string();
  }
  return Status(StatusCode::kFormat,
                concat("arch: got '", text.substr(0, 40), "', want one of ", known));
}

ArchLimits arch_limits(const Arch& arch) {
  const ArchRow* row = find_row(arch.sm);
  if (row == nullptr) return {};
  return {.shared_bytes_per_block = row->shared_kb_per_block * 1024,
          .shared_bytes_per_sm = row->shared_kb_per_sm * 1024};
}

std::vector<Arch> archs_for_device(int32_t device_sm) {
  std::vector<Arch> archs;
  for (const Arch& arch : all_archs()) {
    if (arch.runs_on(device_sm)) archs.push_back(arch);
  }
  const auto rank = [](const Arch& arch) {
    return arch.suffix == 'a' ? 0 : arch.suffix == 'f' ? 1 : 2;
  };
  std::sort(archs.begin(), archs.end(), [&](const Arch& a, const Arch& b) {
    return std::pair(rank(a), -a.sm) < std::pair(rank(b), -b.sm);
  });
  return archs;
}

int32_t min_nvrtc_version(const Arch& arch) {
  const ArchRow* row = find_row(arch.sm);
  if (row == nullptr) return 0;
  return arch.suffix == 'f' ? row->nvrtc_family : row->nvrtc_plain;
}

std::string min_driver(const Arch& arch, int32_t nvrtc_version) {
  // Code of one CUDA major version loads on its first driver, if that knows the architecture.
  const int32_t cuda = std::max({nvrtc_version / 1000 * 1000, min_nvrtc_version(arch), 12000});
  const char* driver = cuda >= 13000   ? "580"
                       : cuda >= 12090 ? "575"
                       : cuda >= 12080 ? "570"
                                       : "525";
  return concat("CUDA ", cuda / 1000, ".", cuda % 1000 / 10, " (driver ", driver, ")");
}

}  // namespace flashprime
