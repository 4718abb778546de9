// SPDX-License-Identifier: Apache-2.0
#include "cli/files/tensor_file.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "cli/files/npy.h"
#include "cli/files/safetensors.h"
#include "cli/text.h"

namespace flashprime::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "both formats are little-endian");

constexpr FileDtypeRow kFileDtypes[] = {
    {FileDtype::kBool, "BOOL", "|b1", 1},  {FileDtype::kInt8, "I8", "|i1", 1},
    {FileDtype::kUint8, "U8", "|u1", 1},   {FileDtype::kInt16, "I16", "<i2", 2},
    {FileDtype::kUint16, "U16", "<u2", 2}, {FileDtype::kInt32, "I32", "<i4", 4},
    {FileDtype::kUint32, "U32", "<u4", 4}, {FileDtype::kInt64, "I64", "<i8", 8},
    {FileDtype::kUint64, "U64", "<u8", 8}, {FileDtype::kFp16, "F16", "<f2", 2},
    {FileDtype::kBf16, "BF16", "", 2},     {FileDtype::kFp32, "F32", "<f4", 4},
    {FileDtype::kFp64, "F64", "<f8", 8},   {FileDtype::kE4m3, "F8_E4M3", "", 1},
    {FileDtype::kE5m2, "F8_E5M2", "", 1},
};

// The names of the npy files of a folder, all of them known, sorted.
StatusOr<std::vector<std::string>> list_npy_names(const std::string& folder,
                                                  std::span<const std::string_view> known_names) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(folder.c_str()), closedir);
  if (!stream) {
    return Status(StatusCode::kIo,
                  fmt::format("{}: cannot list: {}", printable_path(folder), std::strerror(errno)));
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (!entry && errno != 0) {
      return Status(StatusCode::kIo, fmt::format("{}: cannot list: {}", printable_path(folder),
                                                 std::strerror(errno)));
    }
    if (!entry) break;
    std::string_view name = entry->d_name;
    if (!name.ends_with(".npy")) continue;
    name.remove_suffix(4);
    if (std::find(known_names.begin(), known_names.end(), name) == known_names.end()) {
      return Status(StatusCode::kFormat,
                    fmt::format("{}/{}.npy: byte 0: unknown tensor '{}', want one of {}",
                                printable_path(folder), printable(name), printable(name),
                                fmt::join(known_names, ", ")));
    }
    names.emplace_back(name);
  }
  if (names.empty()) {
    return Status(StatusCode::kFormat,
                  fmt::format("{}: the folder has no .npy file, want some of {}",
                              printable_path(folder), fmt::join(known_names, ", ")));
  }
  std::sort(names.begin(), names.end());
  return names;
}

StatusOr<TensorCatalog> open_npy_folder(const std::string& folder,
                                        std::span<const std::string_view> known_names,
                                        FileOps& ops) {
  const StatusOr<std::vector<std::string>> names = list_npy_names(folder, known_names);
  if (!names.ok()) return names.status();
  TensorCatalog catalog;
  for (const std::string& name : *names) {
    StatusOr<std::shared_ptr<const InputFile>> file =
        InputFile::open(folder + "/" + name + ".npy", ops);
    if (!file.ok()) return file.status();
    StatusOr<TensorEntry> entry = parse_npy(std::move(*file));
    if (!entry.ok()) return entry.status();
    entry->name = name;
    catalog.tensors.push_back(std::move(*entry));
  }
  return catalog;
}

}  // namespace

std::span<const FileDtypeRow> file_dtypes() {
  return kFileDtypes;
}

const FileDtypeRow& describe(FileDtype dtype) {
  return *std::find_if(std::begin(kFileDtypes), std::end(kFileDtypes),
                       [&](const FileDtypeRow& row) { return row.dtype == dtype; });
}

const TensorEntry* TensorCatalog::find(std::string_view name) const {
  for (const TensorEntry& entry : tensors) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

StatusOr<TensorCatalog> open_tensors(const std::string& path,
                                     std::span<const std::string_view> known_names, FileOps& ops) {
  struct stat status = {};
  if (retry_on_eintr([&] { return ops.stat(path.c_str(), &status); }) != 0) {
    return Status(StatusCode::kIo,
                  fmt::format("{}: {}", printable_path(path), std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) return open_npy_folder(path, known_names, ops);
  StatusOr<std::shared_ptr<const InputFile>> file = InputFile::open(path, ops);
  if (!file.ok()) return file.status();
  return parse_safetensors(std::move(*file), known_names);
}

StatusOr<Buffer> Buffer::allocate(int64_t bytes) {
  Buffer buffer;
  // At least one byte, so that an empty tensor has a pointer too.
  const size_t size = std::max<size_t>(static_cast<size_t>(bytes), 1);
  buffer.data_.reset(
      static_cast<std::byte*>(::operator new(size, std::align_val_t{kAlignment}, std::nothrow)));
  buffer.bytes_ = bytes;
  if (!buffer.data_) {
    return Status(StatusCode::kOutOfMemory, fmt::format("cannot allocate {} bytes", bytes));
  }
  return buffer;
}

void Buffer::Free::operator()(std::byte* data) const {
  ::operator delete(data, std::align_val_t{kAlignment});
}

StatusOr<Buffer> read_tensor(const TensorEntry& entry) {
  StatusOr<Buffer> buffer = Buffer::allocate(entry.bytes);
  if (!buffer.ok()) return buffer;
  const Status read = entry.file->read(entry.offset, buffer->data(), entry.bytes);
  if (!read.ok()) return read;
  return buffer;
}

std::optional<int64_t> tensor_bytes(FileDtype dtype, std::span<const int64_t> shape) {
  int64_t bytes = describe(dtype).bytes;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace flashprime::cli
