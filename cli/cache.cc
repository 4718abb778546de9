// SPDX-License-Identifier: Apache-2.0
// flashprime cache: what is in the kernel cache, and bundles for machines without a compiler.
#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "cli/kernel_options.h"
#include "cli/text.h"

namespace flashprime::cli {
namespace {

struct CacheVerbOptions {
  KernelOptions kernels;
  std::string file;
  int64_t threads = 0;
  bool dry_run = false;
};

int fail_of(Session& session, const Status& status, int format_exit) {
  return status.code() == StatusCode::kFormat ? session.fail(format_exit, status.message())
                                              : session.fail(status);
}

// Of the bundle if one is named, else of the cache.
StatusOr<std::vector<CacheEntry>> find_entries(const CacheVerbOptions& options) {
  if (!options.file.empty()) return list_bundle(options.file);
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return cache.status();
  return cache->entries();
}

Json entry_json(const CacheEntry& entry) {
  return {
      {"kernel", entry.kernel},     {"arch", entry.arch},   {"kernel_id", entry.kernel_id},
      {"key", entry.key},           {"bytes", entry.bytes}, {"age_s", entry.age_seconds},
      {"compiler", entry.compiler}, {"path", entry.path},   {"status", entry.status.to_string()}};
}

int run_ls(Session& session, const CacheVerbOptions& options) {
  const auto entries = find_entries(options);
  if (!entries.ok()) return fail_of(session, entries.status(), kExitBadInput);
  if (session.json) {
    Json rows = Json::array();
    for (const CacheEntry& entry : *entries) rows.push_back(entry_json(entry));
    session.print_json({{"entries", std::move(rows)}});
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"kernel", "arch", "what", "bytes", "compiler", "id"}};
  for (const CacheEntry& entry : *entries) {
    rows.push_back({entry.status.ok() ? entry.kernel : "BAD", entry.arch,
                    entry.status.ok() ? kernel_summary(entry.key) : entry.status.message(),
                    with_commas(entry.bytes), entry.compiler.substr(0, entry.compiler.find(',')),
                    entry.kernel_id.substr(0, 16)});
  }
  session.out += align_columns(rows);
  return kExitOk;
}

int run_stat(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const auto entries = cache->entries();
  if (!entries.ok()) return session.fail(entries.status());
  int64_t bytes = 0;
  int64_t bad = 0;
  std::map<std::string, int64_t> archs;
  for (const CacheEntry& entry : *entries) {
    bytes += entry.bytes;
    bad += entry.status.ok() ? 0 : 1;
    ++archs[entry.arch];
  }
  const JitInfo info = cache->info();
  if (session.json) {
    session.print_json({{"cache", info.cache},
                        {"writable", info.cache_writable},
                        {"read_only", info.read_only_dirs},
                        {"bundles", info.bundles},
                        {"compiler", info.compiler},
                        {"compiler_found", info.compiler_found},
                        {"entries", entries->size()},
                        {"bad", bad},
                        {"bytes", bytes},
                        {"by_arch", archs}});
    return kExitOk;
  }
  std::string by_arch;
  for (const auto& [arch, count] : archs) {
    by_arch += fmt::format("{}{} {}", by_arch.empty() ? "" : ", ", count, arch);
  }
  session.out += align_columns(
      {{"cache", info.cache},
       {"read-only",
        info.read_only_dirs.empty() ? "-" : fmt::format("{}", fmt::join(info.read_only_dirs, ":"))},
       {"bundles", info.bundles.empty() ? "-" : fmt::format("{}", fmt::join(info.bundles, ":"))},
       {"compiler", info.compiler.substr(0, info.compiler.find('\n'))},
       {"entries", fmt::format("{} ({} bad), {} bytes", entries->size(), bad, with_commas(bytes))},
       {"by arch", by_arch.empty() ? "-" : by_arch}});
  return kExitOk;
}

int run_verify(Session& session, const CacheVerbOptions& options) {
  const auto entries = find_entries(options);
  if (!entries.ok()) return fail_of(session, entries.status(), kExitBadInput);
  Json bad = Json::array();
  std::string lines;
  for (const CacheEntry& entry : *entries) {
    if (entry.status.ok()) continue;
    bad.push_back(entry_json(entry));
    lines += fmt::format("BAD {}: {}\n", entry.path, entry.status.message());
  }
  const int exit_code = bad.empty() ? kExitOk : kExitCheckFailed;
  if (session.json) {
    session.print_json({{"entries", entries->size()}, {"bad", std::move(bad)}});
  } else {
    session.out += lines + fmt::format("{} entries, {} bad\n", entries->size(), bad.size());
  }
  return exit_code;
}

int print_pruned(Session& session, const StatusOr<PruneReport>& report, bool dry_run) {
  if (!report.ok()) return session.fail(report.status());
  if (session.json) {
    session.print_json({{"dry_run", dry_run},
                        {"removed", report->removed},
                        {"removed_bytes", report->removed_bytes},
                        {"kept", report->kept},
                        {"kept_bytes", report->kept_bytes}});
  } else {
    session.out += fmt::format("{} {} files, {} bytes; {} entries, {} bytes stay\n",
                               dry_run ? "would remove" : "removed", report->removed,
                               with_commas(report->removed_bytes), report->kept,
                               with_commas(report->kept_bytes));
  }
  return kExitOk;
}

int run_prune(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  return print_pruned(session, cache->prune(options.dry_run), options.dry_run);
}

int run_clear(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  return print_pruned(session, cache->clear(), false);
}

int run_path(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const JitInfo info = cache->info();
  if (session.json) {
    session.print_json({{"cache", info.cache}, {"writable", info.cache_writable}});
    return kExitOk;
  }
  if (!info.cache_writable) return session.fail(kExitEnvironment, "kernel cache: " + info.cache);
  session.out += info.cache + '\n';
  return kExitOk;
}

int run_pack(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const StatusOr<KernelPlan> plan = make_plan(*cache, options.kernels);
  if (!plan.ok()) return fail_of(session, plan.status(), kExitUsage);
  WarmupOptions warmup;
  warmup.threads = static_cast<int32_t>(options.threads);
  const StatusOr<WarmupReport> report =
      cache->pack(*plan, options.file, with_progress(std::move(warmup)));
  if (!report.ok()) return session.fail(report.status());
  if (!report->status.ok()) return session.fail(report->status);
  struct stat info = {};
  if (!report->complete() || stat(options.file.c_str(), &info) != 0) {
    return session.fail(kExitInterrupted, "interrupted: no bundle was written");
  }
  if (session.json) {
    session.print_json({{"bundle", options.file},
                        {"bytes", int64_t{info.st_size}},
                        {"kernels", kernels_json(*report)}});
  } else {
    session.out +=
        totals_text(*report) + fmt::format("{}: {} kernels, {} bytes\n", options.file,
                                           report->kernels.size(), with_commas(info.st_size));
  }
  return kExitOk;
}

int run_unpack(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const StatusOr<int64_t> count = cache->unpack(options.file);
  if (!count.ok()) return fail_of(session, count.status(), kExitBadInput);
  if (session.json) {
    session.print_json({{"kernels", *count}, {"cache", cache->info().cache}});
  } else {
    session.out += fmt::format("{} kernels into {}\n", *count, cache->info().cache);
  }
  return kExitOk;
}

int run_covers(Session& session, const CacheVerbOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const StatusOr<KernelPlan> plan = make_plan(*cache, options.kernels);
  if (!plan.ok()) return fail_of(session, plan.status(), kExitUsage);
  const auto missing = missing_from_bundle(options.file, *plan);
  if (!missing.ok()) return fail_of(session, missing.status(), kExitBadInput);
  if (session.json) {
    Json rows = Json::array();
    for (const PlannedKernel& kernel : *missing) {
      rows.push_back({{"kernel", kernel.kernel}, {"arch", kernel.arch}, {"key", kernel.key}});
    }
    session.print_json({{"planned", plan->kernels.size()}, {"missing", std::move(rows)}});
  } else {
    for (const PlannedKernel& kernel : *missing) {
      session.out += fmt::format("missing: {} {} {}\n", kernel.kernel, kernel.arch,
                                 kernel_summary(kernel.key));
    }
    session.out += fmt::format("{} of {} kernels\n", plan->kernels.size() - missing->size(),
                               plan->kernels.size());
  }
  return missing->empty() ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_cache(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand("cache", "The kernel cache and bundles of kernels");
  app->require_subcommand(1);
  auto options = std::make_shared<CacheVerbOptions>();
  const auto add = [&](const char* name, const char* description, auto* run) {
    CLI::App* verb = app->add_subcommand(name, description);
    verb->add_flag("--json", session.json, "JSON on stdout");
    add_cache_dir_option(*verb, options->kernels);
    verb->callback([&session, options, run] {
      session.selected = [&session, options, run] { return run(session, *options); };
    });
    return verb;
  };
  const auto add_bundle = [&](CLI::App* verb, bool required) {
    auto* option = verb->add_option("bundle", options->file, "A bundle (*.fpb)");
    if (required) option->required();
  };
  add_bundle(add("ls", "List the entries of the cache, or of a bundle", run_ls), false);
  add("stat", "Where it is and what it holds", run_stat);
  add_bundle(add("verify", "Check every entry in full; exit code 1 if one is bad", run_verify),
             false);
  add("prune", "Remove what is old or beyond the size limit", run_prune)
      ->add_flag("--dry-run", options->dry_run, "Say what would be removed");
  add("clear", "Remove every entry", run_clear);
  add("path", "Print the folder", run_path);
  CLI::App* pack = add("pack", "Write a bundle, compiling what is missing", run_pack);
  add_bundle(pack, true);
  add_plan_options(*pack, options->kernels);
  add_integer(*pack, "-j,--threads", &options->threads, 1, 256, "Kernels compiled at once");
  add_bundle(add("unpack", "Copy a bundle's kernels into the cache", run_unpack), true);
  CLI::App* covers = add("covers", "Exit code 1 if a bundle lacks a kernel", run_covers);
  add_bundle(covers, true);
  add_plan_options(*covers, options->kernels);
}

}  // namespace flashprime::cli
