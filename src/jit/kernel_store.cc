// SPDX-License-Identifier: Apache-2.0
#include "jit/kernel_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "checks.h"

namespace flashprime {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Between two looks at another process's lock.
constexpr std::chrono::milliseconds kFirstPause(20);
constexpr std::chrono::milliseconds kLongestPause(200);

}  // namespace

KernelStore::KernelStore(JitSettings settings, std::shared_ptr<const Log> log)
    : settings_(std::move(settings)), log_(std::move(log)), freeze_(settings_.freeze) {}

StatusOr<std::shared_ptr<KernelStore>> KernelStore::open(JitSettings settings) {
  StatusOr<std::shared_ptr<const Log>> log = Log::open(settings.log);
  if (!log.ok()) return log.status();
  std::shared_ptr<KernelStore> store(new KernelStore(std::move(settings), *std::move(log)));
  const JitSettings& own = store->settings_;
  for (size_t i = 0; i < own.bundles.size(); ++i) {
    std::optional<Sha256> pinned;
    if (!own.bundle_hashes.empty()) pinned = own.bundle_hashes[i];
    StatusOr<Bundle> bundle = Bundle::open(own.bundles[i], pinned);
    if (!bundle.ok()) return bundle.status();
    store->bundles_.push_back(*std::move(bundle));
  }
  for (const std::string& dir : own.dirs.read_only) {
    store->read_only_.emplace_back(DiskCacheOptions{dir, false, own.shared_by_group, 0});
    const Status usable = store->read_only_.back().check_root();
    if (!usable.ok()) store->event("cache_unusable", usable.message());
  }
  store->why_memory_only_ = own.dirs.why_memory_only;
  if (!own.dirs.writable.empty()) {
    auto cache = std::make_unique<DiskCache>(
        DiskCacheOptions{own.dirs.writable, true, own.shared_by_group, own.max_bytes});
    const Status usable = cache->check_root();
    if (usable.ok()) {
      store->writable_ = std::move(cache);
    } else {
      store->why_memory_only_ = usable.message();
      store->event("cache_unusable", usable.message());
    }
  }
  store->log().write(
      LogLevel::kInfo, "opened",
      concat("kernel cache ", store->cache_description(), ", ", store->read_only_.size(),
             " read-only folders, ", store->bundles_.size(), " bundles"));
  return store;
}

StatusOr<std::shared_ptr<const NvrtcCompiler>> KernelStore::compiler() {
  std::call_once(compiler_once_, [&] {
    compiler_ = NvrtcCompiler::load(settings_.nvrtc);
    log_->write(LogLevel::kInfo, "compiler",
                compiler_.ok() ? concat((*compiler_)->description(), ", ", (*compiler_)->path())
                               : compiler_.status().message());
  });
  return compiler_;
}

StatusOr<KernelSource> KernelStore::source(const KernelKey& key) const {
  return make_kernel_source(key, settings_.kernel_dir);
}

StatusOr<std::string> KernelStore::kernel_id(const KernelKey& key) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = kernel_ids_.find(key);
    if (known != kernel_ids_.end()) return known->second;
  }
  const StatusOr<KernelSource> made = source(key);
  if (!made.ok()) return made.status();
  std::string id = kernel_id_of(key, *made);
  // Sources in a folder may be edited at any time.
  if (!settings_.kernel_dir.empty()) return id;
  const std::lock_guard lock(mutex_);
  return kernel_ids_.emplace(key, std::move(id)).first->second;
}

StatusOr<Obtained> KernelStore::obtain(const KernelKey& key, const ObtainOptions& options) {
  for (;;) {
    std::shared_ptr<Flight> flight;
    {
      const std::lock_guard lock(mutex_);
      const auto known = memory_.find(key);
      if (known != memory_.end() && !options.force) {
        return Obtained{.kernel = known->second, .origin = KernelOrigin::kMemory};
      }
      std::shared_ptr<Flight>& current = flights_[key];
      if (current == nullptr) {
        current = std::make_shared<Flight>();
        break;
      }
      flight = current;
    }
    std::unique_lock lock(flight->mutex);
    while (!flight->landed.wait_for(lock, kLongestPause, [&] { return flight->done; })) {
      if (options.cancelled && options.cancelled()) {
        return Status(StatusCode::kNotWarm, "kernel: cancelled while waiting for its compilation");
      }
    }
    if (flight->outcome.ok()) {
      return Obtained{.kernel = flight->outcome->kernel, .origin = KernelOrigin::kWaited};
    }
    // The other was cancelled, or would not compile: that says nothing about this call.
    if (flight->outcome.status().code() != StatusCode::kNotWarm) return flight->outcome.status();
  }
  // Whatever happens, the others must hear of it.
  StatusOr<Obtained> outcome = without_exceptions([&] { return obtain_alone(key, options); });
  std::shared_ptr<Flight> flight;
  {
    const std::lock_guard lock(mutex_);
    flight = flights_.extract(key).mapped();
    if (outcome.ok()) memory_[key] = outcome->kernel;
  }
  const std::lock_guard lock(flight->mutex);
  flight->outcome = outcome;
  flight->done = true;
  flight->landed.notify_all();
  return outcome;
}

