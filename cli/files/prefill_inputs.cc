// SPDX-License-Identifier: Apache-2.0
#include "cli/files/prefill_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr std::string_view kNames[] = {"q",    "q_nope", "q_pe",         "k",           "k_nope",
                                       "k_pe", "v",      "cu_seqlens_q", "cu_seqlens_k"};

struct Role {
  std::string_view name;
  TensorView PrefillArgs::* view;
  int32_t min_rank;
  int32_t max_rank;
};
constexpr Role kRoles[] = {
    {"q", &PrefillArgs::q, 3, 3},
    {"q_nope", &PrefillArgs::q_nope, 3, 3},
    {"q_pe", &PrefillArgs::q_pe, 3, 3},
    {"k", &PrefillArgs::k, 3, 3},
    {"k_nope", &PrefillArgs::k_nope, 3, 3},
    {"k_pe", &PrefillArgs::k_pe, 2, 3},
    {"v", &PrefillArgs::v, 3, 3},
    {"cu_seqlens_q", &PrefillArgs::cu_seqlens_q, 1, 1},
    {"cu_seqlens_k", &PrefillArgs::cu_seqlens_k, 1, 1},
};

bool is_lengths(std::string_view name) {
  return name.starts_with("cu_seqlens");
}

std::optional<Dtype> operand_dtype(FileDtype dtype, std::optional<Dtype> wanted) {
  switch (dtype) {
    case FileDtype::kBf16: return Dtype::kBf16;
    case FileDtype::kFp16: return Dtype::kFp16;
    case FileDtype::kFp32: return Dtype::kFp32;
    case FileDtype::kUint16:
      return wanted == Dtype::kBf16 ? std::optional(Dtype::kBf16) : std::nullopt;
    default: return std::nullopt;
  }
}

// The view of a tensor, without its data.
StatusOr<TensorView> make_view(const TensorEntry& entry, const Role& role,
                               std::optional<Dtype> wanted) {
  const auto malformed = [&](std::string_view what) {
    return entry.file->malformed(entry.offset, fmt::format("'{}': {}", entry.name, what));
  };
  TensorView view;
  if (is_lengths(entry.name)) {
    if (entry.dtype != FileDtype::kInt32) {
      return malformed(fmt::format("got {}, want I32", describe(entry.dtype).safetensors));
    }
    view.dtype = Dtype::kInt32;
  } else {
    const std::optional<Dtype> dtype = operand_dtype(entry.dtype, wanted);
    if (!dtype) {
      return malformed(fmt::format(
          "got {}, want BF16, F16 or F32{}", describe(entry.dtype).safetensors,
          entry.dtype == FileDtype::kUint16 ? "; bf16 bits in uint16 need --dtype bf16" : ""));
    }
    if (wanted && *dtype != *wanted) {
      return malformed(
          fmt::format("got {}, but --dtype says another", describe(entry.dtype).safetensors));
    }
    view.dtype = *dtype;
  }
  const auto rank = static_cast<int32_t>(entry.shape.size());
  if (rank < role.min_rank || rank > role.max_rank) {
    return malformed(
        fmt::format("got shape {}, want {} axes", shape_text(entry.shape),
                    role.min_rank == role.max_rank ? std::to_string(role.min_rank) : "2 or 3"));
  }
  view.rank = rank;
  uint64_t stride = 1;
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    view.shape[i] = entry.shape[i];
    view.stride[i] = static_cast<int64_t>(stride);
    // Wraps only beside an extent of 0, where no element is ever addressed.
    stride *= static_cast<uint64_t>(entry.shape[i]);
  }
  view.capacity_bytes = entry.bytes;
  return view;
}

// One of: the joined tensor, or the nope part with or without the pe part.
Status check_parts(const TensorCatalog& catalog, const std::string& path, const std::string& x) {
  const bool joined = catalog.find(x) != nullptr;
  const bool nope = catalog.find(x + "_nope") != nullptr;
  const bool pe = catalog.find(x + "_pe") != nullptr;
  if (joined && !nope && !pe) return ok_status();
  if (!joined && nope) return ok_status();
  return {StatusCode::kFormat,
          fmt::format("{}: {}, want either '{}' or '{}_nope' and '{}_pe'", printable_path(path),
                      joined ? fmt::format("has '{}' and a part of it", x)
                             : fmt::format("missing tensor '{}'", pe ? x + "_nope" : x),
                      x, x, x)};
}

StatusOr<int32_t> extent(const TensorView& view, int32_t axis, const std::string& path,
                         const char* what) {
  const int64_t value = view.shape[static_cast<size_t>(axis)];
  if (value > INT32_MAX) {
    return Status(StatusCode::kFormat, fmt::format("{}: {}: got {}, want at most 2^31 - 1",
                                                   printable_path(path), what, value));
  }
  return static_cast<int32_t>(value);
}

