// SPDX-License-Identifier: Apache-2.0
// The rows. Every axis of the operator appears in the quick suite at least once; the full suite
// crosses them more widely and adds length.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "tests/cases/case.h"
#include "tests/cases/known_bugs.h"

namespace flashprime::cases {
namespace {

constexpr Mask kCausalMask{MaskKind::kCausal, -1, -1};
constexpr Mask kFullMask{MaskKind::kFull, -1, -1};

Mask window(int64_t left, int64_t right) {
  return {MaskKind::kWindow, left, right};
}

std::string dims_name(const HeadDims& dims) {
  return std::to_string(dims.nope) + "_" + std::to_string(dims.rope) + "_" + std::to_string(dims.v);
}

std::string mask_name(const Mask& mask) {
  switch (mask.kind) {
    case MaskKind::kFull: return "full";
    case MaskKind::kCausal: return "causal";
    case MaskKind::kWindow: break;
  }
  const auto reach = [](int64_t r) { return r < 0 ? std::string("all") : std::to_string(r); };
  return "window_" + reach(mask.window_left) + "_" + reach(mask.window_right);
}

class TableBuilder {
 public:
  // A row that starts as the last one returned by base() and that the caller completes.
  Case& add(std::string name, std::string why, uint32_t suites) {
    Case row;
    row.name = std::move(name);
    row.why = std::move(why);
    row.suites = suites;
    row.dims = {128, 64, 128};
    row.heads = 2;
    row.q_lens = {70, 33};
    row.k_lens = row.q_lens;
    rows_.push_back(std::move(row));
    return rows_.back();
  }
  std::vector<Case> take() { return std::move(rows_); }

