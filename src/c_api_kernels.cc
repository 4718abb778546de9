// SPDX-License-Identifier: Apache-2.0
// The C twins of jit.h; nothing is decided here.
#include <atomic>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "c_api_structs.h"
#include "flashprime/c_api.h"
#include "flashprime/jit.h"

struct flashprime_cache {
  flashprime::KernelCache cache;
};

struct flashprime_kernel_plan {
  flashprime::KernelPlan plan;
};

namespace flashprime {
namespace {

using c_api::check_enum;
using c_api::guarded;
using c_api::guarded_value;
using c_api::read_struct;
using c_api::same;
using c_api::write_struct;

static_assert(same(FLASHPRIME_FREEZE_ALLOW, FreezePolicy::kAllow));
static_assert(same(FLASHPRIME_FREEZE_WARN, FreezePolicy::kWarn));
static_assert(same(FLASHPRIME_FREEZE_ERROR, FreezePolicy::kError));
static_assert(same(FLASHPRIME_WARMUP_MISSING, WarmupMode::kMissing));
static_assert(same(FLASHPRIME_WARMUP_FORCE, WarmupMode::kForce));
static_assert(same(FLASHPRIME_WARMUP_LOAD_ONLY, WarmupMode::kLoadOnly));
static_assert(same(FLASHPRIME_WARMUP_DRY_RUN, WarmupMode::kDryRun));
static_assert(same(FLASHPRIME_ORIGIN_FAILED, KernelOrigin::kFailed));
static_assert(same(FLASHPRIME_ORIGIN_MEMORY, KernelOrigin::kMemory));
static_assert(same(FLASHPRIME_ORIGIN_BUNDLE, KernelOrigin::kBundle));
static_assert(same(FLASHPRIME_ORIGIN_DISK, KernelOrigin::kDisk));
static_assert(same(FLASHPRIME_ORIGIN_WAITED, KernelOrigin::kWaited));
static_assert(same(FLASHPRIME_ORIGIN_COMPILED, KernelOrigin::kCompiled));
static_assert(same(FLASHPRIME_ORIGIN_SKIPPED, KernelOrigin::kSkipped));

// Sizes in version 1 of the ABI, see c_api.cc.
constexpr size_t kCacheOptionsV1 = 104;
constexpr size_t kKernelPlanOptionsV1 = 40;
constexpr size_t kPlannedKernelV1 = 40;
constexpr size_t kSkippedKernelV1 = 32;
constexpr size_t kWarmupOptionsV1 = 56;
constexpr size_t kWarmupReportV1 = 112;
static_assert(sizeof(flashprime_cache_options) == kCacheOptionsV1);
static_assert(sizeof(flashprime_kernel_plan_options) == kKernelPlanOptionsV1);
static_assert(sizeof(flashprime_planned_kernel) == kPlannedKernelV1);
static_assert(sizeof(flashprime_skipped_kernel) == kSkippedKernelV1);
static_assert(sizeof(flashprime_warmup_progress) == 48);
static_assert(sizeof(flashprime_warmup_options) == kWarmupOptionsV1);
static_assert(sizeof(flashprime_warmup_report) == kWarmupReportV1);
static_assert(offsetof(flashprime_cache_options, log) == 56);
static_assert(offsetof(flashprime_cache_options, freeze) == 80);
static_assert(offsetof(flashprime_cache_options, on_event) == 88);
static_assert(offsetof(flashprime_kernel_plan_options, archs) == 24);
static_assert(offsetof(flashprime_planned_kernel, kernel_id) == 32);
static_assert(offsetof(flashprime_skipped_kernel, reason) == 24);
static_assert(offsetof(flashprime_warmup_progress, last_origin) == 40);
static_assert(offsetof(flashprime_warmup_options, deadline_seconds) == 32);
static_assert(offsetof(flashprime_warmup_report, compiled) == 48);
static_assert(offsetof(flashprime_warmup_report, complete) == 104);

std::vector<std::string> split(const char* list, char separator) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, separator);) parts.push_back(part);
  return parts;
}