StatusOr<Obtained> KernelStore::obtain_alone(const KernelKey& key, const ObtainOptions& options) {
  FLASHPRIME_RETURN_IF_ERROR(validate_kernel_key(key));
  const StatusOr<KernelSource> made = source(key);
  if (!made.ok()) return made.status();
  EntryQuery query{kernel_id_of(key, *made), key.arch.to_string(), key.text(), {}};
  const auto hit = [](std::shared_ptr<const CompiledKernel> kernel, KernelOrigin origin) {
    return Obtained{.kernel = std::move(kernel), .origin = origin};
  };
  if (!options.force) {
    if (auto kernel = find_in_bundles(query)) return hit(std::move(kernel), KernelOrigin::kBundle);
  }
  // Without a compiler for this architecture any compiler's kernel serves.
  const auto found_compiler = compiler();
  if (found_compiler.ok() && (*found_compiler)->supports(key.arch).ok()) {
    query.compiler_id = (*found_compiler)->id();
  }
  if (!options.force) {
    if (auto kernel = find_on_disk(query)) return hit(std::move(kernel), KernelOrigin::kDisk);
  }
  if (options.never_compile) {
    return Status(StatusCode::kNotWarm,
                  concat("kernel: not compiled yet, want it warmed: ", key.to_string()));
  }
  FLASHPRIME_RETURN_IF_ERROR(check_frozen(key));
  if (!found_compiler.ok()) {
    std::string searched = concat("cache ", cache_description());
    for (const DiskCache& cache : read_only_) searched += ", " + cache.root();
    for (const Bundle& bundle : bundles_) searched += ", bundle " + bundle.path();
    return Status(StatusCode::kNoCompiler, concat(key.to_string(), ": not in ", searched, "; ",
                                                  found_compiler.status().message()));
  }
  FLASHPRIME_RETURN_IF_ERROR((*found_compiler)->supports(key.arch));
  return compile(key, query, *made, options);
}

std::shared_ptr<const CompiledKernel> KernelStore::find_in_bundles(const EntryQuery& query) {
  for (const Bundle& bundle : bundles_) {
    auto found = bundle.find(query.kernel_id, query.key);
    if (!found.ok()) {
      count("miss_bundle_damaged");
      event("cache_unusable", found.status().message(), true);
    } else if (*found) {
      count("hit_bundle");
      log_->write(LogLevel::kDebug, "hit_bundle", concat(query.kernel_id, " in ", bundle.path()));
      return std::make_shared<const CompiledKernel>(**std::move(found));
    }
  }
  return nullptr;
}

std::shared_ptr<const CompiledKernel> KernelStore::find_in(const DiskCache& cache,
                                                           const EntryQuery& query) {
  DiskCache::Found found = cache.find(query);
  if (found.kernel) {
    count("hit_disk");
    log_->write(LogLevel::kDebug, "hit_disk", concat(query.kernel_id, " in ", cache.root()));
    return std::make_shared<const CompiledKernel>(*std::move(found.kernel));
  }
  count("miss_" + found.miss);
  log_->write(LogLevel::kDebug, "miss_" + found.miss,
              concat(query.kernel_id, " in ", cache.root(), ' ', found.detail));
  if (found.miss == "damaged" || found.miss == "foreign") event("quarantined", found.detail);
  return nullptr;
}

std::shared_ptr<const CompiledKernel> KernelStore::find_on_disk(const EntryQuery& query) {
  for (const DiskCache& cache : read_only_) {
    if (auto kernel = find_in(cache, query)) return kernel;
  }
  return writable_ ? find_in(*writable_, query) : nullptr;
}

Status KernelStore::check_frozen(const KernelKey& key) {
  const FreezePolicy policy = freeze_;
  if (policy == FreezePolicy::kAllow) return ok_status();
  const std::string what = concat("compiling is frozen: ", key.to_string());
  if (policy == FreezePolicy::kWarn) {
    count("compiled_late");
    event("compiled_late", what);
    return ok_status();
  }
  count("refused_late");
  event("refused_late", what);
  return Status(StatusCode::kFrozen, what);
}

