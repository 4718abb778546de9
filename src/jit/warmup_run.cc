// SPDX-License-Identifier: Apache-2.0
#include "jit/warmup_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "checks.h"
#include "jit/kernel_store.h"
#include "jit/loaded_kernels.h"
#include "jit/machine_limits.h"

namespace flashprime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kProgressInterval(100);

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// A device to load kernels onto.
struct Target {
  const cuda::Driver* driver = nullptr;
  cuda::DeviceProperties device;
  cuda::Context context = nullptr;
  std::unique_ptr<LoadedKernels> loaded;
};

StatusOr<Target> open_target(const KernelCache& cache, int32_t ordinal) {
  Target target;
  const StatusOr<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver.ok()) return driver.status();
  target.driver = *driver;
  StatusOr<cuda::DeviceProperties> device = target.driver->device(ordinal);
  if (!device.ok()) return device.status();
  target.device = *std::move(device);
  StatusOr<cuda::Context> context = cuda::primary_context(*target.driver, target.device.id);
  if (!context.ok()) return context.status();
  target.context = *context;
  target.loaded = std::make_unique<LoadedKernels>(cache.store(), *target.driver);
  return target;
}

void fill_report(const Obtained& obtained, KernelReport& report) {
  const CompiledKernel& kernel = *obtained.kernel;
  report.origin = obtained.origin;
  report.lock_ms = obtained.lock_ms;
  report.compile_ms = obtained.compile_ms;
  report.publish_ms = obtained.publish_ms;
  report.cubin_bytes = static_cast<int64_t>(kernel.cubin.size());
  report.registers = kernel.report.registers;
  report.stack_bytes = kernel.report.stack_bytes;
  report.spill_store_bytes = kernel.report.spill_store_bytes;
  report.spill_load_bytes = kernel.report.spill_load_bytes;
  report.shared_bytes = kernel.report.static_shared_bytes + kernel.shared_bytes;
  report.warnings = kernel.report.warnings;
  report.compiler = kernel.compiler;
  report.min_driver = min_driver(kernel.arch, kernel.nvrtc_version);
}

class WarmupRun {
 public:
  WarmupRun(const KernelCache& cache, const KernelPlan& plan, const WarmupOptions& options,
            Target* target)
      : store_(*cache.store()), options_(options), target_(target), kernels_(plan.kernels.size()) {
    report_.kernels.resize(plan.kernels.size());
    for (size_t i = 0; i < plan.kernels.size(); ++i) report_.kernels[i].kernel = plan.kernels[i];
  }

