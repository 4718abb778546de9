// SPDX-License-Identifier: Apache-2.0
// One-call reports. Each row names the report it rebuilds.
#include <utility>

#include "tests/cases/known_bugs.h"

namespace flashprime::cases {
namespace {

constexpr Mask kFullMask{MaskKind::kFull, -1, -1};

Case row(std::string name, std::string why) {
  Case result;
  result.name = "bug_" + std::move(name);
  result.why = std::move(why);
  result.dims = {128, 64, 128};
  result.suites = kKnownBugs;
  return result;
}

// {value, how often} ...
std::vector<int32_t> repeated(std::initializer_list<std::pair<int32_t, int32_t>> runs) {
  std::vector<int32_t> lens;
  for (const auto& [length, count] : runs)
    lens.insert(lens.end(), static_cast<size_t>(count), length);
  return lens;
}

}  // namespace

std::vector<Case> known_bug_cases() {
  std::vector<Case> rows;
  {
    Case c = row("02_lse_of_empty_rows",
                 "vllm#15492: +inf for empty rows in one kernel, -inf in another");
    c.q_lens = {5, 3, 4};
    c.k_lens = {0, 3, 2};
    rows.push_back(c);
  }
  {
    Case c = row("03_some_requests_without_keys",
                 "vllm#49294, #49334: a wide batch with empty requests gave a finite LSE");
    c.mask = kFullMask;
    c.dims = {64, 64, 128};
    for (int32_t s = 0; s < 96; ++s) {
      c.q_lens.push_back(1 + s % 5);
      c.k_lens.push_back(s % 3 == 0 ? 0 : 7 * s);
    }
    rows.push_back(c);
  }
  {
    Case c = row("04_empty_between_full",
                 "flashinfer#3047, sglang#22291, #22688: right alone, wrong beside empty requests");
    c.mask = kFullMask;
    c.q_lens = {3, 64, 1, 130, 7};
    c.k_lens = {0, 512, 0, 1, 129};
    rows.push_back(c);
  }
  {
    Case c = row("07_causal_one_key", "flashinfer#4452: 34 queries, one key, bottom-right");
    c.q_lens = {34};
    c.k_lens = {1};
    rows.push_back(c);
  }
  {
    Case c = row("09_fewer_keys_than_queries",
                 "flash-attention#443: causal, 1 key a sequence; no negative block loop");
    c.q_lens = {76, 34, 146};
    c.k_lens = {1, 1, 1};
    rows.push_back(c);
    c = row("09_half_as_many_keys", "flash-attention#1778: 2048 queries, 1024 keys, causal");
    c.q_lens = {2048};
    c.k_lens = {1024};
    rows.push_back(c);
  }
  {
    Case c =
        row("10_prefix_of_heads_unwritten",
            "flash-attention#1214: 3 queries, 7 keys, 16 heads: part of some heads never written");
    c.q_lens = {3};
    c.k_lens = {7};
    c.heads = 16;
    c.softmax_scale = 0.1147;
    rows.push_back(c);
  }
  for (const int32_t heads : {9, 21}) {
    Case c = row("11_fewer_tokens_than_sequences_" + std::to_string(heads) + "_heads",
                 "flash-attention#1537, #1619: one-token batches with empty requests");
    c.heads = heads;
    c.dims = {64, 64, 128};
    c.q_lens = {0, 0, 0, 1};
    c.k_lens = c.q_lens;
    c.stated_max_q = 1;
    rows.push_back(c);
    c.name += "_longer_keys";
    c.q_lens = {0, 1, 0, 1};
    c.k_lens = {0, 3, 0, 5};
    rows.push_back(c);
  }
  for (const bool causal : {true, false}) {
    const std::string mask = causal ? "_causal" : "_full";
    Case c = row("12_no_keys_at_all" + mask,
                 "flash-attention#2470, #2503, #2515: a K tensor with no rows");
    if (!causal) c.mask = kFullMask;
    c.q_lens = {4, 70};
    c.k_lens = {0, 0};
    rows.push_back(c);
    c.name = "bug_12_no_queries_at_all" + mask;
    std::swap(c.q_lens, c.k_lens);
    rows.push_back(c);
    c.name = "bug_12_empty_batch" + mask;
    c.q_lens.clear();
    c.k_lens.clear();
    rows.push_back(c);
  }
  for (const int32_t sequences : {65'535, 65'536, 80'000}) {
    Case c = row("18_" + std::to_string(sequences) + "_sequences",
                 "flashinfer#3125, #4389, FlashMLA#173, #182: a launch grid beyond 65,535");
    c.dims = {8, 8, 8};
    c.heads = 1;
    c.q_lens.assign(static_cast<size_t>(sequences), 16);
    c.k_lens = c.q_lens;
    rows.push_back(c);
  }
  for (const int32_t sequences : {31, 32, 33, 991, 992, 993, 1024}) {
    Case c = row("19_" + std::to_string(sequences) + "_sequences",
                 "flash-attention 46e1d4a: a scheduler helper limited to 992 sequences");
    c.dims = {16, 8, 16};
    for (int32_t s = 0; s < sequences; ++s) {
      c.q_lens.push_back(1 + s % 9);
      c.k_lens.push_back(1 + s % 9 + s % 4);
    }
    rows.push_back(c);
  }
  {
    Case c =
        row("21_one_long_many_short", "FlashMLA#85: a device fault on these 44 lengths, causal");
    c.heads = 2;
    c.q_lens = repeated({{8192, 1},
                         {379, 11},
                         {234, 1},
                         {379, 9},
                         {378, 1},
                         {917, 3},
                         {919, 1},
                         {918, 2},
                         {852, 1},
                         {917, 2},
                         {523, 1},
                         {697, 1},
                         {698, 2},
                         {697, 2},
                         {698, 1},
                         {697, 4},
                         {696, 1}});
    c.k_lens = c.q_lens;
    rows.push_back(c);
  }
  {
    Case c = row("22_half_a_tile", "cutlass#2428: 64 queries and keys, not a multiple of 128");
    c.heads = 4;
    c.q_lens = {64};
    c.k_lens = {64};
    rows.push_back(c);
  }
  {
    Case c = row("23_slack_rows_of_nan",
                 "sglang#15757, cudnn-frontend#624: NaN rows behind the last sequence leaked");
    c.q_lens = {9, 12};
    c.k_lens = {9, 12};
    rows.push_back(c);
  }
  {
    Case c = row("24_halves_of_one_buffer",
                 "cudnn-frontend#613, #706: K and V slices of one [T, 2, H, D] buffer");
    c.dims = {128, 0, 128};
    c.q_lens = {70, 20};
    c.k_lens = {100, 20};
    c.k_layout = c.v_layout = Layout::kSlice;
    rows.push_back(c);
  }
  for (const Layout k : {Layout::kDense, Layout::kTransposed}) {
    Case c = row("26_transposed_" + std::string(layout_name(k)) + "_k",
                 "flash-attention#2665, #2666, #2670: V, or K and V, transposed from [H, S, D]");
    c.dims = {192, 64, 256};
    c.heads = 3;
    c.q_lens = {70};
    c.k_lens = {133};
    c.k_layout = k;
    c.v_layout = Layout::kTransposed;
    c.q_layout = k;
    rows.push_back(c);
  }
  {
    Case c = row("27_rows_aligned_to_two_bytes",
                 "flash-attention#2745: last axis padded by one element, start at element 1");
    c.q_lens = {33};
    c.k_lens = {70};
    c.q_layout = c.k_layout = c.v_layout = c.out_layout = Layout::kOdd;
    rows.push_back(c);
    c = row("27_expanded_over_heads", "flash-attention#2745: K and V with head stride 0");
    c.q_lens = {33};
    c.k_lens = {70};
    c.heads = 4;
    c.k_layout = c.v_layout = Layout::kBroadcast;
    rows.push_back(c);
  }
  {
    Case c = row("33_several_empty_tiles",
                 "flash-attention#2229, #2258, #2568: hang on zero-length keys at (256, 256)");
    c.dims = {256, 0, 256};
    c.mask = kFullMask;
    c.q_lens = {130, 300, 5};
    c.k_lens = {0, 0, 70};
    rows.push_back(c);
  }
  for (const float scale : {0.02f, 50.0f}) {
    Case c = row("36_output_scale_" + std::string(scale < 1 ? "small" : "large"),
                 "vllm#36297: quantisation multiplied by the scale");
    c.out_dtype = Dtype::kE4m3;
    c.output_scale = scale;
    c.q_lens = {40};
    c.k_lens = {90};
    rows.push_back(c);
  }
  {
    Case c = row("37_subnormal_e4m3", "vllm#55673, #55696: e4m3 below 2^-6 flushed to zero");
    c.out_dtype = Dtype::kE4m3;
    c.output_scale = 8.0f;
    c.q_lens = {20};
    c.k_lens = {400};
    rows.push_back(c);
  }
  for (const LseLayout layout : {LseLayout::kHeadsTokens, LseLayout::kTokensHeads}) {
    Case c = row(layout == LseLayout::kHeadsTokens ? "39_lse_heads_tokens" : "39_lse_tokens_heads",
                 "sglang#40903, flashinfer#2113: base-2 LSE, or the other layout");
    c.heads = 3;
    c.lse_layout = layout;
    c.q_lens = {64};
    c.k_lens = {3136};
    rows.push_back(c);
  }
  for (const int32_t length : {64, 192, 704}) {
    Case c = row("40_all_logits_negative_" + std::to_string(length),
                 "pytorch#196678: logits near -120 and half a tile of padding scored as 0");
    c.distribution = Distribution::kNegativeScores;
    c.mask = kFullMask;
    c.q_lens = {length};
    c.k_lens = {length};
    rows.push_back(c);
  }
  {
    Case c = row("41_33728_keys", "xformers#719: a token index cast to 16 bits");
    c.dims = {16, 16, 16};
    c.heads = 1;
    c.q_lens = {130};
    c.k_lens = {33'728};
    rows.push_back(c);
  }
  for (const int32_t length : {129, 256, 257, 384, 400}) {
    Case c = row("47_maximum_over_key_blocks_" + std::to_string(length),
                 "flash-attention#2329, #2504: the running maximum reset at each causal block");
    c.distribution = Distribution::kPeaky;
    c.heads = 1;
    c.q_lens = {length};
    c.k_lens = {length};
    rows.push_back(c);
  }
  return rows;
}

}  // namespace flashprime::cases
