// SPDX-License-Identifier: Apache-2.0
// One layer's whole prefill attention: new tokens, every context chunk, and the merges.
#pragma once

#include "flashprime/export.h"

#include <functional>
#include <vector>

#include "flashprime/context_plan.h"
#include "flashprime/prefill.h"

namespace flashprime {

/// Keys and values of one context chunk: rows in the order of the chunk's slices. Shapes as in
/// PrefillArgs, with Tk = chunk.num_tokens().
struct KeyValueViews {
  TensorView k;
  TensorView k_nope;
  TensorView k_pe;
  TensorView v;
  /// Optional, on a GPU only (kCuSeqlens on a CPU): int32 [B + 1] there, the prefix sums of the
  /// keys that the chunk holds of every request of the call, requests outside its range having
  /// none. Absent, they are copied from the plan, which cannot be done while a graph is recorded
  /// (kStream).
  TensorView cu_seqlens_k = {};
};

/// Produces the keys and values of a chunk on `stream`. Called once per chunk, in plan order, on
/// the calling thread; what it returned before may be overwritten by the next call.
using ContextSource =
    std::function<StatusOr<KeyValueViews>(const ContextChunk& chunk, StreamHandle stream)>;

/// A source over ready views, one per chunk of the plan.
FLASHPRIME_API ContextSource context_from_views(std::vector<KeyValueViews> views);

/// Attention of the new tokens over themselves (problem.mask, usually causal) and over all their
/// context (unmasked), as if it were one softmax. `args` holds the new tokens; its cu_seqlens have
/// one entry per request of the plan. Partial states stay fp32; out_dtype (e4m3 included) is
/// applied once, after the last merge. With an empty plan this is exactly prefill().
/// Errors of `source` come back unchanged; outputs are then unspecified, but only they.
/// Thread-safety as prefill().
FLASHPRIME_API Status prefill_layer(const PrefillProblem& problem, const PrefillArgs& args,
                                    const ContextPlan& plan, const ContextSource& source,
                                    const ExecutionOptions& options = {},
                                    StreamHandle stream = nullptr);

/// Bytes of args.workspace that prefill_layer() needs, exactly.
FLASHPRIME_API StatusOr<int64_t> prefill_layer_workspace_bytes(
    const PrefillProblem& problem, const PrefillArgs& args, const ContextPlan& plan,
    const ExecutionOptions& options = {});

}  // namespace flashprime
