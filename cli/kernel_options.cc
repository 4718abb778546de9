// SPDX-License-Identifier: Apache-2.0
#include "cli/kernel_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Done and total, how long it took and may take.
class Progress {
 public:
  void show(const WarmupProgress& progress) {
    if (progress.last != nullptr) compiled_ |= progress.last->origin == KernelOrigin::kCompiled;
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::string eta;
    if (compiled_ && progress.done > 0 && progress.done < progress.total) {
      eta = fmt::format(
          "  {} left", duration_text(elapsed * static_cast<double>(progress.total - progress.done) /
                                     static_cast<double>(progress.done)));
    }
    if (!is_terminal_) {
      if (progress.last != nullptr) write_stderr(line_of(progress) + eta + '\n');
      return;
    }
    constexpr int64_t kWidth = 30;
    const int64_t filled = progress.total > 0 ? kWidth * progress.done / progress.total : kWidth;
    const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                            std::string(static_cast<size_t>(kWidth - filled), '.');
    if (progress.last != nullptr) write_stderr("\r\033[K" + line_of(progress) + '\n');
    write_stderr(fmt::format("\r\033[K[{}] {}/{}  {}{}", bar, progress.done, progress.total,
                             duration_text(elapsed), eta));
    if (progress.done == progress.total) write_stderr("\r\033[K");
  }

 private:
  static std::string line_of(const WarmupProgress& progress) {
    const KernelReport& report = *progress.last;
    std::string line = fmt::format(
        "[{:>{}}/{}] {} {} {}: {}", progress.done, std::to_string(progress.total).size(),
        progress.total, report.kernel.kernel, report.kernel.arch, kernel_summary(report.kernel.key),
        kernel_origin_name(report.origin));
    if (report.compile_ms > 0.0)
      line += fmt::format(" in {}", duration_text(report.compile_ms / 1e3));
    return line;
  }

  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool compiled_ = false;
};

}  // namespace

void add_plan_options(CLI::App& app, KernelOptions& options) {
  add_model_options(app, options.common);
  add_dtype_option(app, options.common);
  app.add_option("--arch", options.archs, "GPU architectures (default: this machine's GPU)")
      ->type_name("sm_90a,...");
  app.add_option("--output-dtype", options.output_dtype, "e4m3: also kernels with that output")
      ->check(CLI::IsMember({"e4m3"}));
  app.add_flag("--all", options.all, "Also full attention without LSE, which no layer calls");
  app.add_option("--plan", options.plan_file, "Kernels of this file instead (see warmup --list)")
      ->type_name("FILE");
}

void add_cache_dir_option(CLI::App& app, KernelOptions& options) {
  app.add_option("--cache-dir", options.cache_dir,
                 "Cache folder, off, or ro:FOLDER (default: FLASHPRIME_CACHE_DIR, else "
                 "~/.cache/flashprime)");
}

StatusOr<KernelCache> open_cache(const KernelOptions& options) {
  JitOptions jit;
  if (!options.cache_dir.empty()) jit.cache_dir = options.cache_dir;
  jit.on_event = [](const JitEvent& event) {
    write_stderr("flashprime: " + event.kind + ": " + event.message + '\n');
  };
  return KernelCache::open(jit);
}

StatusOr<std::vector<std::string>> make_archs(const KernelOptions& options) {
  std::vector<std::string> archs;
  if (options.archs.empty()) {
    StatusOr<std::string> arch = device_architecture(options.common.device.index);
    if (!arch.ok()) {
      return Status(arch.status().code(),
                    "--arch: not given, and this machine names none: " + arch.status().message());
    }
    archs.push_back(*std::move(arch));
    return archs;
  }
  std::istringstream list(options.archs);
  const std::vector<std::string> known = known_architectures();
  for (std::string arch; std::getline(list, arch, ',');) {
    if (std::find(known.begin(), known.end(), arch) == known.end()) {
      return Status(StatusCode::kFormat, fmt::format("--arch: got '{}', want some of {}",
                                                     printable(arch), fmt::join(known, ",")));
    }
    archs.push_back(std::move(arch));
  }
  return archs;
}

