// SPDX-License-Identifier: Apache-2.0
// The public face of plans, warmup, caches and bundles.
#include <algorithm>
#include <ctime>
#include <mutex>

#include "checks.h"
#include "cuda/driver.h"
#include "flashprime/jit.h"
#include "jit/bundle.h"
#include "jit/kernel_store.h"
#include "jit/plan_kernels.h"
#include "jit/posix_file.h"
#include "jit/warmup_run.h"
#include "problem/validate_problem.h"
#include "select/kernel_keys_of.h"

namespace flashprime {
namespace {

std::string_view name_of_key(const std::string& text) {
  const StatusOr<KernelKey> key = parse_kernel_key(text);
  return key.ok() ? key->name() : "unknown";
}

CacheEntry describe(const Bundle::Item& item, const std::string& path) {
  CacheEntry entry;
  entry.path = path;
  entry.kernel_id = item.kernel_id;
  entry.bytes = item.bytes;
  entry.status = item.kernel.status();
  if (item.kernel.ok()) {
    entry.kernel = name_of_key(item.kernel->key);
    entry.arch = item.kernel->arch.to_string();
    entry.key = item.kernel->key;
    entry.compiler = item.kernel->compiler;
  }
  return entry;
}

PlannedKernel planned(const KernelKey& key, std::string kernel_id) {
  return {std::string(key.name()), key.arch.to_string(), key.text(), std::move(kernel_id)};
}

std::mutex default_mutex;
std::optional<KernelCache>& default_cache() {
  // Never destroyed: kernels may be launched while the process ends.
  static auto* cache = new std::optional<KernelCache>;
  return *cache;
}

}  // namespace

std::string_view kernel_origin_name(KernelOrigin origin) {
  switch (origin) {
    case KernelOrigin::kFailed: return "failed";
    case KernelOrigin::kMemory: return "memory";
    case KernelOrigin::kBundle: return "bundle";
    case KernelOrigin::kDisk: return "disk";
    case KernelOrigin::kWaited: return "waited";
    case KernelOrigin::kCompiled: return "compiled";
    case KernelOrigin::kSkipped: return "skipped";
  }
  return "unknown";
}

std::string KernelPlan::to_text() const {
  std::string text;
  for (const PlannedKernel& kernel : kernels) text += kernel.key + '\n';
  return text;
}

StatusOr<KernelPlan> parse_plan(std::string_view text, const std::string& kernel_dir) {
  KernelPlan plan;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    const std::string_view key_text =
        end == std::string_view::npos ? text : text.substr(0, end + 1);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 2);
    const StatusOr<KernelKey> key = parse_kernel_key(key_text);
    if (!key.ok()) return Status(key.status().code(), "plan: " + key.status().message());
    const StatusOr<KernelSource> source = make_kernel_source(*key, kernel_dir);
    if (!source.ok()) return source.status();
    plan.kernels.push_back(planned(*key, kernel_id_of(*key, *source)));
  }
  return plan;
}

StatusOr<KernelPlan> kernels_of(const PrefillProblem& problem, const std::string& arch) {
  return without_exceptions([&]() -> StatusOr<KernelPlan> {
    const std::vector<Status> defects = find_problem_defects(problem);
    if (!defects.empty()) return defects.front();
    const StatusOr<Arch> target = parse_arch(arch);
    if (!target.ok()) return target.status();
    KernelPlan plan;
    for (const KernelKey& key : call_keys(problem, *target)) {
      FLASHPRIME_RETURN_IF_ERROR(validate_kernel_key(key));
      const StatusOr<KernelSource> source = make_kernel_source(key, {});
      if (!source.ok()) return source.status();
      plan.kernels.push_back(planned(key, kernel_id_of(key, *source)));
    }
    return plan;
  });
}

StatusOr<KernelCache> KernelCache::open(const JitOptions& options) {
  return without_exceptions([&]() -> StatusOr<KernelCache> {
    StatusOr<JitSettings> settings = resolve_settings(options);
    if (!settings.ok()) return settings.status();
    StatusOr<std::shared_ptr<KernelStore>> store = KernelStore::open(*std::move(settings));
    if (!store.ok()) return store.status();
    return KernelCache(*std::move(store));
  });
}

