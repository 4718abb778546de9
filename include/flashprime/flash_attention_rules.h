// SPDX-License-Identifier: Apache-2.0
// What vLLM and FlashAttention would decide for an MLA prefill: FlashAttention version, V padding,
// fused fp8 output, and the forward kernel's tiles, stages and splits. Reference rules, pure
// functions: FlashPrime's own kernels are chosen by explain() in backend.h.
#pragma once

#include "flashprime/export.h"

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

/// CUDA compute capability: {9, 0} is Hopper.
struct ComputeCapability {
  int32_t major = 0;
  int32_t minor = 0;

  auto operator<=>(const ComputeCapability&) const = default;
};

/// What the version rules are told. A head size that the caller does not know stays empty, and
/// that changes the answer: build the query with flash_attention_version_query().
struct FlashAttentionVersionQuery {
  ComputeCapability capability;
  std::optional<int32_t> head_size;    ///< of q and k: nope + rope
  std::optional<int32_t> head_size_v;  ///< of v
  std::optional<int32_t> requested;    ///< 2, 3 or 4 asked for by configuration
  bool batch_invariant = false;
  bool fa3_built = true;  ///< the installation contains FlashAttention 3
  bool fa4_built = true;  ///< and 4
};

/// A FlashAttention version, and every rule that changed it on the way.
struct FlashAttentionVersion {
  std::optional<int32_t> version;  ///< 2, 3 or 4; empty: none can run here, see the last note
  std::vector<std::string> notes;
};

/// The one place where head dimensions become arguments of a version rule. Warmup and backend both
/// ask through it: a rule that is told (192) by one and (192, 128) by the other answers 2 and 4,
/// and then warms nothing for the kernel that will run.
FLASHPRIME_API FlashAttentionVersionQuery
flash_attention_version_query(const HeadDims& dims, ComputeCapability capability,
                              std::optional<int32_t> requested = {}, bool batch_invariant = false);

/// vLLM's rule when the compile keys were introduced: knows the size of q and k only.
FLASHPRIME_API FlashAttentionVersion
old_flash_attention_version(const FlashAttentionVersionQuery& query);

/// vLLM 0.33.0's rule for MLA prefill.
FLASHPRIME_API FlashAttentionVersion
flash_attention_version(const FlashAttentionVersionQuery& query);

/// vLLM's rule whether V is padded to the head size of q and k: always, unless FlashAttention 3
/// runs on 9.x, or 4 anywhere. FlashPrime's kernels never pad.
FLASHPRIME_API bool flash_attention_requires_v_padding(std::optional<int32_t> fa_version,
                                                       ComputeCapability capability);

/// vLLM's rule whether its FLASH_ATTN backend writes static per-tensor symmetric fp8 itself.
/// `vllm_build` says that FlashAttention is vLLM's own build.
FLASHPRIME_API bool flash_attention_supports_quant_output(std::optional<int32_t> fa_version,
                                                          ComputeCapability capability,
                                                          bool vllm_build = true);

/// The two FlashAttention trees, where they differ.
enum class FlashAttentionTree : uint8_t {
  kVllmFork = 0,  ///< vllm-project/flash-attention
  kUpstream = 1,  ///< Dao-AILab/flash-attention
};

/// A ragged (cu_seqlens) forward call as the selectors see it.
struct FlashAttentionProblem {
  FlashAttentionTree tree = FlashAttentionTree::kVllmFork;
  ComputeCapability capability;
  int32_t num_sms = 132;
  int32_t head_dim = 192;
  int32_t head_dim_v = 128;
  int32_t num_heads = 1;
  int32_t num_kv_heads = 1;  ///< = num_heads in MLA prefill
  int64_t batch_size = 1;
  int64_t max_seqlen_q = 1;
  int64_t max_seqlen_k = 1;
  Dtype dtype = Dtype::kBf16;  ///< kBf16 or kFp16
  Mask mask;
  bool return_lse = false;
  int32_t num_splits = 0;  ///< below 1: the selector chooses
};

/// What of a selection FlashAttention 4 compiles: two calls with equal identities run one kernel.
/// Not in it: batch, heads, lengths, scale, strides, the number of splits.
struct Fa4KernelIdentity {
  Dtype dtype = Dtype::kBf16;
  int32_t head_dim = 0;
  int32_t head_dim_v = 0;
  int32_t heads_per_kv_head = 1;
  bool causal = false;
  bool window_left = false;   ///< present, whatever its value
  bool window_right = false;  ///< present
  bool return_lse = false;
  int32_t tile_m = 0;
  int32_t tile_n = 0;
  int32_t q_stage = 1;
  bool is_split = false;
  int32_t arch = 0;  ///< 10 * major + minor
  bool two_cta = false;

  auto operator<=>(const Fa4KernelIdentity&) const = default;
};

/// The answer of FlashAttention 4's forward selector.
struct Fa4Selection {
  Fa4KernelIdentity kernel;
  int32_t num_splits = 1;
  int32_t num_threads = 0;  ///< of a CTA; 0: not known (the 256/256 kernel of 10.x)
  int32_t kv_stages = 1;
  bool pv_from_registers = false;  ///< 9.x: P is the register operand of P V
  int32_t producer_registers = 0;  ///< per thread, 9.x
  int32_t mma_registers = 0;       ///< per thread, 9.x
  int64_t smem_qkv_bytes = 0;      ///< of Q, K and V tiles on 8.x and 12.x, 0 elsewhere
  int64_t num_m_blocks = 0;        ///< per sequence and KV head
  int64_t num_n_blocks = 0;        ///< over the keys that are loaded
};

/// FlashAttention 4's tile, stages and splits, or its refusal: kArch, kUnsupported, kDtype.
FLASHPRIME_API StatusOr<Fa4Selection> select_fa4(const FlashAttentionProblem& problem);

/// The answer of FlashAttention 3's forward selector for 16-bit inputs on 9.x.
struct Fa3Selection {
  int32_t tile_m = 0;
  int32_t tile_n = 0;
  int32_t kv_stages = 2;
  int32_t num_splits = 1;
  int64_t num_m_blocks = 0;
  int64_t num_n_blocks = 0;
};

/// FlashAttention 3's tile and splits, or why there are none.
FLASHPRIME_API StatusOr<Fa3Selection> select_fa3(const FlashAttentionProblem& problem);

}  // namespace flashprime
