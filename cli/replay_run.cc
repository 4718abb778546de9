// SPDX-License-Identifier: Apache-2.0
#include "cli/replay_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "cli/flops.h"
#include "cli/parallel.h"
#include "cli/session.h"
#include "cli/text.h"
#include "flashprime/random.h"

namespace flashprime::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Progress {
 public:
  explicit Progress(int64_t total_tokens)
      : total_tokens_(total_tokens), on_terminal_(isatty(STDERR_FILENO) == 1) {}

  // `hit_tokens` need not be computed.
  void update(const ReplayTotals& totals, int64_t hit_tokens) {
    const double elapsed = seconds_since(start_);
    if (elapsed - last_ < (on_terminal_ ? 0.2 : 5.0)) return;
    last_ = elapsed;
    const double share =
        static_cast<double>(totals.new_tokens + hit_tokens) / static_cast<double>(total_tokens_);
    const double eta = share > 0.0 ? elapsed * (1.0 - share) / share : -1.0;
    const std::string line =
        fmt::format("replay {:5.1f} %  {} steps  {} tokens/s  {}FLOP/s  {} left", share * 100.0,
                    with_commas(totals.steps),
                    with_commas(std::llround(static_cast<double>(totals.new_tokens) / elapsed)),
                    with_prefix(totals.flop / totals.attention_seconds), duration_text(eta));
    std::fprintf(stderr, on_terminal_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
    drawn_ = true;
  }
  void clear() {
    if (on_terminal_ && drawn_) std::fputs("\r\x1b[K", stderr);
  }

 private:
  int64_t total_tokens_;
  bool on_terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  double last_ = 0.0;
};

}  // namespace

Replay::Replay(const ReplayOptions& options, const ModelShape& model, const Trace& trace,
               int64_t workspace_rows, int32_t threads)
    : options_(options),
      model_(model),
      trace_(trace),
      threads_(threads),
      shape_{model.dims, model.heads, options.common.dtype},
      seed_(static_cast<uint64_t>(options.common.seed)),
      scheduler_(trace, {.token_budget = options.budget,
                         .max_seqs = options.max_seqs,
                         .arrival_clock = options.arrival_clock,
                         .prefix_cache_tokens = options.prefix_cache_tokens}),
      tensors_(shape_, seed_, threads),
      context_tensors_(shape_, seed_, threads),
      limits_(VerifyLimits::of(options.common.dtype)) {
  plan_options_.workspace_rows = workspace_rows;
  problem_.dims = model.dims;
  problem_.num_heads = model.heads;
  problem_.dtype = options.common.dtype;
  problem_.out_dtype = options.common.dtype;
  problem_.return_lse = true;
  problem_.self_attention = true;
  problem_.batch_invariant = options.common.batch_invariant;
  execution_.device = {DeviceKind::kCpu, 0};  // host_memory_device() has been asked
  execution_.num_threads = threads;
}

bool Replay::must_stop() {
  if (interrupted()) {
    totals_.stopped = "interrupted";
  } else if (options_.steps > 0 && totals_.steps == options_.steps) {
    totals_.stopped = "--steps reached";
  } else if (options_.time_limit > 0.0 && seconds_since(start_) >= options_.time_limit) {
    totals_.stopped = "--time-limit reached";
  }
  return !totals_.stopped.empty();
}

Status Replay::run() {
  start_ = Clock::now();
  Progress progress(trace_.prompt_tokens);
  ReplayStep step;
  Status status;
  while (status.ok() && !must_stop() && scheduler_.next(&step)) {
    status = run_step(step);
    progress.update(totals_, scheduler_.hit_tokens());
  }
  progress.clear();
  totals_.wall_seconds = seconds_since(start_);
  return status;
}