Status read_options(const flashprime_cache_options* given, JitOptions* result) {
  if (given == nullptr) return ok_status();
  flashprime_cache_options options = FLASHPRIME_CACHE_OPTIONS_INIT;
  FLASHPRIME_RETURN_IF_ERROR(read_struct("options", given, kCacheOptionsV1, &options));
  if (options.cache_dir != nullptr) result->cache_dir = options.cache_dir;
  if (options.bundles != nullptr) result->bundles = split(options.bundles, ':');
  if (options.bundle_sha256 != nullptr) result->bundle_sha256 = split(options.bundle_sha256, ':');
  if (options.nvrtc_path != nullptr) result->nvrtc_path = options.nvrtc_path;
  if (options.kernel_dir != nullptr) result->kernel_dir = options.kernel_dir;
  if (options.dump_dir != nullptr) result->dump_dir = options.dump_dir;
  if (options.log != nullptr) result->log = options.log;
  if (options.max_megabytes >= 0) result->max_megabytes = options.max_megabytes;
  // Not `>= 0`: NaN has to reach the check.
  if (!(options.lock_wait_seconds < 0.0)) result->lock_wait_seconds = options.lock_wait_seconds;
  if (options.freeze >= 0) {
    FLASHPRIME_RETURN_IF_ERROR(
        check_enum("options.freeze", options.freeze, FLASHPRIME_FREEZE_ERROR));
    result->freeze = static_cast<FreezePolicy>(options.freeze);
  }
  if (options.shared_by_group >= 0) result->shared_by_group = options.shared_by_group != 0;
  if (options.on_event != nullptr) {
    result->on_event = [call = options.on_event,
                        user = options.on_event_user](const JitEvent& event) {
      call(user, event.kind.c_str(), event.message.c_str());
    };
  }
  return ok_status();
}

template <typename Handle>
Status require_handle(const char* name, const Handle* handle) {
  FLASHPRIME_REQUIRE(handle != nullptr, StatusCode::kNull, name, ": got a null pointer");
  return ok_status();
}

// Stores a new handle around what make() returns, or null.
template <typename Handle, typename Make>
int create(const char* name, Handle** handle, const Make& make) {
  return guarded([&]() -> Status {
    FLASHPRIME_RETURN_IF_ERROR(require_handle(name, handle));
    *handle = nullptr;
    auto made = make();
    FLASHPRIME_RETURN_IF_ERROR(made.status());
    *handle = new Handle{*std::move(made)};
    return ok_status();
  });
}

flashprime_planned_kernel to_c(const PlannedKernel& kernel) {
  return {sizeof(flashprime_planned_kernel), kernel.kernel.c_str(), kernel.arch.c_str(),
          kernel.key.c_str(), kernel.kernel_id.c_str()};
}

// Options of a warmup; `cancelled` is set by the caller's progress function.
Status read_options(const flashprime_warmup_options* given, std::atomic<bool>* cancelled,
                    WarmupOptions* result) {
  if (given == nullptr) return ok_status();
  flashprime_warmup_options options = FLASHPRIME_WARMUP_OPTIONS_INIT;
  FLASHPRIME_RETURN_IF_ERROR(read_struct("options", given, kWarmupOptionsV1, &options));
  FLASHPRIME_RETURN_IF_ERROR(check_enum("options.mode", options.mode, FLASHPRIME_WARMUP_DRY_RUN));
  result->mode = static_cast<WarmupMode>(options.mode);
  result->threads = options.threads;
  result->rank = options.rank;
  result->world = options.world;
  result->device = options.device;
  result->deadline_seconds = options.deadline_seconds;
  if (options.on_progress == nullptr) return ok_status();
  result->cancelled = [cancelled] { return cancelled->load(); };
  result->on_progress = [cancelled, call = options.on_progress,
                         user = options.on_progress_user](const WarmupProgress& progress) {
    flashprime_planned_kernel last = FLASHPRIME_PLANNED_KERNEL_INIT;
    if (progress.last != nullptr) last = to_c(progress.last->kernel);
    const flashprime_warmup_progress now = {
        sizeof(flashprime_warmup_progress),
        progress.done,
        progress.total,
        progress.last != nullptr ? &last : nullptr,
        progress.last != nullptr ? progress.last->compile_ms : 0.0,
        progress.last != nullptr ? static_cast<int32_t>(progress.last->origin) : 0,
        0};
    if (call(user, &now) != 0) *cancelled = true;
  };
  return ok_status();
}