  WarmupReport run() {
    const double cpu_before = process_cpu_ms();
    const int64_t failures_before = store_.counter("publish_failed");
    const size_t total = report_.kernels.size();
    size_t threads =
        static_cast<size_t>(options_.threads > 0 ? options_.threads : default_compile_threads());
    threads = std::min(threads, std::max<size_t>(total, 1));
    std::vector<std::thread> workers;
    for (size_t i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    report_progress(total);
    for (std::thread& worker : workers) worker.join();

    std::string failures;
    for (const KernelReport& kernel : report_.kernels) {
      if (kernel.origin != KernelOrigin::kFailed) continue;
      if (report_.status.ok()) report_.status = kernel.status;
      failures += (failures.empty() ? "" : "\n") + kernel.status.message();
    }
    const int64_t failed = report_.count(KernelOrigin::kFailed);
    if (failed > 0) {
      report_.status = Status(report_.status.code(),
                              concat(failed, " of ", total, " kernels failed:\n", failures));
    }
    report_.wall_ms = milliseconds_since(start_);
    report_.cpu_ms = process_cpu_ms() - cpu_before;
    report_.peak_rss_bytes = peak_rss_bytes();
    report_.publish_failures = store_.counter("publish_failed") - failures_before;
    report_.cache = store_.cache_description();
    return std::move(report_);
  }

  std::vector<std::shared_ptr<const CompiledKernel>>& kernels() { return kernels_; }

 private:
  bool late() const {
    return options_.deadline_seconds > 0.0 &&
           milliseconds_since(start_) >= 1000.0 * options_.deadline_seconds;
  }
  // Asked by all workers, and by the compiler in the middle of its work.
  bool stopped() const { return late() || (options_.cancelled && options_.cancelled()); }

  void work() {
    const size_t total = report_.kernels.size();
    // Ranks start at different kernels, so that they share the work through the cache.
    const size_t offset =
        options_.world > 1 ? static_cast<size_t>(options_.rank) % std::max<size_t>(total, 1) : 0;
    for (size_t next = next_++; next < total; next = next_++) {
      const size_t index = (next + offset) % total;
      KernelReport& report = report_.kernels[index];
      report.queue_ms = milliseconds_since(start_);
      const Status status = without_exceptions([&] { return obtain(report, kernels_[index]); });
      if (!status.ok()) {
        report.status = status;
        report.origin = stopped() && status.code() == StatusCode::kNotWarm ? KernelOrigin::kSkipped
                                                                           : KernelOrigin::kFailed;
      }
      const std::lock_guard lock(mutex_);
      finished_.push_back(&report);
      changed_.notify_one();
    }
  }

  Status obtain(KernelReport& report, std::shared_ptr<const CompiledKernel>& kernel) {
    FLASHPRIME_REQUIRE(!stopped(), StatusCode::kNotWarm,
                       late() ? "not tried: the deadline has passed" : "not tried: cancelled");
    const StatusOr<KernelKey> key = parse_kernel_key(report.kernel.key);
    if (!key.ok()) return key.status();
    const StatusOr<std::string> id = store_.kernel_id(*key);
    if (!id.ok()) return id.status();
    FLASHPRIME_REQUIRE(*id == report.kernel.kernel_id, StatusCode::kPlan,
                       "plan: made from other kernel sources: ", key->to_string());
    ObtainOptions how;
    how.force = options_.mode == WarmupMode::kForce;
    how.never_compile =
        options_.mode == WarmupMode::kLoadOnly || options_.mode == WarmupMode::kDryRun;
    how.cancelled = [this] { return stopped(); };
    Obtained obtained;
    if (target_ != nullptr) {
      const cuda::ContextScope scope(*target_->driver, target_->context);
      FLASHPRIME_RETURN_IF_ERROR(scope.status());
      const Clock::time_point start = Clock::now();
      const auto loaded = target_->loaded->load({*key}, target_->device, how, &obtained);
      if (!loaded.ok()) return loaded.status();
      report.load_ms = milliseconds_since(start);
    } else {
      StatusOr<Obtained> outcome = store_.obtain(*key, how);
      if (!outcome.ok() && options_.mode == WarmupMode::kDryRun &&
          outcome.status().code() == StatusCode::kNotWarm) {
        report.origin = KernelOrigin::kSkipped;
        report.status = Status(StatusCode::kNotWarm, "would be compiled");
        return ok_status();
      }
      if (!outcome.ok()) return outcome.status();
      obtained = *std::move(outcome);
    }
    fill_report(obtained, report);
    kernel = std::move(obtained.kernel);
    return ok_status();
  }

  // On the caller's thread, until all is done.
  void report_progress(size_t total) {
    std::unique_lock lock(mutex_);
    for (size_t done = 0; done < total;) {
      changed_.wait_for(lock, kProgressInterval, [&] { return !finished_.empty(); });
      const KernelReport* last = nullptr;
      if (!finished_.empty()) {
        last = finished_.front();
        finished_.pop_front();
        ++done;
      }
      if (!options_.on_progress) continue;
      lock.unlock();
      options_.on_progress({static_cast<int64_t>(done), static_cast<int64_t>(total), last});
      lock.lock();
    }
  }

  KernelStore& store_;
  const WarmupOptions& options_;
  Target* target_;
  const Clock::time_point start_ = Clock::now();
  WarmupReport report_;
  std::vector<std::shared_ptr<const CompiledKernel>> kernels_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<const KernelReport*> finished_;
};

}  // namespace

int64_t WarmupReport::count(KernelOrigin origin) const {
  return std::count_if(kernels.begin(), kernels.end(),
                       [&](const KernelReport& kernel) { return kernel.origin == origin; });
}

StatusOr<WarmupReport> run_warmup(const KernelCache& cache, const KernelPlan& plan,
                                  const WarmupOptions& options,
                                  std::vector<std::shared_ptr<const CompiledKernel>>* compiled) {
  FLASHPRIME_REQUIRE(options.threads >= 0 && options.deadline_seconds >= 0.0 &&
                         options.world >= 1 && options.rank >= 0 && options.rank < options.world,
                     StatusCode::kRange,
                     "warmup: want threads and deadline >= 0 and 0 <= rank < world; got threads ",
                     options.threads, ", deadline ", options.deadline_seconds, ", rank ",
                     options.rank, " of ", options.world);
  std::optional<Target> target;
  if (options.mode == WarmupMode::kLoadOnly) {
    StatusOr<Target> opened = open_target(cache, options.device);
    if (!opened.ok()) return opened.status();
    target = *std::move(opened);
  }
  WarmupRun run(cache, plan, options, target ? &*target : nullptr);
  WarmupReport report = run.run();
  if (compiled != nullptr) *compiled = std::move(run.kernels());
  return report;
}

}  // namespace flashprime