// nope, rope and v. Where neither q nor k comes in parts there is no telling nope from rope, and
// the sum does not depend on it: all is nope.
Status derive_dims(PrefillInputs* inputs, const std::string& path) {
  const PrefillArgs& args = inputs->args;
  const TensorView& q = args.q.present() ? args.q : args.q_nope;
  const bool k_parts = args.k_nope.present();
  const TensorView& nope = k_parts ? args.k_nope : args.q_nope.present() ? args.q_nope : args.q;
  const TensorView& pe = k_parts ? args.k_pe : args.q_pe;
  const StatusOr<int32_t> heads = extent(q, 1, path, "heads");
  if (!heads.ok()) return heads.status();
  const StatusOr<int32_t> nope_dim = extent(nope, 2, path, "head dimension of q or k");
  if (!nope_dim.ok()) return nope_dim.status();
  const StatusOr<int32_t> rope_dim =
      pe.present() ? extent(pe, pe.rank - 1, path, "head dimension of the pe part") : 0;
  if (!rope_dim.ok()) return rope_dim.status();
  const StatusOr<int32_t> v_dim = extent(args.v, 2, path, "head dimension of v");
  if (!v_dim.ok()) return v_dim.status();
  inputs->problem.num_heads = *heads;
  inputs->problem.dims = {.nope = *nope_dim, .rope = *rope_dim, .v = *v_dim};
  inputs->problem.dtype = q.dtype;
  return ok_status();
}

Status read_metadata(PrefillInputs* inputs, const std::string& path) {
  const auto& metadata = inputs->catalog.metadata;
  const auto malformed = [&](const char* key, const std::string& got, const char* want) {
    return Status(StatusCode::kFormat,
                  fmt::format("{}: byte 8: __metadata__: {}: got '{}', want {}",
                              printable_path(path), key, printable(got), want));
  };
  if (const auto scale = metadata.find("softmax_scale"); scale != metadata.end()) {
    const std::string& text = scale->second;
    double value = 0.0;
    // from_chars ignores the locale; strtod would not.
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool usable = error == std::errc() && stop == text.data() + text.size() &&
                        std::isfinite(value) && value >= 0.0;
    if (!usable) return malformed("softmax_scale", text, "a finite number, at least 0");
    inputs->softmax_scale = value;
  }
  if (const auto causal = metadata.find("causal"); causal != metadata.end()) {
    const std::string& text = causal->second;
    // str(True) of Python, and JSON's spelling.
    if (text == "true" || text == "True") {
      inputs->causal = true;
    } else if (text == "false" || text == "False") {
      inputs->causal = false;
    } else {
      return malformed("causal", text, "true or false");
    }
  }
  return ok_status();
}

}  // namespace

std::span<const std::string_view> prefill_tensor_names() {
  return kNames;
}

StatusOr<PrefillInputs> describe_prefill_inputs(TensorCatalog catalog, const std::string& path,
                                                std::optional<Dtype> dtype) {
  for (const char* x : {"q", "k"}) {
    if (Status parts = check_parts(catalog, path, x); !parts.ok()) return parts;
  }
  if (!catalog.find("v")) {
    return Status(StatusCode::kFormat, printable_path(path) + ": missing tensor 'v'");
  }
  const bool has_lengths = catalog.find("cu_seqlens_q") != nullptr;
  if (has_lengths != (catalog.find("cu_seqlens_k") != nullptr)) {
    return Status(
        StatusCode::kFormat,
        fmt::format("{}: missing tensor '{}', want both cu_seqlens or none (one sequence)",
                    printable_path(path), has_lengths ? "cu_seqlens_k" : "cu_seqlens_q"));
  }
  PrefillInputs inputs;
  inputs.catalog = std::move(catalog);
  std::optional<Dtype> common;
  for (const Role& role : kRoles) {
    const TensorEntry* entry = inputs.catalog.find(role.name);
    if (!entry) continue;
    const StatusOr<TensorView> view = make_view(*entry, role, dtype);
    if (!view.ok()) return view.status();
    if (!is_lengths(role.name)) {
      if (common && *common != view->dtype) {
        return entry->file->malformed(
            entry->offset, fmt::format("'{}': got {}, which is not the type of the tensors before "
                                       "it, want q, k and v alike",
                                       role.name, describe(entry->dtype).safetensors));
      }
      common = view->dtype;
    }
    inputs.args.*role.view = *view;
    if (__builtin_add_overflow(inputs.bytes, entry->bytes, &inputs.bytes)) {
      return Status(StatusCode::kFormat, printable_path(path) + ": the tensors overflow 63 bits");
    }
  }
  if (Status dims = derive_dims(&inputs, path); !dims.ok()) return dims;
  if (Status metadata = read_metadata(&inputs, path); !metadata.ok()) return metadata;
  return inputs;
}

Status PrefillInputs::load() {
  for (const Role& role : kRoles) {
    const TensorEntry* entry = catalog.find(role.name);
    if (!entry) continue;
    StatusOr<Buffer> buffer = read_tensor(*entry);
    if (!buffer.ok()) return buffer.status();
    (args.*role.view).data = buffer->data();
    buffers.push_back(std::move(*buffer));
  }
  if (args.cu_seqlens_q.present()) return ok_status();
  const int64_t rows_q = args.q.present() ? args.q.shape[0] : args.q_nope.shape[0];
  const int64_t rows_k = args.k.present() ? args.k.shape[0] : args.k_nope.shape[0];
  if (std::max(rows_q, rows_k) > INT32_MAX) {
    return {StatusCode::kFormat,
            fmt::format("got {} rows of q and {} of k, want at most 2^31 - 1", rows_q, rows_k)};
  }
  one_sequence_q = {0, static_cast<int32_t>(rows_q)};
  one_sequence_k = {0, static_cast<int32_t>(rows_k)};
  args.cu_seqlens_q = TensorView::contiguous(one_sequence_q.data(), Dtype::kInt32, {2});
  args.cu_seqlens_k = TensorView::contiguous(one_sequence_k.data(), Dtype::kInt32, {2});
  return ok_status();
}

}  // namespace flashprime::cli
