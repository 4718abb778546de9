// SPDX-License-Identifier: Apache-2.0
// Many compiled kernels in one file, made on one machine for others. Equal kernels are equal bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jit/cache_entry.h"

namespace flashprime {

// The bytes of a bundle: sorted by identity, without what differs from one compilation to the next.
std::string encode_bundle(std::vector<CompiledKernel> kernels);

// The whole file in memory: a file that shrinks while it is mapped would end the process.
class Bundle {
 public:
  // kIo, or kFormat for anything that encode_bundle() did not make. With `pinned` the file's
  // SHA-256 must be that.
  static StatusOr<Bundle> open(const std::string& path, const std::optional<Sha256>& pinned = {});
  static StatusOr<Bundle> parse(std::string bytes, std::string name);

  const std::string& path() const { return path_; }
  // Nothing if the bundle has no such kernel; kFormat if its entry is damaged or another's.
  StatusOr<std::optional<CompiledKernel>> find(const std::string& kernel_id,
                                               const std::string& key) const;

  struct Item {
    std::string kernel_id;
    int64_t bytes = 0;
    StatusOr<CompiledKernel> kernel;
  };
  // All of it, each checked in full.
  std::vector<Item> items() const;

 private:
  struct Record {
    std::string kernel_id;
    Sha256 hash;
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  StatusOr<CompiledKernel> decode(const Record& record) const;

  std::string path_;
  std::string bytes_;
  std::vector<Record> records_;  // by kernel_id
};

}  // namespace flashprime
