// SPDX-License-Identifier: Apache-2.0
// sm80_mla_prefill: the portable kernel. cp.async, ldmatrix and mma.sync only, so it runs on every
// architecture from sm_80 on. All dims that are multiples of 16 with nope + rope, v <= 256.
//
//   block     num_warps warps; a warp owns row_blocks * 16 query rows from start to end
//   grid      x: (total_q / block_q + batch) * num_heads, one block per query tile and head, the
//             last tiles of a sequence first, see tile_of_slot(); y: num_splits
//   step      one block of block_kv keys, from the last that some row sees to the first:
//               wait for K, V of this step, __syncthreads, start the copies of the next step
//               S = Q K^T, mask, online softmax, O = alpha O + P V
//   shared    num_stages x (K [block_kv][d_qk], V [block_kv][v]) and Q [block_q][d_qk] if some of
//             it is reread; Q passes through the ring otherwise
//   registers per 16 rows: O v / 2, S block_kv / 2, P block_kv / 4, Q 4 per 16 columns held
#pragma once

#include "kernels/attention/tile_of_block.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/cvt_e4m3.cuh"
#include "kernels/ptx/ld_st_shared.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma_sync.cuh"
#include "kernels/shared/prefill_params.h"
#include "kernels/shared/prefill_traits.h"
#include "kernels/shared/sm80_prefill_policy.h"
#include "kernels/tile/swizzled_tile.cuh"

namespace flashprime {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

template <PrefillTraits traits, Sm80PrefillPolicy policy>
struct Sm80MlaPrefill {
  static constexpr int kNope = traits.dims.nope;
  static constexpr int kRope = traits.dims.rope;
  static constexpr int kDimQk = kNope + kRope;
  static constexpr int kDimV = traits.dims.v;
  static constexpr int kBlockQ = policy.block_q();
  static constexpr int kBlockKv = policy.block_kv;
  static constexpr int kRowBlocks = policy.row_blocks;
  static constexpr int kThreads = policy.num_threads();
  static constexpr int kQkSteps = kDimQk / 16;
  static constexpr int kQSteps =
      policy.q_register_steps < kQkSteps ? policy.q_register_steps : kQkSteps;
  static constexpr bool kQInShared = kQSteps < kQkSteps;

  static_assert(kNope % 16 == 0 && kRope % 16 == 0 && kDimV % 16 == 0);
  static_assert(kDimQk <= 256 && kDimV <= 256);
  static_assert(kBlockKv % 16 == 0);
  static_assert(policy.num_stages == 2, "the next step's copies fill the other stage");

  using QTile = SwizzledTile<kDimQk>;
  using KTile = SwizzledTile<kDimQk>;
  using VTile = SwizzledTile<kDimV>;

  static constexpr uint32_t kKBytes = KTile::bytes(kBlockKv);
  static constexpr uint32_t kVBytes = VTile::bytes(kBlockKv);
  static constexpr uint32_t kStageBytes = kKBytes + kVBytes;
  static constexpr uint32_t kQBytes = QTile::bytes(kBlockQ);
  static constexpr uint32_t kRingBytes = policy.num_stages * kStageBytes;
  static constexpr uint32_t kSharedBytes =
      kQInShared ? kRingBytes + kQBytes : (kRingBytes > kQBytes ? kRingBytes : kQBytes);
  static constexpr uint32_t kQOffset = kQInShared ? kRingBytes : 0;

  // Eight threads copy the 128 bytes of one row and chunk; kRowsPerPass rows at a time.
  static constexpr int kRowsPerPass = kThreads / 8;

