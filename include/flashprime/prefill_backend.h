// SPDX-License-Identifier: Apache-2.0
// MLA prefill backends as vLLM describes, chooses and calls them: what each supports, why not,
// which one a configuration gets, and FlashPrime behind that interface.
#pragma once

#include "flashprime/export.h"

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashprime/flash_attention_rules.h"
#include "flashprime/jit.h"
#include "flashprime/prefill.h"
#include "flashprime/status.h"
#include "flashprime/types.h"
#include "flashprime/warmup.h"

namespace flashprime {

/// What a backend declares.
struct PrefillBackendInfo {
  std::string name;                                          ///< "FLASH_ATTN"
  std::vector<Dtype> dtypes = {Dtype::kFp16, Dtype::kBf16};  ///< of q, k and v
  std::vector<HeadDims> dims = {};                           ///< empty: as supports_dims says
  std::function<bool(const HeadDims&)> supports_dims = {};   ///< beside `dims`; empty: all
  std::function<bool(ComputeCapability)> capabilities = {};  ///< empty: all
  std::function<bool()> available = {};                      ///< its library is here; empty: yes
  std::string unavailable = "required dependencies not available";  ///< said when it is not
};

/// What is asked of a backend.
struct PrefillBackendConfig {
  Dtype dtype = Dtype::kBf16;
  HeadDims dims;
};

/// Why `backend` cannot serve, in this order: capability, dtype, dependencies, dims. Empty: it can.
FLASHPRIME_API std::vector<std::string> validate_configuration(
    const PrefillBackendInfo& backend, std::optional<ComputeCapability> capability,
    const PrefillBackendConfig& config);

/// Head dims of vLLM's FLASH_ATTN backend for a FlashAttention version: those of 0.33.0, or those
/// of the releases that introduced the compile keys.
FLASHPRIME_API std::vector<HeadDims> flash_attn_backend_dims(int32_t fa_version,
                                                             bool vllm_0_33 = true);

/// FlashPrime as a backend, "FLASHPRIME": fp16 and bf16, every dims that one of its kernels runs,
/// every capability.
FLASHPRIME_API PrefillBackendInfo flashprime_backend();
/// FlashPrime reads V through its strides: it never needs V padded, on any device.
constexpr bool flashprime_requires_v_padding() {
  return false;
}
/// FlashPrime writes static per-tensor e4m3 output itself, on every device.
constexpr bool flashprime_supports_quant_output() {
  return true;
}

/// Backends by name. Starts with the names of vLLM 0.33.0 and what they declare; "CUSTOM" has no
/// backend until one is put there. Thread-compatible value type.
class FLASHPRIME_API PrefillBackendRegistry {
 public:
  PrefillBackendRegistry();

  /// In the order of registration.
  const std::vector<std::string>& names() const { return names_; }
  /// Adds a name; kUnsupported if it exists, kFormat unless it is an upper-case identifier
  /// (configuration upper-cases what it looks up, so another name could never be chosen).
  Status add(const std::string& name, PrefillBackendInfo backend);
  /// Puts `backend` in the place of an existing name, any number of times.
  Status override_backend(const std::string& name, PrefillBackendInfo backend);
  /// Undoes the override of a name; none: nothing.
  Status clear_override(const std::string& name);
  bool is_overridden(std::string_view name) const;
  /// The backend of a name, its override first. kUnsupported for unknown names, and for "CUSTOM"
  /// while it has none.
  StatusOr<PrefillBackendInfo> find(const std::string& name) const;

 private:
  Status check_known(const std::string& name) const;

