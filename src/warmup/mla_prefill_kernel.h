// SPDX-License-Identifier: Apache-2.0
// vLLM's FA4 MLA-prefill kernel as a JitKernel: how serving inputs become compile keys.
#pragma once

#include <string_view>
#include <vector>

#include "flashprime/prefill.h"
#include "flashprime/warmup.h"
#include "warmup/jit_kernel.h"

namespace flashprime {

// Shapes to warm at: one point of (max_seqlen_q, max_seqlen_k) for every regime of the selector.
struct ShapeProbe {
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;

  bool operator==(const ShapeProbe&) const = default;
};

// FlashAttention 4 reaches one query stage up to 128 queries and two above; it never splits up to
// 4 key tiles, may from there on, and at 64 key tiles turns to narrower tiles where the head sizes
// of k and v differ. Batch is not in the kernels: 1 is where splits are most likely.
inline constexpr int64_t kWarmupBatch = 1;
inline constexpr ShapeProbe kWarmupProbes[] = {{1, 128},    {129, 512}, {1, 4096},
                                               {129, 4096}, {1, 8192},  {129, 8192}};
inline constexpr int64_t kLongKeys = 4096;      // 32 key tiles
inline constexpr int64_t kVeryLongKeys = 8192;  // 64 key tiles

// Whether a probe tells a kernel apart from those of smaller probes.
bool keeps_probe(const ShapeProbe& probe, int64_t num_splits, bool is_sm90, int64_t qk_head_dim,
                 int64_t v_head_dim);

// What dispatch turns into a key.
struct MlaDispatchInputs {
  int64_t batch_size = 0;
  Dtype dtype = Dtype::kBf16;
  int64_t num_heads = 0;
  HeadDims dims;
  ShapeProbe probe;
  bool requires_v_padding = false;
  bool causal = false;
  int64_t fa_version = 0;
  std::optional<std::array<int64_t, 2>> window_size;
  bool return_lse = false;
  int64_t num_splits = 0;
};

// kShape for dims, batch or lengths that are none, kRange if a product overflows.
StatusOr<CompileKey> make_compile_key(const MlaDispatchInputs& inputs);

// The reason for which `config` has no key, empty if it has some; and the dtype it is warmed as.
std::string why_no_keys(const MlaWarmupConfig& config);
Dtype warmup_dtype(Dtype dtype);

// How probes are written as inputs. Both give the same keys in the same order.
enum class ProbeForm {
  kListAxis,    // input `shape_probe`, an axis of probes chosen beforehand
  kZippedRows,  // inputs `max_seqlen_q` and `max_seqlen_k`, rows of all probes and a predicate
};

class MlaPrefillKernel final : public JitKernel<CompileKey, MlaWarmupConfig,
                                                Status(const PrefillProblem&, const PrefillArgs&,
                                                       const ExecutionOptions&, StreamHandle)> {
 public:
  // `bound` runs calls, prefill() for instance; `compiler` makes kernels available.
  explicit MlaPrefillKernel(Kernel bound = {}, CompileFunction compiler = {},
                            ProbeForm form = ProbeForm::kZippedRows)
      : JitKernel(std::move(bound)), compiler_(std::move(compiler)), form_(form) {}

  WarmupSignature signature() const override;
  StatusOr<CompileKey> dispatch(const WarmupInputs& inputs) const override;
  StatusOr<JitKeys<CompileKey>> warmup_keys(const MlaWarmupConfig& config) const override;
  // kNoCompiler without a compiler.
  Status compile(const CompileKey& key) override;

 private:
  CompileFunction compiler_;
  ProbeForm form_;
};

}  // namespace flashprime
