// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/case_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace flashprime::cases {
namespace {

constexpr int64_t kMaxDim = 65536;
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kMaxSequences = 1'000'000;
constexpr double kMaxBytes = 4.0 * 1024 * 1024 * 1024;

constexpr std::array<std::pair<std::string_view, Dtype>, 4> kDtypes = {{{"bf16", Dtype::kBf16},
                                                                        {"fp16", Dtype::kFp16},
                                                                        {"fp32", Dtype::kFp32},
                                                                        {"e4m3", Dtype::kE4m3}}};
constexpr std::array<std::pair<std::string_view, Poison::Tensor>, 3> kTensors = {
    {{"q", Poison::Tensor::kQ}, {"k", Poison::Tensor::kK}, {"v", Poison::Tensor::kV}}};
constexpr std::array<std::pair<std::string_view, Poison::Value>, 3> kValues = {
    {{"nan", Poison::Value::kNan},
     {"inf", Poison::Value::kInfinity},
     {"huge", Poison::Value::kHuge}}};
constexpr std::array<Layout, 6> kLayouts = {Layout::kDense, Layout::kPadded, Layout::kTransposed,
                                            Layout::kOdd,   Layout::kSlice,  Layout::kBroadcast};

template <typename Table, typename Value>
std::string name_in(const Table& table, Value value) {
  for (const auto& [name, entry] : table) {
    if (entry == value) return std::string(name);
  }
  return "unknown";
}

template <typename Table, typename Value>
bool value_in(const Table& table, std::string_view name, Value* value) {
  for (const auto& [entry_name, entry] : table) {
    if (entry_name != name) continue;
    *value = entry;
    return true;
  }
  return false;
}

template <typename T>
bool number(std::string_view text, T min, T max, T* value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && stop == text.data() + text.size() && *value >= min &&
         *value <= max;
}

// Parts of `text` between `separator`s; one empty part for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string shortest(double value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

std::string lens_text(const Case& c) {
  if (c.q_lens.empty()) return "none";
  std::string text;
  for (size_t s = 0; s < c.q_lens.size();) {
    size_t end = s + 1;
    while (end < c.q_lens.size() && c.q_lens[end] == c.q_lens[s] && c.k_lens[end] == c.k_lens[s]) {
      ++end;
    }
    if (!text.empty()) text += '_';
    if (end - s > 1) text += std::to_string(end - s) + 'x';
    text += std::to_string(c.q_lens[s]) + '/' + std::to_string(c.k_lens[s]);
    s = end;
  }
  return text;
}

bool parse_lens(std::string_view text, Case* c) {
  c->q_lens.clear();
  c->k_lens.clear();
  if (text == "none") return true;
  for (std::string_view item : split(text, '_')) {
    int64_t count = 1;
    if (const size_t x = item.find('x'); x != std::string_view::npos) {
      if (!number<int64_t>(item.substr(0, x), 1, kMaxSequences, &count)) return false;
      item.remove_prefix(x + 1);
    }
    const std::vector<std::string_view> lens = split(item, '/');
    int64_t q = 0;
    int64_t k = 0;
    if (lens.size() != 2 || !number<int64_t>(lens[0], 0, kMaxLength, &q) ||
        !number<int64_t>(lens[1], 0, kMaxLength, &k) ||
        static_cast<int64_t>(c->q_lens.size()) + count > kMaxSequences) {
      return false;
    }
    c->q_lens.insert(c->q_lens.end(), static_cast<size_t>(count), static_cast<int32_t>(q));
    c->k_lens.insert(c->k_lens.end(), static_cast<size_t>(count), static_cast<int32_t>(k));
  }
  return c->total_q() <= std::numeric_limits<int32_t>::max() &&
         c->total_k() <= std::numeric_limits<int32_t>::max();
}

std::string mask_text(const Mask& mask) {
  if (mask.kind == MaskKind::kFull) return "full";
  if (mask.kind == MaskKind::kCausal) return "causal";
  const auto reach = [](int64_t r) { return r < 0 ? std::string("inf") : std::to_string(r); };
  return "window:" + reach(mask.window_left) + ':' + reach(mask.window_right);
}

bool parse_mask(std::string_view text, Mask* mask) {
  *mask = Mask{text == "full" ? MaskKind::kFull : MaskKind::kCausal, -1, -1};
  if (text == "full" || text == "causal") return true;
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 3 || parts[0] != "window") return false;
  mask->kind = MaskKind::kWindow;
  const auto reach = [](std::string_view part, int64_t* value) {
    return part == "inf" || number<int64_t>(part, 0, int64_t{1} << 40, value);
  };
  return reach(parts[1], &mask->window_left) && reach(parts[2], &mask->window_right);
}

