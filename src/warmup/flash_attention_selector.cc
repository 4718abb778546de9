// SPDX-License-Identifier: Apache-2.0
// FlashAttention's own selectors for a ragged forward call, as rules to compare with.
#include <algorithm>

#include "checks.h"
#include "flashprime/flash_attention_rules.h"
#include "flashprime/warmup.h"
#include "numerics/checked.h"

namespace flashprime {
namespace {

constexpr int32_t kMostSplits = 128;
constexpr int64_t kSmallSharedMemory = 224 * 1024;  // what the 10.x kernel plans with

int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// A mask as the selectors normalise it: a window that is unbounded to the left and ends at the
// diagonal is causal, one without bounds is full.
struct Sides {
  bool causal = false;
  std::optional<int64_t> left;
  std::optional<int64_t> right;

  bool local() const { return left || right; }
};

Sides normalise(const Mask& mask) {
  Sides sides;
  if (mask.kind == MaskKind::kCausal) sides.causal = true;
  if (mask.kind != MaskKind::kWindow) return sides;
  if (mask.window_left >= 0) sides.left = mask.window_left;
  if (mask.window_right >= 0) sides.right = mask.window_right;
  if (!sides.left && sides.right == 0) return Sides{true, {}, {}};
  return sides;
}

Status check_problem(const FlashAttentionProblem& problem) {
  FLASHPRIME_REQUIRE(problem.dtype == Dtype::kBf16 || problem.dtype == Dtype::kFp16,
                     StatusCode::kDtype, "dtype: got ", dtype_bytes(problem.dtype),
                     "-byte elements, wanted bf16 or fp16");
  FLASHPRIME_REQUIRE(problem.head_dim >= 1 && problem.head_dim_v >= 1, StatusCode::kShape,
                     "head dims: got (", problem.head_dim, ", ", problem.head_dim_v,
                     "), wanted each >= 1");
  FLASHPRIME_REQUIRE(problem.num_heads >= 1 && problem.num_kv_heads >= 1 &&
                         problem.num_heads % problem.num_kv_heads == 0,
                     StatusCode::kShape, "heads: got ", problem.num_heads, " over ",
                     problem.num_kv_heads, " of K and V, wanted a multiple");
  FLASHPRIME_REQUIRE(problem.num_sms >= 1, StatusCode::kShape, "num_sms: got ", problem.num_sms,
                     ", wanted >= 1");
  // The bounds keep every product below 2^63.
  constexpr int64_t kMost = int64_t{1} << 31;
  FLASHPRIME_REQUIRE(
      problem.batch_size >= 0 && problem.max_seqlen_q >= 0 && problem.max_seqlen_k >= 0 &&
          problem.batch_size < (1 << 24) && problem.num_heads < (1 << 20) &&
          problem.max_seqlen_q < kMost && problem.max_seqlen_k < kMost,
      StatusCode::kRange, "sizes: got batch ", problem.batch_size, ", heads ", problem.num_heads,
      ", lengths ", problem.max_seqlen_q, " and ", problem.max_seqlen_k,
      ", wanted batch < 2^24, heads < 2^20, lengths < 2^31, none negative");
  return ok_status();
}

// Keys that a tile of tile_m queries loads. The fork takes a side of 0 for a missing one.
int64_t keys_loaded(const FlashAttentionProblem& problem, const Sides& sides, int64_t tile_m) {
  if (!sides.local()) return problem.max_seqlen_k;
  const bool zero_is_missing = problem.tree == FlashAttentionTree::kVllmFork;
  int64_t reach = 1 + tile_m;
  for (const std::optional<int64_t>& side : {sides.left, sides.right}) {
    const bool missing = !side || (zero_is_missing && *side == 0);
    reach += std::min(missing ? problem.max_seqlen_k : *side, problem.max_seqlen_k);
  }
  return std::min(problem.max_seqlen_k, reach);
}

// ---- FlashAttention 4 ----

Status check_fa4_head_dims(const FlashAttentionProblem& problem) {
  const int32_t d = problem.head_dim;
  const int32_t dv = problem.head_dim_v;
  constexpr int32_t kAlignment = 8;  // 16 bytes of 16-bit elements
  const bool aligned = d % kAlignment == 0 && dv % kAlignment == 0;
  const auto between = [&](int32_t most) { return d >= 8 && dv >= 8 && d <= most && dv <= most; };
  const int32_t major = problem.capability.major;
  if (major == 9) {
    const int32_t most = problem.tree == FlashAttentionTree::kVllmFork ? 512 : 256;
    FLASHPRIME_REQUIRE(aligned && between(most), StatusCode::kUnsupported,
                       "(head_dim, head_dim_v)=(", d, ", ", dv,
                       ") is not supported on SM90. head_dim and head_dim_v must be between 8 and ",
                       most, " and divisible by ", kAlignment, ".");
  } else if (major == 10 || major == 11) {
    const bool absorbed = dv == 512 && (d == 64 || d == 512);
    FLASHPRIME_REQUIRE(
        aligned && (between(128) || (d == 192 && dv == 128) || (d == 256 && dv == 256) || absorbed),
        StatusCode::kUnsupported, "(head_dim, head_dim_v)=(", d, ", ", dv,
        ") is not supported on SM100/SM110. head_dim and head_dim_v must be between 8 and 128 and "
        "divisible by ",
        kAlignment, ", or (192, 128) for DeepSeek, or (256, 256) for hd256.");
  }
  return ok_status();
}

struct Tile {
  int32_t m = 128;
  int32_t n = 128;
};

Tile fa4_tile(const FlashAttentionProblem& problem, const Sides& sides) {
  const int32_t d = problem.head_dim;
  switch (problem.capability.major) {
    case 8: return {128, 64};
    case 12: return {128, d <= 64 ? 128 : 64};
    case 9: break;
    default: return {128, 128};
  }
  if (d <= 64) return {192, 128};
  if (d <= 96) return {192, sides.causal || sides.local() ? 128 : 144};
  if (d <= 128) return {128, 128};
  if (d <= 192) return {128, sides.local() ? 96 : problem.head_dim_v <= 128 ? 128 : 112};
  if (d <= 256) return {128, sides.local() ? 64 : 80};
  return {64, 64};
}

// 0, like 1, means one split.
int64_t fa4_splits(const FlashAttentionProblem& problem, int64_t total_m_blocks, int64_t n_blocks) {
  if (n_blocks <= 4 || total_m_blocks == 0) return 1;
  return std::min({problem.num_sms / total_m_blocks, int64_t{kMostSplits}, n_blocks});
}

// Stages of K and V that fit beside Q and O. Where O is as large as a stage or fp32, it reuses Q's
// memory; (192, 128) takes three uneven stages where two would fit.
int32_t sm100_kv_stages(const FlashAttentionProblem& problem, const Tile& tile, int32_t q_stage,
                        bool is_split) {
  const int64_t d = problem.head_dim;
  const int64_t dv = problem.head_dim_v;
  const int64_t q_bytes = int64_t{q_stage} * tile.m * d * 2;
  const int64_t o_bytes = int64_t{q_stage} * tile.m * dv * (is_split ? 4 : 2);
  const bool overlap = (d == 192 && dv >= 64) || (dv >= 128 && is_split);
  const int64_t qo_bytes = overlap ? std::max(q_bytes, o_bytes) : q_bytes + o_bytes;
  const int64_t stage_bytes = int64_t{tile.n} * std::max(d, dv) * 2;
  const int64_t stages = std::clamp<int64_t>((kSmallSharedMemory - qo_bytes) / stage_bytes, 0, 32);
  return d == 192 && dv == 128 && stages == 2 ? 3 : static_cast<int32_t>(stages);
}

void fill_resources(const FlashAttentionProblem& problem, const Tile& tile, bool is_split,
                    Fa4Selection* selection) {
  const int32_t d = problem.head_dim;
  const int32_t dv = problem.head_dim_v;
  switch (problem.capability.major) {
    case 8:
    case 12:
      selection->num_threads = 128;
      selection->smem_qkv_bytes =
          2 * (int64_t{tile.m} * d + int64_t{tile.n} * d + int64_t{tile.n} * dv);
      return;
    case 9: {
      struct Registers {
        int32_t producer;
        int32_t mma;
      };
      constexpr Registers kByGroups[] = {{56, 256}, {24, 240}, {32, 160}};
      const int32_t mma_groups = tile.m / 64;
      selection->num_threads = 128 * (mma_groups + 1);
      selection->kv_stages = std::max(d, dv) > 256 ? 1 : 2;
      selection->pv_from_registers = d <= 64 || (d > 96 && d <= 256);
      selection->producer_registers = kByGroups[mma_groups - 1].producer;
      selection->mma_registers = kByGroups[mma_groups - 1].mma;
      return;
    }
    default:
      if (selection->kernel.two_cta) {
        selection->kv_stages = 4;
      } else {
        selection->num_threads = 512;
        selection->kv_stages = sm100_kv_stages(problem, tile, selection->kernel.q_stage, is_split);
      }
  }
}

StatusOr<Fa4Selection> run_fa4(const FlashAttentionProblem& problem) {
  FLASHPRIME_RETURN_IF_ERROR(check_problem(problem));
  const auto [major, minor] = problem.capability;
  FLASHPRIME_REQUIRE(major >= 8 && major <= 12, StatusCode::kArch, "capability: got ", major, ".",
                     minor, ", and FlashAttention 4 knows 8.x, 9.x, 10.x, 11.x and 12.x");
  FLASHPRIME_RETURN_IF_ERROR(check_fa4_head_dims(problem));
  FLASHPRIME_REQUIRE(major != 12 || problem.num_splits == 1, StatusCode::kUnsupported,
                     "SM120 forward only supports num_splits=1");

  const Sides sides = normalise(problem.mask);
  const bool is_sm100 = major == 10 || major == 11;
  const bool is_256 = is_sm100 && problem.head_dim == 256 && problem.head_dim_v == 256;
  const int32_t ratio = problem.num_heads / problem.num_kv_heads;
  const int64_t q_rows = problem.max_seqlen_q * ratio;
  Tile tile = fa4_tile(problem, sides);
  const int32_t q_stage = is_sm100 && q_rows > tile.m ? 2 : 1;
  const int64_t keys = keys_loaded(problem, sides, tile.m);

  Fa4Selection selection;
  selection.num_m_blocks = ceil_div(q_rows, int64_t{q_stage} * tile.m);
  const int64_t heads_and_sequences = problem.batch_size * problem.num_kv_heads;
  int64_t total_m_blocks = 0;
  FLASHPRIME_REQUIRE(checked_mul(heads_and_sequences, selection.num_m_blocks, &total_m_blocks),
                     StatusCode::kRange, "sizes: the number of tiles overflows 64 bits");
  selection.num_n_blocks = ceil_div(keys, tile.n);
  int64_t splits = problem.num_splits >= 1
                       ? problem.num_splits
                       : fa4_splits(problem, total_m_blocks, selection.num_n_blocks);
  if (is_256) splits = 1;
  if (is_sm100 && problem.head_dim != problem.head_dim_v && splits > 1) {
    // fp32 partial results double O in shared memory: narrower key tiles, or no split.
    if (selection.num_n_blocks >= 64 && problem.head_dim_v != 512) {
      tile.n = 64;
      selection.num_n_blocks = ceil_div(keys, tile.n);
      splits = fa4_splits(problem, total_m_blocks, selection.num_n_blocks);
    } else {
      splits = 1;
    }
  }
  selection.num_splits = static_cast<int32_t>(std::max<int64_t>(splits, 1));
  const bool is_split = selection.num_splits > 1;
  FLASHPRIME_REQUIRE(!is_split || major != 8, StatusCode::kUnsupported,
                     "SplitKV not supported on SM 8.0");
  FLASHPRIME_REQUIRE(!is_split || major != 9 || problem.tree == FlashAttentionTree::kVllmFork,
                     StatusCode::kUnsupported, "SplitKV not supported on SM 9.0");

  Fa4KernelIdentity& kernel = selection.kernel;
  kernel.dtype = problem.dtype;
  kernel.head_dim = problem.head_dim;
  kernel.head_dim_v = problem.head_dim_v;
  kernel.heads_per_kv_head = ratio;
  kernel.causal = sides.causal;
  kernel.window_left = sides.left.has_value();
  kernel.window_right = sides.right.has_value();
  kernel.return_lse = problem.return_lse;
  kernel.tile_m = tile.m;
  kernel.tile_n = tile.n;
  kernel.q_stage = q_stage;
  kernel.is_split = is_split;
  kernel.arch = 10 * major + minor;
  kernel.two_cta = is_256;
  fill_resources(problem, tile, is_split, &selection);
  return selection;
}

// ---- FlashAttention 3 ----

StatusOr<Tile> fa3_tile(const FlashAttentionProblem& problem, const Sides& sides) {
  const int32_t d = problem.head_dim;
  const int32_t dv = problem.head_dim_v;
  const bool fork = problem.tree == FlashAttentionTree::kVllmFork;
  const bool short_rows = sides.causal || sides.local();
  FLASHPRIME_REQUIRE(d == dv || (d > 128 && d <= 192 && dv > 96 && dv <= 128),
                     StatusCode::kUnsupported, "(head_dim, head_dim_v)=(", d, ", ", dv,
                     "): wanted equal sizes, or head_dim in (128, 192] with head_dim_v in "
                     "(96, 128]; tiles of head_dim <= 64 with a wider V are not known here");
  FLASHPRIME_REQUIRE(d <= 256, StatusCode::kUnsupported, "head_dim: got ", d, ", wanted <= 256");
  Tile tile;
  if (d <= 64) {
    tile = {192, short_rows ? 128 : 192};
  } else if (d <= 96) {
    tile = {192, sides.local() ? 128 : 144};
  } else if (d <= 128) {
    tile = {128, short_rows ? 128 : fork ? 160 : 176};
  } else if (d <= 192) {
    tile = {128, sides.local() ? 96 : dv <= 128 ? 128 : fork ? 96 : 112};
  } else {
    tile = {128, sides.local() ? 64 : 80};
  }
  const int64_t q_rows = problem.max_seqlen_q * (problem.num_heads / problem.num_kv_heads);
  if (fork && (d == 64 || d == 128) && !sides.local() && q_rows <= 64) tile.m = 64;
  return tile;
}

// Fills the device: splits only while fewer than 80 % of the SMs have a tile, and then as few
// times as reach 85 % of the best wave efficiency.
int32_t fa3_splits(const FlashAttentionProblem& problem, const Sides& sides, int64_t total_m_blocks,
                   int64_t m_blocks, int64_t n_blocks, int64_t keys) {
  const int64_t sms = problem.num_sms;
  if (10 * total_m_blocks >= 8 * sms) {
    constexpr int64_t kL2Bytes = int64_t{50} << 20;
    const int64_t kv_head_bytes = keys * (problem.head_dim + problem.head_dim_v) * 2;
    if (kv_head_bytes > kL2Bytes && m_blocks >= 2 * sms && !sides.causal && !sides.local()) {
      return static_cast<int32_t>(
          std::min<int64_t>(ceil_div(kv_head_bytes, kL2Bytes), kMostSplits));
    }
    return 1;
  }
  if (n_blocks <= 4) return 1;
  const int64_t most = std::min({int64_t{kMostSplits}, sms, n_blocks});
  const auto efficiency = [&](int64_t splits) {
    const int64_t tiles = total_m_blocks * splits;
    return static_cast<double>(tiles) / static_cast<double>(sms * ceil_div(tiles, sms));
  };
  if (total_m_blocks == 0) return 1;
  double best = 0.0;
  for (int64_t splits = 1; splits <= most; ++splits) best = std::max(best, efficiency(splits));
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (efficiency(splits) >= 0.85 * best) return static_cast<int32_t>(splits);
  }
  return 1;
}

StatusOr<Fa3Selection> run_fa3(const FlashAttentionProblem& problem) {
  FLASHPRIME_RETURN_IF_ERROR(check_problem(problem));
  FLASHPRIME_REQUIRE(problem.capability.major == 9, StatusCode::kArch, "capability: got ",
                     problem.capability.major, ".", problem.capability.minor,
                     ", and the rules known here are those of 9.x");
  const Sides sides = normalise(problem.mask);
  const StatusOr<Tile> tile = fa3_tile(problem, sides);
  FLASHPRIME_RETURN_IF_ERROR(tile.status());
  const int64_t keys = keys_loaded(problem, sides, tile->m);
  Fa3Selection selection;
  selection.tile_m = tile->m;
  selection.tile_n = tile->n;
  selection.num_m_blocks =
      ceil_div(problem.max_seqlen_q * (problem.num_heads / problem.num_kv_heads), tile->m);
  selection.num_n_blocks = ceil_div(keys, tile->n);
  int64_t total_m_blocks = 0;
  FLASHPRIME_REQUIRE(checked_mul(problem.batch_size * problem.num_kv_heads, selection.num_m_blocks,
                                 &total_m_blocks) &&
                         total_m_blocks < (int64_t{1} << 56),
                     StatusCode::kRange, "sizes: the number of tiles overflows");
  selection.num_splits = problem.num_splits >= 1
                             ? problem.num_splits
                             : fa3_splits(problem, sides, total_m_blocks, selection.num_m_blocks,
                                          selection.num_n_blocks, keys);
  return selection;
}

}  // namespace