StatusOr<Obtained> KernelStore::compile(const KernelKey& key, const EntryQuery& query,
                                        const KernelSource& made, const ObtainOptions& options) {
  Obtained obtained;
  KernelLock lock;
  if (writable_) {
    const Clock::time_point start = Clock::now();
    auto pause = kFirstPause;
    bool waited = false;
    while ((lock = writable_->try_lock(query.kernel_id)).state() == KernelLock::State::kBusy) {
      // Another process compiles it. Beyond the limit its work is done here as well.
      if (milliseconds_since(start) >= 1000.0 * settings_.lock_wait_seconds) {
        count("lock_given_up");
        break;
      }
      if (options.cancelled && options.cancelled()) {
        return Status(StatusCode::kNotWarm, "kernel: cancelled while another process compiles it");
      }
      waited = true;
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
    obtained.lock_ms = milliseconds_since(start);
    // The entry may have come between our look and our lock.
    if (!options.force) {
      if (auto kernel = find_in(*writable_, query)) {
        obtained.kernel = std::move(kernel);
        obtained.origin = waited ? KernelOrigin::kWaited : KernelOrigin::kDisk;
        return obtained;
      }
    }
  }
  const std::shared_ptr<const NvrtcCompiler>& nvrtc = *compiler_;
  StatusOr<CompileOutput> output =
      nvrtc->compile(made, key.arch, !settings_.dump_dir.empty(), options.cancelled);
  if (!output.ok()) {
    const bool cancelled = output.status().code() == StatusCode::kNotWarm;
    const std::string kind = cancelled ? "compile_cancelled" : "compile_failed";
    const std::string message = concat(key.to_string(), ": ", output.status().message());
    count(kind);
    log_->write(cancelled ? LogLevel::kInfo : LogLevel::kError, kind, message);
    return Status(output.status().code(), message);
  }
  count("compiled");
  log_->write(
      LogLevel::kInfo, "compiled",
      concat(key.to_string(), " in ", static_cast<int64_t>(output->milliseconds), " ms, ",
             output->cubin.size(), " bytes, ", output->report.registers, " registers, spills ",
             output->report.spill_store_bytes, '/', output->report.spill_load_bytes, " bytes"));
  CompiledKernel kernel;
  kernel.kernel_id = query.kernel_id;
  kernel.compiler_id = nvrtc->id();
  kernel.compiler = nvrtc->description();
  kernel.nvrtc_version = nvrtc->version();
  kernel.arch = key.arch;
  kernel.key = query.key;
  kernel.options = compile_options(key.arch);
  kernel.report = output->report;
  kernel.shared_bytes = key.launch_shape().shared_bytes;
  kernel.compile_us = static_cast<int64_t>(output->milliseconds * 1000.0);
  kernel.created = std::time(nullptr);
  kernel.cubin = output->cubin;
  dump(kernel, made, *output);
  if (writable_) {
    const Clock::time_point start = Clock::now();
    const Status published = writable_->publish(kernel);
    obtained.publish_ms = milliseconds_since(start);
    if (!published.ok()) {
      count("publish_failed");
      event("publish_failed", published.message(), true);
    }
  }
  obtained.compile_ms = output->milliseconds;
  obtained.origin = KernelOrigin::kCompiled;
  obtained.kernel = std::make_shared<const CompiledKernel>(std::move(kernel));
  return obtained;
}

void KernelStore::reject(const KernelKey& key, const CompiledKernel& kernel) {
  {
    const std::lock_guard lock(mutex_);
    memory_.erase(key);
  }
  count("refused_by_driver");
  event("quarantined", concat("the driver refuses the cubin of ", key.to_string()));
  if (writable_) writable_->quarantine(kernel);
}

void KernelStore::dump(const CompiledKernel& kernel, const KernelSource& made,
                       const CompileOutput& output) {
  if (settings_.dump_dir.empty()) return;
  mkdir(settings_.dump_dir.c_str(), 0700);
  const std::string base = settings_.dump_dir + '/' + kernel.kernel_id;
  Status status = replace_file(base + ".cu", made.unit);
  if (status.ok()) status = replace_file(base + ".ptx", output.ptx);
  if (status.ok()) status = replace_file(base + ".cubin", output.cubin);
  if (status.ok()) status = replace_file(base + ".log", kernel.key + '\n' + output.log);
  if (!status.ok()) event("dump_failed", status.message(), true);
}

std::string KernelStore::cache_description() const {
  return writable_ ? writable_->root() : "in memory only (" + why_memory_only_ + ")";
}

void KernelStore::count(const std::string& name) {
  const std::lock_guard lock(counters_mutex_);
  ++counters_[name];
}

int64_t KernelStore::counter(const std::string& name) const {
  const std::lock_guard lock(counters_mutex_);
  const auto found = counters_.find(name);
  return found == counters_.end() ? 0 : found->second;
}

std::map<std::string, int64_t> KernelStore::counters() const {
  const std::lock_guard lock(counters_mutex_);
  return counters_;
}

void KernelStore::event(const std::string& kind, const std::string& message, bool once) {
  if (once) {
    const std::lock_guard lock(counters_mutex_);
    if (std::exchange(said_[kind], true)) return;
  }
  log_->write(kind == "refused_late" ? LogLevel::kError : LogLevel::kWarn, kind, message);
  if (settings_.on_event) settings_.on_event({kind, message});
}

}  // namespace flashprime
