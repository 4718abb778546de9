// SPDX-License-Identifier: Apache-2.0
// The older form of the contract: a lazy sequence of compile requests. It shares the probes with
// the newer form and no other rule.
#include <unordered_set>

#include "checks.h"
#include "numerics/checked.h"
#include "warmup/mla_prefill_kernel.h"

namespace flashprime {
namespace {

// Every (probe, causal, lse) in order, one at a time.
class MlaSpecSource {
 public:
  MlaSpecSource(const MlaCompileContext& context, ComputeCapability capability)
      : context_(context), capability_(capability) {}

  StatusOr<std::optional<CompileKey>> operator()() {
    if (next_ == 0) FLASHPRIME_RETURN_IF_ERROR(check_capability());
    if (!supported()) return std::optional<CompileKey>();
    while (next_ < 4 * std::size(kWarmupProbes)) {
      const std::size_t index = next_++;
      const ShapeProbe& probe = kWarmupProbes[index / 4];
      if (!keeps_probe(probe, context_.num_splits, capability_.major == 9, context_.qk_head_dim,
                       context_.effective_v_head_dim())) {
        continue;
      }
      StatusOr<CompileKey> spec = make_spec(probe, (index & 2) != 0, (index & 1) != 0);
      FLASHPRIME_RETURN_IF_ERROR(spec.status());
      return std::optional<CompileKey>(*std::move(spec));
    }
    return std::optional<CompileKey>();
  }

 private:
  Status check_capability() const {
    const auto [major, minor] = capability_;
    FLASHPRIME_REQUIRE(capability_ == (ComputeCapability{9, 0}) || major == 10 ||
                           capability_ == (ComputeCapability{12, 0}),
                       StatusCode::kArch, "FA4 warmup does not know CUDA capability ", major, ".",
                       minor);
    return ok_status();
  }

  bool supported() const {
    return (context_.dtype == Dtype::kBf16 || context_.dtype == Dtype::kFp16) &&
           context_.num_heads > 0 && (capability_.major != 12 || context_.num_splits == 1);
  }

  StatusOr<CompileKey> make_spec(const ShapeProbe& probe, bool causal, bool return_lse) const {
    FLASHPRIME_REQUIRE(
        context_.qk_head_dim >= 1 && context_.v_head_dim >= 1 && context_.kv_nope_head_dim >= 1,
        StatusCode::kShape, "context: got (qk, v, kv_nope) head dims (", context_.qk_head_dim, ", ",
        context_.v_head_dim, ", ", context_.kv_nope_head_dim, "), wanted each >= 1");
    const int64_t heads = context_.num_heads;
    CompileKey spec;
    spec.q_shape = {kWarmupBatch * probe.max_seqlen_q, heads, context_.qk_head_dim};
    spec.k_shape = {kWarmupBatch * probe.max_seqlen_k, heads, context_.qk_head_dim};
    spec.v_shape = {kWarmupBatch * probe.max_seqlen_k, heads, context_.effective_v_head_dim()};
    spec.q_dtype = context_.dtype;
    spec.max_seqlen_q = probe.max_seqlen_q;
    spec.max_seqlen_k = probe.max_seqlen_k;
    spec.softmax_scale = context_.scale;
    spec.causal = causal;
    spec.fa_version = context_.fa_version;
    if (!context_.requires_v_padding) {
      spec.v_stride = {heads * context_.kv_nope_head_dim, context_.kv_nope_head_dim, 1};
    }
    spec.cu_seqlens_q_shape = {kWarmupBatch + 1};
    spec.cu_seqlens_k_shape = {kWarmupBatch + 1};
    spec.return_softmax_lse = return_lse;
    spec.num_splits = context_.num_splits;
    return spec;
  }

  MlaCompileContext context_;
  ComputeCapability capability_;
  std::size_t next_ = 0;
};

}  // namespace

CompileRequest::CompileRequest(CompileKey spec, CompileFunction compiler)
    : state_(std::make_shared<State>(State{spec, std::move(compiler), std::nullopt})) {}

Status CompileRequest::compile() {
  if (state_->outcome) return *state_->outcome;
  state_->outcome = without_exceptions([&]() -> Status {
    FLASHPRIME_REQUIRE(state_->spec.fa_version == 4, StatusCode::kUnsupported,
                       "Compile-only FlashAttention is only supported for FA4, got FA",
                       state_->spec.fa_version);
    FLASHPRIME_REQUIRE(state_->compiler, StatusCode::kNoCompiler,
                       "compiler: got none, wanted one that takes ", state_->spec.to_string());
    return state_->compiler(state_->spec);
  });
  return *state_->outcome;
}

struct CompileRequests::State {
  Source source;
  CompileFunction compiler;
  std::unordered_set<CompileKey> seen;
  std::optional<Status> end;  // set once the sequence has ended; kOk: without an error
};

CompileRequests::CompileRequests(Source source, CompileFunction compiler)
    : state_(new State{std::move(source), std::move(compiler), {}, {}}) {}
CompileRequests::~CompileRequests() = default;
CompileRequests::CompileRequests(CompileRequests&&) noexcept = default;
CompileRequests& CompileRequests::operator=(CompileRequests&&) noexcept = default;

StatusOr<std::optional<CompileRequest>> CompileRequests::next() {
  return without_exceptions([&]() -> StatusOr<std::optional<CompileRequest>> {
    while (!state_->end) {
      StatusOr<std::optional<CompileKey>> spec = state_->source();
      if (!spec.ok()) {
        state_->end = spec.status();
      } else if (!spec->has_value()) {
        state_->end = ok_status();
      } else if (state_->seen.insert(**spec).second) {
        return std::optional<CompileRequest>(CompileRequest(**spec, state_->compiler));
      }
    }
    FLASHPRIME_RETURN_IF_ERROR(*state_->end);
    return std::optional<CompileRequest>();
  });
}

CompileRequests mla_compile_requests(const MlaCompileContext& context, ComputeCapability capability,
                                     CompileFunction compiler) {
  return CompileRequests(MlaSpecSource(context, capability), std::move(compiler));
}

}  // namespace flashprime