  // Copies columns [kFirst, kFirst + kColumns) of a tile of kRows rows; rows from `rows` on become
  // zero. `source` is this thread's: row thread / 8, element 8 * (thread % 8).
  template <class Tile, int kRows, int kFirst, int kColumns>
  static __device__ __forceinline__ void copy_columns(uint32_t smem, const char* source,
                                                      int64_t stride_bytes, int rows) {
    static_assert(kRows % kRowsPerPass == 0 || kRows < kRowsPerPass);
    const int row = static_cast<int>(threadIdx.x) / 8;
    const int unit = static_cast<int>(threadIdx.x) % 8;
    if (kRows < kRowsPerPass && row >= kRows) return;
#pragma unroll
    for (int pass = 0; pass < (kRows < kRowsPerPass ? 1 : kRows / kRowsPerPass); ++pass) {
      const bool valid = row + pass * kRowsPerPass < rows;
      const char* row_source = source + pass * kRowsPerPass * stride_bytes;
#pragma unroll
      for (int chunk = 0; chunk < (kColumns + 63) / 64; ++chunk) {
        if (kColumns % 64 != 0 && chunk == kColumns / 64 && unit >= kColumns % 64 / 8) continue;
        const uint32_t to = kFirst % 64 == 0 ? Tile::offset(row, unit) +
                                                   static_cast<uint32_t>(kFirst / 64 + chunk) * 128
                                             : Tile::offset(row, unit + kFirst / 8 + chunk * 8);
        ptx::cp_async_cg_16(
            smem + to + static_cast<uint32_t>(pass * kRowsPerPass * Tile::kUnitsPerRow * 16),
            valid ? row_source + chunk * 128 : source, valid ? 16 : 0);
      }
    }
  }

  // Where this thread's part of the rows from `token` on begins.
  static __device__ __forceinline__ const char* thread_address(const RowTensor& tensor,
                                                               int64_t token, int head) {
    return static_cast<const char*>(tensor.data) +
           2 * ((token + threadIdx.x / 8) * tensor.stride_token + head * tensor.stride_head) +
           threadIdx.x % 8 * 16;
  }

  static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    if constexpr (traits.dtype == Dtype::kBf16) {
      ptx::mma_sync_m16n8k16_f32_bf16(d, a, b0, b1);
    } else {
      ptx::mma_sync_m16n8k16_f32_f16(d, a, b0, b1);
    }
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (traits.dtype == Dtype::kBf16) return ptx::cvt_rn_bf16x2_f32(low, high);
    return ptx::cvt_rn_f16x2_f32(low, high);
  }

  static __device__ __forceinline__ int clamp_to_block(int64_t key) {
    return static_cast<int>(key > 0 ? (key < kBlockKv ? key : kBlockKv) : 0);
  }

  // 0 times NaN or infinity is NaN, so such an element of V would reach the rows of a tile that do
  // not see its key. In a block that some row sees only in part these elements are looked for,
  // added by hand to the rows that see them, and made 0 for the product.
  static constexpr uint32_t kExponent = traits.dtype == Dtype::kBf16 ? 0x7f80u : 0x7c00u;

  static __device__ __forceinline__ bool is_non_finite(uint32_t bits) {
    return (bits & kExponent) == kExponent;
  }

  // Calls visit(address) for this thread's share of the 16-byte units of a V tile.
  template <class Visit>
  static __device__ __forceinline__ void visit_units(uint32_t v_smem, const Visit& visit) {
    constexpr int kUnits = kDimV / 8;  // of a row; the tile may be wider
    for (int i = static_cast<int>(threadIdx.x); i < kBlockKv * kUnits; i += kThreads) {
      visit(v_smem + VTile::offset(i / kUnits, i % kUnits));
    }
  }