StatusOr<Fa4Selection> select_fa4(const FlashAttentionProblem& problem) {
  return without_exceptions([&] { return run_fa4(problem); });
}

StatusOr<Fa3Selection> select_fa3(const FlashAttentionProblem& problem) {
  return without_exceptions([&] { return run_fa3(problem); });
}

StatusOr<Fa4Selection> select_fa4(const CompileKey& key, ComputeCapability capability,
                                  int32_t num_sms, FlashAttentionTree tree) {
  return without_exceptions([&]() -> StatusOr<Fa4Selection> {
    FLASHPRIME_REQUIRE(key.cu_seqlens_q_shape && key.cu_seqlens_k_shape, StatusCode::kUnsupported,
                       "key: has no cu_seqlens, and the rules known here are those of ragged "
                       "calls");
    const auto fits = [](int64_t value) { return value == static_cast<int32_t>(value); };
    FLASHPRIME_REQUIRE(fits(key.q_shape[1]) && fits(key.q_shape[2]) && fits(key.v_shape[1]) &&
                           fits(key.v_shape[2]),
                       StatusCode::kRange, "key: heads or head dims overflow 32 bits");
    FlashAttentionProblem problem;
    problem.tree = tree;
    problem.capability = capability;
    problem.num_sms = num_sms;
    problem.head_dim = static_cast<int32_t>(key.q_shape[2]);
    problem.head_dim_v = static_cast<int32_t>(key.v_shape[2]);
    problem.num_heads = static_cast<int32_t>(key.q_shape[1]);
    problem.num_kv_heads = static_cast<int32_t>(key.v_shape[1]);
    problem.batch_size = (*key.cu_seqlens_q_shape)[0] - 1;
    problem.max_seqlen_q = key.max_seqlen_q;
    problem.max_seqlen_k = key.max_seqlen_k;
    problem.dtype = key.q_dtype;
    problem.mask.kind = key.causal ? MaskKind::kCausal : MaskKind::kFull;
    if (key.window_size) {
      problem.mask = {MaskKind::kWindow, (*key.window_size)[0],
                      key.causal ? 0 : (*key.window_size)[1]};
    }
    problem.return_lse = key.return_softmax_lse;
    problem.num_splits = key.num_splits;
    return run_fa4(problem);
  });
}

}  // namespace flashprime