StatusOr<KernelPlan> make_plan(const KernelCache& cache, const KernelOptions& options) {
  if (!options.plan_file.empty()) {
    std::ifstream file(options.plan_file);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) return Status(StatusCode::kIo, "--plan: cannot read " + options.plan_file);
    return parse_plan(text.str());
  }
  const StatusOr<ModelShape> model = resolve_model(options.common);
  if (!model.ok()) return model.status();
  StatusOr<std::vector<std::string>> archs = make_archs(options);
  if (!archs.ok()) return archs.status();
  return cache.plan({.dims = model->dims,
                     .dtype = options.common.dtype,
                     .archs = *std::move(archs),
                     .e4m3_output = options.output_dtype == "e4m3",
                     .all = options.all});
}

std::string kernel_summary(const std::string& key) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(key);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos) fields[line.substr(0, equals)] = line.substr(equals + 3);
  }
  std::string summary;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) summary += (summary.empty() ? "" : " ") + text;
  };
  if (fields.contains("traits.dims.nope")) {
    add(fields["traits.dims.nope"] + '/' + fields["traits.dims.rope"] + '/' +
        fields["traits.dims.v"]);
  } else {
    add(fields["traits.dim_v"]);
  }
  add(fields["traits.dtype"]);
  if (fields["traits.out_dtype"] != fields["traits.dtype"]) add("-> " + fields["traits.out_dtype"]);
  add(fields["traits.mask"]);
  if (fields["traits.return_lse"] == "true") add("lse");
  return summary;
}

WarmupOptions with_progress(WarmupOptions options) {
  options.cancelled = [] { return interrupted(); };
  options.on_progress = [progress = std::make_shared<Progress>()](const WarmupProgress& now) {
    progress->show(now);
  };
  return options;
}

Json kernels_json(const WarmupReport& report) {
  Json kernels = Json::array();
  for (const KernelReport& kernel : report.kernels) {
    Json row = {{"kernel", kernel.kernel.kernel},
                {"arch", kernel.kernel.arch},
                {"kernel_id", kernel.kernel.kernel_id},
                {"key", kernel.kernel.key},
                {"source", kernel_origin_name(kernel.origin)},
                {"queue_ms", kernel.queue_ms},
                {"lock_ms", kernel.lock_ms},
                {"compile_ms", kernel.compile_ms},
                {"publish_ms", kernel.publish_ms},
                {"load_ms", kernel.load_ms},
                {"cubin_bytes", kernel.cubin_bytes},
                {"regs", kernel.registers},
                {"stack_bytes", kernel.stack_bytes},
                {"spill_stores", kernel.spill_store_bytes},
                {"spill_loads", kernel.spill_load_bytes},
                {"smem_bytes", kernel.shared_bytes},
                {"warnings", kernel.warnings},
                {"compiler", kernel.compiler},
                {"min_driver", kernel.min_driver}};
    if (!kernel.status.ok()) row["error"] = kernel.status.to_string();
    kernels.push_back(std::move(row));
  }
  return kernels;
}

std::string totals_text(const WarmupReport& report) {
  std::string counts;
  for (const KernelOrigin origin :
       {KernelOrigin::kCompiled, KernelOrigin::kWaited, KernelOrigin::kDisk, KernelOrigin::kBundle,
        KernelOrigin::kMemory, KernelOrigin::kSkipped, KernelOrigin::kFailed}) {
    const int64_t count = report.count(origin);
    if (count > 0) {
      counts +=
          fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, kernel_origin_name(origin));
    }
  }
  int64_t bytes = 0;
  for (const KernelReport& kernel : report.kernels) bytes += kernel.cubin_bytes;
  return align_columns(
      {{"kernels", fmt::format("{}: {}", report.kernels.size(), counts)},
       {"time", fmt::format("{}, {} of processor time", duration_text(report.wall_ms / 1e3),
                            duration_text(report.cpu_ms / 1e3))},
       {"size", with_commas(bytes) + " bytes of cubins, peak memory " +
                    with_commas(report.peak_rss_bytes >> 20) + " MiB"},
       {"cache", report.cache}});
}

}  // namespace flashprime::cli