std::string poison_text(const std::vector<Poison>& poison) {
  std::string text;
  for (const Poison& p : poison) {
    if (!text.empty()) text += '+';
    text += name_in(kTensors, p.tensor) + ':' + std::to_string(p.sequence) + ':' +
            std::to_string(p.row) + ':' + name_in(kValues, p.value);
  }
  return text;
}

bool parse_poison(std::string_view text, std::vector<Poison>* poison) {
  for (const std::string_view item : split(text, '+')) {
    const std::vector<std::string_view> parts = split(item, ':');
    Poison p;
    if (parts.size() != 4 || !value_in(kTensors, parts[0], &p.tensor) ||
        !number<int32_t>(parts[1], 0, kMaxSequences, &p.sequence) ||
        !number<int32_t>(parts[2], -1, kMaxLength, &p.row) ||
        !value_in(kValues, parts[3], &p.value)) {
      return false;
    }
    poison->push_back(p);
  }
  return true;
}

bool parse_flag(std::string_view text, bool* flag) {
  *flag = text == "1";
  return text == "1" || text == "0";
}

bool parse_layout(std::string_view text, bool broadcast, Layout* layout) {
  for (const Layout candidate : kLayouts) {
    if (text != layout_name(candidate)) continue;
    *layout = candidate;
    return broadcast || candidate != Layout::kBroadcast;
  }
  return false;
}

bool parse_dims(std::string_view text, HeadDims* dims) {
  const std::vector<std::string_view> parts = split(text, '/');
  return parts.size() == 3 && number<int32_t>(parts[0], 1, kMaxDim, &dims->nope) &&
         number<int32_t>(parts[1], 0, kMaxDim, &dims->rope) &&
         number<int32_t>(parts[2], 1, kMaxDim, &dims->v);
}

struct Field {
  std::string_view key;
  std::string_view wanted;
  bool (*read)(std::string_view text, Case* c);
  std::string (*write)(const Case& c);
};

std::string flag_text(bool flag) {
  return flag ? "1" : "0";
}

