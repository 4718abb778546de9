// SPDX-License-Identifier: Apache-2.0
// GPU kernels before the first request: plan them, compile them without a GPU, keep them in a cache
// or a bundle. See docs/jit_and_cache.md.
#pragma once

#include "flashprime/export.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/execution.h"
#include "flashprime/prefill.h"
#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

/// What happens when a kernel would be compiled.
enum class FreezePolicy : uint8_t {
  kAllow = 0,  ///< it is
  kWarn = 1,   ///< it is, and reported as an event
  kError = 2,  ///< it is not: kFrozen
};

/// Something a server's log should have. `kind` is a stable word: "compiled_late", "refused_late",
/// "cache_unusable", "publish_failed", "quarantined".
struct JitEvent {
  std::string kind;
  std::string message;
};

/// Where kernels come from and go to. What is not set is taken from the environment variable that
/// is named above it, read once, when the cache is opened.
struct JitOptions {
  /// FLASHPRIME_CACHE_DIR: an absolute folder, "off", or "ro:FOLDER".
  std::optional<std::string> cache_dir = {};
  /// FLASHPRIME_CACHE_SHARED=group: the folder's group may write it.
  std::optional<bool> shared_by_group = {};
  /// FLASHPRIME_CACHE_MAX_MB, else 512.
  std::optional<int64_t> max_megabytes = {};
  /// More cache folders, looked at first, never written.
  std::vector<std::string> read_only_dirs = {};
  /// FLASHPRIME_BUNDLE, separated by ':'.
  std::optional<std::vector<std::string>> bundles = {};
  /// FLASHPRIME_BUNDLE_SHA256, likewise: none, or one for each bundle.
  std::optional<std::vector<std::string>> bundle_sha256 = {};
  /// FLASHPRIME_FREEZE: allow, warn or error.
  std::optional<FreezePolicy> freeze = {};
  /// FLASHPRIME_LOCK_WAIT_S, else 120.
  std::optional<double> lock_wait_seconds = {};
  /// FLASHPRIME_DUMP_DIR: for source, PTX, cubin and log of what is compiled.
  std::optional<std::string> dump_dir = {};
  /// FLASHPRIME_NVRTC_PATH: the library to use, and no other.
  std::optional<std::string> nvrtc_path = {};
  /// More folders to look for NVRTC in, last.
  std::vector<std::string> nvrtc_folders = {};
  /// FLASHPRIME_KERNEL_DIR: in the place of the embedded kernels/.
  std::optional<std::string> kernel_dir = {};
  /// FLASHPRIME_LOG: "level" or "level:FILE", else off. Levels are off, error, warn, info, debug; a
  /// line goes to stderr or is appended to the file. `warn` has all events, `info` a line for each
  /// kernel that is compiled or loaded, `debug` one for each look into a bundle or folder.
  std::optional<std::string> log = {};
  /// Called on any thread.
  std::function<void(const JitEvent&)> on_event = {};
};

/// One kernel for one architecture. A value: copy it, store it, send it to another machine.
struct PlannedKernel {
  std::string kernel;     ///< "sm80_mla_prefill"
  std::string arch;       ///< "sm_90a"
  std::string key;        ///< canonical text of all compile-time fields, one a line
  std::string kernel_id;  ///< SHA-256 of key, sources and compiler options, in hexadecimal
};

struct SkippedKernel {
  std::string what;
  std::string arch;
  std::string reason;
};

struct KernelPlan {
  std::vector<PlannedKernel> kernels;
  std::vector<SkippedKernel> skipped;

  /// The keys, one after another, separated by empty lines; parse_plan() takes it back.
  FLASHPRIME_API std::string to_text() const;
};

/// What to have kernels for. Heads, batch, lengths, strides and layouts are run-time values: the
/// same kernels serve all of them.
struct PlanOptions {
  HeadDims dims;
  Dtype dtype = Dtype::kBf16;
  std::vector<std::string> archs = {};  ///< "sm_80", "sm_90a", ...
  bool e4m3_output = false;             ///< also the forms with e4m3 output
  /// Also what no layer calls: full attention without LSE, and the portable kernel where another is
  /// preferred.
  bool all = false;
};

