// SPDX-License-Identifier: Apache-2.0
// Named tensors in files: a safetensors file, or a folder with NAME.npy for each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/input_file.h"

namespace flashprime::cli {

// Element types of the formats. Not all of them are operands of attention.
enum class FileDtype : uint8_t {
  kBool,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFp16,
  kBf16,
  kFp32,
  kFp64,
  kE4m3,
  kE5m2,
};

struct FileDtypeRow {
  FileDtype dtype;
  std::string_view safetensors;  // "BF16"
  std::string_view npy;          // "<f2"; empty: the format lacks it
  int64_t bytes;
};
std::span<const FileDtypeRow> file_dtypes();
const FileDtypeRow& describe(FileDtype dtype);

// More axes than any tensor here has.
constexpr size_t kMaxFileRank = 8;

// A tensor that a header promises; its data is not read yet.
struct TensorEntry {
  std::string name;
  std::shared_ptr<const InputFile> file;
  FileDtype dtype = FileDtype::kBf16;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of the data in the file
  int64_t bytes = 0;   // = product of shape * size of dtype, and within the file
};

struct TensorCatalog {
  std::vector<TensorEntry> tensors;             // in order of name
  std::map<std::string, std::string> metadata;  // empty for npy

  const TensorEntry* find(std::string_view name) const;
};

// Reads and checks the headers of the safetensors file or npy folder `path`. A tensor whose name is
// not in `known_names` is kFormat, so the size of a catalogue is bounded by them.
StatusOr<TensorCatalog> open_tensors(const std::string& path,
                                     std::span<const std::string_view> known_names, FileOps& ops);

// Memory of our own, aligned for any vector instruction.
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  // kOutOfMemory when there is none. Contents are indeterminate.
  static StatusOr<Buffer> allocate(int64_t bytes);

  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

// The data of a tensor.
StatusOr<Buffer> read_tensor(const TensorEntry& entry);

// dtype size * product of shape; nothing when a partial product leaves 63 bits.
std::optional<int64_t> tensor_bytes(FileDtype dtype, std::span<const int64_t> shape);

// "[3, 4]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace flashprime::cli