// In the order in which a spec names them.
const Field kFields[] = {
    {"dims", "NOPE/ROPE/V: nope and v 1 to 65536, rope 0 to 65536",
     [](std::string_view t, Case* c) { return parse_dims(t, &c->dims); },
     [](const Case& c) {
       return std::to_string(c.dims.nope) + '/' + std::to_string(c.dims.rope) + '/' +
              std::to_string(c.dims.v);
     }},
    {"lens", "none, or [COUNTx]NEW/KEYS joined by _", parse_lens, lens_text},
    {"heads", "1 to 65536",
     [](std::string_view t, Case* c) { return number<int32_t>(t, 1, kMaxDim, &c->heads); },
     [](const Case& c) { return std::to_string(c.heads); }},
    {"dtype", "bf16, fp16 or fp32",
     [](std::string_view t, Case* c) {
       return value_in(kDtypes, t, &c->dtype) && c->dtype != Dtype::kE4m3;
     },
     [](const Case& c) { return name_in(kDtypes, c.dtype); }},
    {"out", "bf16, fp16, fp32 or e4m3",
     [](std::string_view t, Case* c) { return value_in(kDtypes, t, &c->out_dtype); },
     [](const Case& c) { return name_in(kDtypes, c.out_dtype); }},
    {"mask", "causal, full or window:LEFT:RIGHT",
     [](std::string_view t, Case* c) { return parse_mask(t, &c->mask); },
     [](const Case& c) { return mask_text(c.mask); }},
    {"lse", "heads-tokens, tokens-heads or none",
     [](std::string_view t, Case* c) {
       c->lse = t != "none";
       c->lse_layout = t == "tokens-heads" ? LseLayout::kTokensHeads : LseLayout::kHeadsTokens;
       return t == "none" || t == "tokens-heads" || t == "heads-tokens";
     },
     [](const Case& c) {
       return std::string(!c.lse                                    ? "none"
                          : c.lse_layout == LseLayout::kTokensHeads ? "tokens-heads"
                                                                    : "heads-tokens");
     }},
    {"lse_gapped", "0 or 1",
     [](std::string_view t, Case* c) { return parse_flag(t, &c->lse_gapped); },
     [](const Case& c) { return flag_text(c.lse_gapped); }},
    {"q_split", "0 or 1", [](std::string_view t, Case* c) { return parse_flag(t, &c->q_split); },
     [](const Case& c) { return flag_text(c.q_split); }},
    {"k_split", "0 or 1", [](std::string_view t, Case* c) { return parse_flag(t, &c->k_split); },
     [](const Case& c) { return flag_text(c.k_split); }},
    {"k_pe_rank3", "0 or 1",
     [](std::string_view t, Case* c) { return parse_flag(t, &c->k_pe_rank3); },
     [](const Case& c) { return flag_text(c.k_pe_rank3); }},
    {"q_layout", "dense, padded, transposed, odd or slice",
     [](std::string_view t, Case* c) { return parse_layout(t, false, &c->q_layout); },
     [](const Case& c) { return std::string(layout_name(c.q_layout)); }},
    {"k_layout", "dense, padded, transposed, odd, slice or broadcast",
     [](std::string_view t, Case* c) { return parse_layout(t, true, &c->k_layout); },
     [](const Case& c) { return std::string(layout_name(c.k_layout)); }},
    {"v_layout", "dense, padded, transposed, odd, slice or broadcast",
     [](std::string_view t, Case* c) { return parse_layout(t, true, &c->v_layout); },
     [](const Case& c) { return std::string(layout_name(c.v_layout)); }},
    {"out_layout", "dense, padded, transposed, odd or slice",
     [](std::string_view t, Case* c) { return parse_layout(t, false, &c->out_layout); },
     [](const Case& c) { return std::string(layout_name(c.out_layout)); }},
    {"data", "the name of a distribution: normal, peaky, ...",
     [](std::string_view t, Case* c) {
       for (int i = 0; i < kNumDistributions; ++i) {
         c->distribution = static_cast<Distribution>(i);
         if (t == distribution_name(c->distribution)) return true;
       }
       return false;
     },
     [](const Case& c) { return std::string(distribution_name(c.distribution)); }},
    {"poison", "q|k|v:SEQUENCE:ROW:nan|inf|huge joined by +",
     [](std::string_view t, Case* c) { return parse_poison(t, &c->poison); },
     [](const Case& c) { return poison_text(c.poison); }},
    {"max_q", "-1 to 2^31 - 1",
     [](std::string_view t, Case* c) {
       return number<int64_t>(t, -1, std::numeric_limits<int32_t>::max(), &c->stated_max_q);
     },
     [](const Case& c) { return std::to_string(c.stated_max_q); }},
    {"max_k", "-1 to 2^31 - 1",
     [](std::string_view t, Case* c) {
       return number<int64_t>(t, -1, std::numeric_limits<int32_t>::max(), &c->stated_max_k);
     },
     [](const Case& c) { return std::to_string(c.stated_max_k); }},
    {"scale", "a number from 0 to 1e30, or -1 for (nope + rope)^-0.5",
     [](std::string_view t, Case* c) { return number<double>(t, -1.0, 1e30, &c->softmax_scale); },
     [](const Case& c) { return shortest(c.softmax_scale < 0 ? -1.0 : c.softmax_scale); }},
    {"out_scale", "a number above 0",
     [](std::string_view t, Case* c) {
       double value = 0;
       if (!number<double>(t, 1e-30, 1e30, &value)) return false;
       c->output_scale = static_cast<float>(value);
       return true;
     },
     [](const Case& c) { return shortest(static_cast<double>(c.output_scale)); }},
};