// Runs `work` of a cache and a plan and hands over its report.
template <typename Work>
int warm(const flashprime_cache* cache, const flashprime_kernel_plan* plan,
         const flashprime_warmup_options* given, flashprime_warmup_report* report,
         const Work& work) {
  return guarded([&]() -> Status {
    FLASHPRIME_RETURN_IF_ERROR(require_handle("cache", cache));
    FLASHPRIME_RETURN_IF_ERROR(require_handle("plan", plan));
    std::atomic<bool> cancelled = false;
    WarmupOptions options;
    FLASHPRIME_RETURN_IF_ERROR(read_options(given, &cancelled, &options));
    const StatusOr<WarmupReport> done = work(cache->cache, plan->plan, options);
    FLASHPRIME_RETURN_IF_ERROR(done.status());
    if (report != nullptr) {
      int64_t cubin_bytes = 0;
      for (const KernelReport& kernel : done->kernels) cubin_bytes += kernel.cubin_bytes;
      const flashprime_warmup_report counts = {sizeof(flashprime_warmup_report),
                                               done->count(KernelOrigin::kFailed),
                                               done->count(KernelOrigin::kMemory),
                                               done->count(KernelOrigin::kBundle),
                                               done->count(KernelOrigin::kDisk),
                                               done->count(KernelOrigin::kWaited),
                                               done->count(KernelOrigin::kCompiled),
                                               done->count(KernelOrigin::kSkipped),
                                               done->publish_failures,
                                               cubin_bytes,
                                               done->peak_rss_bytes,
                                               done->wall_ms,
                                               done->cpu_ms,
                                               done->complete() ? 1 : 0,
                                               0};
      FLASHPRIME_RETURN_IF_ERROR(write_struct("report", counts, kWarmupReportV1, report));
    }
    return done->status;
  });
}

}  // namespace
}  // namespace flashprime

using namespace flashprime;  // NOLINT: the definitions below are C functions

int flashprime_cache_open(const flashprime_cache_options* given, flashprime_cache** cache) {
  return create("cache", cache, [&]() -> StatusOr<KernelCache> {
    JitOptions options;
    FLASHPRIME_RETURN_IF_ERROR(read_options(given, &options));
    return KernelCache::open(options);
  });
}

int flashprime_cache_default(flashprime_cache** cache) {
  return create("cache", cache, [] { return default_kernel_cache(); });
}

int flashprime_cache_set_default(const flashprime_cache* cache) {
  return guarded([&]() -> Status {
    FLASHPRIME_RETURN_IF_ERROR(require_handle("cache", cache));
    return set_default_kernel_cache(cache->cache);
  });
}

int flashprime_cache_set_freeze(const flashprime_cache* cache, int32_t freeze) {
  return guarded([&]() -> Status {
    FLASHPRIME_RETURN_IF_ERROR(require_handle("cache", cache));
    FLASHPRIME_RETURN_IF_ERROR(check_enum("freeze", freeze, FLASHPRIME_FREEZE_ERROR));
    cache->cache.set_freeze(static_cast<FreezePolicy>(freeze));
    return ok_status();
  });
}

void flashprime_cache_close(flashprime_cache* cache) {
  delete cache;
}

int flashprime_device_architecture(int32_t ordinal, char* buffer, size_t buffer_bytes) {
  return guarded([&]() -> Status {
    FLASHPRIME_RETURN_IF_ERROR(require_handle("buffer", buffer));
    const StatusOr<std::string> arch = device_architecture(ordinal);
    FLASHPRIME_RETURN_IF_ERROR(arch.status());
    FLASHPRIME_REQUIRE(arch->size() < buffer_bytes, StatusCode::kRange, "buffer_bytes: got ",
                       buffer_bytes, ", wanted at least ", arch->size() + 1);
    std::memcpy(buffer, arch->c_str(), arch->size() + 1);
    return ok_status();
  });
}

