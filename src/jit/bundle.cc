// SPDX-License-Identifier: Apache-2.0
#include "jit/bundle.h"

#include <algorithm>
#include <cstring>

#include "checks.h"
#include "jit/posix_file.h"

namespace flashprime {
namespace {

// Prefix, one record for each entry, the entries at multiples of 64, SHA-256 of prefix and records.
constexpr std::string_view kMagic = "FPBUNDLE";
constexpr uint32_t kFormat = 1;
constexpr size_t kAlignment = 64;
constexpr int64_t kMaxBytes = int64_t{1} << 30;

struct Prefix {
  char magic[8];
  uint32_t format;
  uint32_t count;
};
struct StoredRecord {
  Sha256 kernel_id;
  Sha256 hash;
  uint64_t offset;
  uint64_t length;
};
static_assert(sizeof(Prefix) == 16 && sizeof(StoredRecord) == 80);

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

size_t aligned(size_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::string encode_bundle(std::vector<CompiledKernel> kernels) {
  std::sort(kernels.begin(), kernels.end(), [](const CompiledKernel& a, const CompiledKernel& b) {
    return std::tie(a.kernel_id, a.compiler_id) < std::tie(b.kernel_id, b.compiler_id);
  });
  Prefix prefix = {};
  std::memcpy(prefix.magic, kMagic.data(), kMagic.size());
  prefix.format = kFormat;
  prefix.count = static_cast<uint32_t>(kernels.size());
  std::string index;
  append(index, prefix);
  const size_t index_bytes = sizeof(Prefix) + kernels.size() * sizeof(StoredRecord);
  std::string entries;
  for (CompiledKernel& kernel : kernels) {
    kernel.compile_us = 0;
    kernel.created = 0;
    const std::string entry = encode_entry(kernel);
    entries.resize(aligned(index_bytes + entries.size()) - index_bytes, '\0');
    StoredRecord record = {};
    parse_hex(kernel.kernel_id, record.kernel_id);
    record.hash = sha256(entry);
    record.offset = index_bytes + entries.size();
    record.length = entry.size();
    append(index, record);
    entries += entry;
  }
  std::string bytes = index + entries;
  append(bytes, sha256(index));
  return bytes;
}

StatusOr<Bundle> Bundle::open(const std::string& path, const std::optional<Sha256>& pinned) {
  StatusOr<std::string> bytes = read_file(path, kMaxBytes);
  if (!bytes.ok()) return Status(bytes.status().code(), "bundle: " + bytes.status().message());
  struct stat info = {};
  FLASHPRIME_REQUIRE(pinned || (stat(path.c_str(), &info) == 0 && (info.st_mode & S_IWOTH) == 0),
                     StatusCode::kIo, "bundle: ", path,
                     " can be written by everyone; take that right away, or pin the file with "
                     "FLASHPRIME_BUNDLE_SHA256");
  if (pinned) {
    const Sha256 got = sha256(*bytes);
    FLASHPRIME_REQUIRE(got == *pinned, StatusCode::kFormat, "bundle: ", path, " has SHA-256 ",
                       hex(got), ", want ", hex(*pinned));
  }
  return parse(*std::move(bytes), path);
}

StatusOr<Bundle> Bundle::parse(std::string bytes, std::string name) {
  const auto malformed = [&](const char* what) {
    return Status(StatusCode::kFormat, concat("bundle: ", name, ": ", what));
  };
  Bundle bundle;
  Prefix prefix;
  if (bytes.size() < sizeof prefix + sizeof(Sha256)) return malformed("too short");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  if (std::string_view(prefix.magic, sizeof prefix.magic) != kMagic) return malformed("no bundle");
  if (prefix.format != kFormat) return malformed("of another format");
  const uint64_t index_bytes = sizeof prefix + uint64_t{prefix.count} * sizeof(StoredRecord);
  const uint64_t end = bytes.size() - sizeof(Sha256);
  if (index_bytes > end) return malformed("its index is longer than the file");
  Sha256 trailer;
  std::memcpy(trailer.data(), bytes.data() + end, sizeof trailer);
  if (sha256(std::string_view(bytes).substr(0, index_bytes)) != trailer) {
    return malformed("its index is damaged");
  }
  for (uint32_t i = 0; i < prefix.count; ++i) {
    StoredRecord stored;
    std::memcpy(&stored, bytes.data() + sizeof prefix + i * sizeof stored, sizeof stored);
    if (stored.offset < index_bytes || stored.offset > end || stored.length > end - stored.offset) {
      return malformed("an entry lies outside the file");
    }
    bundle.records_.push_back({hex(stored.kernel_id), stored.hash, stored.offset, stored.length});
  }
  if (!std::is_sorted(bundle.records_.begin(), bundle.records_.end(),
                      [](const Record& a, const Record& b) { return a.kernel_id < b.kernel_id; })) {
    return malformed("its index is not sorted");
  }
  bundle.path_ = std::move(name);
  bundle.bytes_ = std::move(bytes);
  return bundle;
}

StatusOr<CompiledKernel> Bundle::decode(const Record& record) const {
  const std::string_view entry = std::string_view(bytes_).substr(record.offset, record.length);
  FLASHPRIME_REQUIRE(sha256(entry) == record.hash, StatusCode::kFormat, "bundle: ", path_,
                     ": the entry of kernel ", record.kernel_id, " is damaged");
  StatusOr<CompiledKernel> kernel = decode_entry(entry);
  if (!kernel.ok()) return kernel;
  FLASHPRIME_REQUIRE(kernel->kernel_id == record.kernel_id, StatusCode::kFormat, "bundle: ", path_,
                     ": the entry of kernel ", record.kernel_id, " is another kernel's");
  return kernel;
}

StatusOr<std::optional<CompiledKernel>> Bundle::find(const std::string& kernel_id,
                                                     const std::string& key) const {
  const auto record = std::lower_bound(
      records_.begin(), records_.end(), kernel_id,
      [](const Record& r, const std::string& wanted) { return r.kernel_id < wanted; });
  if (record == records_.end() || record->kernel_id != kernel_id) {
    return std::optional<CompiledKernel>();
  }
  StatusOr<CompiledKernel> kernel = decode(*record);
  if (!kernel.ok()) return kernel.status();
  FLASHPRIME_REQUIRE(kernel->key == key, StatusCode::kFormat, "bundle: ", path_,
                     ": the entry of kernel ", kernel_id, " is another kernel's");
  return std::optional<CompiledKernel>(*std::move(kernel));
}

std::vector<Bundle::Item> Bundle::items() const {
  std::vector<Item> items;
  for (const Record& record : records_) {
    items.push_back({record.kernel_id, static_cast<int64_t>(record.length), decode(record)});
  }
  return items;
}

}  // namespace flashprime