  std::vector<std::string> names_;
  std::map<std::string, PrefillBackendInfo, std::less<>> backends_;
  std::map<std::string, PrefillBackendInfo, std::less<>> overrides_;
};

/// The names that automatic choice tries, best first.
FLASHPRIME_API std::vector<std::string> prefill_backend_priorities(
    std::optional<ComputeCapability> capability, const HeadDims& dims);

/// The backend for a configuration: `requested` (upper-cased) or the first valid one by priority.
/// Without a capability FLASH_ATTN, unchecked, and no other. kUnsupported with every reason
/// otherwise.
FLASHPRIME_API StatusOr<PrefillBackendInfo> select_prefill_backend(
    const PrefillBackendRegistry& registry, std::optional<ComputeCapability> capability,
    const PrefillBackendConfig& config, const std::optional<std::string>& requested = {});

/// A layer on one rank.
struct PrefillBackendOptions {
  HeadDims dims;
  int32_t num_heads = 1;
  Dtype dtype = Dtype::kBf16;
  float softmax_scale = std::numeric_limits<float>::quiet_NaN();  ///< YaRN's factor included
  LseLayout lse_layout = LseLayout::kHeadsTokens;
  /// One flag: keys are never split, and num_splits is 1 in every compile key.
  bool batch_invariant = false;
  ExecutionOptions execution = {};
};

/// One context chunk as its caller has cut it: its own queries, and what it holds of their context.
struct PrefillChunkMetadata {
  TensorView cu_seqlens_q = {};  ///< int32 [B + 1], of the queries of this chunk
  TensorView cu_seqlens_k = {};  ///< int32 [B + 1]
  int64_t max_seqlen_q = -1;     ///< negative: not stated
  int64_t max_seqlen_k = -1;
};

/// What all layers of one step share. Views stay the caller's and have to outlive the step.
struct PrefillBatchMetadata {
  TensorView cu_seqlens_q = {};  ///< int32 [B + 1]
  int64_t max_seqlen_q = -1;
  /// For the index form: each chunk holds keys of every request of the batch, possibly none.
  std::vector<PrefillChunkMetadata> chunks = {};
};

/// The tensors of one call. Shapes as in PrefillArgs.
struct PrefillBackendArgs {
  TensorView q = {};
  TensorView k = {};
  TensorView v = {};
  MutableTensorView out = {};
  MutableTensorView lse = {};    ///< absent: not wanted
  TensorView output_scale = {};  ///< with e4m3 output, which is of new tokens only
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

/// FlashPrime as an engine calls it: one object a layer, one prepare() a step, then the new tokens
/// and every context chunk. It computes attention only; the engine merges. The output may be fp32
/// besides what prefill() writes. Calls are const and thread-safe between two prepare() calls.
class FLASHPRIME_API PrefillBackend {
 public:
  /// kUnsupported with every reason unless a kernel runs such a layer.
  static StatusOr<PrefillBackend> create(const PrefillBackendOptions& options);

  static constexpr std::string_view name() { return "FLASHPRIME"; }
  static constexpr bool requires_v_padding() { return flashprime_requires_v_padding(); }
  static constexpr bool supports_quant_output() { return flashprime_supports_quant_output(); }
  /// Both calls write where they are told to.
  static constexpr bool supports_out() { return true; }

  void prepare(PrefillBatchMetadata batch) { batch_ = std::move(batch); }

  /// Causal attention of the new tokens over themselves.
  Status run_prefill_new_tokens(const PrefillBackendArgs& args,
                                StreamHandle stream = nullptr) const;
  /// Unmasked attention over one chunk of context; `args.lse` is required. Index form: the queries
  /// are those of the whole batch, and a request without keys in the chunk gets 0 and -inf. kRange
  /// for a chunk that prepare() was not told of.
  Status run_prefill_context_chunk(int64_t chunk, const PrefillBackendArgs& args,
                                   StreamHandle stream = nullptr) const;
  /// Chunk form: `args.q`, `out` and `lse` are cut to the chunk's own queries.
  Status run_prefill_context_chunk(const PrefillChunkMetadata& chunk,
                                   const PrefillBackendArgs& args,
                                   StreamHandle stream = nullptr) const;
  /// Bytes of workspace that such a call needs.
  StatusOr<int64_t> workspace_bytes(const PrefillChunkMetadata& chunk,
                                    const PrefillBackendArgs& args, MaskKind mask) const;

  /// What this layer wants warmed: as vLLM's compile keys, and as FlashPrime's kernels. The same
  /// dims and flags as the calls use.
  MlaWarmupConfig warmup_config(ComputeCapability capability, int32_t fa_version) const;
  PlanOptions plan_options(std::vector<std::string> archs) const;

 private:
  explicit PrefillBackend(PrefillBackendOptions options) : options_(std::move(options)) {}
  PrefillProblem problem(const PrefillBackendArgs& args, MaskKind mask) const;
  Status run(const PrefillChunkMetadata& chunk, const PrefillBackendArgs& args, MaskKind mask,
             StreamHandle stream) const;

  PrefillBackendOptions options_;
  PrefillBatchMetadata batch_;
};

}  // namespace flashprime
