// SPDX-License-Identifier: Apache-2.0
// Which kernels a server should have before its first request: vLLM's compile-key contract for MLA
// prefill, key for key and in its order. See docs/compile_keys.md.
#pragma once

#include "flashprime/export.h"

#include <array>
#include <compare>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "flashprime/flash_attention_rules.h"
#include "flashprime/prefill.h"
#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

/// A request to compile: shapes, dtype and options of one attention call, without data. It is not
/// the identity of a kernel (many keys share one): a selector maps it to that.
struct CompileKey {
  std::array<int64_t, 3> q_shape{};  ///< [tokens, heads, nope + rope]
  std::array<int64_t, 3> k_shape{};
  std::array<int64_t, 3> v_shape{};  ///< last: v, or nope + rope where V is padded
  Dtype q_dtype = Dtype::kBf16;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  double softmax_scale = 0.0;
  bool causal = false;
  int32_t fa_version = 0;
  std::optional<std::array<int64_t, 3>> v_stride = {};  ///< none: V is dense (it was padded)
  std::optional<std::array<int64_t, 1>> cu_seqlens_q_shape = {};
  std::optional<std::array<int64_t, 1>> cu_seqlens_k_shape = {};
  std::optional<std::array<int64_t, 2>> window_size = {};
  bool return_softmax_lse = false;
  int32_t num_splits = 0;

  /// The fields in order.
  auto fields() const {
    return std::tie(q_shape, k_shape, v_shape, q_dtype, max_seqlen_q, max_seqlen_k, softmax_scale,
                    causal, fa_version, v_stride, cu_seqlens_q_shape, cu_seqlens_k_shape,
                    window_size, return_softmax_lse, num_splits);
  }

  /// Field by field, in order. softmax_scale compares by IEEE total order, so that a key with a
  /// NaN equals itself and sets and maps of keys work.
  FLASHPRIME_API std::strong_ordering operator<=>(const CompileKey& other) const;
  bool operator==(const CompileKey& other) const { return (*this <=> other) == 0; }

  FLASHPRIME_API std::size_t hash() const;
  /// A C++ designated initialiser of this key: "CompileKey{.q_shape = {1, 128, 192}, ...}".
  FLASHPRIME_API std::string to_string() const;
  /// The fields as Python prints a tuple: "((1, 128, 192), ..., torch.bfloat16, 1, 128, ...)".
  FLASHPRIME_API std::string to_python() const;
};

/// What a server knows before it serves: the model on one rank, the device, the options.
struct MlaWarmupConfig {
  HeadDims dims;
  int32_t num_heads = 1;         ///< query heads on this rank
  Dtype dtype = Dtype::kBf16;    ///< anything but bf16 and fp16 is warmed as bf16
  ComputeCapability capability;  ///< of the device
  int32_t fa_version = 4;        ///< FlashAttention version that would run; keys exist for 4 only
  bool batch_invariant = false;  ///< forbids splits: num_splits is 1 in every key, else 0
};

/// A list of keys, or why it is empty.
struct WarmupKeyList {
  std::vector<CompileKey> keys;    ///< in vLLM's order, without duplicates
  std::string why_empty;           ///< empty unless `keys` is
  std::vector<std::string> notes;  ///< what was changed or ignored on the way
};

/// The keys that vLLM's FA4 MLA-prefill kernel warms for `config`, exactly and in order; empty,
/// with the reason, where vLLM's list is empty. kShape for dims that are no dims, kRange if a
/// stride overflows.
FLASHPRIME_API StatusOr<WarmupKeyList> get_warmup_keys(const MlaWarmupConfig& config);

/// The key that a call of prefill() is in the contract's terms: `batch` sequences of max_seqlen_q
/// new tokens and max_seqlen_k keys each. Its scale is the contract's, (nope + rope)^-0.5; a
/// window's unbounded reach is -1. kShape and kRange as above.
FLASHPRIME_API StatusOr<CompileKey> compile_key_of(const PrefillProblem& problem, int64_t batch,
                                                   int64_t max_seqlen_q, int64_t max_seqlen_k,
                                                   int32_t fa_version = 4);

/// Input of the older form of the contract, which iterates compile requests. Its rules differ: the
/// layer's softmax scale, no replacement dtype, padded V, other architectures.
struct MlaCompileContext {
  Dtype dtype = Dtype::kBf16;
  int32_t num_heads = 1;
  int32_t qk_head_dim = 192;
  int32_t v_head_dim = 128;
  int32_t kv_nope_head_dim = 256;  ///< nope + v: the head stride of V in the up-projection's output
  bool requires_v_padding = false;
  double scale = 0.0;  ///< softmax scale of the layer, YaRN's factor included
  int32_t num_splits = 0;
  int32_t fa_version = 4;

  int32_t effective_v_head_dim() const { return requires_v_padding ? qk_head_dim : v_head_dim; }
};

/// Makes a key's kernel available; what it returns is the outcome of compile().
using CompileFunction = std::function<Status(const CompileKey&)>;

/// One compilation that has not happened yet. Copies share the outcome.
class CompileRequest {
 public:
  FLASHPRIME_API CompileRequest(CompileKey spec, CompileFunction compiler);

  const CompileKey& compile_spec() const { return state_->spec; }
  /// What requests are deduplicated by: the 15 fields of the spec in order.
  auto key() const {
    return std::apply([](const auto&... field) { return std::make_tuple(field...); },
                      state_->spec.fields());
  }
  /// Compiles on the first call and returns that outcome from then on. Not thread-safe.
  /// kUnsupported unless fa_version is 4, kNoCompiler without a compiler.
  FLASHPRIME_API Status compile();

 private:
  struct State {
    CompileKey spec;
    CompileFunction compiler;
    std::optional<Status> outcome;
  };
  std::shared_ptr<State> state_;
};

/// A lazy sequence of compile requests without duplicates: nothing, not even the check of the
/// device, happens before the first next().
class CompileRequests {
 public:
  /// Draws the next spec; no value: the end.
  using Source = std::function<StatusOr<std::optional<CompileKey>>()>;

  FLASHPRIME_API CompileRequests(Source source, CompileFunction compiler);
  FLASHPRIME_API ~CompileRequests();
  FLASHPRIME_API CompileRequests(CompileRequests&&) noexcept;
  FLASHPRIME_API CompileRequests& operator=(CompileRequests&&) noexcept;

  /// The next request whose key was not seen before, nothing at the end, or the error that ended
  /// the sequence (which then is what every later call returns).
  FLASHPRIME_API StatusOr<std::optional<CompileRequest>> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The compile requests of the older form. Its first next() is kArch on a compute capability other
/// than 9.0, 10.x and 12.0; the sequence is empty for dtypes other than bf16 and fp16, without
/// heads, and on 12.0 unless num_splits is 1.
FLASHPRIME_API CompileRequests mla_compile_requests(const MlaCompileContext& context,
                                                    ComputeCapability capability,
                                                    CompileFunction compiler = {});

/// FlashAttention 4's choice for a key, see select_fa4().
FLASHPRIME_API StatusOr<Fa4Selection> select_fa4(
    const CompileKey& key, ComputeCapability capability, int32_t num_sms,
    FlashAttentionTree tree = FlashAttentionTree::kVllmFork);

}  // namespace flashprime

template <>
struct std::hash<flashprime::CompileKey> {
  std::size_t operator()(const flashprime::CompileKey& key) const { return key.hash(); }
};
