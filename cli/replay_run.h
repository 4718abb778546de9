// SPDX-License-Identifier: Apache-2.0
// The loop of `flashprime replay`: schedule a step, make its tensors, run it, look at some rows.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/common_options.h"
#include "cli/replay_data.h"
#include "cli/replay_plot.h"
#include "cli/replay_scheduler.h"
#include "cli/replay_verify.h"
#include "cli/trace.h"
#include "flashprime/prefill_layer.h"

namespace flashprime::cli {

// What the command line says.
struct ReplayOptions {
  CommonOptions common;
  std::string trace;
  std::string plot;  // a file's name, or empty
  int64_t max_memory = int64_t{16} << 30;
  int64_t layers = 1;
  int64_t verify = 4;
  int64_t budget = 8192;
  int64_t max_seqs = 256;
  int64_t steps = 0;                 // 0: all
  int64_t workspace_rows = 0;        // 0: the workspace rule
  int64_t max_model_len = 0;         // 0: the longest request
  double time_limit = 0.0;           // 0: none
  int64_t prefix_cache_tokens = -1;  // -1: unlimited
  bool arrival_clock = false;
  bool equal_planner = false;
};

// Everything the report says about the run itself.
struct ReplayTotals {
  int64_t steps = 0;
  int64_t new_tokens = 0;
  int64_t decode_tokens = 0;   // that shared those steps' budget
  int64_t context_tokens = 0;  // attended again
  int64_t context_chunks = 0;
  double flop = 0.0;  // all layers
  double attention_seconds = 0.0;
  double generation_seconds = 0.0;
  double verify_seconds = 0.0;
  double wall_seconds = 0.0;
  std::vector<StepRecord> records;  // one a step
  std::string stopped;              // why before the end, or empty
};

class Replay {
 public:
  // `options`, `model` and `trace` must outlive the replay.
  Replay(const ReplayOptions& options, const ModelShape& model, const Trace& trace,
         int64_t workspace_rows, int32_t threads);

  // Until the trace or a limit ends it. Shows progress on stderr.
  Status run();

  const ReplayTotals& totals() const { return totals_; }
  const VerifyResult& verification() const { return verification_; }
  const VerifyLimits& limits() const { return limits_; }
  const ReplayScheduler& scheduler() const { return scheduler_; }
  const PrefillProblem& problem() const { return problem_; }
  const ExecutionOptions& execution() const { return execution_; }

 private:
  bool must_stop();
  Status run_step(const ReplayStep& step);
  Status run_layer(const ReplayStep& step, int32_t layer, const ContextPlan& plan,
                   const std::vector<int32_t>& cu_seqlens, int64_t longest, double* seconds);
  Status verify_layer(const ReplayStep& step, int32_t layer,
                      const std::vector<int32_t>& cu_seqlens);

  const ReplayOptions& options_;
  const ModelShape& model_;
  const Trace& trace_;
  int32_t threads_;
  ReplayShape shape_;
  uint64_t seed_;
  ReplayScheduler scheduler_;
  ReplayTensors tensors_;
  ReplayTensors context_tensors_;
  VerifyLimits limits_;
  ContextPlanOptions plan_options_;
  PrefillProblem problem_;
  ExecutionOptions execution_;
  ScratchBuffer out_;
  ScratchBuffer lse_;
  ScratchBuffer workspace_;
  std::vector<std::unique_ptr<ReplayRow>> oracles_;  // one a thread
  std::chrono::steady_clock::time_point start_;
  ReplayTotals totals_;
  VerifyResult verification_;
};

}  // namespace flashprime::cli
