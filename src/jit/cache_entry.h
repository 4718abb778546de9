// SPDX-License-Identifier: Apache-2.0
// A compiled kernel and all that is known about it, as bytes that check themselves. The same bytes
// are a file of the disk cache and an item of a bundle.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashprime/status.h"
#include "jit/nvrtc_compiler.h"

namespace flashprime {

struct CompiledKernel {
  std::string kernel_id;    // names key, sources and options; 64 hexadecimal digits
  std::string compiler_id;  // names the build of NVRTC; 16 hexadecimal digits
  std::string compiler;     // in words
  int32_t nvrtc_version = 0;
  Arch arch;
  std::string key;  // canonical text
  std::vector<std::string> options;
  std::string entry = kEntryName;
  PtxasReport report;
  int32_t shared_bytes = 0;  // dynamic, as launched
  // Facts about one compilation; zero in bundles, so that equal kernels are equal bytes.
  int64_t compile_us = 0;
  int64_t created = 0;  // seconds since 1970
  std::string cubin;
};

// The identity of what a compiler is given.
std::string kernel_id_of(const KernelKey& key, const KernelSource& source);

std::string encode_entry(const CompiledKernel& kernel);

// kFormat, with the reason, for anything that encode_entry() did not make, including entries of
// another version, damaged ones, and ones whose cubin is for another architecture or kernel.
StatusOr<CompiledKernel> decode_entry(std::string_view bytes);

}  // namespace flashprime