int flashprime_kernel_plan_create(const flashprime_cache* cache,
                                  const flashprime_kernel_plan_options* given,
                                  flashprime_kernel_plan** plan) {
  return create("plan", plan, [&]() -> StatusOr<KernelPlan> {
    FLASHPRIME_RETURN_IF_ERROR(require_handle("cache", cache));
    flashprime_kernel_plan_options options = FLASHPRIME_KERNEL_PLAN_OPTIONS_INIT;
    FLASHPRIME_RETURN_IF_ERROR(read_struct("options", given, kKernelPlanOptionsV1, &options));
    FLASHPRIME_RETURN_IF_ERROR(check_enum("options.dtype", options.dtype, FLASHPRIME_INT32));
    return cache->cache.plan(
        {.dims = {options.nope, options.rope, options.v},
         .dtype = static_cast<Dtype>(options.dtype),
         .archs = options.archs == nullptr ? std::vector<std::string>() : split(options.archs, ','),
         .e4m3_output = options.e4m3_output != 0,
         .all = options.all != 0});
  });
}

void flashprime_kernel_plan_destroy(flashprime_kernel_plan* plan) {
  delete plan;
}

size_t flashprime_kernel_plan_num_kernels(const flashprime_kernel_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.kernels.size();
}

size_t flashprime_kernel_plan_num_skipped(const flashprime_kernel_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.skipped.size();
}

int flashprime_kernel_plan_kernel(const flashprime_kernel_plan* plan, size_t index,
                                  flashprime_planned_kernel* kernel) {
  return guarded([&]() -> Status {
    const size_t count = flashprime_kernel_plan_num_kernels(plan);
    FLASHPRIME_REQUIRE(index < count, StatusCode::kRange, "index: got ", index,
                       ", wanted less than ", count, ", the kernels of the plan");
    return write_struct("kernel", to_c(plan->plan.kernels[index]), kPlannedKernelV1, kernel);
  });
}

int flashprime_kernel_plan_skipped(const flashprime_kernel_plan* plan, size_t index,
                                   flashprime_skipped_kernel* kernel) {
  return guarded([&]() -> Status {
    const size_t count = flashprime_kernel_plan_num_skipped(plan);
    FLASHPRIME_REQUIRE(index < count, StatusCode::kRange, "index: got ", index,
                       ", wanted less than ", count, ", what the plan skips");
    const SkippedKernel& skipped = plan->plan.skipped[index];
    const flashprime_skipped_kernel row = {sizeof(flashprime_skipped_kernel), skipped.what.c_str(),
                                           skipped.arch.c_str(), skipped.reason.c_str()};
    return write_struct("kernel", row, kSkippedKernelV1, kernel);
  });
}

int flashprime_warmup(const flashprime_cache* cache, const flashprime_kernel_plan* plan,
                      const flashprime_warmup_options* options, flashprime_warmup_report* report) {
  return warm(cache, plan, options, report,
              [](const KernelCache& kernels, const KernelPlan& wanted, const WarmupOptions& how) {
                return kernels.warmup(wanted, how);
              });
}

int flashprime_pack_bundle(const flashprime_cache* cache, const flashprime_kernel_plan* plan,
                           const char* path, const flashprime_warmup_options* options,
                           flashprime_warmup_report* report) {
  return warm(cache, plan, options, report,
              [&](const KernelCache& kernels, const KernelPlan& wanted,
                  const WarmupOptions& how) -> StatusOr<WarmupReport> {
                FLASHPRIME_RETURN_IF_ERROR(require_handle("path", path));
                return kernels.pack(wanted, path, how);
              });
}

int flashprime_missing_from_bundle(const char* path, const flashprime_kernel_plan* plan,
                                   int64_t* missing) {
  return guarded_value("missing", missing, [&]() -> StatusOr<int64_t> {
    FLASHPRIME_RETURN_IF_ERROR(require_handle("path", path));
    FLASHPRIME_RETURN_IF_ERROR(require_handle("plan", plan));
    const StatusOr<std::vector<PlannedKernel>> lacking = missing_from_bundle(path, plan->plan);
    FLASHPRIME_RETURN_IF_ERROR(lacking.status());
    return static_cast<int64_t>(lacking->size());
  });
}
