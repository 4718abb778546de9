// SPDX-License-Identifier: Apache-2.0
// Options of the verbs that plan, compile and store GPU kernels.
#pragma once

#include <string>
#include <vector>

#include "cli/common_options.h"
#include "cli/session.h"
#include "flashprime/jit.h"

namespace flashprime::cli {

struct KernelOptions {
  CommonOptions common;
  std::string archs;  // "sm_90a,sm_120a"; empty: this machine's GPU
  std::string output_dtype;
  std::string plan_file;
  std::string cache_dir;
  bool all = false;
};

void add_plan_options(CLI::App& app, KernelOptions& options);
void add_cache_dir_option(CLI::App& app, KernelOptions& options);

// The cache that the options and the environment name; its events go to stderr.
StatusOr<KernelCache> open_cache(const KernelOptions& options);
// The kernels that the options name.
StatusOr<KernelPlan> make_plan(const KernelCache& cache, const KernelOptions& options);

// The architectures that --arch names.
StatusOr<std::vector<std::string>> make_archs(const KernelOptions& options);

// "128/64/128 bf16 causal lse": what people tell kernels apart by.
std::string kernel_summary(const std::string& key);

// How compiling goes, on stderr: a bar on a terminal, a line a kernel otherwise.
WarmupOptions with_progress(WarmupOptions options);

// Compiled, cached and missing kernels as JSON or a table.
Json kernels_json(const WarmupReport& report);
std::string totals_text(const WarmupReport& report);

}  // namespace flashprime::cli
