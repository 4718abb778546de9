// SPDX-License-Identifier: Apache-2.0
// flashprime warmup: compiles the kernels that a model's layers run, before the first request.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/kernel_options.h"
#include "cli/text.h"
#include "flashprime/warmup.h"

namespace flashprime::cli {
namespace {

struct WarmupVerbOptions {
  KernelOptions kernels;
  int64_t threads = 0;
  double deadline = 0.0;
  int64_t rank = 0;
  int64_t world = 1;
  int64_t fa_version = 4;
  bool list = false;
  bool dry_run = false;
  bool force = false;
  bool load_only = false;
};

void say_what_is_skipped(const KernelPlan& plan) {
  for (const SkippedKernel& kernel : plan.skipped) {
    const std::string line =
        fmt::format("flashprime: skipped: {}: {}\n", kernel.what, kernel.reason);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

// vLLM's list for each architecture, with vLLM's gates; or why it is empty.
StatusOr<Json> compile_keys_json(const WarmupVerbOptions& options) {
  Json lists = Json::array();
  if (!options.kernels.plan_file.empty()) return lists;
  const StatusOr<ModelShape> model = resolve_model(options.kernels.common);
  if (!model.ok()) return model.status();
  const StatusOr<std::vector<std::string>> archs = make_archs(options.kernels);
  if (!archs.ok()) return archs.status();
  for (const std::string& arch : *archs) {
    const int32_t sm = std::atoi(arch.c_str() + std::string_view("sm_").size());
    const StatusOr<WarmupKeyList> list =
        get_warmup_keys({.dims = model->dims,
                         .num_heads = model->heads,
                         .dtype = options.kernels.common.dtype,
                         .capability = {sm / 10, sm % 10},
                         .fa_version = static_cast<int32_t>(options.fa_version),
                         .batch_invariant = options.kernels.common.batch_invariant});
    if (!list.ok()) return list.status();
    Json keys = Json::array();
    for (const CompileKey& key : list->keys) keys.push_back(key.to_python());
    lists.push_back({{"arch", arch},
                     {"keys", std::move(keys)},
                     {"why_empty", list->why_empty},
                     {"notes", list->notes}});
  }
  return lists;
}

int print_list(const KernelPlan& plan, const WarmupVerbOptions& options, Session& session) {
  if (session.json) {
    StatusOr<Json> compile_keys = compile_keys_json(options);
    if (!compile_keys.ok()) return session.fail(compile_keys.status());
    Json kernels = Json::array();
    for (const PlannedKernel& kernel : plan.kernels) {
      kernels.push_back({{"kernel", kernel.kernel},
                         {"arch", kernel.arch},
                         {"kernel_id", kernel.kernel_id},
                         {"key", kernel.key}});
    }
    Json skipped = Json::array();
    for (const SkippedKernel& kernel : plan.skipped) {
      skipped.push_back(
          {{"kernel", kernel.what}, {"arch", kernel.arch}, {"reason", kernel.reason}});
    }
    session.print_json({{"compile_keys", *std::move(compile_keys)},
                        {"kernels", std::move(kernels)},
                        {"skipped", std::move(skipped)}});
    return kExitOk;
  }
  // The form that --plan reads.
  session.out += plan.to_text();
  say_what_is_skipped(plan);
  return kExitOk;
}

std::string table(const WarmupReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"kernel", "arch", "what", "source", "compile", "regs", "spills", "shared", "bytes"}};
  for (const KernelReport& kernel : report.kernels) {
    const bool known = kernel.cubin_bytes > 0;
    rows.push_back(
        {kernel.kernel.kernel, kernel.kernel.arch, kernel_summary(kernel.kernel.key),
         std::string(kernel_origin_name(kernel.origin)),
         kernel.compile_ms > 0.0 ? duration_text(kernel.compile_ms / 1e3) : "-",
         known ? std::to_string(kernel.registers) : "-",
         known ? fmt::format("{}/{}", kernel.spill_store_bytes, kernel.spill_load_bytes) : "-",
         known ? with_commas(kernel.shared_bytes) : "-",
         known ? with_commas(kernel.cubin_bytes) : "-"});
  }
  return align_columns(rows);
}

int run_verb(Session& session, const WarmupVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const StatusOr<KernelPlan> plan = make_plan(*cache, options.kernels);
  if (!plan.ok()) {
    const bool usage = plan.status().code() == StatusCode::kFormat;
    return usage ? session.fail(kExitUsage, plan.status().message()) : session.fail(plan.status());
  }
  if (options.list) return print_list(*plan, options, session);
  if (plan->kernels.empty()) {
    return session.fail(kExitUnsupported,
                        plan->skipped.empty() ? "no kernel" : plan->skipped.front().reason);
  }
  say_what_is_skipped(*plan);
  WarmupOptions warmup;
  warmup.mode = options.load_only ? WarmupMode::kLoadOnly
                : options.force   ? WarmupMode::kForce
                : options.dry_run ? WarmupMode::kDryRun
                                  : WarmupMode::kMissing;
  warmup.threads = static_cast<int32_t>(options.threads);
  warmup.deadline_seconds = options.deadline;
  warmup.rank = static_cast<int32_t>(options.rank);
  warmup.world = static_cast<int32_t>(options.world);
  warmup.device = options.kernels.common.device.index;
  const StatusOr<WarmupReport> report = cache->warmup(*plan, with_progress(std::move(warmup)));
  if (!report.ok()) return session.fail(report.status());

  if (session.json) {
    session.print_json({{"kernels", kernels_json(*report)},
                        {"wall_ms", report->wall_ms},
                        {"cpu_ms", report->cpu_ms},
                        {"peak_rss_bytes", report->peak_rss_bytes},
                        {"publish_failures", report->publish_failures},
                        {"cache", report->cache},
                        {"complete", report->complete()}});
  } else {
    session.out += table(*report) + totals_text(*report) + "repro: " + session.repro + '\n';
  }
  if (!report->status.ok()) {
    const std::string line = "flashprime: " + report->status.to_string() + '\n';
    std::fwrite(line.data(), 1, line.size(), stderr);
    return exit_code_of(report->status.code());
  }
  if (!plan->skipped.empty()) return kExitUnsupported;
  return report->complete() || options.dry_run ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_warmup(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand(
      "warmup", "Compile the GPU kernels of a model; needs NVRTC, but no GPU and no driver");
  auto options = std::make_shared<WarmupVerbOptions>();
  app->add_flag("--json", session.json, "JSON on stdout");
  add_plan_options(*app, options->kernels);
  add_cache_dir_option(*app, options->kernels);
  add_integer(*app, "-j,--threads", &options->threads, 1, 256,
              "Kernels compiled at once (default: by cores and free memory)");
  add_decimal(*app, "--deadline", &options->deadline, 0.0, 86400.0,
              "Stop after that many seconds; exit code 1 if kernels are missing");
  add_integer(*app, "--rank", &options->rank, 0, 1 << 20, "Of --world processes on one cache");
  add_integer(*app, "--world", &options->world, 1, 1 << 20, "They start at different kernels");
  app->add_flag("--batch-invariant", options->kernels.common.batch_invariant,
                "Of the compile keys in --list --json: no splits");
  add_integer(*app, "--fa-version", &options->fa_version, 2, 4,
              "Of the compile keys in --list --json (default 4)");
  auto* list =
      app->add_flag("--list", options->list, "Print the kernels as a plan, compile nothing");
  auto* dry = app->add_flag("--dry-run", options->dry_run, "Say what is there, compile nothing");
  auto* force = app->add_flag("--force", options->force, "Compile everything again");
  auto* load = app->add_flag("--load-only", options->load_only,
                             "Compile nothing; load what is there onto the GPU");
  list->excludes(dry)->excludes(force)->excludes(load);
  dry->excludes(force)->excludes(load);
  force->excludes(load);
  app->callback([&session, options] {
    session.selected = [&session, options] { return run_verb(session, *options); };
  });
}

}  // namespace flashprime::cli
