// SPDX-License-Identifier: Apache-2.0
// Compiled kernels in a folder that processes and users may share.
//
//   <root>/v1/<arch>/<2 hex digits>/<kernel_id>.<compiler_id>.fpk   one entry a file, immutable
//   <root>/v1/locks/<kernel_id>.lock                                held while it is compiled
//   <root>/v1/tmp/, <root>/v1/bad/                                  unfinished, and refused entries
//
// An entry is published by rename, so it is there whole or not at all, and checked on every read.
// Locks save work; nothing depends on them. Nothing here is fatal: a failed read is a miss, a
// failed publish leaves the caller with the bytes that it has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flashprime/jit.h"
#include "jit/cache_entry.h"
#include "jit/posix_file.h"

namespace flashprime {

struct DiskCacheOptions {
  std::string root;
  bool writable = true;
  bool shared_by_group = false;
  int64_t max_bytes = int64_t{512} << 20;
};

// What an entry must be.
struct EntryQuery {
  std::string kernel_id;
  std::string arch;
  std::string key;
  std::string compiler_id;  // empty: any, the newest first
};

class KernelLock {
 public:
  enum class State { kHeld, kBusy, kUnavailable };
  KernelLock() = default;
  KernelLock(State state, UniqueFd fd) : state_(state), fd_(std::move(fd)) {}
  State state() const { return state_; }

 private:
  State state_ = State::kUnavailable;
  UniqueFd fd_;  // closing it frees the lock
};

class DiskCache {
 public:
  explicit DiskCache(DiskCacheOptions options) : options_(std::move(options)) {}

  const std::string& root() const { return options_.root; }
  bool writable() const { return options_.writable; }

  // Whether the folder may be used. kOk too if it does not exist yet.
  Status check_root() const;

  struct Found {
    std::optional<CompiledKernel> kernel;
    std::string
        miss;  // in a word: "absent", "root", "permissions", "unreadable", "damaged", "foreign"
    std::string detail;
  };
  // Entries that turn out bad are moved to bad/.
  Found find(const EntryQuery& query) const;

  // kIo if anything kept the entry from being written.
  Status publish(const CompiledKernel& kernel) const;

  // kBusy: another process holds it. kUnavailable: locks do not work here.
  KernelLock try_lock(const std::string& kernel_id) const;

  // Takes a kernel that the driver refuses out of the way.
  void quarantine(const CompiledKernel& kernel) const;

  // Every entry, checked in full.
  std::vector<CacheEntry> entries() const;
  // By age and size, or everything.
  StatusOr<PruneReport> prune(bool dry_run, bool everything) const;

 private:
  struct EntryFile {
    std::string folder;
    std::string name;
    int64_t bytes = 0;
    int64_t mtime = 0;
    bool current_version = true;
  };

  StatusOr<UniqueFd> open_root(bool create) const;
  bool make_folder(int parent, const std::string& path) const;
  Status check_access(const struct stat& info, const std::string& path) const;
  Found read_entry(int root, const std::string& folder, const std::string& name,
                   const EntryQuery* query) const;
  void move_to_bad(int root, const std::string& folder, const std::string& name) const;
  std::vector<EntryFile> files(int root) const;
  PruneReport sweep(int root, bool dry_run, bool everything) const;
  void sweep_daily(int root) const;

  DiskCacheOptions options_;
};

}  // namespace flashprime