 private:
  std::vector<Case> rows_;
};

constexpr uint32_t kQuickAndFull = kQuick | kFull;

void add_dims(TableBuilder& table) {
  const HeadDims published[] = {{128, 64, 128}, {64, 64, 128},  {192, 64, 256},
                                {256, 0, 256},  {192, 64, 128}, {128, 0, 128}};
  for (const HeadDims& dims : published) {
    for (const Mask& mask : {kCausalMask, kFullMask}) {
      Case& row = table.add("dims_" + dims_name(dims) + "_" + mask_name(mask),
                            "head dimensions of a published model", kQuickAndFull);
      row.dims = dims;
      row.mask = mask;
      row.q_lens = {65, 17};
      row.k_lens = {130, 17};
    }
  }
  const HeadDims odd[] = {{100, 28, 72}, {1, 0, 1},   {17, 3, 5},
                          {16, 16, 16},  {7, 0, 130}, {33, 31, 1}};
  for (const HeadDims& dims : odd) {
    Case& row = table.add("dims_" + dims_name(dims) + "_causal",
                          "dimensions that fill no SIMD register", kQuickAndFull);
    row.dims = dims;
    row.q_lens = {37, 5};
    row.k_lens = {67, 5};
    row.heads = 3;
  }
}

void add_lengths(TableBuilder& table) {
  for (const int32_t edge : {16, 64, 128, 192, 256}) {
    for (const Mask& mask : {kCausalMask, kFullMask}) {
      Case& row = table.add("edge_" + std::to_string(edge) + "_" + mask_name(mask),
                            "lengths one below, on and one above a tile edge",
                            edge <= 128 ? kQuickAndFull : uint32_t{kFull});
      row.mask = mask;
      row.heads = 1;
      row.dims = {32, 16, 48};
      row.q_lens = {edge - 1, edge, edge + 1, 1, edge + 1, edge - 1};
      row.k_lens = {edge - 1, edge, edge + 1, edge + 1, 2 * edge - 1, 2 * edge + 1};
    }
  }
  {
    Case& row = table.add("zero_lengths_causal", "zero queries, zero keys, and both, anywhere",
                          kQuickAndFull);
    row.q_lens = {0, 5, 0, 17, 3, 0, 64, 0};
    row.k_lens = {0, 5, 9, 0, 3, 0, 100, 70};
    row.stated_max_q = 64;
    row.stated_max_k = 100;
    Case full = row;
    full.name = "zero_lengths_full";
    full.mask = kFullMask;
    table.add("", "", 0) = full;
  }
  {
    Case& row = table.add("more_queries_than_keys",
                          "causal with sq > sk: the first rows see nothing", kQuickAndFull);
    row.q_lens = {70, 2, 129, 64};
    row.k_lens = {3, 1, 64, 63};
  }
  {
    Case& row = table.add("all_sequences_empty",
                          "no key anywhere: nothing to compute, all to write", kQuickAndFull);
    row.q_lens = {3, 0, 20};
    row.k_lens = {0, 0, 0};
  }
  {
    Case& row = table.add("max_seqlen_larger_than_true", "max_seqlen is a bound, not the length",
                          kQuickAndFull);
    row.q_lens = {5, 40};
    row.k_lens = {77, 40};
    row.stated_max_q = 4096;
    row.stated_max_k = 100'000;
  }
  {
    Case& row = table.add("one_query_long_context", "a single new token over a long context",
                          kQuickAndFull);
    row.q_lens = {1, 1};
    row.k_lens = {1500, 3};
    row.heads = 3;
  }
  {
    Case& row = table.add("many_short_sequences", "more sequences than tiles", kQuickAndFull);
    row.dims = {16, 8, 16};
    row.heads = 1;
    row.q_lens.clear();
    for (int32_t s = 0; s < 300; ++s) row.q_lens.push_back(s % 7);
    row.k_lens = row.q_lens;
  }
}

void add_masks(TableBuilder& table) {
  const Mask windows[] = {window(0, 0),    window(31, 0),    window(64, 0),
                          window(5, 9),    window(-1, 0),    window(-1, 17),
                          window(128, -1), window(200, 200), window(-1, -1)};
  for (const Mask& mask : windows) {
    Case& row =
        table.add("mask_" + mask_name(mask), "window reaches around the tile size", kQuickAndFull);
    row.mask = mask;
    row.dims = {64, 64, 128};
    row.heads = 1;
    row.q_lens = {150, 70, 20};
    row.k_lens = {150, 200, 5};
  }
}

void add_layouts(TableBuilder& table) {
  const auto name = [](const Case& row) {
    return "layout_q_" + std::string(row.q_split ? "parts_" : "joined_") +
           std::string(layout_name(row.q_layout)) + "_k_" + (row.k_split ? "parts_" : "joined_") +
           std::string(layout_name(row.k_layout)) + "_v_" + std::string(layout_name(row.v_layout)) +
           "_" + dims_name(row.dims);
  };
  struct Combination {
    bool q_split;
    Layout q;
    bool k_split;
    Layout k;
    Layout v;
    Layout out;
    HeadDims dims;
  };
  const HeadDims mla{128, 64, 128};
  const HeadDims square{128, 0, 128};
  const Combination combinations[] = {
      {false, Layout::kDense, true, Layout::kSlice, Layout::kSlice, Layout::kDense, mla},
      {true, Layout::kSlice, true, Layout::kSlice, Layout::kSlice, Layout::kPadded, mla},
      {true, Layout::kDense, true, Layout::kDense, Layout::kDense, Layout::kSlice, mla},
      {true, Layout::kDense, false, Layout::kDense, Layout::kSlice, Layout::kDense, mla},
      {false, Layout::kSlice, true, Layout::kDense, Layout::kTransposed, Layout::kDense, mla},
      {false,
       Layout::kTransposed,
       false,
       Layout::kTransposed,
       Layout::kTransposed,
       Layout::kTransposed,
       {192, 64, 256}},
      {false, Layout::kPadded, false, Layout::kPadded, Layout::kPadded, Layout::kPadded, mla},
      {true, Layout::kPadded, true, Layout::kPadded, Layout::kPadded, Layout::kOdd, mla},
      {false, Layout::kOdd, false, Layout::kOdd, Layout::kOdd, Layout::kOdd, mla},
      {true, Layout::kOdd, true, Layout::kOdd, Layout::kOdd, Layout::kDense, {100, 28, 72}},
      {false, Layout::kDense, false, Layout::kBroadcast, Layout::kBroadcast, Layout::kDense, mla},
      {false, Layout::kDense, false, Layout::kSlice, Layout::kSlice, Layout::kDense, square},
      {true, Layout::kSlice, true, Layout::kSlice, Layout::kSlice, Layout::kDense, {256, 0, 256}},
      {true, Layout::kTransposed, true, Layout::kTransposed, Layout::kSlice, Layout::kTransposed,
       mla},
  };
  bool rank3 = false;
  for (const Combination& combination : combinations) {
    Case& row = table.add("", "tensors are read and written through their strides, never copied",
                          kQuickAndFull);
    row.q_split = combination.q_split;
    row.q_layout = combination.q;
    row.k_split = combination.k_split;
    row.k_layout = combination.k;
    row.v_layout = combination.v;
    row.out_layout = combination.out;
    row.dims = combination.dims;
    row.heads = 3;
    row.q_lens = {19, 0, 40};
    row.k_lens = {33, 4, 70};
    row.k_pe_rank3 = rank3 = !rank3;
    row.lse_gapped = rank3;
    row.lse_layout = rank3 ? LseLayout::kTokensHeads : LseLayout::kHeadsTokens;
    row.name = name(row);
  }
}

void add_heads_and_lse(TableBuilder& table) {
  for (const int32_t heads : {1, 3, 5, 7, 16}) {
    Case& row = table.add("heads_" + std::to_string(heads), "head counts that are no power of two",
                          kQuickAndFull);
    row.heads = heads;
    row.dims = {64, 64, 128};
    row.q_lens = {20, 9};
    row.k_lens = {50, 9};
  }
  for (const bool gapped : {false, true}) {
    for (const LseLayout layout : {LseLayout::kHeadsTokens, LseLayout::kTokensHeads}) {
      Case& row =
          table.add(std::string("lse_") +
                        (layout == LseLayout::kHeadsTokens ? "heads_tokens" : "tokens_heads") +
                        (gapped ? "_gapped" : "_dense"),
                    "LSE layout and strides", kQuickAndFull);
      row.lse_layout = layout;
      row.lse_gapped = gapped;
      row.heads = 5;
      row.q_lens = {7, 0, 30};
      row.k_lens = {9, 2, 30};
    }
  }
  Case& row = table.add("lse_not_wanted", "no LSE tensor at all", kQuickAndFull);
  row.lse = false;
}

void add_dtypes(TableBuilder& table) {
  struct Types {
    Dtype in;
    Dtype out;
    const char* name;
  };
  const Types types[] = {
      {Dtype::kFp16, Dtype::kFp16, "fp16"},         {Dtype::kFp32, Dtype::kFp32, "fp32"},
      {Dtype::kBf16, Dtype::kFp32, "bf16_to_fp32"}, {Dtype::kFp16, Dtype::kFp32, "fp16_to_fp32"},
      {Dtype::kBf16, Dtype::kE4m3, "bf16_to_e4m3"}, {Dtype::kFp16, Dtype::kE4m3, "fp16_to_e4m3"},
      {Dtype::kFp32, Dtype::kE4m3, "fp32_to_e4m3"}};
  for (const Types& type : types) {
    for (const Mask& mask : {kCausalMask, kFullMask}) {
      Case& row = table.add(std::string("dtype_") + type.name + "_" + mask_name(mask),
                            "element types in and out", kQuickAndFull);
      row.dtype = type.in;
      row.out_dtype = type.out;
      row.mask = mask;
      row.output_scale = type.out == Dtype::kE4m3 ? 0.0371f : 1.0f;
      row.q_lens = {40, 3};
      row.k_lens = {90, 3};
    }
  }
  const std::pair<const char*, float> scales[] = {
      {"0_02", 0.02f}, {"50", 50.0f}, {"0_0001", 1e-4f}, {"1", 1.0f}};
  for (const auto& [name, scale] : scales) {
    Case& row = table.add(std::string("e4m3_scale_") + name,
                          "e4m3 divides by the scale; large results saturate, small ones are "
                          "subnormal and not flushed",
                          kQuickAndFull);
    row.out_dtype = Dtype::kE4m3;
    row.output_scale = scale;
    row.q_lens = {50};
    row.k_lens = {200};
    row.heads = 1;
  }
}

void add_distributions(TableBuilder& table) {
  for (int d = 0; d < kNumDistributions; ++d) {
    const auto distribution = static_cast<Distribution>(d);
    for (const Mask& mask : {kCausalMask, kFullMask}) {
      Case& row =
          table.add("data_" + std::string(distribution_name(distribution)) + "_" + mask_name(mask),
                    "one of the input distributions", kQuickAndFull);
      row.distribution = distribution;
      row.mask = mask;
      row.heads = 1;
      row.q_lens = {130, 30};
      row.k_lens = {200, 30};
    }
  }
}

void add_poison(TableBuilder& table) {
  using Tensor = Poison::Tensor;
  using Value = Poison::Value;
  {
    Case& row = table.add("poison_neighbour_nan",
                          "a sequence of NaN between others: 0 x NaN must not leak", kQuickAndFull);
    row.q_lens = {40, 20, 50};
    row.k_lens = {70, 20, 50};
    for (const Tensor tensor : {Tensor::kQ, Tensor::kK, Tensor::kV}) {
      row.poison.push_back({tensor, 1, -1, Value::kNan});
    }
    Case full = row;
    full.name = "poison_neighbour_nan_full";
    full.mask = kFullMask;
    table.add("", "", 0) = full;
  }
  {
    Case& row = table.add("poison_neighbour_v_only", "NaN values beside a sequence, finite scores",
                          kQuickAndFull);
    row.q_lens = {17, 20, 5};
    row.k_lens = {33, 130, 5};
    row.poison = {{Tensor::kV, 1, -1, Value::kNan}, {Tensor::kV, 2, -1, Value::kNan}};
  }
  {
    Case& row = table.add("poison_huge_neighbour", "6e4 everywhere in the next sequence's keys",
                          kQuickAndFull);
    row.q_lens = {9, 3, 40};
    row.k_lens = {70, 65, 40};
    row.poison = {{Tensor::kK, 1, -1, Value::kHuge}};
    row.tolerance.reason =
        "the poisoned sequence has equal logits of 1e6: its LSE bound follows from their size";
  }
  {
    Case& row = table.add(
        "poison_future_key",
        "NaN in a key and in a value reach the rows that see them, no earlier one", kQuickAndFull);
    row.q_lens = {100, 20};
    row.k_lens = {100, 50};
    row.poison = {{Tensor::kK, 0, 61, Value::kNan},
                  {Tensor::kV, 1, 40, Value::kNan},
                  {Tensor::kQ, 0, 3, Value::kNan}};
  }
  {
    Case& row =
        table.add("poison_masked_by_window", "NaN left of the window is not seen", kQuickAndFull);
    row.mask = window(10, 0);
    row.q_lens = {20};
    row.k_lens = {200};
    row.poison = {{Tensor::kK, 0, 150, Value::kNan}, {Tensor::kV, 0, 171, Value::kNan}};
  }
  {
    Case& row =
        table.add("poison_e4m3", "NaN stays NaN in e4m3 and does not become 448", kQuickAndFull);
    row.out_dtype = Dtype::kE4m3;
    row.output_scale = 0.05f;
    row.q_lens = {4, 9};
    row.k_lens = {20, 9};
    row.poison = {{Tensor::kV, 0, 18, Value::kNan}};
  }
  {
    Case& row = table.add("poison_infinite_value", "an infinite value stays in its sequence",
                          kQuickAndFull);
    row.q_lens = {30, 12};
    row.k_lens = {30, 12};
    row.poison = {{Tensor::kQ, 0, 29, Value::kInfinity}, {Tensor::kK, 0, 29, Value::kNan}};
  }
}

void add_scales(TableBuilder& table) {
  const std::pair<const char*, double> scales[] = {
      {"zero", 0.0}, {"yarn", 0.1352337788608801}, {"one", 1.0}, {"small", 1e-6}};
  for (const auto& [name, scale] : scales) {
    Case& row = table.add(std::string("scale_") + name, "softmax_scale at run time", kQuickAndFull);
    row.softmax_scale = scale;
    row.q_lens = {60};
    row.k_lens = {133};
  }
}

// Longer runs and wider crossings.
void add_full(TableBuilder& table) {
  const HeadDims published[] = {{128, 64, 128}, {64, 64, 128},  {192, 64, 256},
                                {256, 0, 256},  {192, 64, 128}, {128, 0, 128}};
  for (const HeadDims& dims : published) {
    for (const Mask& mask : {kCausalMask, kFullMask, window(300, 0)}) {
      for (const int32_t context : {0, 1500}) {
        Case& row = table.add("long_" + dims_name(dims) + "_" + mask_name(mask) + "_context_" +
                                  std::to_string(context),
                              "new tokens over context at a model's dimensions", kFull);
        row.dims = dims;
        row.mask = mask;
        row.heads = 4;
        row.q_lens = {513, 100, 1};
        row.k_lens = {513 + context, 100 + context / 3, 1 + context};
      }
    }
    for (int d = 0; d < kNumDistributions; ++d) {
      const auto distribution = static_cast<Distribution>(d);
      Case& row =
          table.add("data_" + std::string(distribution_name(distribution)) + "_" + dims_name(dims),
                    "an input distribution at a model's dimensions", kFull);
      row.dims = dims;
      row.distribution = distribution;
      row.q_lens = {257, 64};
      row.k_lens = {700, 64};
      row.k_split = d % 2 == 1;
      if (row.k_split) row.k_layout = row.v_layout = Layout::kSlice;
    }
  }
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32}) {
    for (const Dtype out : {dtype, Dtype::kFp32, Dtype::kE4m3}) {
      for (const HeadDims& dims : {HeadDims{192, 64, 256}, HeadDims{17, 3, 5}}) {
        if (out == dtype && dtype == Dtype::kFp32) continue;
        Case& row = table.add("types_" + std::to_string(static_cast<int>(dtype)) + "_to_" +
                                  std::to_string(static_cast<int>(out)) + "_" + dims_name(dims),
                              "element types at longer lengths", kFull);
        row.dtype = dtype;
        row.out_dtype = out;
        row.dims = dims;
        row.output_scale = out == Dtype::kE4m3 ? 0.013f : 1.0f;
        row.q_lens = {130, 7, 300};
        row.k_lens = {400, 7, 333};
      }
    }
  }
  {
    Case& row = table.add("sequence_2048_causal", "one 2048-token prompt, 16 heads", kFull);
    row.heads = 16;
    row.q_lens = {2048};
    row.k_lens = {2048};
  }
  {
    Case& row =
        table.add("context_512_of_4608_causal", "512 new tokens on 4,096 of context", kFull);
    row.heads = 16;
    row.q_lens = {512};
    row.k_lens = {4608};
    row.k_split = true;
    row.k_layout = row.v_layout = Layout::kSlice;
  }
  {
    Case& row =
        table.add("positive_v_8192_keys", "the bias of a long average of positive values", kFull);
    row.heads = 2;
    row.mask = kFullMask;
    row.distribution = Distribution::kPositiveV;
    row.q_lens = {64};
    row.k_lens = {8192};
  }
  {
    Case& row =
        table.add("ragged_mixture", "40 sequences from 0 to 400 tokens with odd contexts", kFull);
    row.heads = 5;
    row.dims = {64, 64, 128};
    row.q_lens.clear();
    row.k_lens.clear();
    for (int32_t s = 0; s < 40; ++s) {
      row.q_lens.push_back(s * 37 % 131);
      row.k_lens.push_back(s % 5 == 0 ? s * 37 % 131 : s * 61 % 401);
    }
  }
}

}  // namespace

const std::vector<Case>& case_table() {
  static const std::vector<Case> table = [] {
    TableBuilder builder;
    add_dims(builder);
    add_lengths(builder);
    add_masks(builder);
    add_layouts(builder);
    add_heads_and_lse(builder);
    add_dtypes(builder);
    add_distributions(builder);
    add_poison(builder);
    add_scales(builder);
    add_full(builder);
    std::vector<Case> rows = builder.take();
    std::vector<Case> bugs = known_bug_cases();
    rows.insert(rows.end(), std::make_move_iterator(bugs.begin()),
                std::make_move_iterator(bugs.end()));
    return rows;
  }();
  return table;
}

}  // namespace flashprime::cases
