// SPDX-License-Identifier: Apache-2.0
#include "jit/kernel_key.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "checks.h"

namespace flashprime {
namespace {

// Raised whenever a field changes its name or meaning: old texts are then no keys any more.
constexpr std::string_view kTextVersion = "flashprime kernel 1";

// The fields of each struct of a key, by name and in order of declaration. `visit` gets the same
// field of every object, so that one list serves printing, parsing, comparing and hashing.
template <typename Visit, typename... T>
  requires(std::is_same_v<const T, const HeadDims> && ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("nope", objects.nope...);
  visit("rope", objects.rope...);
  visit("v", objects.v...);
}

template <typename Visit, typename... T>
  requires(std::is_same_v<const T, const PrefillTraits> && ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("dims", objects.dims...);
  visit("dtype", objects.dtype...);
  visit("out_dtype", objects.out_dtype...);
  visit("mask", objects.mask...);
  visit("return_lse", objects.return_lse...);
}

template <typename Visit, typename... T>
  requires(std::is_same_v<const T, const MergeTraits> && ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("dim_v", objects.dim_v...);
  visit("dtype", objects.dtype...);
  visit("out_dtype", objects.out_dtype...);
  visit("return_lse", objects.return_lse...);
}

template <typename Visit, typename... T>
  requires(std::is_same_v<const T, const Sm80PrefillPolicy> && ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("num_warps", objects.num_warps...);
  visit("row_blocks", objects.row_blocks...);
  visit("block_kv", objects.block_kv...);
  visit("num_stages", objects.num_stages...);
  visit("q_register_steps", objects.q_register_steps...);
  visit("min_blocks_per_sm", objects.min_blocks_per_sm...);
}

template <typename Visit, typename... T>
  requires(std::is_same_v<const T, const Sm90PrefillPolicy> && ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("block_kv", objects.block_kv...);
  visit("producer_registers", objects.producer_registers...);
  visit("consumer_registers", objects.consumer_registers...);
  visit("ordered_steps", objects.ordered_steps...);
  visit("trimmed_diagonal", objects.trimmed_diagonal...);
  visit("staged_output", objects.staged_output...);
}

template <typename Visit, typename... T>
  requires((std::is_same_v<const T, const Sm80MlaPrefillKernel> ||
            std::is_same_v<const T, const Sm90MlaPrefillKernel>) &&
           ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("traits", objects.traits...);
  visit("policy", objects.policy...);
}

template <typename Visit, typename... T>
  requires((std::is_same_v<const T, const MergeStatesKernel> ||
            std::is_same_v<const T, const CombineSplitsKernel>) &&
           ...)
void visit_fields(const Visit& visit, T&... objects) {
  visit("traits", objects.traits...);
}

// A field is a struct of fields or one of the values below.
template <typename T>
constexpr bool kIsValue = std::is_same_v<T, int32_t> || std::is_same_v<T, bool> ||
                          std::is_same_v<T, Dtype> || std::is_same_v<T, MaskKind>;

struct Named {
  std::string_view text;        // in the canonical form
  std::string_view enumerator;  // in C++
};
constexpr std::array<Named, 6> kDtypes = {{{"bf16", "Dtype::kBf16"},
                                           {"fp16", "Dtype::kFp16"},
                                           {"fp32", "Dtype::kFp32"},
                                           {"fp64", "Dtype::kFp64"},
                                           {"e4m3", "Dtype::kE4m3"},
                                           {"int32", "Dtype::kInt32"}}};
constexpr std::array<Named, 3> kMasks = {{{"full", "MaskKind::kFull"},
                                          {"causal", "MaskKind::kCausal"},
                                          {"window", "MaskKind::kWindow"}}};
constexpr std::array<Named, 2> kBools = {{{"false", "false"}, {"true", "true"}}};

const auto& names_of(Dtype) {
  return kDtypes;
}
const auto& names_of(MaskKind) {
  return kMasks;
}
const auto& names_of(bool) {
  return kBools;
}

std::string value_text(int32_t value) {
  return std::to_string(value);
}
std::string value_cpp(int32_t value) {
  return std::to_string(value);
}
template <typename Enum>
std::string value_text(Enum value) {
  return std::string(names_of(value).at(static_cast<size_t>(value)).text);
}
template <typename Enum>
std::string value_cpp(Enum value) {
  return std::string(names_of(value).at(static_cast<size_t>(value)).enumerator);
}

bool parse_value(std::string_view text, int32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
template <typename Enum>
bool parse_value(std::string_view text, Enum& value) {
  const auto& names = names_of(value);
  const auto* found = std::find_if(names.begin(), names.end(),
                                   [&](const Named& name) { return name.text == text; });
  if (found == names.end()) return false;
  value = static_cast<Enum>(found - names.begin());
  return true;
}

// Calls visit(path, value...) for every value below.
template <typename Visit, typename... T>
void visit_values(const std::string& path, const Visit& visit, T&... objects) {
  visit_fields(
      [&](std::string_view name, auto&... fields) {
        const std::string field_path =
            path.empty() ? std::string(name) : path + '.' + std::string(name);
        if constexpr ((kIsValue<std::remove_cvref_t<decltype(fields)>> && ...)) {
          visit(field_path, fields...);
        } else {
          visit_values(field_path, visit, fields...);
        }
      },
      objects...);
}

// The same without paths: nothing is allocated, a lookup may compare and hash keys.
template <typename Visit, typename... T>
void visit_plain_values(const Visit& visit, T&... objects) {
  visit_fields(
      [&](std::string_view, auto&... fields) {
        if constexpr ((kIsValue<std::remove_cvref_t<decltype(fields)>> && ...)) {
          visit(fields...);
        } else {
          visit_plain_values(visit, fields...);
        }
      },
      objects...);
}

template <typename T>
std::string designated(const T& object) {
  std::string text = "{";
  visit_fields(
      [&](std::string_view name, const auto& field) {
        if (text.size() > 1) text += ", ";
        text += '.';
        text += name;
        text += " = ";
        if constexpr (kIsValue<std::remove_cvref_t<decltype(field)>>) {
          text += value_cpp(field);
        } else {
          text += designated(field);
        }
      },
      object);
  return text + '}';
}

template <std::size_t... kIndex>
bool default_kernel(std::string_view name, KernelKey& key, std::index_sequence<kIndex...>) {
  using Kernels = decltype(KernelKey::kernel);
  return ((std::variant_alternative_t<kIndex, Kernels>::kName == name
               ? (key.kernel.emplace<kIndex>(), true)
               : false) ||
          ...);
}

// Bytes of a row of 16-bit elements in shared memory: a multiple of 128.
int32_t row_bytes(int32_t columns) {
  return (columns + 63) / 64 * 128;
}

LaunchShape launch_shape_of(const Sm80MlaPrefillKernel& kernel) {
  const Sm80PrefillPolicy& policy = kernel.policy;
  const HeadDims& dims = kernel.traits.dims;
  const int32_t k_row = row_bytes(dims.nope + dims.rope);
  const int32_t ring = policy.num_stages * policy.block_kv * (k_row + row_bytes(dims.v));
  const int32_t q = policy.block_q() * k_row;
  const bool q_in_shared = policy.q_register_steps < (dims.nope + dims.rope) / 16;
  return {.num_threads = policy.num_threads(),
          .min_blocks_per_sm = policy.min_blocks_per_sm,
          .shared_bytes = q_in_shared ? ring + q : std::max(ring, q)};
}

LaunchShape launch_shape_of(const Sm90MlaPrefillKernel& kernel) {
  const HeadDims& dims = kernel.traits.dims;
  constexpr int32_t kHeaderBytes = 1024;
  const int32_t q = 128 * row_bytes(dims.nope + dims.rope);
  const int32_t stage =
      kernel.policy.block_kv * (row_bytes(dims.nope + dims.rope) + row_bytes(dims.v));
  const int32_t out = kernel.policy.staged_output ? 8 * 16 * 128 : 0;
  return {.num_threads = 384, .shared_bytes = kHeaderBytes + q + 2 * stage + out};
}

// A warp for each token and head.
constexpr int32_t kMergeThreads = 256;
LaunchShape launch_shape_of(const MergeStatesKernel&) {
  return {.num_threads = kMergeThreads};
}
LaunchShape launch_shape_of(const CombineSplitsKernel&) {
  return {.num_threads = kMergeThreads};
}

bool is_gpu_input(Dtype dtype) {
  return dtype == Dtype::kBf16 || dtype == Dtype::kFp16;
}

Status validate_merge(const MergeTraits& traits) {
  FLASHPRIME_REQUIRE(traits.dim_v >= 16 && traits.dim_v <= 256 && traits.dim_v % 16 == 0,
                     StatusCode::kUnsupported, "dim_v: got ", traits.dim_v,
                     ", want a multiple of 16 up to 256");
  FLASHPRIME_REQUIRE((is_gpu_input(traits.dtype) || traits.dtype == Dtype::kFp32) &&
                         (is_gpu_input(traits.out_dtype) || traits.out_dtype == Dtype::kFp32 ||
                          traits.out_dtype == Dtype::kE4m3),
                     StatusCode::kUnsupported, "dtype: got ", value_text(traits.dtype), " to ",
                     value_text(traits.out_dtype),
                     ", want bf16, fp16 or fp32 to one of these or e4m3");
  return ok_status();
}

Status validate(const MergeStatesKernel& kernel) {
  return validate_merge(kernel.traits);
}

Status validate(const CombineSplitsKernel& kernel) {
  FLASHPRIME_REQUIRE(kernel.traits.dtype == Dtype::kFp32, StatusCode::kUnsupported, "dtype: got ",
                     value_text(kernel.traits.dtype), ", want fp32: partial states are");
  return validate_merge(kernel.traits);
}

Status validate_dtypes(const PrefillTraits& traits) {
  FLASHPRIME_REQUIRE(is_gpu_input(traits.dtype), StatusCode::kUnsupported, "dtype: got ",
                     value_text(traits.dtype), ", want bf16 or fp16 on a GPU");
  FLASHPRIME_REQUIRE(traits.out_dtype == traits.dtype || traits.out_dtype == Dtype::kFp32 ||
                         traits.out_dtype == Dtype::kE4m3,
                     StatusCode::kUnsupported, "out_dtype: got ", value_text(traits.out_dtype),
                     ", want the inputs' dtype, fp32 or e4m3");
  return ok_status();
}

Status validate(const Sm80MlaPrefillKernel& kernel) {
  const PrefillTraits& traits = kernel.traits;
  const HeadDims& dims = traits.dims;
  const Sm80PrefillPolicy& policy = kernel.policy;
  const auto is_multiple = [](int32_t value) { return value % 16 == 0; };
  FLASHPRIME_REQUIRE(dims.nope >= 16 && dims.rope >= 0 && dims.v >= 16 && is_multiple(dims.nope) &&
                         is_multiple(dims.rope) && is_multiple(dims.v) && dims.nope <= 256 &&
                         dims.rope <= 256 && dims.nope + dims.rope <= 256 && dims.v <= 256,
                     StatusCode::kUnsupported, "dims: got ", dims.nope, "/", dims.rope, "/", dims.v,
                     ", want multiples of 16 with nope + rope <= 256 and v <= 256");
  FLASHPRIME_RETURN_IF_ERROR(validate_dtypes(traits));
  FLASHPRIME_REQUIRE(policy.num_warps >= 1 && policy.num_warps <= 32 && policy.row_blocks >= 1 &&
                         policy.row_blocks <= 2 && policy.block_kv >= 16 &&
                         policy.block_kv <= 256 && is_multiple(policy.block_kv) &&
                         policy.num_stages == 2 && policy.q_register_steps >= 0 &&
                         policy.min_blocks_per_sm >= 1 && policy.min_blocks_per_sm <= 32,
                     StatusCode::kUnsupported, "policy: got ", initialiser(policy),
                     ", which no kernel can be built with");
  return ok_status();
}

Status validate(const Sm90MlaPrefillKernel& kernel) {
  const PrefillTraits& traits = kernel.traits;
  const Sm90PrefillPolicy& policy = kernel.policy;
  const std::string reason = sm90_reason(traits.dims, traits.mask);
  FLASHPRIME_REQUIRE(reason.empty(), StatusCode::kUnsupported, reason);
  FLASHPRIME_RETURN_IF_ERROR(validate_dtypes(traits));
  const auto is_register_count = [](int32_t value) {
    return value >= 24 && value <= 256 && value % 8 == 0;
  };
  FLASHPRIME_REQUIRE((policy.block_kv == 80 || policy.block_kv == 96 || policy.block_kv == 128) &&
                         is_register_count(policy.producer_registers) &&
                         is_register_count(policy.consumer_registers) &&
                         policy.producer_registers + 2 * policy.consumer_registers <= 504 &&
                         policy.ordered_steps >= 0,
                     StatusCode::kUnsupported, "policy: got ", initialiser(policy),
                     ", which no kernel can be built with");
  return ok_status();
}

}  // namespace

std::string sm90_reason(const HeadDims& dims, MaskKind mask) {
  const int32_t qk = dims.nope + dims.rope;
  const bool pair = (qk == 192 && dims.v == 128) || (qk == 256 && dims.v == 256) ||
                    (qk == 128 && dims.v == 128) || (qk == 256 && dims.v == 128);
  if (!pair || dims.nope < 64 || dims.rope < 0 || dims.nope % 64 != 0 || dims.rope % 64 != 0) {
    return concat("dims: got nope ", dims.nope, ", rope ", dims.rope, ", v ", dims.v,
                  ", wanted multiples of 64 with (nope + rope, v) one of (192, 128), (256, 256), "
                  "(128, 128), (256, 128)");
  }
  if (mask == MaskKind::kWindow) return "mask: got window, wanted full or causal";
  return {};
}

std::string_view KernelKey::name() const {
  return std::visit([](const auto& k) { return k.kName; }, kernel);
}

std::string KernelKey::to_string() const {
  return std::visit([&](const auto& k) { return std::string(k.kName) + designated(k); }, kernel) +
         " for " + arch.to_string();
}

std::string KernelKey::text() const {
  std::vector<std::string> lines = {"arch = " + arch.to_string(),
                                    "kernel = " + std::string(name())};
  std::visit(
      [&](const auto& k) {
        visit_values(
            "",
            [&](const std::string& path, const auto& value) {
              lines.push_back(path + " = " + value_text(value));
            },
            k);
      },
      kernel);
  std::sort(lines.begin(), lines.end());
  std::string text(kTextVersion);
  text += '\n';
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

LaunchShape KernelKey::launch_shape() const {
  return std::visit([](const auto& k) { return launch_shape_of(k); }, kernel);
}

std::strong_ordering KernelKey::operator<=>(const KernelKey& other) const {
  if (const auto order = kernel.index() <=> other.kernel.index(); order != 0) return order;
  return std::visit(
      [&](const auto& a) {
        std::strong_ordering order = std::strong_ordering::equal;
        visit_plain_values(
            [&](const auto& x, const auto& y) {
              if (order == 0) order = x <=> y;
            },
            a, std::get<std::remove_cvref_t<decltype(a)>>(other.kernel));
        return order == 0 ? arch <=> other.arch : order;
      },
      kernel);
}

std::size_t KernelKey::hash() const {
  uint64_t hash = kernel.index();
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(static_cast<uint64_t>(arch.sm) << 8 | static_cast<unsigned char>(arch.suffix));
  std::visit(
      [&](const auto& k) {
        visit_plain_values([&](const auto& value) { mix(static_cast<uint64_t>(value)); }, k);
      },
      kernel);
  return hash;
}

StatusOr<KernelKey> parse_kernel_key(std::string_view text) {
  const auto malformed = [](const std::string& what) {
    return Status(StatusCode::kFormat, "kernel key: " + what);
  };
  std::map<std::string, std::string, std::less<>> lines;
  std::string_view rest = text;
  for (bool first = true; !rest.empty(); first = false) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) return malformed("its last line has no end");
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (first) {
      if (line != kTextVersion) {
        return malformed(
            concat("got first line '", line.substr(0, 40), "', want '", kTextVersion, "'"));
      }
      continue;
    }
    const size_t equals = line.find(" = ");
    if (equals == std::string_view::npos || lines.size() > 64) {
      return malformed(concat("no line of a key: '", line.substr(0, 40), "'"));
    }
    lines[std::string(line.substr(0, equals))] = line.substr(equals + 3);
  }
  KernelKey key;
  if (!default_kernel(lines["kernel"], key,
                      std::make_index_sequence<std::variant_size_v<decltype(key.kernel)>>())) {
    return malformed(concat("no kernel '", lines["kernel"].substr(0, 40), "'"));
  }
  const StatusOr<Arch> arch = parse_arch(lines["arch"]);
  if (!arch.ok()) return arch.status();
  key.arch = *arch;
  std::string wrong;
  std::visit(
      [&](auto& k) {
        visit_values(
            "",
            [&](const std::string& path, auto& value) {
              if (!parse_value(lines[path], value)) wrong = path;
            },
            k);
      },
      key.kernel);
  if (!wrong.empty()) return malformed(concat(wrong, ": got '", lines[wrong].substr(0, 40), "'"));
  // Whatever else differs (order, spaces, unknown or double lines) is not the canonical form.
  if (key.text() != text) return malformed("not in canonical form");
  return key;
}

Status validate_kernel_key(const KernelKey& key) {
  FLASHPRIME_RETURN_IF_ERROR(std::visit([](const auto& k) { return validate(k); }, key.kernel));
  FLASHPRIME_REQUIRE(
      !std::holds_alternative<Sm90MlaPrefillKernel>(key.kernel) || key.arch == kArchSm90a,
      StatusCode::kUnsupported, key.name(), ": got ", key.arch.to_string(), ", wanted sm_90a");
  const LaunchShape shape = key.launch_shape();
  const ArchLimits limits = arch_limits(key.arch);
  FLASHPRIME_REQUIRE(shape.shared_bytes <= limits.shared_bytes_per_block, StatusCode::kUnsupported,
                     key.name(), ": needs ", shape.shared_bytes, " bytes of shared memory, ",
                     key.arch.to_string(), " has ", limits.shared_bytes_per_block, " for a block");
  return ok_status();
}

std::string initialiser(const PrefillTraits& traits) {
  return designated(traits);
}
std::string initialiser(const MergeTraits& traits) {
  return designated(traits);
}
std::string initialiser(const Sm80PrefillPolicy& policy) {
  return designated(policy);
}
std::string initialiser(const Sm90PrefillPolicy& policy) {
  return designated(policy);
}

}  // namespace flashprime
