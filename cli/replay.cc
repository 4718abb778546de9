// SPDX-License-Identifier: Apache-2.0
// flashprime replay: runs the prefill attention of a real trace, batched as an engine batches it.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/common_options.h"
#include "cli/files/atomic_file.h"
#include "cli/files/input_file.h"
#include "cli/replay_run.h"
#include "cli/session.h"
#include "cli/text.h"
#include "cli/trace_synthetic.h"
#include "flashprime/backend.h"

namespace flashprime::cli {
namespace {

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0.0;
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

std::vector<double> sorted_step_seconds(const ReplayTotals& totals) {
  std::vector<double> sorted;
  for (const StepRecord& record : totals.records) sorted.push_back(record.seconds);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

std::string counted(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", with_commas(count), what, count == 1 ? "" : "s");
}

int64_t peak_memory_bytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Longest request in tokens, the answer included.
int64_t longest_request(const Trace& trace) {
  int64_t longest = 1;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, int64_t{request.prompt_tokens} + request.generated_tokens);
  }
  return longest;
}

StatusOr<int64_t> choose_workspace_rows(const ReplayOptions& options, const Trace& trace) {
  const int64_t longest = longest_request(trace);
  if (options.max_model_len > 0 && longest > options.max_model_len) {
    return Status(StatusCode::kFormat,
                  fmt::format("--max-model-len: got {}, want at least {}: the trace has a request "
                              "of that many tokens",
                              options.max_model_len, longest));
  }
  if (options.workspace_rows > 0) return options.workspace_rows;
  ContextWorkspaceOptions rule;
  rule.max_model_len = options.max_model_len > 0 ? options.max_model_len : longest;
  rule.max_num_seqs = options.max_seqs;
  return context_workspace_rows(rule);
}

struct Report {
  const ReplayOptions& options;
  const ModelShape& model;
  const Trace& trace;
  const Replay& replay;
  const Explanation& explanation;
  int64_t workspace_rows;
  int32_t threads;
  bool passed;
};

// A limit may be reached with the last step.
bool is_complete(const Report& report) {
  return report.replay.scheduler().finished_prompts() ==
         static_cast<int64_t>(report.trace.requests.size());
}

// Share of the prompts begun so far that the prefix cache had.
double prefix_hit_rate(const Report& report) {
  const ReplayScheduler& scheduler = report.replay.scheduler();
  return static_cast<double>(scheduler.hit_tokens()) /
         static_cast<double>(std::max<int64_t>(scheduler.admitted_tokens(), 1));
}

std::string verdict(const Report& report) {
  if (report.options.verify == 0) return "NOT VERIFIED";
  if (report.replay.verification().rows == 0) return "NOTHING VERIFIED";
  return report.passed ? "PASS" : "FAIL";
}

Json report_json(const Report& report) {
  const ReplayTotals& totals = report.replay.totals();
  const VerifyResult& verified = report.replay.verification();
  const VerifyLimits& limits = report.replay.limits();
  const std::vector<double> sorted = sorted_step_seconds(totals);
  const auto rate = [&](double amount) -> Json {
    if (totals.attention_seconds <= 0.0) return nullptr;
    return amount / totals.attention_seconds;
  };
  return {
      {"device", device_name(report.options.common.device)},
      {"cpu", cpu_info().brand},
      {"kernel", report.explanation.kernel},
      {"kernel_detail", report.explanation.detail},
      {"numerics_id", numerics_id()},
      {"threads", report.threads},
      {"model", report.model.name},
      {"dims", dims_text(report.model.dims)},
      {"heads", report.model.heads},
      {"tp", report.model.tp},
      {"dtype", dtype_name(report.options.common.dtype)},
      {"layers", report.options.layers},
      {"trace", report.options.trace},
      {"trace_requests", report.trace.requests.size()},
      {"trace_prompt_tokens", report.trace.prompt_tokens},
      {"clock", report.options.arrival_clock ? "arrival" : "back-to-back"},
      {"planner", report.options.equal_planner ? "equal" : "greedy"},
      {"budget", report.options.budget},
      {"max_seqs", report.options.max_seqs},
      {"workspace_rows", report.workspace_rows},
      {"prefix_cache_tokens", report.options.prefix_cache_tokens < 0
                                  ? Json(nullptr)
                                  : Json(report.options.prefix_cache_tokens)},
      {"seed", report.options.common.seed},
      {"complete", is_complete(report)},
      {"stopped", totals.stopped},
      {"steps", totals.steps},
      {"decode_only_iterations", report.replay.scheduler().skipped_iterations()},
      {"prompts_finished", report.replay.scheduler().finished_prompts()},
      {"new_tokens", totals.new_tokens},
      {"prefix_hit_tokens", report.replay.scheduler().hit_tokens()},
      {"prefix_hit_rate", prefix_hit_rate(report)},
      {"decode_tokens", totals.decode_tokens},
      {"context_tokens", totals.context_tokens},
      {"context_chunks", totals.context_chunks},
      {"attention_flop", totals.flop},
      {"attention_seconds", totals.attention_seconds},
      {"flop_per_second", rate(totals.flop)},
      {"tokens_per_second", rate(static_cast<double>(totals.new_tokens))},
      {"step_seconds",
       {{"p50", percentile(sorted, 0.5)},
        {"p90", percentile(sorted, 0.9)},
        {"p99", percentile(sorted, 0.99)},
        {"max", percentile(sorted, 1.0)}}},
      {"generation_seconds", totals.generation_seconds},
      {"verify_seconds", totals.verify_seconds},
      {"wall_seconds", totals.wall_seconds},
      {"peak_memory_bytes", peak_memory_bytes()},
      {"verify",
       {{"rows", verified.rows},
        {"failed_rows", verified.failed_rows},
        {"relative_rms", verified.relative_rms()},
        {"relative_rms_limit", limits.relative_rms},
        {"worst_element_over_limit", verified.worst_element},
        {"worst_absolute", verified.worst_absolute},
        {"worst_lse", verified.worst_lse},
        {"lse_limit", limits.lse},
        {"first_failure", verified.first_failure}}},
      {"result", verdict(report)},
  };
}

std::string report_table(const Report& report) {
  const ReplayOptions& options = report.options;
  const ReplayTotals& totals = report.replay.totals();
  const VerifyResult& verified = report.replay.verification();
  const VerifyLimits& limits = report.replay.limits();
  const std::vector<double> sorted = sorted_step_seconds(totals);
  const double seconds = totals.attention_seconds;
  const auto count = [](size_t n) { return with_commas(static_cast<int64_t>(n)); };

  std::vector<std::vector<std::string>> rows;
  rows.push_back({"device", cpu_info().brand + ", " + counted(report.threads, "thread")});
  rows.push_back({"kernel", report.explanation.kernel + "  " + report.explanation.detail});
  rows.push_back(
      {"model",
       fmt::format("{}  {}  {} (tp {})  {}  {} of {} layers", report.model.name,
                   dims_text(report.model.dims), counted(report.model.heads, "head"),
                   report.model.tp, dtype_name(options.common.dtype), options.layers,
                   report.model.num_layers > 0 ? std::to_string(report.model.num_layers) : "?")});
  rows.push_back(
      {"trace",
       fmt::format("{}  {} requests, {} prompt tokens", printable(options.trace, 200),
                   count(report.trace.requests.size()), with_commas(report.trace.prompt_tokens))});
  rows.push_back(
      {"batching",
       fmt::format("{} clock, {} tokens and {} requests a step, {} chunks of {} rows",
                   options.arrival_clock ? "arrival" : "back-to-back", with_commas(options.budget),
                   options.max_seqs, options.equal_planner ? "equal" : "greedy",
                   with_commas(report.workspace_rows))});
  const bool cut = !totals.stopped.empty() && !is_complete(report);
  rows.push_back({"steps", with_commas(totals.steps) + (cut ? "  (" + totals.stopped + ")" : "")});
  rows.push_back({"prompts", fmt::format("{} of {} computed",
                                         with_commas(report.replay.scheduler().finished_prompts()),
                                         count(report.trace.requests.size()))});
  rows.push_back({"new tokens", with_commas(totals.new_tokens)});
  if (!report.trace.block_ids.empty()) {
    rows.push_back(
        {"prefix hits",
         fmt::format("{} tokens, {:.1f} % of the prompts begun ({})",
                     with_commas(report.replay.scheduler().hit_tokens()),
                     prefix_hit_rate(report) * 100.0,
                     options.prefix_cache_tokens < 0
                         ? "cache without limit"
                         : "cache of " + with_commas(options.prefix_cache_tokens) + " tokens")});
  }
  rows.push_back({"context", fmt::format("{} tokens attended again in {} chunks",
                                         with_commas(totals.context_tokens),
                                         with_commas(totals.context_chunks))});
  if (totals.steps > 0) {
    rows.push_back({"attention", fmt::format("{}FLOP over visible pairs in {}: {}FLOP/s",
                                             with_prefix(totals.flop), duration_text(seconds),
                                             with_prefix(totals.flop / seconds))});
    rows.push_back(
        {"throughput",
         fmt::format("{} tokens/s",
                     with_commas(std::llround(static_cast<double>(totals.new_tokens) / seconds)))});
    rows.push_back({"step", fmt::format("p50 {}  p90 {}  p99 {}  max {}",
                                        duration_text(percentile(sorted, 0.5)),
                                        duration_text(percentile(sorted, 0.9)),
                                        duration_text(percentile(sorted, 0.99)),
                                        duration_text(percentile(sorted, 1.0)))});
  }
  rows.push_back({"not counted", fmt::format("{} making data, {} in the oracle; {} in all",
                                             duration_text(totals.generation_seconds),
                                             duration_text(totals.verify_seconds),
                                             duration_text(totals.wall_seconds))});
  rows.push_back({"memory", with_prefix(static_cast<double>(peak_memory_bytes())) + "B at most"});
  if (verified.rows > 0) {
    rows.push_back({"verified", fmt::format("{} rows against fp64", with_commas(verified.rows))});
    rows.push_back({"  out", fmt::format("rel RMS {:.3g} (limit {:.3g})  worst element {:.2f} of "
                                         "its limit",
                                         verified.relative_rms(), limits.relative_rms,
                                         verified.worst_element)});
    rows.push_back(
        {"  lse", fmt::format("worst {:.3g} (limit {:.3g})", verified.worst_lse, limits.lse)});
  }
  if (!verified.first_failure.empty()) {
    rows.push_back(
        {"  failed", fmt::format("{} rows, the first: {}", with_commas(verified.failed_rows),
                                 verified.first_failure)});
  }
  return align_columns(rows) + verdict(report) + '\n';
}

// What the tensors of the largest step can take: as many tokens as a step may have, all with
// context that fills the workspace, and a longest request in every oracle. In floating point: the
// options' product may be over 2^63.
double most_memory_bytes(const ReplayOptions& options, const ModelShape& model, const Trace& trace,
                         int64_t workspace_rows, int32_t threads) {
  const auto heads = static_cast<double>(model.heads);
  const auto nope = static_cast<double>(model.dims.nope);
  const auto rope = static_cast<double>(model.dims.rope);
  const auto v = static_cast<double>(model.dims.v);
  const auto element = static_cast<double>(dtype_bytes(options.common.dtype));
  const auto tokens = static_cast<double>(std::min(options.budget, trace.prompt_tokens));
  const auto rows = static_cast<double>(std::min(workspace_rows, trace.prompt_tokens));
  const double keys = (heads * (nope + v) + rope) * element;
  const double queries = heads * (nope + rope) * element;
  const double results = heads * (v * element + 4.0);
  const double states = 2.0 * heads * (v + 1.0) * 4.0;  // of two chunks, in fp32
  const double oracles = static_cast<double>(std::min<int64_t>(threads, options.verify));
  return tokens * (queries + keys + results + states) + rows * keys +
         oracles * static_cast<double>(longest_request(trace)) * (nope + rope + v) * element;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Before a replay that may take hours: whether its plot can be drawn and written. Then kOk.
int check_plot(Session& session, const ReplayOptions& options) {
  if (options.plot.empty()) return kExitOk;
  const bool png = ends_with(options.plot, ".png");
  if (!png && !ends_with(options.plot, ".svg")) {
    return session.fail(kExitUsage, fmt::format("--plot: got '{}', want a name that ends in .png "
                                                "or .svg",
                                                printable(options.plot, 200)));
  }
  if (same_file(options.trace, options.plot)) {
    return session.fail(kExitUsage, fmt::format("--plot: {} is the trace, which is never written",
                                                printable_path(options.plot)));
  }
  if (png) {
    if (const Status renderer = check_png_renderer(); !renderer.ok()) {
      return session.fail(kExitEnvironment, renderer.message());
    }
  }
  // Makes the temporary file, and drops it again.
  const Status writable = AtomicFile::create(options.plot, FileOps::system()).status();
  return writable.ok() ? kExitOk : session.fail(writable);
}

// After Ctrl-C, what was done is still written.
class UninterruptedFileOps : public FileOps {
 public:
  bool interrupted() override { return false; }
};

Status write_plot(const Report& report) {
  const ReplayOptions& options = report.options;
  const size_t slash = options.trace.rfind('/');
  const ReplayPlot plot = make_replay_plot(
      report.replay.totals().records,
      fmt::format(
          "{}, {}, {}, {} | {}, {} | {}", report.model.name, counted(report.model.heads, "head"),
          dtype_name(options.common.dtype), counted(options.layers, "layer"), cpu_info().brand,
          counted(report.threads, "thread"),
          printable(slash == std::string::npos ? options.trace : options.trace.substr(slash + 1),
                    60)));
  StatusOr<std::string> bytes = plot_svg(plot);
  if (ends_with(options.plot, ".png")) bytes = plot_png(plot);
  if (!bytes.ok()) return bytes.status();
  UninterruptedFileOps ops;
  const StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::create(options.plot, ops);
  if (!file.ok()) return file.status();
  const Status written = (*file)->write(bytes->data(), static_cast<int64_t>(bytes->size()));
  return written.ok() ? (*file)->commit() : written;
}

int run_replay(Session& session, const ReplayOptions& options) {
  const StatusOr<ModelShape> model = resolve_model(options.common);
  if (!model.ok()) return session.fail(kExitUsage, model.status().message());
  if (options.budget < options.max_seqs) {
    // Each running request takes at least one token of every step.
    return session.fail(kExitUsage, fmt::format("--budget: got {}, want at least --max-seqs ({})",
                                                options.budget, options.max_seqs));
  }
  if (const int failed = check_plot(session, options); failed != kExitOk) return failed;
  const bool synthetic = is_synthetic_trace(options.trace);
  const StatusOr<Trace> trace =
      synthetic ? synthetic_trace(options.trace, static_cast<uint64_t>(options.common.seed))
                : read_trace(options.trace);
  if (!trace.ok()) {
    return session.fail(synthetic ? kExitUsage : exit_code_of(trace.status().code()),
                        trace.status().message());
  }
  const StatusOr<int64_t> workspace_rows = choose_workspace_rows(options, *trace);
  if (!workspace_rows.ok()) return session.fail(kExitUsage, workspace_rows.status().message());

  const int32_t threads = options.common.threads > 0 ? static_cast<int32_t>(options.common.threads)
                                                     : cpu_info().num_threads;
  const double memory = most_memory_bytes(options, *model, *trace, *workspace_rows, threads);
  if (memory > static_cast<double>(options.max_memory)) {
    return session.fail(
        {StatusCode::kOutOfMemory,
         fmt::format("a step's tensors take up to {}B, more than --max-memory {}: raise it, or "
                     "lower --budget, --workspace-rows or the heads (--tp)",
                     with_prefix(memory), with_commas(options.max_memory))});
  }
  const StatusOr<Device> device = host_memory_device(options.common.device);
  if (!device.ok()) return session.fail(kExitUnsupported, device.status().message());
  Replay replay(options, *model, *trace, *workspace_rows, threads);
  const Explanation explanation = explain(replay.problem(), replay.execution());
  if (!explanation.supported) {
    std::string reasons;
    for (const KernelVerdict& kernel : explanation.verdicts) {
      for (const std::string& reason : kernel.reasons) {
        reasons += (reasons.empty() ? "" : "; ") + kernel.kernel + ": " + reason;
      }
    }
    return session.fail(kExitUnsupported, "unsupported: " + reasons);
  }
  const Status status = replay.run();
  if (!status.ok()) {
    // kPlan comes from workspace sizes that the user chose.
    return status.code() == StatusCode::kPlan ? session.fail(kExitUsage, status.message())
                                              : session.fail(status);
  }
  const Report report = {
      options,     *model,          *trace,  replay,
      explanation, *workspace_rows, threads, replay.verification().passed(replay.limits())};
  if (session.json) {
    session.print_json(report_json(report));
  } else {
    session.out += report_table(report);
    session.out += "repro: " + session.repro + '\n';
  }
  if (!options.plot.empty()) {
    if (const Status drawn = write_plot(report); !drawn.ok()) {
      session.json = false;  // the report is already there
      return session.fail(kExitEnvironment, drawn.message());
    }
  }
  return report.passed ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_replay(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand(
      "replay", "Run a real trace's prefill attention, batched as an engine batches it");
  auto options = std::make_shared<ReplayOptions>();
  app->add_flag("--json", session.json, "JSON on stdout");
  app->add_option("--trace", options->trace,
                  "Azure LLM inference trace 2023 (CSV) or Mooncake trace (JSONL); or, drawn from "
                  "distributions fitted to these with --seed, synthetic:azure-conv|azure-code|"
                  "mooncake[:COUNT], 1,000 requests by default")
      ->required()
      ->type_name("FILE|synthetic:NAME[:COUNT]");
  add_model_options(*app, options->common);
  add_dtype_option(*app, options->common);
  add_device_options(*app, options->common);
  add_seed_option(*app, options->common);
  app->add_flag("--batch-invariant", options->common.batch_invariant, "Forbid splitting keys");
  add_integer(*app, "--layers", &options->layers, 1, 1000,
              "Attention layers to run, each with data of its own (default 1)");
  add_integer(*app, "--verify", &options->verify, 0, 100000,
              "Output rows a step and layer to check against fp64 (default 4)");
  add_integer(*app, "--budget", &options->budget, 1, 1 << 20, "Tokens a step (default 8192)");
  add_integer(*app, "--max-seqs", &options->max_seqs, 1, 1 << 20,
              "Requests that run at once (default 256)");
  add_integer(*app, "--prefix-cache-tokens", &options->prefix_cache_tokens, 0,
              std::numeric_limits<int64_t>::max(),
              "Prompt tokens the prefix cache holds, least recently used out first (default: all); "
              "only Mooncake traces say which prompts share a prefix");
  add_integer(*app, "--steps", &options->steps, 1, std::numeric_limits<int64_t>::max(),
              "Stop after that many steps");
  add_decimal(*app, "--time-limit", &options->time_limit, 0.001, 1e9,
              "Stop after that many seconds")
      ->type_name("S");
  add_bytes(*app, "--max-memory", &options->max_memory,
            "Most memory for the tensors of a step (default 16G)");
  app->add_option("--plot", options->plot,
                  "Draw a histogram of the steps' latency and a timeline of the steps; .png needs "
                  "python3 with matplotlib, .svg nothing")
      ->type_name("FILE.svg|FILE.png");
  add_integer(*app, "--workspace-rows", &options->workspace_rows, 1, 1 << 24,
              "Context rows a chunk may take (default: vLLM's rule)");
  add_integer(*app, "--max-model-len", &options->max_model_len, 1, 1 << 30,
              "Tokens of the longest request, for the workspace rule (default: of the trace)");
  app->add_option_function<std::string>(
         "--clock",
         [options](const std::string& text) { options->arrival_clock = text == "arrival"; },
         "back-to-back (default): every request is there from the start; arrival: the sum of the "
         "measured step times must have reached its arrival")
      ->check(CLI::IsMember({"back-to-back", "arrival"}));
  app->add_option_function<std::string>(
         "--planner",
         [options](const std::string& text) { options->equal_planner = text == "equal"; },
         "How context is cut into chunks: greedy (default) or equal")
      ->check(CLI::IsMember({"greedy", "equal"}));
  app->callback([&session, options] {
    session.selected = [&session, options] { return run_replay(session, *options); };
  });
}

}  // namespace flashprime::cli
