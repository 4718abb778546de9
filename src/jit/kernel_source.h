// SPDX-License-Identifier: Apache-2.0
// A kernel key as a translation unit of a few lines, and the headers that it includes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/kernel_key.h"
#include "jit/sha256.h"

namespace flashprime {

// Name of the kernel in every compiled unit.
inline constexpr char kEntryName[] = "flashprime_kernel";
// Name of every unit in messages: the same for all, since it could end up in the output.
inline constexpr char kUnitName[] = "flashprime_kernel.cu";

struct KernelHeader {
  std::string_view name;  // as #include names it
  std::string_view content;
};

// kernels/ and flashprime/types.h, embedded when the library was built.
std::span<const KernelHeader> embedded_headers();

struct SourceHeader {
  std::string name;
  std::string content;
};

// All that the compiler gets to read.
struct KernelSource {
  std::string unit;
  std::vector<SourceHeader> headers;  // those that the unit includes, directly or not; by name

  // Of the unit and the headers, names included.
  Sha256 hash() const;
};

// `kernel_dir` takes the place of the embedded kernels/ folder unless it is empty. kIo if a header
// cannot be read from there.
StatusOr<KernelSource> make_kernel_source(const KernelKey& key, const std::string& kernel_dir);

}  // namespace flashprime