// Text of the spec that is safe to show.
std::string shown(std::string_view text) {
  std::string safe;
  for (const char ch : text.substr(0, 40)) safe += ch >= ' ' && ch <= '~' ? ch : '?';
  if (text.size() > 40) safe += "...";
  return safe;
}

// What no field can see alone; empty if all is well.
std::string contradiction(const Case& c) {
  if (c.k_split && c.k_layout == Layout::kBroadcast) return "k_layout=broadcast wants k_split=0";
  for (const Poison& p : c.poison) {
    const std::vector<int32_t>& lens = p.tensor == Poison::Tensor::kQ ? c.q_lens : c.k_lens;
    if (static_cast<size_t>(p.sequence) >= lens.size() ||
        p.row >= lens[static_cast<size_t>(p.sequence)]) {
      return "poison: no such row in sequence " + std::to_string(p.sequence);
    }
  }
  const double widths = 2.0 * (c.dims.nope + c.dims.rope) + 3.0 * c.dims.v + 16;
  // The layouts with gaps take up to three times the elements.
  const double tokens = static_cast<double>(c.total_q() + c.total_k()) + 2.0;
  if (3.0 * 4.0 * tokens * c.heads * widths > kMaxBytes) {
    return "the tensors may take more than 4 GiB";
  }
  return {};
}

}  // namespace

std::string case_spec(const Case& c) {
  const Case defaults;
  std::string spec;
  for (const Field& field : kFields) {
    const std::string value = field.write(c);
    const bool always = field.key == "dims" || field.key == "lens" || field.key == "heads";
    const bool plain = field.key == "out" ? c.out_dtype == c.dtype : value == field.write(defaults);
    if (!always && plain) continue;
    if (!spec.empty()) spec += ',';
    spec += std::string(field.key) + '=' + value;
  }
  return spec;
}

StatusOr<Case> parse_case_spec(std::string_view spec) {
  Case c;
  std::set<std::string_view> seen;
  for (const std::string_view item : split(spec, ',')) {
    const std::string_view key = item.substr(0, item.find('='));
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                     [&](const Field& f) { return f.key == key; });
    if (field == std::end(kFields) || key.size() == item.size()) {
      std::string keys;
      for (const Field& f : kFields) keys += (keys.empty() ? "" : ", ") + std::string(f.key);
      return Status(StatusCode::kFormat,
                    "case: got '" + shown(item) + "', want KEY=VALUE with a key of " + keys);
    }
    if (!seen.insert(key).second) {
      return Status(StatusCode::kFormat, "case: " + std::string(key) + " is given twice");
    }
    const std::string_view value = item.substr(key.size() + 1);
    if (!field->read(value, &c)) {
      return Status(StatusCode::kFormat, "case: " + std::string(key) + ": got '" + shown(value) +
                                             "', want " + std::string(field->wanted));
    }
  }
  if (seen.count("lens") == 0) return Status(StatusCode::kFormat, "case: want lens=NEW/KEYS");
  if (seen.count("out") == 0) c.out_dtype = c.dtype;
  if (const std::string what = contradiction(c); !what.empty()) {
    return Status(StatusCode::kFormat, "case: " + what);
  }
  c.name = "given";
  c.why = "given on the command line";
  return c;
}

}  // namespace flashprime::cases