  static __device__ __forceinline__ bool has_non_finite(uint32_t v_smem) {
    bool found = false;
    visit_units(v_smem, [&](uint32_t address) {
      uint32_t words[4];
      ptx::ld_shared_v4(words, address);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        found |= is_non_finite(words[i]) || is_non_finite(words[i] >> 16);
      }
    });
    return found;
  }

  static __device__ __forceinline__ void isolate_non_finite(
      uint32_t v_smem, const int (&visible_begin)[kRowBlocks][2],
      const int (&visible_end)[kRowBlocks][2], float (&o)[kRowBlocks][kDimV / 8][4]) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll 1
    for (int key = 0; key < kBlockKv; ++key) {
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
        const uint32_t word =
            ptx::ld_shared(v_smem + VTile::offset(key, n) + static_cast<uint32_t>(lane & 3) * 4);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t bits = word >> (i * 16) & 0xffffu;
          if (!is_non_finite(bits)) continue;
          const bool nan = (bits & 0x7fffu) != kExponent;
          const float value =
              __uint_as_float((bits & 0x8000u) << 16 | (nan ? 0x7fc00000u : 0x7f800000u));
#pragma unroll
          for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              if (key >= visible_begin[r][h] && key < visible_end[r][h])
                o[r][n][h * 2 + i] += value;
            }
          }
        }
      }
    }
    __syncthreads();
    visit_units(v_smem, [&](uint32_t address) {
      uint32_t words[4];
      ptx::ld_shared_v4(words, address);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_non_finite(words[i])) words[i] &= 0xffff0000u;
        if (is_non_finite(words[i] >> 16)) words[i] &= 0xffffu;
      }
      ptx::st_shared_v4(address, words);
    });
    __syncthreads();
  }

  static __device__ __forceinline__ void run(const PrefillParams& params, uint32_t smem) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    const int head = static_cast<int>(blockIdx.x % static_cast<uint32_t>(params.num_heads));
    const int64_t slots = params.total_q / kBlockQ + params.batch;
    const int64_t slot = slots - 1 - blockIdx.x / static_cast<uint32_t>(params.num_heads);
    const QueryTile tile = tile_of_slot(params.cu_seqlens_q, params.batch, slot, kBlockQ);

    const auto [q_first, q_len] =
        rows_of_sequence(params.cu_seqlens_q, tile.sequence, params.total_q);
    const auto [k_first, k_len] =
        rows_of_sequence(params.cu_seqlens_k, tile.sequence, params.total_k);
    if (tile.q_begin < 0 || tile.q_begin >= q_len) return;
    const int q_rows =
        static_cast<int>(q_len - tile.q_begin < kBlockQ ? q_len - tile.q_begin : kBlockQ);

    // Keys that row r of the tile sees: [begin + r, end + r) clamped to [0, k_len).
    const int64_t diagonal = tile.q_begin + k_len - q_len;
    int64_t first_end = k_len;  // of row 0, before clamping
    int64_t first_begin = 0;
    if constexpr (traits.mask == MaskKind::kCausal) first_end = diagonal + 1;
    if constexpr (traits.mask == MaskKind::kWindow) {
      if (params.window_right >= 0) first_end = diagonal + params.window_right + 1;
      if (params.window_left >= 0) first_begin = diagonal - params.window_left;
    }
    constexpr bool kMovingEnd = traits.mask != MaskKind::kFull;
    const bool moving_end =
        traits.mask == MaskKind::kCausal || (kMovingEnd && params.window_right >= 0);
    const bool moving_begin = traits.mask == MaskKind::kWindow && params.window_left >= 0;
    int64_t keys_end = moving_end ? first_end + q_rows - 1 : k_len;
    if (keys_end > k_len) keys_end = k_len;
    const int64_t keys_begin = first_begin > 0 ? first_begin : 0;
    int64_t block_begin = keys_begin / kBlockKv;
    int64_t block_end = keys_end > keys_begin ? (keys_end + kBlockKv - 1) / kBlockKv : block_begin;
    if (params.num_splits > 1) {
      // Every split takes its share of this tile's blocks, possibly none.
      const int64_t share = (block_end - block_begin + params.num_splits - 1) / params.num_splits;
      const int64_t split_begin = block_begin + static_cast<int64_t>(blockIdx.y) * share;
      block_begin = split_begin < block_end ? split_begin : block_end;
      block_end = block_begin + share < block_end ? block_begin + share : block_end;
    }

    float o[kRowBlocks][kDimV / 8][4];
    float row_max[kRowBlocks][2];
    float row_sum[kRowBlocks][2];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[r][n][i] = 0.0f;
      }
      row_max[r][0] = row_max[r][1] = -kInfinity;
      row_sum[r][0] = row_sum[r][1] = 0.0f;
    }

    if (block_end > block_begin) {
      copy_columns<QTile, kBlockQ, 0, kNope>(
          smem + kQOffset, thread_address(params.q_nope, q_first + tile.q_begin, head),
          2 * params.q_nope.stride_token, q_rows);
      if constexpr (kRope != 0) {
        copy_columns<QTile, kBlockQ, kNope, kRope>(
            smem + kQOffset, thread_address(params.q_pe, q_first + tile.q_begin, head),
            2 * params.q_pe.stride_token, q_rows);
      }
      ptx::cp_async_commit_group();

      const int64_t last_key = (block_end - 1) * kBlockKv;
      const char* k_nope = thread_address(params.k_nope, k_first + last_key, head);
      const char* k_pe = thread_address(params.k_pe, k_first + last_key, head);
      const char* v = thread_address(params.v, k_first + last_key, head);
      // Copies the next block of keys, from the last to the first.
      int copy_rows = static_cast<int>(k_len - last_key < kBlockKv ? k_len - last_key : kBlockKv);
      const auto copy_step = [&](int stage) {
        const uint32_t stage_smem = smem + static_cast<uint32_t>(stage) * kStageBytes;
        copy_columns<KTile, kBlockKv, 0, kNope>(stage_smem, k_nope, 2 * params.k_nope.stride_token,
                                                copy_rows);
        if constexpr (kRope != 0) {
          copy_columns<KTile, kBlockKv, kNope, kRope>(stage_smem, k_pe,
                                                      2 * params.k_pe.stride_token, copy_rows);
        }
        copy_columns<VTile, kBlockKv, 0, kDimV>(stage_smem + kKBytes, v, 2 * params.v.stride_token,
                                                copy_rows);
        ptx::cp_async_commit_group();
        k_nope -= 2 * kBlockKv * params.k_nope.stride_token;
        k_pe -= 2 * kBlockKv * params.k_pe.stride_token;
        v -= 2 * kBlockKv * params.v.stride_token;
        copy_rows = kBlockKv;
      };

      uint32_t q_fragments[kRowBlocks][kQSteps > 0 ? kQSteps : 1][4];
      const int warp_row = warp * kRowBlocks * 16;
      const typename QTile::LaneOffsets smem_q(
          smem + kQOffset + static_cast<uint32_t>(warp_row * QTile::kUnitsPerRow * 16), lane & 15,
          lane >> 4);
      if constexpr (!kQInShared) {
        // Q sits in the ring until every warp has taken its fragments.
        ptx::cp_async_wait_group<0>();
        __syncthreads();
      } else {
        copy_step(0);
        ptx::cp_async_wait_group<1>();
        __syncthreads();
      }
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
        for (int step = 0; step < kQSteps; ++step) {
          ptx::ldmatrix_x4(q_fragments[r][step], smem_q.square(r, step));
        }
      }
      if constexpr (!kQInShared) {
        __syncthreads();
        copy_step(0);
      }

      // Not 0: a masked logit is -inf, and 0 times that is NaN. At the least normal number every
      // logit below 1e30 is as good as 0 and a masked one stays -inf.
      const float scale_log2e = fmaxf(params.softmax_scale * 1.44269504088896340736f, 0x1p-126f);
      int stage = 0;
      for (int64_t block = block_end - 1; block >= block_begin; --block) {
        ptx::cp_async_wait_group<0>();
        __syncthreads();  // this step's tiles are there; the other stage is no longer read
        if (block > block_begin) copy_step(stage ^ 1);
        const uint32_t stage_smem = smem + static_cast<uint32_t>(stage) * kStageBytes;
        const typename KTile::LaneOffsets smem_k(stage_smem, (lane & 7) + (lane >> 4) * 8,
                                                 (lane >> 3) & 1);
        const typename VTile::LaneOffsets smem_v(stage_smem + kKBytes, lane & 15, lane >> 4);
        stage ^= 1;

        // S = Q K^T                                   [row block][key / 8][4]
        float s[kRowBlocks][kBlockKv / 8][4];
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
          for (int n = 0; n < kBlockKv / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[r][n][i] = 0.0f;
          }
        }
