// SPDX-License-Identifier: Apache-2.0
// flashprime explain: which kernel runs a problem, and every reason why the others do not.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "cli/common_options.h"
#include "cli/explain_selector.h"
#include "cli/flops.h"
#include "cli/session.h"
#include "cli/text.h"
#include "flashprime/backend.h"
#include "flashprime/context_plan.h"
#include "flashprime/jit.h"
#include "flashprime/warmup.h"

namespace flashprime::cli {
namespace {

struct ExplainOptions {
  CommonOptions common;
  std::string mask = "causal";
  std::string lse = "heads-tokens";
  std::string out_dtype;
  std::string arch;
  bool list = false;
  bool support_table = false;
  SelectorOptions selector;
};

std::string kind_name(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "cuda" : kind == DeviceKind::kCpu ? "cpu" : "auto";
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

int list_registry(Session& session, bool as_markdown) {
  std::vector<std::vector<std::string>> rows = {
      {"kernel", "device", "head dims", "dtype", "output", "mask", "seen running on"}};
  Json kernels = Json::array();
  for (const KernelInfo& kernel : list_kernels()) {
    rows.push_back({as_markdown ? '`' + kernel.name + '`' : kernel.name, kind_name(kernel.device),
                    kernel.head_dims, kernel.dtypes, kernel.out_dtypes, kernel.masks,
                    kernel.tested_on});
    kernels.push_back({{"name", kernel.name},
                       {"device", kind_name(kernel.device)},
                       {"summary", kernel.summary},
                       {"head_dims", kernel.head_dims},
                       {"dtypes", kernel.dtypes},
                       {"out_dtypes", kernel.out_dtypes},
                       {"masks", kernel.masks},
                       {"tested_on", kernel.tested_on}});
  }
  if (session.json) {
    session.print_json({{"kernels", std::move(kernels)}});
  } else if (as_markdown) {
    session.out += markdown_table(rows);  // embedded in documents: nothing else with it
  } else {
    session.out += align_columns(rows) + "repro: " + session.repro + '\n';
  }
  return kExitOk;
}

StatusOr<PrefillProblem> make_problem(const ExplainOptions& options, const ModelShape& shape) {
  PrefillProblem problem;
  problem.dims = shape.dims;
  problem.num_heads = shape.heads;
  problem.dtype = options.common.dtype;
  problem.batch_invariant = options.common.batch_invariant;
  const StatusOr<Mask> mask = parse_mask(options.mask);
  if (!mask.ok()) return mask.status();
  problem.mask = *mask;
  problem.return_lse = options.lse != "none";
  if (options.lse == "tokens-heads") {
    problem.lse_layout = LseLayout::kTokensHeads;
  } else if (options.lse != "none" && options.lse != "heads-tokens") {
    return Status(StatusCode::kFormat, "--lse: got '" + printable(options.lse) +
                                           "', want none, heads-tokens or tokens-heads");
  }
  problem.out_dtype = problem.dtype;
  if (options.out_dtype == "e4m3") {
    problem.out_dtype = Dtype::kE4m3;
  } else if (options.out_dtype == "fp64") {
    problem.out_dtype = Dtype::kFp64;
  } else if (!options.out_dtype.empty()) {
    const StatusOr<Dtype> dtype = parse_dtype(options.out_dtype);
    if (!dtype.ok()) {
      return Status(StatusCode::kFormat, "--out-dtype: got '" + printable(options.out_dtype) +
                                             "', want bf16, fp16, fp32, fp64 or e4m3");
    }
    problem.out_dtype = *dtype;
  }
  return problem;
}

// What a --batch amounts to, with vLLM's default workspace.
struct BatchSummary {
  int64_t requests = 0;
  int64_t new_tokens = 0;
  int64_t context_tokens = 0;
  double pairs = 0.0;
  double flop = 0.0;
  size_t context_chunks = 0;
};

StatusOr<BatchSummary> summarize(const std::vector<BatchRequest>& batch, const ModelShape& shape) {
  BatchSummary summary;
  std::vector<int64_t> contexts;
  for (const BatchRequest& request : batch) {
    ++summary.requests;
    summary.new_tokens += request.new_tokens;
    summary.context_tokens += request.context();
    summary.pairs += visible_pairs(request.new_tokens, request.context());
    contexts.push_back(request.context());
  }
  summary.flop = attention_flop(summary.pairs, shape.heads, shape.dims);
  const StatusOr<ContextPlan> plan = plan_context_greedy(contexts, {});
  if (!plan.ok()) return plan.status();
  summary.context_chunks = plan->chunks.size();
  return summary;
}

std::string mask_text(const ExplainOptions& options) {
  return options.mask + (options.lse == "none"           ? ", no lse"
                         : options.lse == "heads-tokens" ? ", lse natural [H,T]"
                                                         : ", lse natural [T,H]");
}

// What a call is as a request in vLLM's terms, and the kernels that it runs on an architecture.
struct GpuKeys {
  CompileKey request;
  KernelPlan plan;
};

StatusOr<GpuKeys> gpu_keys(const PrefillProblem& problem, const std::vector<BatchRequest>& batch,
                           const std::string& arch) {
  GpuKeys keys;
  int64_t max_q = 1;
  int64_t max_k = 1;
  for (const BatchRequest& request : batch) {
    max_q = std::max<int64_t>(max_q, request.new_tokens);
    max_k = std::max<int64_t>(max_k, request.new_tokens + request.context());
  }
  const auto requests = std::max<int64_t>(1, static_cast<int64_t>(batch.size()));
  const StatusOr<CompileKey> request = compile_key_of(problem, requests, max_q, max_k);
  if (!request.ok()) return request.status();
  keys.request = *request;
  StatusOr<KernelPlan> plan = kernels_of(problem, arch);
  if (!plan.ok()) return plan.status();
  keys.plan = *std::move(plan);
  return keys;
}

// The lines of a key's text, less the version, as one.
std::string one_line(const std::string& key) {
  std::string line;
  size_t begin = key.find('\n') + 1;
  while (begin < key.size()) {
    const size_t end = std::min(key.find('\n', begin), key.size());
    if (!line.empty()) line += ", ";
    line += key.substr(begin, end - begin);
    begin = end + 1;
  }
  return line;
}

std::string gpu_lines(const GpuKeys& gpu) {
  if (gpu.plan.kernels.empty()) return {};
  std::string lines = "request key  " + gpu.request.to_string() + '\n';
  for (const PlannedKernel& kernel : gpu.plan.kernels) {
    lines += fmt::format("kernel key   {} {}  {}\n             id {}\n", kernel.kernel, kernel.arch,
                         one_line(kernel.key), kernel.kernel_id);
  }
  return lines;
}

int run_explain(Session& session, const ExplainOptions& options) {
  if (options.list || options.support_table) {
    return list_registry(session, options.support_table);
  }
  const StatusOr<ModelShape> shape = resolve_model(options.common);
  if (!shape.ok()) return session.fail(kExitUsage, shape.status().message());
  const StatusOr<PrefillProblem> problem = make_problem(options, *shape);
  if (!problem.ok()) return session.fail(kExitUsage, problem.status().message());
  if (!options.selector.selector.empty()) {
    SelectorOptions selector = options.selector;
    if (!options.arch.empty()) selector.arch = options.arch;
    return explain_selector(session, selector, *problem, options.common.batch);
  }
  BatchSummary batch;
  if (!options.common.batch.empty()) {
    const StatusOr<BatchSummary> summary = summarize(options.common.batch, *shape);
    if (!summary.ok()) return session.fail(summary.status());
    batch = *summary;
  }

  ExecutionOptions execution;
  execution.device = options.common.device;
  execution.num_threads = static_cast<int32_t>(options.common.threads);
  const Explanation explanation = explain(*problem, execution);
  std::string would_work;  // an option that helps
  if (!explanation.supported && execution.device.kind == DeviceKind::kCuda) {
    ExecutionOptions on_cpu = execution;
    on_cpu.device = {DeviceKind::kCpu, 0};
    const Explanation other = explain(*problem, on_cpu);
    if (other.supported) would_work = "--device cpu (" + other.kernel + ')';
  }
  GpuKeys gpu;
  if (!options.arch.empty()) {
    const StatusOr<GpuKeys> keys = gpu_keys(*problem, options.common.batch, options.arch);
    if (!keys.ok()) {
      return session.fail(
          keys.status().code() == StatusCode::kUnsupported ? kExitUnsupported : kExitUsage,
          keys.status().message());
    }
    gpu = *keys;
  }
  const int exit_code = explanation.supported ? kExitOk : kExitUnsupported;
  const CpuInfo cpu = cpu_info();

  if (session.json) {
    Json verdicts = Json::array();
    for (const KernelVerdict& verdict : explanation.verdicts) {
      verdicts.push_back({{"kernel", verdict.kernel},
                          {"supported", verdict.supported},
                          {"reasons", verdict.reasons}});
    }
    Json result = {{"supported", explanation.supported},
                   {"kernel", nullptr},
                   {"detail", explanation.detail},
                   {"device", device_name(options.common.device)},
                   {"model", shape->name},
                   {"qk_nope_head_dim", shape->dims.nope},
                   {"qk_rope_head_dim", shape->dims.rope},
                   {"v_head_dim", shape->dims.v},
                   {"heads", shape->heads},
                   {"dtype", dtype_name(problem->dtype)},
                   {"out_dtype", dtype_name(problem->out_dtype)},
                   {"mask", options.mask},
                   {"lse", options.lse},
                   {"softmax_scale", shape->softmax_scale},
                   {"verdicts", std::move(verdicts)}};
    if (explanation.supported) result["kernel"] = explanation.kernel;
    if (batch.requests > 0) {
      result["batch"] = {{"requests", batch.requests},
                         {"new_tokens", batch.new_tokens},
                         {"context_tokens", batch.context_tokens},
                         {"context_chunks", batch.context_chunks},
                         {"flop", batch.flop}};
    }
    if (!would_work.empty()) result["would_work"] = would_work;
    if (!options.arch.empty()) {
      Json kernels = Json::array();
      for (const PlannedKernel& kernel : gpu.plan.kernels) {
        kernels.push_back({{"kernel", kernel.kernel},
                           {"arch", kernel.arch},
                           {"key", kernel.key},
                           {"kernel_id", kernel.kernel_id}});
      }
      result["request_key"] = gpu.request.to_string();
      result["gpu_kernels"] = std::move(kernels);
    }
    result["exit_code"] = exit_code;
    session.print_json(std::move(result));
    return exit_code;
  }

  std::vector<std::vector<std::string>> rows = {
      {"device", device_name(options.common.device),
       options.common.device.kind == DeviceKind::kCuda ? "" : cpu.brand},
      {"config", shape->name,
       fmt::format("nope {}  rope {}  v {}  heads {}  {} -> {}  {}  scale {:.6g}", shape->dims.nope,
                   shape->dims.rope, shape->dims.v, shape->heads, dtype_name(problem->dtype),
                   dtype_name(problem->out_dtype), mask_text(options), shape->softmax_scale)}};
  if (batch.requests > 0) {
    rows.push_back(
        {"batch", printable(options.common.batch_text),
         fmt::format("{} requests, {} new tokens on {} of context in {} chunks, {}FLOP a layer",
                     with_commas(batch.requests), with_commas(batch.new_tokens),
                     with_commas(batch.context_tokens), batch.context_chunks,
                     with_prefix(batch.flop))});
  }
  if (explanation.supported) {
    rows.push_back({"kernel", explanation.kernel, explanation.detail});
    for (const KernelVerdict& verdict : explanation.verdicts) {
      if (verdict.kernel == explanation.kernel) continue;
      rows.push_back({"not used", verdict.kernel,
                      verdict.supported ? "lower priority" : join(verdict.reasons, "; ")});
    }
    session.out += align_columns(rows) + gpu_lines(gpu);
  } else {
    session.out += align_columns(rows) + gpu_lines(gpu);
    session.out += "unsupported (exit 4)\n";
    std::vector<std::vector<std::string>> reasons;
    for (const KernelVerdict& verdict : explanation.verdicts) {
      for (size_t i = 0; i < verdict.reasons.size(); ++i) {
        reasons.push_back({i == 0 ? "  " + verdict.kernel : "", verdict.reasons[i]});
      }
    }
    if (!would_work.empty()) reasons.push_back({"  would work", would_work});
    session.out += align_columns(reasons);
  }
  session.out += "repro: " + session.repro + '\n';
  return exit_code;
}

}  // namespace

void add_explain(CLI::App& root, Session& session) {
  CLI::App* app =
      root.add_subcommand("explain", "Which kernel runs a problem, and why not the others");
  auto options = std::make_shared<ExplainOptions>();
  app->add_flag("--json", session.json, "JSON on stdout");
  add_model_options(*app, options->common);
  add_dtype_option(*app, options->common);
  add_device_options(*app, options->common);
  add_batch_option(*app, options->common);
  app->add_flag("--batch-invariant", options->common.batch_invariant,
                "Forbid splitting keys, so that a row's bits don't depend on its batch");
  app->add_option("--mask", options->mask, "Which keys a query sees (default causal)")
      ->type_name("causal|full|window:LEFT,RIGHT");
  app->add_option("--lse", options->lse, "Layout of the LSE (default heads-tokens)")
      ->type_name("none|heads-tokens|tokens-heads");
  app->add_option("--out-dtype", options->out_dtype, "Output (default: as --dtype)")
      ->type_name("bf16|fp16|fp32|fp64|e4m3");
  app->add_flag("--list", options->list, "The kernel registry");
  app->add_flag("--support-table", options->support_table, "The kernel registry as Markdown");
  app->add_option("--selector", options->selector.selector,
                  "What FlashAttention's own rules would pick instead (needs --batch)")
      ->type_name("fa4|fa3");
  app->add_option(
      "--arch", options->arch,
      "Also the GPU kernels and the request there; of --selector: sm_90 (default), ...");
  add_integer(*app, "--sms", &options->selector.num_sms, 1, 1 << 20,
              "Of --selector: streaming multiprocessors (default: 132 on sm_90, 148 on sm_100)");
  app->callback([&session, options] {
    session.selected = [&session, options] { return run_explain(session, *options); };
  });
}

}  // namespace flashprime::cli