Status Replay::run_step(const ReplayStep& step) {
  std::vector<int64_t> context_lens;
  std::vector<int32_t> cu_seqlens = {0};
  int64_t longest = 0;
  double pairs = 0.0;
  for (const ReplayPiece& piece : step.pieces) {
    context_lens.push_back(piece.start);
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(piece.length));
    longest = std::max(longest, piece.length);
    pairs += visible_pairs(piece.length, piece.start);
  }
  const StatusOr<ContextPlan> plan = options_.equal_planner
                                         ? plan_context_equal_slices(context_lens, plan_options_)
                                         : plan_context_greedy(context_lens, plan_options_);
  if (!plan.ok()) return plan.status();

  double step_seconds = 0.0;
  for (int32_t layer = 0; layer < static_cast<int32_t>(options_.layers); ++layer) {
    // A step that is not finished is not counted.
    if (layer > 0 && must_stop()) return ok_status();
    double layer_seconds = 0.0;
    const Status ran = run_layer(step, layer, *plan, cu_seqlens, longest, &layer_seconds);
    if (!totals_.stopped.empty()) return ok_status();
    if (!ran.ok()) return ran;
    step_seconds += layer_seconds;
    const Status verified = verify_layer(step, layer, cu_seqlens);
    if (!verified.ok()) return verified;
  }
  scheduler_.advance_clock(step_seconds);
  ++totals_.steps;
  totals_.new_tokens += cu_seqlens.back();
  totals_.decode_tokens += step.decode_tokens;
  int64_t context_tokens = 0;
  for (const ContextChunk& chunk : plan->chunks) context_tokens += chunk.num_tokens();
  totals_.context_tokens += context_tokens;
  totals_.context_chunks += static_cast<int64_t>(plan->chunks.size());
  totals_.flop +=
      attention_flop(pairs, model_.heads, model_.dims) * static_cast<double>(options_.layers);
  totals_.attention_seconds += step_seconds;
  totals_.records.push_back({step_seconds, cu_seqlens.back(), context_tokens});
  return ok_status();
}

Status Replay::run_layer(const ReplayStep& step, int32_t layer, const ContextPlan& plan,
                         const std::vector<int32_t>& cu_seqlens, int64_t longest, double* seconds) {
  const Clock::time_point generation_start = Clock::now();
  const StatusOr<TensorView> q = tensors_.queries(layer, step.pieces);
  if (!q.ok()) return q.status();
  const StatusOr<KeyValueViews> keys = tensors_.keys(layer, step.pieces);
  if (!keys.ok()) return keys.status();
  totals_.generation_seconds += seconds_since(generation_start);

  const int64_t tokens = cu_seqlens.back();
  const auto entries = static_cast<int64_t>(cu_seqlens.size());
  PrefillArgs args;
  args.q = *q;
  args.k_nope = keys->k_nope;
  args.k_pe = keys->k_pe;
  args.v = keys->v;
  args.cu_seqlens_q = TensorView::contiguous(cu_seqlens.data(), Dtype::kInt32, {entries});
  args.cu_seqlens_k = args.cu_seqlens_q;
  args.max_seqlen_q = longest;
  args.max_seqlen_k = longest;
  args.softmax_scale = model_.softmax_scale;
  const int64_t out_elements = tokens * model_.heads * model_.dims.v;
  void* out = out_.reserve(out_elements * dtype_bytes(problem_.out_dtype));
  void* lse = lse_.reserve(tokens * model_.heads * dtype_bytes(Dtype::kFp32));
  args.out =
      MutableTensorView::contiguous(out, problem_.out_dtype, {tokens, model_.heads, model_.dims.v});
  args.lse = MutableTensorView::contiguous(lse, Dtype::kFp32, {model_.heads, tokens});
  const StatusOr<int64_t> workspace =
      prefill_layer_workspace_bytes(problem_, args, plan, execution_);
  if (!workspace.ok()) return workspace.status();
  args.workspace = workspace_.reserve(*workspace);
  args.workspace_bytes = *workspace;

  double source_seconds = 0.0;
  const ContextSource source = [&](const ContextChunk& chunk,
                                   StreamHandle) -> StatusOr<KeyValueViews> {
    // A long context takes minutes: --time-limit and Ctrl-C need not wait for all of it.
    if (must_stop()) return Status(StatusCode::kInternal, totals_.stopped);
    const Clock::time_point start = Clock::now();
    std::vector<ReplayPiece> slices;
    for (const ContextSlice& slice : chunk.slices) {
      slices.push_back(
          {step.pieces[static_cast<size_t>(slice.request)].request, slice.start, slice.length});
    }
    StatusOr<KeyValueViews> views = context_tensors_.keys(layer, slices);
    source_seconds += seconds_since(start);
    return views;
  };
  const Clock::time_point start = Clock::now();
  const Status status = prefill_layer(problem_, args, plan, source, execution_);
  *seconds = seconds_since(start) - source_seconds;
  totals_.generation_seconds += source_seconds;
  return status;
}