#pragma unroll
        for (int step = 0; step < kQkSteps; ++step) {
          uint32_t reread[kRowBlocks][4];
          if constexpr (kQInShared) {
            if (step >= kQSteps) {
#pragma unroll
              for (int r = 0; r < kRowBlocks; ++r) {
                ptx::ldmatrix_x4(reread[r], smem_q.square(r, step));
              }
            }
          }
#pragma unroll
          for (int n = 0; n < kBlockKv / 16; ++n) {
            uint32_t b[4];  // keys n*16 .. +7: b0 b1, keys +8 .. +15: b2 b3
            ptx::ldmatrix_x4(b, smem_k.square(n, step));
#pragma unroll
            for (int r = 0; r < kRowBlocks; ++r) {
              const uint32_t(&a)[4] =
                  step < kQSteps ? q_fragments[r][step < kQSteps ? step : 0] : reread[r];
              mma(s[r][n * 2], a, b[0], b[1]);
              mma(s[r][n * 2 + 1], a, b[2], b[3]);
            }
          }
        }

        const int64_t key = block * kBlockKv;
        const bool masked = key + kBlockKv > k_len || (moving_end && key + kBlockKv > first_end) ||
                            (moving_begin && key < first_begin + q_rows - 1);
        // Keys [visible_begin, visible_end) of this block are seen by row lane / 4 + 8 h.
        int visible_begin[kRowBlocks][2];
        int visible_end[kRowBlocks][2];
        if (masked) {
#pragma unroll
          for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const int64_t row = warp_row + r * 16 + (lane >> 2) + h * 8;
              int64_t end = moving_end ? first_end + row : k_len;
              if (end > k_len) end = k_len;
              const int64_t begin = moving_begin ? first_begin + row : 0;
              visible_end[r][h] = clamp_to_block(end - key);
              visible_begin[r][h] = clamp_to_block(begin - key);
            }
          }
        }
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
          if (masked) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
              for (int n = 0; n < kBlockKv / 8; ++n) {
                const int column = n * 8 + (lane & 3) * 2 + (i & 1);
                if (column >= visible_end[r][i >> 1] || column < visible_begin[r][i >> 1]) {
                  s[r][n][i] = -kInfinity;
                }
              }
            }
          }
          // Online softmax; half h holds row lane / 4 + 8 h.
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float max = row_max[r][h];
#pragma unroll
            for (int n = 0; n < kBlockKv / 8; ++n) {
              max = fmaxf(max, fmaxf(s[r][n][h * 2], s[r][n][h * 2 + 1]));
            }
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            const float reference = max == -kInfinity ? 0.0f : max * scale_log2e;
            const float alpha = ptx::ex2_approx_ftz(row_max[r][h] * scale_log2e - reference);
            row_max[r][h] = max;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < kBlockKv / 8; ++n) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                float& x = s[r][n][h * 2 + i];
                x = ptx::ex2_approx_ftz(x * scale_log2e - reference);
                sum += x;
              }
            }
            row_sum[r][h] = row_sum[r][h] * alpha + sum;
            // Not skipped where alpha is 1 in the whole warp: the branch costs more than it saves
            // (measured on an H200: 3 to 14 %).