StatusOr<KernelCache> default_kernel_cache() {
  const std::lock_guard lock(default_mutex);
  if (!default_cache()) {
    StatusOr<KernelCache> cache = KernelCache::open();
    if (!cache.ok()) return cache;
    default_cache() = *std::move(cache);
  }
  return *default_cache();
}

Status set_default_kernel_cache(KernelCache cache) {
  const std::lock_guard lock(default_mutex);
  FLASHPRIME_REQUIRE(!default_cache(), StatusCode::kInternal,
                     "default kernel cache: it is in use already; set it before the first call");
  default_cache() = std::move(cache);
  return ok_status();
}

StatusOr<KernelPlan> KernelCache::plan(const PlanOptions& options) const {
  return without_exceptions([&]() -> StatusOr<KernelPlan> {
    StatusOr<KernelSelection> selection = enumerate_kernels(options);
    if (!selection.ok()) return selection.status();
    KernelPlan plan;
    plan.skipped = std::move(selection->skipped);
    for (const KernelKey& key : selection->keys) {
      StatusOr<std::string> id = store_->kernel_id(key);
      if (!id.ok()) return id.status();
      plan.kernels.push_back(planned(key, *std::move(id)));
    }
    return plan;
  });
}

StatusOr<WarmupReport> KernelCache::warmup(const KernelPlan& plan,
                                           const WarmupOptions& options) const {
  return without_exceptions([&] { return run_warmup(*this, plan, options, nullptr); });
}

StatusOr<WarmupReport> KernelCache::pack(const KernelPlan& plan, const std::string& path,
                                         const WarmupOptions& options) const {
  return without_exceptions([&]() -> StatusOr<WarmupReport> {
    std::vector<std::shared_ptr<const CompiledKernel>> compiled;
    StatusOr<WarmupReport> report = run_warmup(*this, plan, options, &compiled);
    if (!report.ok() || !report->complete()) return report;
    std::vector<CompiledKernel> kernels;
    for (const auto& kernel : compiled) kernels.push_back(*kernel);
    FLASHPRIME_RETURN_IF_ERROR(replace_file(path, encode_bundle(std::move(kernels))));
    return report;
  });
}

StatusOr<KernelArtifacts> KernelCache::dump(const PlannedKernel& kernel) const {
  return without_exceptions([&]() -> StatusOr<KernelArtifacts> {
    const StatusOr<KernelKey> key = parse_kernel_key(kernel.key);
    if (!key.ok()) return key.status();
    FLASHPRIME_RETURN_IF_ERROR(validate_kernel_key(*key));
    const StatusOr<KernelSource> source = store_->source(*key);
    if (!source.ok()) return source.status();
    const auto compiler = store_->compiler();
    if (!compiler.ok()) return compiler.status();
    StatusOr<CompileOutput> output = (*compiler)->compile(*source, key->arch, true);
    if (!output.ok()) return output.status();
    KernelArtifacts artifacts;
    artifacts.source = source->unit;
    for (const SourceHeader& header : source->headers) artifacts.headers.push_back(header.name);
    artifacts.options = compile_options(key->arch);
    artifacts.ptx = std::move(output->ptx);
    artifacts.cubin = std::move(output->cubin);
    artifacts.log = std::move(output->log);
    artifacts.compiler = (*compiler)->description();
    return artifacts;
  });
}

void KernelCache::set_freeze(FreezePolicy policy) const {
  store_->set_freeze(policy);
}

JitInfo KernelCache::info() const {
  JitInfo info;
  info.cache = store_->cache_description();
  info.cache_writable = store_->writable() != nullptr;
  for (const DiskCache& cache : store_->read_only()) info.read_only_dirs.push_back(cache.root());
  info.bundles = store_->settings().bundles;
  const auto compiler = store_->compiler();
  info.compiler_found = compiler.ok();
  info.compiler = compiler.ok() ? (*compiler)->description() + ", " + (*compiler)->path()
                                : compiler.status().message();
  info.freeze = store_->freeze();
  info.log = store_->settings().log.to_string();
  info.counters = store_->counters();
  return info;
}

