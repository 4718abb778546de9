// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of header length, a JSON header, raw elements.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/tensor_file.h"

namespace flashprime::cli {

// The format's own limit.
constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Reads and checks the header. kFormat with the byte offset for everything that the format forbids,
// and for what would make a reader guess: a name twice, numbers that are not integers below 2^63,
// tensors that overlap, leave gaps or end before the file does.
StatusOr<TensorCatalog> parse_safetensors(std::shared_ptr<const InputFile> file,
                                          std::span<const std::string_view> known_names);

// A tensor to write: dense, row-major.
struct OutputTensor {
  std::string name;
  FileDtype dtype = FileDtype::kFp32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

// Writes the file so that `path` is either what it was before or the whole new file, whatever
// happens on the way (AtomicFile).
Status write_safetensors(const std::string& path, std::span<const OutputTensor> tensors,
                         const std::map<std::string, std::string>& metadata, FileOps& ops);

}  // namespace flashprime::cli
