// SPDX-License-Identifier: Apache-2.0
#include "cli/explain_selector.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text.h"
#include "flashprime/context_plan.h"

namespace flashprime::cli {
namespace {

// One attention call of a layer.
struct Call {
  std::string name;
  FlashAttentionProblem problem;
};

StatusOr<int32_t> sm_count(const SelectorOptions& options, ComputeCapability capability) {
  if (options.num_sms > 0) return static_cast<int32_t>(options.num_sms);
  if (capability.major == 9) return 132;
  if (capability.major == 10) return 148;
  return Status(StatusCode::kFormat, "--sms: needed with --arch " + printable(options.arch));
}

int64_t longest(const std::vector<BatchRequest>& batch, int32_t begin, int32_t end) {
  int64_t longest = 0;
  for (int32_t i = begin; i < end; ++i) {
    longest = std::max(longest, batch[static_cast<size_t>(i)].new_tokens);
  }
  return longest;
}

// The new tokens, then the largest context chunk.
StatusOr<std::vector<Call>> calls_of(const FlashAttentionProblem& base,
                                     const std::vector<BatchRequest>& batch) {
  std::vector<Call> calls;
  Call& new_tokens = calls.emplace_back(Call{"new tokens", base});
  new_tokens.problem.batch_size = static_cast<int64_t>(batch.size());
  new_tokens.problem.max_seqlen_q = longest(batch, 0, static_cast<int32_t>(batch.size()));
  new_tokens.problem.max_seqlen_k = new_tokens.problem.max_seqlen_q;

  std::vector<int64_t> contexts;
  for (const BatchRequest& request : batch) contexts.push_back(request.context());
  const StatusOr<ContextPlan> plan = plan_context_greedy(contexts, {});
  if (!plan.ok()) return plan.status();
  const auto largest = std::max_element(
      plan->chunks.begin(), plan->chunks.end(),
      [](const ContextChunk& a, const ContextChunk& b) { return a.max_seqlen_k < b.max_seqlen_k; });
  if (largest == plan->chunks.end()) return calls;
  Call& context = calls.emplace_back(Call{"context", base});
  context.problem.batch_size = largest->request_end - largest->request_begin;
  context.problem.max_seqlen_q = longest(batch, largest->request_begin, largest->request_end);
  context.problem.max_seqlen_k = largest->max_seqlen_k;
  context.problem.mask = {MaskKind::kFull, -1, -1};
  context.problem.return_lse = true;
  return calls;
}

// Named figures of a selection, in the order in which they are printed.
StatusOr<Json> select(const std::string& selector, const FlashAttentionProblem& problem) {
  if (selector == "fa3") {
    const StatusOr<Fa3Selection> choice = select_fa3(problem);
    if (!choice.ok()) return choice.status();
    return Json{{"tile_m", choice->tile_m},         {"tile_n", choice->tile_n},
                {"splits", choice->num_splits},     {"kv_stages", choice->kv_stages},
                {"m_blocks", choice->num_m_blocks}, {"n_blocks", choice->num_n_blocks}};
  }
  const StatusOr<Fa4Selection> choice = select_fa4(problem);
  if (!choice.ok()) return choice.status();
  return Json{{"tile_m", choice->kernel.tile_m},   {"tile_n", choice->kernel.tile_n},
              {"q_stage", choice->kernel.q_stage}, {"splits", choice->num_splits},
              {"kv_stages", choice->kv_stages},    {"threads", choice->num_threads},
              {"m_blocks", choice->num_m_blocks},  {"n_blocks", choice->num_n_blocks}};
}

}  // namespace

StatusOr<ComputeCapability> parse_arch(std::string_view text) {
  const Status malformed(StatusCode::kFormat,
                         "--arch: got '" + printable(text) + "', want sm_90, sm_100a, ...");
  if (text.substr(0, 3) != "sm_") return malformed;
  std::string_view digits = text.substr(3);
  if (!digits.empty() && (digits.back() == 'a' || digits.back() == 'f')) digits.remove_suffix(1);
  const StatusOr<int64_t> number = parse_integer(digits, 10, 9999);
  if (!number.ok()) return malformed;
  return ComputeCapability{static_cast<int32_t>(*number / 10), static_cast<int32_t>(*number % 10)};
}

int explain_selector(Session& session, const SelectorOptions& options,
                     const PrefillProblem& problem, const std::vector<BatchRequest>& batch) {
  if (options.selector != "fa4" && options.selector != "fa3") {
    return session.fail(kExitUsage,
                        "--selector: got '" + printable(options.selector) + "', want fa4 or fa3");
  }
  if (batch.empty()) return session.fail(kExitUsage, "--selector: needs --batch");
  const StatusOr<ComputeCapability> capability = parse_arch(options.arch);
  if (!capability.ok()) return session.fail(kExitUsage, capability.status().message());
  const StatusOr<int32_t> num_sms = sm_count(options, *capability);
  if (!num_sms.ok()) return session.fail(kExitUsage, num_sms.status().message());

  FlashAttentionProblem base;
  base.capability = *capability;
  base.num_sms = *num_sms;
  base.head_dim = problem.dims.nope + problem.dims.rope;
  base.head_dim_v = problem.dims.v;
  base.num_heads = problem.num_heads;
  base.num_kv_heads = problem.num_heads;
  base.dtype = problem.dtype;
  base.mask = problem.mask;
  base.return_lse = problem.return_lse;
  base.num_splits = problem.batch_invariant ? 1 : problem.num_splits;
  const StatusOr<std::vector<Call>> calls = calls_of(base, batch);
  if (!calls.ok()) return session.fail(calls.status());

  int exit_code = kExitOk;
  Json json_calls = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const Call& call : *calls) {
    Json entry = {{"call", call.name},
                  {"requests", call.problem.batch_size},
                  {"max_seqlen_q", call.problem.max_seqlen_q},
                  {"max_seqlen_k", call.problem.max_seqlen_k}};
    std::vector<std::string> row = {
        call.name, fmt::format("{} x {} on {}", with_commas(call.problem.batch_size),
                               with_commas(call.problem.max_seqlen_q),
                               with_commas(call.problem.max_seqlen_k))};
    const StatusOr<Json> choice = select(options.selector, call.problem);
    if (choice.ok()) {
      std::string text;
      for (const auto& [name, value] : choice->items()) {
        entry[name] = value;
        text += fmt::format("{}{} {}", text.empty() ? "" : "  ", name, value.dump());
      }
      row.push_back(text);
    } else {
      exit_code = kExitUnsupported;
      entry["refused"] = choice.status().message();
      row.push_back("refused: " + choice.status().message());
    }
    json_calls.push_back(std::move(entry));
    rows.push_back(std::move(row));
  }
  if (session.json) {
    session.print_json({{"selector", options.selector},
                        {"arch", options.arch},
                        {"sms", *num_sms},
                        {"calls", std::move(json_calls)},
                        {"exit_code", exit_code}});
    return exit_code;
  }
  session.out += fmt::format("{} on {} with {} SMs; not what flashprime runs\n", options.selector,
                             options.arch, *num_sms) +
                 align_columns(rows) + "repro: " + session.repro + '\n';
  return exit_code;
}

}  // namespace flashprime::cli
