// SPDX-License-Identifier: Apache-2.0
#include "warmup/mla_prefill_kernel.h"

#include <algorithm>
#include <cmath>

#include "numerics/checked.h"

namespace flashprime {
namespace {

bool is_sm90(ComputeCapability capability) {
  return capability == ComputeCapability{9, 0};
}

int64_t warmup_num_splits(const MlaWarmupConfig& config) {
  return config.batch_invariant ? 1 : 0;
}

Status check_dims(const HeadDims& dims) {
  // 2^20 is far above any head and keeps every sum of dims small.
  constexpr int32_t kMost = 1 << 20;
  FLASHPRIME_REQUIRE(dims.nope >= 1 && dims.rope >= 0 && dims.v >= 1 && dims.nope <= kMost &&
                         dims.rope <= kMost && dims.v <= kMost,
                     StatusCode::kShape, "dims: got (nope, rope, v) = (", dims.nope, ", ",
                     dims.rope, ", ", dims.v, "), wanted nope >= 1, rope >= 0, v >= 1, each up to ",
                     kMost);
  return ok_status();
}

WarmupValue probe_value(const ShapeProbe& probe) {
  return WarmupValue::Tuple{probe.max_seqlen_q, probe.max_seqlen_k};
}

// The probes of a configuration, chosen before the expansion.
WarmupDomain probe_list(const MlaWarmupConfig& config) {
  std::vector<WarmupValue> probes;
  for (const ShapeProbe& probe : kWarmupProbes) {
    if (keeps_probe(probe, warmup_num_splits(config), is_sm90(config.capability),
                    config.dims.nope + config.dims.rope, config.dims.v)) {
      probes.push_back(probe_value(probe));
    }
  }
  return WarmupDomain::choices(std::move(probes));
}

WarmupZip probe_rows() {
  WarmupZip zip;
  for (const ShapeProbe& probe : kWarmupProbes) {
    zip.rows.push_back(
        {{"max_seqlen_q", probe.max_seqlen_q}, {"max_seqlen_k", probe.max_seqlen_k}});
  }
  return zip;
}

// Chooses the probes during the expansion. `is_sm90` is the predicate's own input: it never
// reaches dispatch.
WarmupPredicate probe_predicate() {
  WarmupPredicate predicate;
  predicate.parameters = {{"max_seqlen_q"}, {"max_seqlen_k"}, {"num_splits"},
                          {"is_sm90"},      {"mla_dims"},     {"requires_v_padding"}};
  predicate.keep = [](const WarmupInputs& inputs) -> StatusOr<bool> {
    WarmupReader read(inputs);
    const ShapeProbe probe{read.integer("max_seqlen_q"), read.integer("max_seqlen_k")};
    const int64_t num_splits = read.integer("num_splits");
    const bool sm90 = read.flag("is_sm90");
    const HeadDims dims = read.dims("mla_dims");
    const int64_t qk_head_dim = int64_t{dims.nope} + dims.rope;
    const int64_t v_head_dim = read.flag("requires_v_padding") ? qk_head_dim : dims.v;
    FLASHPRIME_RETURN_IF_ERROR(read.status());
    return keeps_probe(probe, num_splits, sm90, qk_head_dim, v_head_dim);
  };
  return predicate;
}

}  // namespace

bool keeps_probe(const ShapeProbe& probe, int64_t num_splits, bool is_sm90, int64_t qk_head_dim,
                 int64_t v_head_dim) {
  if (probe.max_seqlen_k < kLongKeys) return true;
  if (num_splits == 1) return false;
  return probe.max_seqlen_k < kVeryLongKeys || (!is_sm90 && qk_head_dim != v_head_dim);
}

StatusOr<CompileKey> make_compile_key(const MlaDispatchInputs& inputs) {
  FLASHPRIME_RETURN_IF_ERROR(check_dims(inputs.dims));
  FLASHPRIME_REQUIRE(inputs.batch_size >= 0, StatusCode::kShape, "batch_size: got ",
                     inputs.batch_size, ", wanted >= 0");
  FLASHPRIME_REQUIRE(inputs.num_heads >= 0, StatusCode::kShape, "num_heads: got ", inputs.num_heads,
                     ", wanted >= 0");
  FLASHPRIME_REQUIRE(inputs.probe.max_seqlen_q >= 0 && inputs.probe.max_seqlen_k >= 0,
                     StatusCode::kShape, "max_seqlen: got (", inputs.probe.max_seqlen_q, ", ",
                     inputs.probe.max_seqlen_k, "), wanted >= 0");
  const int64_t qk_head_dim = int64_t{inputs.dims.nope} + inputs.dims.rope;
  const int64_t kv_head_dim = int64_t{inputs.dims.nope} + inputs.dims.v;
  int64_t q_tokens = 0;
  int64_t k_tokens = 0;
  int64_t kv_row = 0;
  int64_t cu_seqlens_size = 0;
  FLASHPRIME_REQUIRE(checked_mul(inputs.batch_size, inputs.probe.max_seqlen_q, &q_tokens) &&
                         checked_mul(inputs.batch_size, inputs.probe.max_seqlen_k, &k_tokens) &&
                         checked_mul(inputs.num_heads, kv_head_dim, &kv_row) &&
                         checked_add(inputs.batch_size, 1, &cu_seqlens_size),
                     StatusCode::kRange, "key: the shapes overflow 64 bits");
  FLASHPRIME_REQUIRE(inputs.fa_version == static_cast<int32_t>(inputs.fa_version) &&
                         inputs.num_splits == static_cast<int32_t>(inputs.num_splits),
                     StatusCode::kRange, "key: fa_version or num_splits overflows 32 bits");

  CompileKey key;
  key.q_shape = {q_tokens, inputs.num_heads, qk_head_dim};
  key.k_shape = {k_tokens, inputs.num_heads, qk_head_dim};
  key.v_shape = {k_tokens, inputs.num_heads,
                 inputs.requires_v_padding ? qk_head_dim : inputs.dims.v};
  key.q_dtype = inputs.dtype;
  key.max_seqlen_q = inputs.probe.max_seqlen_q;
  key.max_seqlen_k = inputs.probe.max_seqlen_k;
  key.softmax_scale = std::pow(static_cast<double>(qk_head_dim), -0.5);
  key.causal = inputs.causal;
  key.fa_version = static_cast<int32_t>(inputs.fa_version);
  if (!inputs.requires_v_padding) key.v_stride = {kv_row, kv_head_dim, 1};
  key.cu_seqlens_q_shape = {cu_seqlens_size};
  key.cu_seqlens_k_shape = {cu_seqlens_size};
  key.window_size = inputs.window_size;
  key.return_softmax_lse = inputs.return_lse;
  key.num_splits = static_cast<int32_t>(inputs.num_splits);
  return key;
}

Dtype warmup_dtype(Dtype dtype) {
  return dtype == Dtype::kBf16 || dtype == Dtype::kFp16 ? dtype : Dtype::kBf16;
}

std::string why_no_keys(const MlaWarmupConfig& config) {
  if (config.fa_version != 4) {
    return concat("fa_version: got ", config.fa_version,
                  ", and only FlashAttention 4 compiles kernels at run time");
  }
  const ComputeCapability capability = config.capability;
  if (!is_sm90(capability) && capability.major != 10 && capability.major != 12) {
    return concat("capability: got ", capability.major, ".", capability.minor,
                  ", and keys exist for 9.0, 10.x and 12.x");
  }
  if (capability.major == 12 && warmup_num_splits(config) != 1) {
    return concat("capability: got ", capability.major, ".", capability.minor,
                  " with num_splits 0, and there FlashAttention 4 only has num_splits 1 "
                  "(batch_invariant)");
  }
  if (config.num_heads <= 0) {
    return concat("num_heads: got ", config.num_heads, ", and a rank without heads runs nothing");
  }
  return "";
}

WarmupSignature MlaPrefillKernel::signature() const {
  WarmupSignature signature;
  signature.parameters = {{"batch_size"}, {"dtype"}, {"num_heads"}, {"mla_dims"}};
  if (form_ == ProbeForm::kListAxis) {
    signature.parameters.push_back({"shape_probe"});
  } else {
    signature.parameters.push_back({"max_seqlen_q"});
    signature.parameters.push_back({"max_seqlen_k"});
  }
  for (const char* name : {"requires_v_padding", "causal", "fa_version"}) {
    signature.parameters.push_back({name});
  }
  signature.parameters.push_back({"window_size", WarmupValue()});
  signature.parameters.push_back({"return_lse", WarmupValue(false)});
  signature.parameters.push_back({"num_splits", WarmupValue(0)});
  return signature;
}

StatusOr<CompileKey> MlaPrefillKernel::dispatch(const WarmupInputs& inputs) const {
  WarmupReader read(inputs);
  MlaDispatchInputs typed;
  typed.batch_size = read.integer("batch_size");
  typed.dtype = read.dtype("dtype");
  typed.num_heads = read.integer("num_heads");
  typed.dims = read.dims("mla_dims");
  if (form_ == ProbeForm::kListAxis) {
    const auto [max_seqlen_q, max_seqlen_k] = read.integer_pair("shape_probe");
    typed.probe = {max_seqlen_q, max_seqlen_k};
  } else {
    typed.probe = {read.integer("max_seqlen_q"), read.integer("max_seqlen_k")};
  }
  typed.requires_v_padding = read.flag("requires_v_padding");
  typed.causal = read.flag("causal");
  typed.fa_version = read.integer("fa_version");
  typed.window_size = read.optional_integer_pair("window_size");
  typed.return_lse = read.flag("return_lse");
  typed.num_splits = read.integer("num_splits");
  FLASHPRIME_RETURN_IF_ERROR(read.status());
  return make_compile_key(typed);
}

StatusOr<JitKeys<CompileKey>> MlaPrefillKernel::warmup_keys(const MlaWarmupConfig& config) const {
  FLASHPRIME_RETURN_IF_ERROR(check_dims(config.dims));
  if (!why_no_keys(config).empty()) return JitKeys<CompileKey>{};

  const WarmupDomain both = WarmupDomain::choices({false, true});
  WarmupSpace space;
  space.axes.push_back({"batch_size", kWarmupBatch});
  space.axes.push_back({"dtype", warmup_dtype(config.dtype)});
  space.axes.push_back({"num_heads", config.num_heads});
  space.axes.push_back({"mla_dims", config.dims});
  if (form_ == ProbeForm::kListAxis) {
    space.axes.push_back({"shape_probe", probe_list(config)});
  } else {
    space.zips.push_back(probe_rows());
    space.axes.push_back({"is_sm90", is_sm90(config.capability)});
    space.when = probe_predicate();
  }
  space.axes.push_back({"requires_v_padding", false});
  space.axes.push_back({"causal", both});
  space.axes.push_back({"return_lse", both});
  space.axes.push_back({"num_splits", warmup_num_splits(config)});
  space.axes.push_back({"fa_version", config.fa_version});
  return expand(space);
}

Status MlaPrefillKernel::compile(const CompileKey& key) {
  FLASHPRIME_REQUIRE(compiler_, StatusCode::kNoCompiler,
                     "compiler: got none, wanted one that takes ", key.to_string());
  return compiler_(key);
}

StatusOr<CompileKey> compile_key_of(const PrefillProblem& problem, int64_t batch,
                                    int64_t max_seqlen_q, int64_t max_seqlen_k,
                                    int32_t fa_version) {
  return without_exceptions([&] {
    MlaDispatchInputs inputs;
    inputs.batch_size = batch;
    inputs.dtype = problem.dtype;
    inputs.num_heads = problem.num_heads;
    inputs.dims = problem.dims;
    inputs.probe = {max_seqlen_q, max_seqlen_k};
    inputs.causal = problem.mask.kind == MaskKind::kCausal;
    if (problem.mask.kind == MaskKind::kWindow) {
      inputs.window_size = {std::max<int64_t>(problem.mask.window_left, -1),
                            std::max<int64_t>(problem.mask.window_right, -1)};
    }
    inputs.return_lse = problem.return_lse;
    inputs.num_splits = problem.batch_invariant ? 1 : problem.num_splits;
    inputs.fa_version = fa_version;
    return make_compile_key(inputs);
  });
}

StatusOr<WarmupKeyList> get_warmup_keys(const MlaWarmupConfig& config) {
  return without_exceptions([&]() -> StatusOr<WarmupKeyList> {
    StatusOr<JitKeys<CompileKey>> keys = MlaPrefillKernel().warmup_keys(config);
    FLASHPRIME_RETURN_IF_ERROR(keys.status());
    WarmupKeyList list;
    list.keys = std::move(keys->keys);
    if (list.keys.empty()) list.why_empty = why_no_keys(config);
    if (warmup_dtype(config.dtype) != config.dtype) {
      list.notes.push_back("dtype: neither bf16 nor fp16, warmed as bf16");
    }
    return list;
  });
}

}  // namespace flashprime
