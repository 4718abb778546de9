// SPDX-License-Identifier: Apache-2.0
// What a cubin says about itself: an ELF file whose header, notes and symbols name the kernel.
#pragma once

#include <string>
#include <string_view>

#include "flashprime/status.h"
#include "jit/arch.h"

namespace flashprime {

struct CubinInfo {
  int32_t abi_version = 0;
  // The rest is read for ABI versions whose layout we know from real files; it is undocumented.
  bool known_abi = false;
  int32_t sm = 0;
  std::string target;  // "sm_90a"; empty where the ABI does not record it
  bool has_entry = false;
  int32_t registers = 0;  // of the entry; 0: not recorded
};

// kFormat unless the bytes are an ELF file for a CUDA machine with all its tables inside the file.
StatusOr<CubinInfo> read_cubin(std::string_view bytes, std::string_view entry);

// kFormat unless a cubin is for `arch` and has the kernel `entry` with that many registers. An
// unknown ABI version passes once it is a CUDA ELF file.
Status check_cubin(std::string_view bytes, const Arch& arch, std::string_view entry,
                   int32_t registers);

}  // namespace flashprime
