// SPDX-License-Identifier: Apache-2.0
// The way of a kernel: memory, bundles, read-only folders, the cache folder, the compiler.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "flashprime/jit.h"
#include "jit/bundle.h"
#include "jit/disk_cache.h"
#include "jit/kernel_key.h"
#include "jit/settings.h"

namespace flashprime {

struct ObtainOptions {
  bool force = false;          // compile although it is there
  bool never_compile = false;  // kNotWarm instead
  std::function<bool()> cancelled = {};
};

struct Obtained {
  std::shared_ptr<const CompiledKernel> kernel;
  KernelOrigin origin = KernelOrigin::kFailed;
  double lock_ms = 0.0;
  double compile_ms = 0.0;
  double publish_ms = 0.0;
};

class KernelStore {
 public:
  static StatusOr<std::shared_ptr<KernelStore>> open(JitSettings settings);

  // The kernel, whatever that takes. One compilation at a time for a kernel, in this process and
  // across processes; others wait for it and share its outcome. A failure is not remembered.
  //   kUnsupported  no such kernel can be built, or not by this compiler
  //   kNoCompiler   there is no NVRTC, and no cache or bundle has the kernel
  //   kFrozen       compiling is forbidden; kNotWarm: never_compile, or cancelled
  StatusOr<Obtained> obtain(const KernelKey& key, const ObtainOptions& options = {});

  // A driver refuses the image: the next obtain() compiles it anew.
  void reject(const KernelKey& key, const CompiledKernel& kernel);

  // Identity of the kernel under this store's sources.
  StatusOr<std::string> kernel_id(const KernelKey& key);
  StatusOr<KernelSource> source(const KernelKey& key) const;

  // NVRTC, looked for on the first call. kNoCompiler.
  StatusOr<std::shared_ptr<const NvrtcCompiler>> compiler();

  void set_freeze(FreezePolicy policy) { freeze_ = policy; }
  const JitSettings& settings() const { return settings_; }
  // Folder that is written to; nullptr: none.
  const DiskCache* writable() const { return writable_.get(); }
  const std::vector<DiskCache>& read_only() const { return read_only_; }
  std::string cache_description() const;
  int64_t counter(const std::string& name) const;
  std::map<std::string, int64_t> counters() const;
  FreezePolicy freeze() const { return freeze_; }
  const Log& log() const { return *log_; }

 private:
  // One compilation that others may wait for.
  struct Flight {
    std::mutex mutex;
    std::condition_variable landed;
    bool done = false;
    StatusOr<Obtained> outcome{Status(StatusCode::kInternal, "not done")};
  };

  KernelStore(JitSettings settings, std::shared_ptr<const Log> log);
  StatusOr<Obtained> obtain_alone(const KernelKey& key, const ObtainOptions& options);
  std::shared_ptr<const CompiledKernel> find_in_bundles(const EntryQuery& query);
  std::shared_ptr<const CompiledKernel> find_on_disk(const EntryQuery& query);
  std::shared_ptr<const CompiledKernel> find_in(const DiskCache& cache, const EntryQuery& query);
  StatusOr<Obtained> compile(const KernelKey& key, const EntryQuery& query,
                             const KernelSource& made, const ObtainOptions& options);
  Status check_frozen(const KernelKey& key);
  void count(const std::string& name);
  // To the log and to whoever listens.
  void event(const std::string& kind, const std::string& message, bool once = false);
  void dump(const CompiledKernel& kernel, const KernelSource& source, const CompileOutput& output);

  const JitSettings settings_;
  const std::shared_ptr<const Log> log_;
  std::vector<Bundle> bundles_;
  std::vector<DiskCache> read_only_;
  std::unique_ptr<DiskCache> writable_;
  std::string why_memory_only_;
  std::atomic<FreezePolicy> freeze_;

  std::once_flag compiler_once_;
  StatusOr<std::shared_ptr<const NvrtcCompiler>> compiler_{
      Status(StatusCode::kInternal, "not looked for")};

  std::mutex mutex_;
  std::unordered_map<KernelKey, std::shared_ptr<const CompiledKernel>> memory_;
  std::unordered_map<KernelKey, std::string> kernel_ids_;
  std::unordered_map<KernelKey, std::shared_ptr<Flight>> flights_;

  mutable std::mutex counters_mutex_;
  std::map<std::string, int64_t> counters_;
  std::map<std::string, bool> said_;  // events that are reported once
};

}  // namespace flashprime