#pragma unroll
            for (int n = 0; n < kDimV / 8; ++n) {
              o[r][n][h * 2] *= alpha;
              o[r][n][h * 2 + 1] *= alpha;
            }
          }
        }

        if (masked && __syncthreads_or(has_non_finite(stage_smem + kKBytes))) {
          isolate_non_finite(stage_smem + kKBytes, visible_begin, visible_end, o);
        }

        // O += P V. The accumulator fragment of S is the A fragment of P.
#pragma unroll
        for (int step = 0; step < kBlockKv / 16; ++step) {
          uint32_t p[kRowBlocks][4];
#pragma unroll
          for (int r = 0; r < kRowBlocks; ++r) {
            p[r][0] = pack(s[r][step * 2][0], s[r][step * 2][1]);
            p[r][1] = pack(s[r][step * 2][2], s[r][step * 2][3]);
            p[r][2] = pack(s[r][step * 2 + 1][0], s[r][step * 2 + 1][1]);
            p[r][3] = pack(s[r][step * 2 + 1][2], s[r][step * 2 + 1][3]);
          }
#pragma unroll
          for (int n = 0; n < kDimV / 16; ++n) {
            uint32_t b[4];
            ptx::ldmatrix_x4_trans(b, smem_v.square(step, n));
#pragma unroll
            for (int r = 0; r < kRowBlocks; ++r) {
              mma(o[r][n * 2], p[r], b[0], b[1]);
              mma(o[r][n * 2 + 1], p[r], b[2], b[3]);
            }
          }
        }
      }
    }
    store(params, o, row_max, row_sum, q_first + tile.q_begin, warp * kRowBlocks * 16, q_rows, head,
          lane);
  }

  // Two neighbouring elements of a row of out.
  static __device__ __forceinline__ void store_pair(char* row, int column, float low, float high,
                                                    float quant) {
    if constexpr (traits.out_dtype == Dtype::kFp32) {
      *reinterpret_cast<float2*>(row + 4 * column) = make_float2(low, high);
    } else if constexpr (traits.out_dtype == Dtype::kE4m3) {
      *reinterpret_cast<unsigned short*>(row + column) =
          static_cast<unsigned short>(ptx::cvt_rn_satfinite_e4m3x2_f32(low * quant, high * quant));
    } else {
      *reinterpret_cast<uint32_t*>(row + 2 * column) = pack(low, high);
    }
  }

  static __device__ __forceinline__ void store(const PrefillParams& params,
                                               const float (&o)[kRowBlocks][kDimV / 8][4],
                                               const float (&row_max)[kRowBlocks][2],
                                               const float (&row_sum)[kRowBlocks][2],
                                               int64_t first_token, int warp_row, int q_rows,
                                               int head, int lane) {
    constexpr int64_t kOutBytes = dtype_bytes(traits.out_dtype);
    float quant = 1.0f;
    if constexpr (traits.out_dtype == Dtype::kE4m3) quant = 1.0f / *params.output_scale;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = row_sum[r][h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const int row = warp_row + r * 16 + (lane >> 2) + h * 8;
        if (row >= q_rows) continue;
        const int64_t token = first_token + row;
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        char* out = static_cast<char*>(params.out.data) +
                    kOutBytes * (token * params.out.stride_token + head * params.out.stride_head +
                                 blockIdx.y * params.out_stride_split);
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n) {
          store_pair(out, n * 8 + (lane & 3) * 2, o[r][n][h * 2] * inverse,
                     o[r][n][h * 2 + 1] * inverse, quant);
        }
        if (traits.return_lse && (lane & 3) == 0) {
          const float lse = sum == 0.0f ? -kInfinity
                                        : row_max[r][h] * params.softmax_scale +
                                              ptx::lg2_approx_ftz(sum) * 0.69314718055994530942f;
          static_cast<float*>(
              params.lse.data)[token * params.lse.stride_token + head * params.lse.stride_head +
                               blockIdx.y * params.lse_stride_split] = lse;
        }
      }
    }
  }
};

template <PrefillTraits traits, Sm80PrefillPolicy policy>
__device__ __forceinline__ void sm80_mla_prefill(const PrefillParams& params) {
  extern __shared__ __align__(128) char shared_memory[];
  Sm80MlaPrefill<traits, policy>::run(
      params, static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
}

}  // namespace flashprime