/// Where a warmed kernel came from.
enum class KernelOrigin : uint8_t {
  kFailed = 0,
  kMemory = 1,
  kBundle = 2,
  kDisk = 3,
  kWaited = 4,  ///< another process or thread compiled it meanwhile
  kCompiled = 5,
  kSkipped = 6,  ///< not tried: deadline, cancellation or dry run
};
FLASHPRIME_API std::string_view kernel_origin_name(KernelOrigin origin);  ///< "compiled"

struct KernelReport {
  PlannedKernel kernel;
  KernelOrigin origin = KernelOrigin::kSkipped;
  Status status;  ///< why it failed or was skipped
  double queue_ms = 0.0;
  double lock_ms = 0.0;
  double compile_ms = 0.0;  ///< of this call; 0 when it came from elsewhere
  double publish_ms = 0.0;
  double load_ms = 0.0;
  int64_t cubin_bytes = 0;
  int32_t registers = 0;
  int32_t stack_bytes = 0;
  int32_t spill_store_bytes = 0;
  int32_t spill_load_bytes = 0;
  int32_t shared_bytes = 0;           ///< static and dynamic
  std::vector<std::string> warnings;  ///< of the compiler
  std::string compiler;               ///< that made it
  std::string min_driver;             ///< that loads it: "CUDA 13.0 (driver 580)"
};

struct WarmupReport {
  std::vector<KernelReport> kernels;  ///< in the order of the plan
  Status status;                      ///< kOk, or all failures in one message
  double wall_ms = 0.0;
  double cpu_ms = 0.0;  ///< of the process meanwhile
  int64_t peak_rss_bytes = 0;
  int64_t publish_failures = 0;
  std::string cache;  ///< where kernels are published, or why nowhere

  FLASHPRIME_API int64_t count(KernelOrigin origin) const;
  /// All kernels are there.
  bool complete() const { return status.ok() && count(KernelOrigin::kSkipped) == 0; }
};

enum class WarmupMode : uint8_t {
  kMissing = 0,   ///< compile what is nowhere
  kForce = 1,     ///< compile everything
  kLoadOnly = 2,  ///< compile nothing; load what is there onto the device. Needs a driver
  kDryRun = 3,    ///< say what would happen
};

struct WarmupProgress {
  int64_t done = 0;
  int64_t total = 0;
  const KernelReport* last = nullptr;  ///< the kernel that just finished; null: time has passed
};

struct WarmupOptions {
  WarmupMode mode = WarmupMode::kMissing;
  int32_t threads = 0;            ///< 0: by cores, cgroup limits and free memory, 8 at most
  double deadline_seconds = 0.0;  ///< 0: none
  int32_t rank = 0;               ///< of `world` processes that warm the same plan: they start at
  int32_t world = 1;              ///< different kernels and share the work through the cache
  int32_t device = 0;             ///< CUDA ordinal for kLoadOnly
  /// Called on the calling thread, after each kernel and ten times a second.
  std::function<void(const WarmupProgress&)> on_progress = {};
  std::function<bool()> cancelled = {};  ///< asked on any thread, often
};

/// What the compiler makes of a kernel.
struct KernelArtifacts {
  std::string source;                // the translation unit
  std::vector<std::string> headers;  // that it includes
  std::vector<std::string> options;
  std::string ptx;
  std::string cubin;
  std::string log;
  std::string compiler;
};

struct CacheEntry {
  std::string path;
  std::string kernel;
  std::string arch;
  std::string key;
  std::string kernel_id;
  std::string compiler;
  int64_t bytes = 0;
  int64_t age_seconds = 0;  ///< since it was made or, at most a day late, used
  Status status;            ///< whether it may be used
};

struct PruneReport {
  int64_t removed = 0;
  int64_t removed_bytes = 0;
  int64_t kept = 0;
  int64_t kept_bytes = 0;
};

struct JitInfo {
  std::string cache;  ///< folder that kernels are published to, or why there is none
  bool cache_writable = false;
  std::vector<std::string> read_only_dirs;
  std::vector<std::string> bundles;
  std::string compiler;  ///< NVRTC's version and path, or why there is none
  bool compiler_found = false;
  FreezePolicy freeze = FreezePolicy::kAllow;
  std::string log;                          ///< "off", "info to stderr", "warn to /FILE"
  std::map<std::string, int64_t> counters;  ///< hits, misses by reason, compilations, failures
};