StatusOr<std::vector<CacheEntry>> KernelCache::entries() const {
  return without_exceptions([&]() -> StatusOr<std::vector<CacheEntry>> {
    if (store_->writable() != nullptr) return store_->writable()->entries();
    std::vector<CacheEntry> entries;
    for (const DiskCache& cache : store_->read_only()) {
      for (CacheEntry& entry : cache.entries()) entries.push_back(std::move(entry));
    }
    return entries;
  });
}

StatusOr<PruneReport> KernelCache::prune(bool dry_run) const {
  FLASHPRIME_REQUIRE(store_->writable() != nullptr, StatusCode::kIo,
                     "kernel cache: ", store_->cache_description());
  return without_exceptions([&] { return store_->writable()->prune(dry_run, false); });
}

StatusOr<PruneReport> KernelCache::clear() const {
  FLASHPRIME_REQUIRE(store_->writable() != nullptr, StatusCode::kIo,
                     "kernel cache: ", store_->cache_description());
  return without_exceptions([&] { return store_->writable()->prune(false, true); });
}

StatusOr<int64_t> KernelCache::unpack(const std::string& path) const {
  FLASHPRIME_REQUIRE(store_->writable() != nullptr, StatusCode::kIo,
                     "kernel cache: ", store_->cache_description());
  return without_exceptions([&]() -> StatusOr<int64_t> {
    const StatusOr<Bundle> bundle = Bundle::open(path);
    if (!bundle.ok()) return bundle.status();
    int64_t count = 0;
    for (Bundle::Item& item : bundle->items()) {
      if (!item.kernel.ok()) return item.kernel.status();
      CompiledKernel kernel = *std::move(item.kernel);
      kernel.created = std::time(nullptr);
      FLASHPRIME_RETURN_IF_ERROR(store_->writable()->publish(kernel));
      ++count;
    }
    return count;
  });
}

StatusOr<std::vector<CacheEntry>> list_bundle(const std::string& path) {
  return without_exceptions([&]() -> StatusOr<std::vector<CacheEntry>> {
    const StatusOr<Bundle> bundle = Bundle::open(path);
    if (!bundle.ok()) return bundle.status();
    std::vector<CacheEntry> entries;
    for (const Bundle::Item& item : bundle->items()) entries.push_back(describe(item, path));
    return entries;
  });
}

StatusOr<std::vector<PlannedKernel>> missing_from_bundle(const std::string& path,
                                                         const KernelPlan& plan) {
  return without_exceptions([&]() -> StatusOr<std::vector<PlannedKernel>> {
    const StatusOr<Bundle> bundle = Bundle::open(path);
    if (!bundle.ok()) return bundle.status();
    std::vector<PlannedKernel> missing;
    for (const PlannedKernel& kernel : plan.kernels) {
      const auto found = bundle->find(kernel.kernel_id, kernel.key);
      if (!found.ok()) return found.status();
      if (!*found) missing.push_back(kernel);
    }
    return missing;
  });
}

StatusOr<std::string> device_architecture(int32_t ordinal) {
  return without_exceptions([&]() -> StatusOr<std::string> {
    const StatusOr<const cuda::Driver*> driver = cuda::Driver::get();
    if (!driver.ok()) return driver.status();
    const StatusOr<cuda::DeviceProperties> device = (*driver)->device(ordinal);
    if (!device.ok()) return device.status();
    const std::vector<Arch> archs = archs_for_device(device->sm);
    FLASHPRIME_REQUIRE(!archs.empty(), StatusCode::kArch, "device: no kernel can be built for ",
                       device->name, " (sm_", device->sm, ")");
    return archs.front().to_string();
  });
}

std::vector<std::string> architectures_for_capability(int32_t major, int32_t minor) {
  std::vector<std::string> names;
  for (const Arch& arch : archs_for_device(major * 10 + minor)) names.push_back(arch.to_string());
  return names;
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Arch& arch : all_archs()) names.push_back(arch.to_string());
  return names;
}

}  // namespace flashprime
