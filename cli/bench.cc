// SPDX-License-Identifier: Apache-2.0
// flashprime bench: how long prefill() takes, against an earlier run and against torch.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>

#include "cli/batch_list.h"
#include "cli/bench_report.h"
#include "cli/bench_torch.h"
#include "cli/common_options.h"
#include "cli/files/input_file.h"
#include "cli/parallel.h"
#include "cli/run_slices.h"
#include "cli/run_verify.h"
#include "cli/session.h"
#include "cli/text.h"
#include "flashprime/backend.h"
#include "flashprime/random.h"
#include "flashprime/version.h"

namespace flashprime::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  CommonOptions common;
  std::vector<NamedBatch> batches;
  std::string mask = "causal";
  std::string kernel;
  std::string output = "md";
  int64_t repeats = 10;
  int64_t verify = 16;
  int64_t max_memory = int64_t{16} << 30;
  std::string guard;
  double allowed_percent = 10.0;
  std::string versus;
  std::string python = "python3";
};

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

Memory allocate(int64_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t rounded = (static_cast<size_t>(bytes) / kAlignment + 1) * kAlignment;
  Memory memory(std::aligned_alloc(kAlignment, rounded));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Elements of the tensors of a batch.
struct Sizes {
  int64_t tokens = 0;
  int64_t keys = 0;
  int64_t q = 0, kv = 0, k_pe = 0, out = 0, lse = 0;

  Sizes(const PrefillProblem& problem, const std::vector<BatchRequest>& batch) {
    for (const BatchRequest& request : batch) {
      tokens += request.new_tokens;
      keys += request.total_keys;
    }
    const HeadDims& dims = problem.dims;
    const int64_t heads = problem.num_heads;
    // Below 2^31 tokens, 2^16 heads and 3 * 2^16 of width: no product overflows.
    q = tokens * heads * (dims.nope + dims.rope);
    kv = keys * heads * (dims.nope + dims.v);
    k_pe = keys * dims.rope;
    out = tokens * heads * dims.v;
    lse = tokens * heads;
  }
  double bytes(Dtype dtype) const {
    const auto element = static_cast<double>(dtype_bytes(dtype));
    return element * (static_cast<double>(q) + static_cast<double>(kv) + static_cast<double>(k_pe) +
                      static_cast<double>(out)) +
           4.0 * static_cast<double>(lse);
  }
};

// The tensors of a batch as an engine has them: K and V side by side in the up-projection's output
// [Tk, H, nope + v], the rope part of K shared by all heads.
class BenchTensors {
 public:
  BenchTensors(const PrefillProblem& problem, const std::vector<BatchRequest>& batch,
               float softmax_scale)
      : sizes_(problem, batch) {
    const int64_t element = dtype_bytes(problem.dtype);
    const Dtype dtype = problem.dtype;
    const HeadDims& dims = problem.dims;
    const int64_t heads = problem.num_heads;
    q_ = allocate(sizes_.q * element);
    kv_ = allocate(sizes_.kv * element);
    k_pe_ = allocate(sizes_.k_pe * element);
    out_ = allocate(sizes_.out * element);
    lse_ = allocate(sizes_.lse * 4);
    cu_seqlens_q_.push_back(0);
    cu_seqlens_k_.push_back(0);
    int64_t longest_q = 0;
    int64_t longest_k = 0;
    for (const BatchRequest& request : batch) {
      cu_seqlens_q_.push_back(cu_seqlens_q_.back() + static_cast<int32_t>(request.new_tokens));
      cu_seqlens_k_.push_back(cu_seqlens_k_.back() + static_cast<int32_t>(request.total_keys));
      longest_q = std::max(longest_q, request.new_tokens);
      longest_k = std::max(longest_k, request.total_keys);
    }
    const int64_t width = dims.nope + dims.v;
    args_.q =
        TensorView::contiguous(q_.get(), dtype, {sizes_.tokens, heads, dims.nope + dims.rope});
    args_.k_nope = TensorView::strided(kv_.get(), dtype, {sizes_.keys, heads, dims.nope},
                                       {heads * width, width, 1});
    args_.v = TensorView::strided(static_cast<char*>(kv_.get()) + dims.nope * element, dtype,
                                  {sizes_.keys, heads, dims.v}, {heads * width, width, 1});
    if (dims.rope > 0) {
      args_.k_pe = TensorView::contiguous(k_pe_.get(), dtype, {sizes_.keys, dims.rope});
    }
    const auto starts = static_cast<int64_t>(cu_seqlens_q_.size());
    args_.cu_seqlens_q = TensorView::contiguous(cu_seqlens_q_.data(), Dtype::kInt32, {starts});
    args_.cu_seqlens_k = TensorView::contiguous(cu_seqlens_k_.data(), Dtype::kInt32, {starts});
    args_.max_seqlen_q = longest_q;
    args_.max_seqlen_k = longest_k;
    args_.softmax_scale = softmax_scale;
    args_.out = MutableTensorView::contiguous(out_.get(), dtype, {sizes_.tokens, heads, dims.v});
    args_.lse = MutableTensorView::contiguous(lse_.get(), Dtype::kFp32, {heads, sizes_.tokens});
  }
  BenchTensors(const BenchTensors&) = delete;
  BenchTensors& operator=(const BenchTensors&) = delete;

  Status fill(const PrefillProblem& problem, uint64_t seed, int32_t threads) {
    const int64_t heads = problem.num_heads;
    const HeadDims& dims = problem.dims;
    const Dtype dtype = problem.dtype;
    const MutableTensorView views[] = {
        MutableTensorView::contiguous(q_.get(), dtype,
                                      {sizes_.tokens, heads * (dims.nope + dims.rope)}),
        MutableTensorView::contiguous(kv_.get(), dtype,
                                      {sizes_.keys, heads * (dims.nope + dims.v)}),
        MutableTensorView::contiguous(k_pe_.get(), dtype, {sizes_.keys, dims.rope})};
    for (uint32_t id = 0; id < 3; ++id) {
      const MutableTensorView& view = views[id];
      if (view.shape[1] == 0) continue;
      constexpr int64_t kRows = 64;
      const int64_t pieces = (view.shape[0] + kRows - 1) / kRows;
      std::vector<Status> failures(static_cast<size_t>(pieces));
      parallel_for(threads, pieces, [&](int64_t i) {
        const int64_t begin = i * kRows;
        const int64_t end = std::min(begin + kRows, view.shape[0]);
        failures[static_cast<size_t>(i)] =
            fill_random(narrow(view, 0, begin, end),
                        {.seed = seed, .tensor_id = id, .first_row = static_cast<uint64_t>(begin)});
      });
      for (Status& failure : failures) {
        if (!failure.ok()) return std::move(failure);
      }
    }
    return ok_status();
  }

  Status add_workspace(const PrefillProblem& problem, const ExecutionOptions& execution) {
    const StatusOr<int64_t> bytes = prefill_workspace_bytes(problem, args_, execution);
    if (!bytes.ok()) return bytes.status();
    workspace_ = allocate(*bytes);
    args_.workspace = workspace_.get();
    args_.workspace_bytes = *bytes;
    return ok_status();
  }

  const PrefillArgs& args() const { return args_; }

 private:
  Sizes sizes_;
  Memory q_, kv_, k_pe_, out_, lse_, workspace_;
  std::vector<int32_t> cu_seqlens_q_;
  std::vector<int32_t> cu_seqlens_k_;
  PrefillArgs args_;
};

class Bench {
 public:
  Bench(Session& session, const BenchOptions& options) : session_(session), options_(options) {}

  int run() {
    if (options_.output == "json") session_.json = true;
    if (session_.json && options_.output == "csv") {
      return session_.fail(kExitUsage, "want one of --json and -o csv");
    }
    if (int exit_code = prepare(); exit_code != kExitOk) return exit_code;
    if (int exit_code = read_guard(); exit_code != kExitOk) return exit_code;
    if (options_.versus == "torch") {
      auto torch = TorchContender::start(options_.python, threads_);
      if (!torch.ok())
        return session_.fail(kExitEnvironment, "--vs torch: " + torch.status().message());
      torch_ = std::move(*torch);
    }
    for (size_t i = 0; i < options_.batches.size() && !interrupted(); ++i) {
      if (Status status = measure(i); !status.ok()) {
        clear_progress();
        return session_.fail(status);
      }
    }
    clear_progress();
    return report();
  }

 private:
  int prepare() {
    const StatusOr<ModelShape> shape = resolve_model(options_.common);
    if (!shape.ok()) return session_.fail(kExitUsage, shape.status().message());
    shape_ = *shape;
    const StatusOr<Mask> mask = parse_mask(options_.mask);
    if (!mask.ok()) return session_.fail(kExitUsage, mask.status().message());
    problem_.dims = shape_.dims;
    problem_.num_heads = shape_.heads;
    problem_.dtype = problem_.out_dtype = options_.common.dtype;
    problem_.mask = *mask;
    problem_.return_lse = true;
    problem_.batch_invariant = options_.common.batch_invariant;
    const StatusOr<Device> device = host_memory_device(options_.common.device);
    if (!device.ok()) return session_.fail(kExitUnsupported, device.status().message());
    execution_.device = *device;
    execution_.kernel = options_.kernel;
    execution_.num_threads = static_cast<int32_t>(options_.common.threads);
    cpu_ = cpu_info();
    threads_ = execution_.num_threads > 0 ? execution_.num_threads : cpu_.num_threads;

    explanation_ = explain(problem_, execution_);
    if (!explanation_.supported) {
      std::string reasons;
      for (const KernelVerdict& kernel : explanation_.verdicts) {
        for (const std::string& reason : kernel.reasons) {
          reasons += (reasons.empty() ? "" : "; ") + kernel.kernel + ": " + reason;
        }
      }
      return session_.fail(kExitUnsupported, "unsupported: " + reasons);
    }
    for (const NamedBatch& batch : options_.batches) {
      const double bytes = Sizes(problem_, batch.requests).bytes(problem_.dtype);
      if (bytes <= static_cast<double>(options_.max_memory)) continue;
      return session_.fail(
          kExitEnvironment,
          fmt::format("batch {}: the tensors take {:.2f} GiB, more than "
                      "--max-memory {}",
                      printable(batch.name), bytes / 0x1p30, with_commas(options_.max_memory)));
    }
    return kExitOk;
  }

  int read_guard() {
    if (options_.guard.empty()) return kExitOk;
    constexpr int64_t kLargestGuard = int64_t{64} << 20;
    const auto file = InputFile::open(options_.guard, FileOps::system());
    if (!file.ok()) return session_.fail(kExitBadInput, "--guard: " + file.status().message());
    if ((*file)->size() > kLargestGuard) {
      return session_.fail(kExitBadInput,
                           "--guard: " + printable_path(options_.guard) + ": larger than 64 MiB");
    }
    std::string text(static_cast<size_t>((*file)->size()), '\0');
    if (Status status = (*file)->read(0, text.data(), (*file)->size()); !status.ok()) {
      return session_.fail(kExitBadInput, "--guard: " + status.message());
    }
    StatusOr<std::vector<BenchRow>> rows = parse_bench(text);
    if (!rows.ok()) {
      return session_.fail(kExitBadInput, "--guard: " + printable_path(options_.guard) + ": " +
                                              rows.status().message());
    }
    before_ = std::move(*rows);
    return kExitOk;
  }

  void progress(size_t batch, const std::string& what) {
    const Clock::time_point now = Clock::now();
    if (now - last_progress_ < std::chrono::milliseconds(on_terminal_ ? 100 : 5000)) return;
    last_progress_ = now;
    std::fprintf(stderr, on_terminal_ ? "\r[%zu/%zu] %s %s\x1b[K" : "[%zu/%zu] %s %s\n", batch + 1,
                 options_.batches.size(), printable(options_.batches[batch].name).c_str(),
                 what.c_str());
  }
  void clear_progress() const {
    if (on_terminal_) std::fputs("\r\x1b[K", stderr);
  }

  // Seconds of one call, the mean of `calls` of them.
  StatusOr<double> seconds_of(const BenchTensors& tensors, int64_t calls) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      if (Status status = prefill(problem_, tensors.args(), execution_); !status.ok()) {
        return status;
      }
    }
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    return elapsed.count() / static_cast<double>(calls);
  }

  Status measure(size_t index) {
    const NamedBatch& batch = options_.batches[index];
    progress(index, "data");
    BenchTensors tensors(problem_, batch.requests, shape_.softmax_scale);
    const auto seed = static_cast<uint64_t>(options_.common.seed);
    if (Status status = tensors.fill(problem_, seed, threads_); !status.ok()) return status;
    if (Status status = tensors.add_workspace(problem_, execution_); !status.ok()) return status;

    BenchRow row;
    row.model = shape_.name;
    row.dims = dims_text(shape_.dims);
    row.heads = shape_.heads;
    row.dtype = dtype_name(problem_.dtype);
    row.mask = options_.mask;
    row.batch = batch.name;
    row.machine = cpu_.brand + ", " + (cpu_.isa_target.empty() ? "no SIMD" : cpu_.isa_target);
    row.threads = threads_;
    row.kernel = explanation_.kernel;
    row.version = std::string(version());
    row.build = std::string(build_description());
    if (torch_ != nullptr) row.torch_version = torch_->version();
    row.seed = options_.common.seed;
    for (int64_t s = 0; s < static_cast<int64_t>(batch.requests.size()); ++s) {
      row.flop += sequence_flop(problem_, tensors.args(), s) * problem_.num_heads;
    }

    // The first call also warms up. What is wrong is not worth timing.
    StatusOr<double> warm = seconds_of(tensors, 1);
    if (!warm.ok()) return warm.status();
    progress(index, "verifying");
    StatusOr<RowVerification> verified =
        verify_rows(problem_, tensors.args(), options_.verify, seed, interrupted);
    if (!verified.ok()) return verified.status();
    row.verified_rows = verified->rows;
    if (verified->failed_rows > 0) {
      row.failure = fmt::format("{} of {} rows: {}", verified->failed_rows, verified->rows,
                                verified->first_failure);
    } else if (!interrupted()) {
      if (Status status = time(index, tensors, &row); !status.ok()) return status;
    }
    rows_.push_back(std::move(row));
    return ok_status();
  }

  Status time(size_t index, const BenchTensors& tensors, BenchRow* row) {
    // Short calls are timed several at once, so that the clock does not decide.
    constexpr double kShortestSample = 0.002;
    const StatusOr<double> second = seconds_of(tensors, 1);
    if (!second.ok()) return second.status();
    const auto calls =
        static_cast<int64_t>(std::clamp(std::ceil(kShortestSample / *second), 1.0, 1e6));
    bool with_torch = torch_ != nullptr;
    const auto torch_failed = [&](const Status& status) {
      row->torch_error = status.message();
      row->torch_route.clear();
      with_torch = false;
    };
    if (with_torch) {
      progress(index, "torch prepares");
      const StatusOr<std::string> route = torch_->prepare(
          problem_, shape_.softmax_scale, options_.batches[index].requests, options_.common.seed);
      if (route.ok()) {
        row->torch_route = *route;
      } else {
        torch_failed(route.status());
      }
    }
    std::vector<double> ours;
    std::vector<double> torchs;
    // In turns: what slows the machine down for a while slows both.
    for (int64_t i = 0; i < options_.repeats && !interrupted(); ++i) {
      progress(index, fmt::format("run {}/{}", i + 1, options_.repeats));
      const StatusOr<double> seconds = seconds_of(tensors, calls);
      if (!seconds.ok()) return seconds.status();
      ours.push_back(*seconds);
      if (!with_torch) continue;
      const StatusOr<double> theirs = torch_->time();
      if (theirs.ok()) {
        torchs.push_back(*theirs);
      } else {
        torch_failed(theirs.status());
        torchs.clear();
      }
      // OpenMP threads spin for a while after their work.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    row->ours = summarize(std::move(ours));
    row->torch = summarize(std::move(torchs));
    return ok_status();
  }

  int report() {
    bool wrong = false;
    bool all_verified = !rows_.empty();
    for (const BenchRow& row : rows_) {
      wrong = wrong || !row.failure.empty();
      // A batch without a row has none to verify.
      all_verified = all_verified && (row.verified_rows > 0 || row.flop == 0.0);
    }
    Guard guard;
    if (!options_.guard.empty()) guard = compare(before_, rows_, options_.allowed_percent / 100.0);
    const bool guarded = options_.guard.empty() || guard.passed();
    const std::string result = wrong || !guarded ? "FAIL" : all_verified ? "PASS" : "NOT VERIFIED";
    const int exit_code = wrong || !guarded ? kExitCheckFailed : kExitOk;

    if (session_.json) {
      Json json = {{"rows", bench_json(rows_)},
                   {"numerics_id", numerics_id()},
                   {"detail", explanation_.detail},
                   {"interrupted", interrupted()},
                   {"result", result}};
      if (!options_.guard.empty()) json["guard"] = guard_json(guard);
      session_.print_json(std::move(json));
      return exit_code;
    }
    std::string talk;
    for (const BenchRow& row : rows_) {
      if (!row.failure.empty()) talk += "WRONG  " + row.batch + ": " + row.failure + '\n';
      if (!row.torch_error.empty()) talk += "torch  " + row.batch + ": " + row.torch_error + '\n';
    }
    talk += fmt::format(
        "{}; {} {}; {} run{}{}\n", rows_.empty() ? "" : rows_[0].machine, explanation_.kernel,
        explanation_.detail, options_.repeats, options_.repeats == 1 ? "" : "s",
        torch_ == nullptr
            ? ""
            : fmt::format(", in turns with torch {} ({} threads)", torch_->version(), threads_));
    if (!options_.guard.empty()) talk += guard_text(guard);
    talk += fmt::format("{}{}\nrepro: {}\n", result, interrupted() ? " (interrupted)" : "",
                        session_.repro);
    if (options_.output == "csv") {
      session_.out += bench_csv(rows_);
      std::fputs(talk.c_str(), stderr);  // a table alone is what reads a CSV file want
    } else {
      session_.out += bench_markdown(rows_, torch_ != nullptr) + '\n' + talk;
    }
    return exit_code;
  }

  std::string guard_text(const Guard& guard) const {
    std::string text =
        fmt::format("guard {}: {} compared, allowed {:g} % and the noise\n",
                    printable_path(options_.guard), guard.lines.size(), options_.allowed_percent);
    for (const Guard::Line& line : guard.lines) {
      text +=
          fmt::format("  {}  {}: {} -> {} ({:+.1f} %, noise {})\n", line.slower ? "SLOWER" : "ok",
                      line.batch, duration_text(line.before), duration_text(line.now),
                      line.before > 0 ? (line.now / line.before - 1.0) * 100.0 : 0.0,
                      duration_text(line.noise));
    }
    for (const std::string& batch : guard.unmatched) {
      text += "  not in it: " + batch + ", with this model, mask, dtype, processor and threads\n";
    }
    return text;
  }

  Json guard_json(const Guard& guard) const {
    Json lines = Json::array();
    for (const Guard::Line& line : guard.lines) {
      lines.push_back({{"batch", line.batch},
                       {"seconds_before", line.before},
                       {"seconds_now", line.now},
                       {"noise", line.noise},
                       {"slower", line.slower}});
    }
    return {{"file", options_.guard},
            {"allowed_percent", options_.allowed_percent},
            {"passed", guard.passed()},
            {"compared", std::move(lines)},
            {"unmatched", guard.unmatched}};
  }

  Session& session_;
  const BenchOptions& options_;
  ModelShape shape_;
  PrefillProblem problem_;
  ExecutionOptions execution_;
  Explanation explanation_;
  CpuInfo cpu_;
  int32_t threads_ = 1;
  std::vector<BenchRow> before_;
  std::vector<BenchRow> rows_;
  std::unique_ptr<TorchContender> torch_;
  const bool on_terminal_ = isatty(STDERR_FILENO) == 1;
  Clock::time_point last_progress_ = Clock::now();
};

}  // namespace