class KernelStore;

/// Kernels in memory, bundles and cache folders, and the compiler behind them. Nothing that is
/// wrong with a cache is ever fatal: a bad entry is a miss, a folder that cannot be written means
/// that kernels stay in memory. Copies share everything. Thread-safe.
class FLASHPRIME_API KernelCache {
 public:
  /// kFormat for a setting that means nothing, kIo or kFormat for a bundle that cannot be used.
  static StatusOr<KernelCache> open(const JitOptions& options = {});

  /// The kernels that a server of that model needs, and what cannot be built. Pure: no device, no
  /// compiler, no cache.
  StatusOr<KernelPlan> plan(const PlanOptions& options) const;

  /// Makes a plan's kernels available. Every kernel is tried. Without a device: no driver is
  /// touched unless the mode is kLoadOnly, and then kDriver is the answer where there is none.
  StatusOr<WarmupReport> warmup(const KernelPlan& plan, const WarmupOptions& options = {}) const;

  /// Compiles a kernel for inspection, past all caches. kNoCompiler without NVRTC.
  StatusOr<KernelArtifacts> dump(const PlannedKernel& kernel) const;

  void set_freeze(FreezePolicy policy) const;
  JitInfo info() const;

  /// Every entry of the folder that is written to (or else the read-only ones), checked in full.
  StatusOr<std::vector<CacheEntry>> entries() const;
  /// Removes entries that are old or beyond the size limit; kIo if there is no folder to write to.
  StatusOr<PruneReport> prune(bool dry_run) const;
  StatusOr<PruneReport> clear() const;

  /// Writes a bundle of a plan's kernels, compiling what is missing. The same kernels are the same
  /// bytes.
  StatusOr<WarmupReport> pack(const KernelPlan& plan, const std::string& path,
                              const WarmupOptions& options = {}) const;
  /// Copies a bundle's kernels into the cache folder; how many.
  StatusOr<int64_t> unpack(const std::string& bundle) const;

  const std::shared_ptr<KernelStore>& store() const { return store_; }  ///< for the library itself

 private:
  explicit KernelCache(std::shared_ptr<KernelStore> store) : store_(std::move(store)) {}
  std::shared_ptr<KernelStore> store_;
};

/// The cache that kernels on a GPU come from: opened with the environment's settings by the first
/// call, unless set_default_kernel_cache() came before it.
FLASHPRIME_API StatusOr<KernelCache> default_kernel_cache();
/// kInternal once the default is in use: its kernels are loaded.
FLASHPRIME_API Status set_default_kernel_cache(KernelCache cache);

/// Plans that KernelPlan::to_text() wrote, with the ids that these sources give them.
FLASHPRIME_API StatusOr<KernelPlan> parse_plan(std::string_view text,
                                               const std::string& kernel_dir = {});

/// The kernels that prefill() of `problem` runs on an architecture: one, and where splitting keys
/// is allowed also the two of a split call. kUnsupported with the reason where there is none.
FLASHPRIME_API StatusOr<KernelPlan> kernels_of(const PrefillProblem& problem,
                                               const std::string& arch);

/// Every kernel of a bundle, checked in full.
FLASHPRIME_API StatusOr<std::vector<CacheEntry>> list_bundle(const std::string& path);

/// The kernels of a plan that a bundle lacks.
FLASHPRIME_API StatusOr<std::vector<PlannedKernel>> missing_from_bundle(const std::string& path,
                                                                        const KernelPlan& plan);

/// What to compile for a device of this machine: "sm_90a". kDriver without a driver, kDevice
/// without that device.
FLASHPRIME_API StatusOr<std::string> device_architecture(int32_t ordinal);
/// What runs on a compute capability, best first, of those that kernels can be compiled for.
FLASHPRIME_API std::vector<std::string> architectures_for_capability(int32_t major, int32_t minor);
/// All of them.
FLASHPRIME_API std::vector<std::string> known_architectures();

}  // namespace flashprime
