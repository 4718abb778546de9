// SPDX-License-Identifier: Apache-2.0
// GPU architectures as compile targets: what they are called, what they hold, what they need.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

// A compile target: sm_90, sm_90a, sm_120f. 'a' code runs on exactly that compute capability, 'f'
// code on its family, plain code on the same major version from that minor on.
struct Arch {
  int32_t sm = 0;     // ten times the compute capability
  char suffix = ' ';  // 'a', 'f' or ' '

  auto operator<=>(const Arch&) const = default;
  std::string to_string() const;
  // Runs on a device of compute capability sm / 10?
  bool runs_on(int32_t device_sm) const;
};

// What kernels with wgmma and TMA are compiled for.
inline constexpr Arch kArchSm90a{90, 'a'};

// kFormat unless the text is the name of an architecture that the kernels can be compiled for.
StatusOr<Arch> parse_arch(std::string_view text);

// All that kernels can be compiled for.
std::vector<Arch> all_archs();

// What a block may use there.
struct ArchLimits {
  int32_t shared_bytes_per_block = 0;  // with the opt-in attribute
  int32_t shared_bytes_per_sm = 0;
  int32_t registers_per_thread = 255;
  int32_t registers_per_sm = 65536;
};
ArchLimits arch_limits(const Arch& arch);

// Targets that run on a device, best first: exact 'a', family 'f', plain ones of the same major.
std::vector<Arch> archs_for_device(int32_t device_sm);

// A CUDA version as 1000 * major + 10 * minor, as the driver reports it.
int32_t min_nvrtc_version(const Arch& arch);
// The oldest driver that loads what NVRTC of that version made, as "CUDA 13.0 (driver 580)".
std::string min_driver(const Arch& arch, int32_t nvrtc_version);

}  // namespace flashprime