// Rows to look at: the one that sees the most keys, then random ones.
Status Replay::verify_layer(const ReplayStep& step, int32_t layer,
                            const std::vector<int32_t>& cu_seqlens) {
  if (options_.verify == 0) return ok_status();
  const Clock::time_point start = Clock::now();
  struct Row {
    int64_t token;
    int32_t head;
    size_t piece;
    int64_t position;
    std::vector<double> oracle_out;
    double oracle_lse = 0.0;
    Status status;
  };
  std::vector<Row> rows(static_cast<size_t>(options_.verify));
  const auto tokens = static_cast<uint64_t>(cu_seqlens.back());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto random =
        philox4x32_10({static_cast<uint32_t>(i), static_cast<uint32_t>(totals_.steps),
                       static_cast<uint32_t>(layer), 0x76726679u},
                      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    rows[i].token = static_cast<int64_t>(uint64_t{random[0]} * tokens >> 32);
    rows[i].head =
        static_cast<int32_t>(uint64_t{random[1]} * static_cast<uint64_t>(model_.heads) >> 32);
    if (i == 0) {
      size_t most = 0;
      for (size_t p = 0; p < step.pieces.size(); ++p) {
        if (step.pieces[p].start + step.pieces[p].length >
            step.pieces[most].start + step.pieces[most].length) {
          most = p;
        }
      }
      rows[i].token = cu_seqlens[most + 1] - 1;
    }
    const auto after = std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), rows[i].token);
    rows[i].piece = static_cast<size_t>(after - cu_seqlens.begin()) - 1;
    rows[i].position = step.pieces[rows[i].piece].start + rows[i].token - cu_seqlens[rows[i].piece];
  }
  while (static_cast<int32_t>(oracles_.size()) < threads_) {
    oracles_.push_back(std::make_unique<ReplayRow>(shape_, seed_));
  }
  parallel_for(threads_, threads_, [&](int64_t worker) {
    for (auto i = static_cast<size_t>(worker); i < rows.size();
         i += static_cast<size_t>(threads_)) {
      rows[i].status = oracles_[static_cast<size_t>(worker)]->oracle(
          layer, step.pieces[rows[i].piece].request, rows[i].position, rows[i].head,
          model_.softmax_scale, &rows[i].oracle_out, &rows[i].oracle_lse);
    }
  });
  for (const Row& row : rows) {
    if (!row.status.ok()) return row.status;
    std::vector<double> out(row.oracle_out.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t index =
          (row.token * model_.heads + row.head) * model_.dims.v + static_cast<int64_t>(i);
      out[i] = element_as_double(out_.data<void>(), problem_.out_dtype, index);
    }
    const double lse = element_as_double(lse_.data<void>(), Dtype::kFp32,
                                         row.head * cu_seqlens.back() + row.token);
    verify_row(limits_, out, lse, row.oracle_out, row.oracle_lse,
               fmt::format("step {} layer {} request {} token {} head {}", totals_.steps, layer,
                           step.pieces[row.piece].request, row.position, row.head),
               &verification_);
  }
  totals_.verify_seconds += seconds_since(start);
  return ok_status();
}

}  // namespace flashprime::cli