void add_bench(CLI::App& root, Session& session) {
  CLI::App* app =
      root.add_subcommand("bench", "Time of prefill(), also against torch or a past run");
  auto options = std::make_shared<BenchOptions>();
  app->add_flag("--json", session.json, "JSON on stdout, as -o json");
  add_model_options(*app, options->common);
  add_dtype_option(*app, options->common);
  app->add_option_function<std::string>(
         "--batch",
         [options](const std::string& text) {
           StatusOr<std::vector<NamedBatch>> batches = parse_batch_list(text);
           if (!batches.ok()) throw CLI::ValidationError("--batch", batches.status().message());
           options->batches = std::move(*batches);
         },
         "Batches, as in q1k,8q512s8k or, doubling, q512..8k; each is as in `explain`")
      ->type_name("SPEC[,SPEC]")
      ->required();
  app->add_option("--mask", options->mask, "Which keys a query sees (default causal)")
      ->type_name("causal|full|window:LEFT,RIGHT");
  app->add_option("--kernel", options->kernel, "Kernel that must run (default: the selector's)")
      ->type_name("NAME");
  add_integer(*app, "-r,--repeats", &options->repeats, 1, 1'000'000, "Timed runs (default 10)");
  add_integer(*app, "--verify", &options->verify, 0, 1'000'000'000,
              "Rows compared with fp64 before a batch is timed (default 16)");
  app->add_option("-o", options->output, "Form of the table (default md)")
      ->type_name("md|csv|json")
      ->check(CLI::IsMember({"md", "csv", "json"}).description(""));
  auto* guard = app->add_option("--guard", options->guard,
                                "Compare with an earlier -o csv or json; slower is exit code 1")
                    ->type_name("FILE");
  add_decimal(*app, "--allow", &options->allowed_percent, 0.0, 10000.0,
              "Of --guard: percent that a batch may be slower (default 10); noise comes on top")
      ->type_name("PERCENT")
      ->needs(guard);
  auto* versus = app->add_option("--vs", options->versus, "Time torch's attention too, in turns")
                     ->type_name("torch")
                     ->check(CLI::IsMember({"torch"}).description(""));
  app->add_option("--python", options->python, "Of --vs: a Python that has torch (default python3)")
      ->type_name("FILE")
      ->needs(versus);
  add_bytes(*app, "--max-memory", &options->max_memory, "Of the tensors of a batch (default 16G)");
  app->add_flag("--batch-invariant", options->common.batch_invariant, "Forbid splitting keys");
  add_seed_option(*app, options->common);
  add_device_options(*app, options->common);
  app->callback([&session, options] {
    session.selected = [&session, options] { return Bench(session, *options).run(); };
  });
}

}  // namespace flashprime::cli
