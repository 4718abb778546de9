// SPDX-License-Identifier: Apache-2.0
// sm90_mla_prefill: the Hopper kernel. TMA, wgmma, one persistent block a multiprocessor that flows
// from one output tile into the next. Dims in multiples of 64, v 128 or 256, masks full and causal.
//
//   tile      128 query rows of one head of one sequence; a step is block_kv keys, taken from the
//             last that some row sees to the first
//   grid      min(multiprocessors, tiles there can be); blocks take tiles from a counter
//
//   warpgroup 0, producer       warp 0  K and V by TMA             one lane
//                               warp 1  Q by TMA                   one lane
//                               warp 2  the tile scheduler         all lanes
//                               warp 3  NaN in V (causal only)     all lanes
//   warpgroups 1, 2, consumers  64 rows each: S = Q K^T, softmax, O += P V by wgmma; the epilogue
//
//   step n of a tile            wait K; issue S(n) = Q K(n); wait V; issue O += P(n-1) V(n-1);
//                               wait S; release K; softmax; wait O; release V; rescale O
//   between tiles               the last PV and the next tile's first QK are issued together; the
//                               epilogue runs while that QK does
//
//   barrier      arrivals                       completes when
//   k_full[2]    1 + bytes of TMA               a K tile is in shared memory
//   v_full[2]    1 + bytes, or 1 by warp 3      a V tile is there (and holds no NaN that matters)
//   v_loaded[2]  1 + bytes                      a V tile that warp 3 looks at is there
//   q_full[2]    1 + bytes                      a warpgroup's 64 rows of Q are there
//   k_empty[2]   8, a lane of each consumer warp  K has been read
//   v_empty[2]   8                              V has been read
//   q_empty[2]   4, those of the warpgroup      the last QK of a tile has read Q
//   tile_full    1                              the next tile is known
//   tile_empty   readers                        everyone has read it
//   named 1, 2   256 threads                    whose turn it is to issue wgmma
//
// docs/kernels/sm90_mla_prefill.md has the reasons and the measurements.
#pragma once

#include "kernels/attention/tile_of_block.cuh"
#include "kernels/ptx/atom.cuh"
#include "kernels/ptx/cp_async_bulk_tensor.cuh"
#include "kernels/ptx/cvt_e4m3.cuh"
#include "kernels/ptx/ld_st_shared.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/stmatrix.cuh"
#include "kernels/ptx/warpgroup.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_mma_async.cuh"
#include "kernels/shared/prefill_traits.h"
#include "kernels/shared/sm90_prefill_params.h"
#include "kernels/shared/sm90_prefill_policy.h"

namespace flashprime {

template <PrefillTraits traits, Sm90PrefillPolicy policy>
struct Sm90MlaPrefill {
  static constexpr int kDimQk = traits.dims.nope + traits.dims.rope;
  static constexpr int kDimV = traits.dims.v;
  static constexpr int kNopeChunks = traits.dims.nope / 64;  // of 64 columns, 128 bytes
  static constexpr int kQkChunks = kDimQk / 64;
  static constexpr int kVChunks = kDimV / 64;
  static constexpr int kBlockQ = 128;
  static constexpr int kGroupRows = 64;  // of a consumer warpgroup
  static constexpr int kBlockKv = policy.block_kv;
  static constexpr int kThreads = 384;
  static constexpr bool kCausal = traits.mask == MaskKind::kCausal;
  // Blocks of keys that the diagonal of a causal tile crosses.
  static constexpr int kDiagonal = (kBlockQ + kBlockKv - 1) / kBlockKv;
  // Blocks of a causal tile end where its 128 rows do, so the first 64 rows do not see the last 64
  // keys of the first block: they are left out. Not with fp32 output, which may be that of a split
  // that begins elsewhere.
  static constexpr bool kTrimmed =
      kCausal && policy.trimmed_diagonal && traits.out_dtype != Dtype::kFp32;

  static_assert(traits.dims.nope % 64 == 0 && traits.dims.rope % 64 == 0);
  static_assert(traits.mask != MaskKind::kWindow);
  static_assert(kBlockKv % 16 == 0);

  static constexpr int kS = kBlockKv / 2;  // registers of S, O and P of a thread
  static constexpr int kO = kDimV / 2;
  static constexpr int kP = kBlockKv / 4;

  // --- Shared memory -----------------------------------------------------------------------------

  static constexpr uint32_t kRow = 128;                               // bytes of a row of a chunk
  static constexpr uint32_t kQBytes = kGroupRows * kRow * kQkChunks;  // of one warpgroup
  static constexpr uint32_t kKChunk = kBlockKv * kRow;
  static constexpr uint32_t kKBytes = kKChunk * kQkChunks;
  static constexpr uint32_t kVBytes = kKChunk * kVChunks;
  static constexpr uint32_t kOutBytes = policy.staged_output ? 16 * kRow : 0;  // of one warp
  static constexpr uint32_t kHeaderBytes = 1024;

  struct Shared {
    uint32_t base;
    // Barriers, eight bytes each.
    __device__ uint32_t k_full(uint32_t stage) const { return base + 8 * stage; }
    __device__ uint32_t v_full(uint32_t stage) const { return base + 16 + 8 * stage; }
    __device__ uint32_t k_empty(uint32_t stage) const { return base + 32 + 8 * stage; }
    __device__ uint32_t v_empty(uint32_t stage) const { return base + 48 + 8 * stage; }
    __device__ uint32_t q_full(uint32_t group) const { return base + 64 + 8 * group; }
    __device__ uint32_t q_empty(uint32_t group) const { return base + 80 + 8 * group; }
    __device__ uint32_t v_loaded(uint32_t stage) const { return base + 96 + 8 * stage; }
    __device__ uint32_t tile_full() const { return base + 112; }
    __device__ uint32_t tile_empty() const { return base + 120; }
    // Words: the next tile; whether V of this tile and of the next one held a NaN.
    __device__ uint32_t tile() const { return base + 128; }
    __device__ uint32_t v_not_finite(uint32_t slot) const { return base + 192 + 4 * slot; }
    // Tiles: chunks of 64 columns, rows of 128 bytes, 128-byte swizzle.
    __device__ uint32_t q(uint32_t group) const { return base + kHeaderBytes + kQBytes * group; }
    __device__ uint32_t k(uint32_t stage) const { return q(2) + kKBytes * stage; }
    __device__ uint32_t v(uint32_t stage) const { return k(2) + kVBytes * stage; }
    __device__ uint32_t out(uint32_t warp) const { return v(2) + kOutBytes * warp; }
  };
  static constexpr uint32_t kSharedBytes =
      kHeaderBytes + 2 * (kQBytes + kKBytes + kVBytes) + 8 * kOutBytes;

  // Warps that read a tile: one lane each of K and V, Q, the NaN search, and the consumers.
  static constexpr uint32_t kTileReaders = 2 + (kCausal ? 1 : 0) + 8;

  // A stage of a ring of two, and the parity of its phase.
  struct Stage {
    uint32_t index = 0;
    uint32_t parity;
    __device__ explicit Stage(uint32_t first_parity) : parity(first_parity) {}
    __device__ void advance() {
      index ^= 1;
      parity ^= index == 0;
    }
  };

  // --- Tiles -------------------------------------------------------------------------------------

  struct Tile {
    int q_first, q_len, k_first, k_len;  // rows of the sequence in q and k
    int q_begin;                         // first row of the tile, in the sequence
    int head;
    int key_end;     // the first block of keys is [key_end - kBlockKv, key_end), the others follow
    int num_blocks;  // downwards; at least 1, 0: there is no tile any more
    int masked_blocks;  // so many from the first on are not seen by every row in full
    int last_masked;    // 1 if the last block reaches below key 0, or into the diagonal, else 0
    int split;
    int unused;

    // Keys that row 0 sees end here; may be negative.
    __device__ int first_end() const { return kCausal ? q_begin + k_len - q_len + 1 : k_len; }
  };

  struct TileWords {
    uint32_t quad[3][4];
  };

  static __device__ __forceinline__ Tile read_tile(const Shared& smem) {
    TileWords words;
#pragma unroll
    for (int i = 0; i < 3; ++i) ptx::ld_shared_v4(words.quad[i], smem.tile() + 16 * i);
    return __builtin_bit_cast(Tile, words);
  }

  // The next tile for a producer: called by one lane.
  static __device__ __forceinline__ Tile take_tile(const Shared& smem, uint32_t& parity) {
    ptx::mbarrier_try_wait_parity(smem.tile_full(), parity);
    const Tile tile = read_tile(smem);
    ptx::mbarrier_arrive(smem.tile_empty());
    parity ^= 1;
    return tile;
  }

  // --- Scheduler ---------------------------------------------------------------------------------

  // A lane's sequence of the 32 that the scheduler has before it.
  struct Sequence {
    int q_first, q_len, k_first, k_len;
    int section;        // heads whose K and V of this length stay in L2 together
    int64_t items_end;  // items of all sequences up to this one
  };

  static __device__ __forceinline__ Sequence load_sequence(const Sm90PrefillParams& params,
                                                           int sequence, int64_t items_before) {
    const PrefillParams& call = params.call;
    Sequence result = {};
    if (sequence < static_cast<int>(call.batch)) {
      const RowRange q = rows_of_sequence(call.cu_seqlens_q, sequence, call.total_q);
      const RowRange k = rows_of_sequence(call.cu_seqlens_k, sequence, call.total_k);
      result.q_first = static_cast<int>(q.first);
      result.q_len = static_cast<int>(q.length);
      result.k_first = static_cast<int>(k.first);
      result.k_len = static_cast<int>(k.length);
    }
    // As many heads as fit, divided so that no section is much smaller: a last one of one head
    // would leave most blocks without work (measured at 16,384 keys: -6 %).
    int section = result.k_len > 0 ? params.section_keys / result.k_len : call.num_heads;
    section = section < 1 ? 1 : (section < call.num_heads ? section : call.num_heads);
    const int sections = (call.num_heads + section - 1) / section;
    result.section = (call.num_heads + sections - 1) / sections;
    // Sums over the lanes. 64 bits: lengths that lie may count rows again and again.
    const int lane = static_cast<int>(threadIdx.x) & 31;
    int64_t items = int64_t{call.num_heads} * call.num_splits * num_tiles(result.q_len);
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const int64_t other = __shfl_up_sync(~0u, items, d);
      if (lane >= d) items += other;
    }
    result.items_end = items_before + items;
    return result;
  }

  static __device__ __forceinline__ int num_tiles(int q_len) {
    return (q_len + kBlockQ - 1) / kBlockQ;
  }

  // Item `index` of a sequence, in this order: causal, sections of heads, tiles from the last
  // (longest) to the first, splits, heads; full, heads, splits, tiles.
  static __device__ __forceinline__ Tile make_tile(const PrefillParams& call, const Sequence& from,
                                                   int owner, int index) {
    const auto splits = static_cast<uint32_t>(call.num_splits);
    Tile tile = {};
    tile.q_first = __shfl_sync(~0u, from.q_first, owner);
    tile.q_len = __shfl_sync(~0u, from.q_len, owner);
    tile.k_first = __shfl_sync(~0u, from.k_first, owner);
    tile.k_len = __shfl_sync(~0u, from.k_len, owner);
    const auto tiles = static_cast<uint32_t>(num_tiles(tile.q_len));
    auto rest = static_cast<uint32_t>(index);
    uint32_t number;
    uint32_t head;
    uint32_t split = 0;
    if constexpr (kCausal) {
      const auto section = static_cast<uint32_t>(__shfl_sync(~0u, from.section, owner));
      const auto heads = static_cast<uint32_t>(call.num_heads);
      uint32_t before = 0;  // heads of earlier sections
      if (section < heads) {
        before = rest / (section * tiles * splits) * section;
        rest -= before * tiles * splits;
      }
      const uint32_t here = section < heads - before ? section : heads - before;
      const uint32_t row = rest / (here * splits);
      rest -= row * here * splits;
      number = tiles - 1 - row;
      if (splits > 1) split = rest / here;
      head = before + rest - split * here;
    } else {
      head = rest / tiles;
      number = rest - head * tiles;
      if (splits > 1) {
        split = head % splits;
        head /= splits;
      }
    }
    tile.q_begin = static_cast<int>(number) * kBlockQ;
    tile.head = static_cast<int>(head);
    tile.split = static_cast<int>(split);

    // Where the whole tile's end is behind the sequence, the first block is cut off there; where
    // its begin is before the sequence, the last one is: never the same block.
    int key_end;
    if constexpr (kCausal) {
      key_end = tile.first_end() - 1 + kBlockQ;
      if (key_end < kDiagonal * kBlockKv) key_end = kDiagonal * kBlockKv;
    } else {
      key_end = tile.k_len > 0 ? (tile.k_len + kBlockKv - 1) / kBlockKv * kBlockKv : kBlockKv;
    }
    const int blocks = (key_end + kBlockKv - 1) / kBlockKv;
    int begin = 0;
    int end = blocks;
    if (splits > 1) {
      const int share = (blocks + call.num_splits - 1) / call.num_splits;
      begin = tile.split * share < blocks ? tile.split * share : blocks;
      end = begin + share < blocks ? begin + share : blocks;
    }
    const int masked = kCausal ? kDiagonal : (key_end > tile.k_len ? 1 : 0);
    const bool beyond = kCausal && kDiagonal > 1 && key_end > tile.first_end() - 1 + kBlockQ;
    tile.key_end = key_end - begin * kBlockKv;
    tile.num_blocks = end - begin;
    tile.masked_blocks = masked > begin ? masked - begin : 0;
    tile.last_masked = tile.key_end < tile.num_blocks * kBlockKv || beyond;
    if (tile.num_blocks == 0) {
      // One step whose keys nobody sees: out 0, lse -inf.
      tile.key_end = key_end + kBlockKv;
      tile.num_blocks = 1;
      tile.masked_blocks = 1;
      tile.last_masked = 0;
    }
    return tile;
  }

  // Makes the scheduler's state that of this call, if it is not yet.
  static __device__ __forceinline__ void claim(const Sm90PrefillParams& params) {
    ptx::B128 seen = {0, 0};
    while (true) {
      const ptx::B128 old = ptx::atom_cas_b128(params.scheduler, seen, {0, params.nonce});
      if (old.high == params.nonce || (old.low == seen.low && old.high == seen.high)) return;
      seen = old;
    }
  }

  static __device__ __forceinline__ void schedule(const Sm90PrefillParams& params,
                                                  const Shared& smem) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int batch = static_cast<int>(params.call.batch);
    const auto blocks = static_cast<int64_t>(gridDim.x);
    const bool counts = params.scheduler != nullptr;
    // The next number of the counter.
    const auto fetch = [&] {
      int64_t number = 0;
      if (lane == 0) {
        number = static_cast<int64_t>(
            atomicAdd(reinterpret_cast<unsigned long long*>(&params.scheduler->next_item), 1ull));
      }
      return __shfl_sync(~0u, number, 0);
    };
    uint32_t parity = 1;
    int64_t item = blockIdx.x;
    int64_t number = -1;       // that was fetched last
    int64_t items_before = 0;  // of the sequences before `sequence`
    int sequence = 0;          // of lane 0
    Sequence window = load_sequence(params, lane, 0);
    if (counts && lane == 0) claim(params);
    while (true) {
      int64_t items_end = __shfl_sync(~0u, window.items_end, 31);
      while (item >= items_end && sequence + 32 < batch) {
        items_before = items_end;
        sequence += 32;
        window = load_sequence(params, sequence + lane, items_before);
        items_end = __shfl_sync(~0u, window.items_end, 31);
      }
      if (item >= items_end) {
        items_before = items_end;
        break;
      }
      const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, item < window.items_end))) - 1;
      const int64_t owner_begin =
          owner == 0 ? items_before : __shfl_sync(~0u, window.items_end, owner - 1);
      const Tile tile = make_tile(params.call, window, owner, static_cast<int>(item - owner_begin));
      ptx::mbarrier_try_wait_parity(smem.tile_empty(), parity);
      if (lane == 0) publish(smem, tile);
      parity ^= 1;
      if (!counts) break;
      // Only once the slot is free: looking further ahead spoils the balance between the blocks.
      ptx::mbarrier_try_wait_parity(smem.tile_empty(), parity);
      number = fetch();
      item = blocks + number;
    }
    // Every block fetches until it finds no item, at least once; so the last number is known, and
    // who has it releases the state.
    if (counts && number < 0) number = fetch();
    ptx::mbarrier_try_wait_parity(smem.tile_empty(), parity);
    if (lane == 0) {
      publish(smem, Tile{});
      const int64_t items = items_before;
      if (counts && number == (items > blocks ? items : blocks) - 1) params.scheduler->nonce = 0;
    }
  }

  static __device__ __forceinline__ void publish(const Shared& smem, const Tile& tile) {
    const auto words = __builtin_bit_cast(TileWords, tile);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      ptx::st_shared_v4(smem.tile() + 16 * i, words.quad[i]);
    }
    ptx::mbarrier_arrive(smem.tile_full());
  }

  // --- Producers ---------------------------------------------------------------------------------

  // K of a block, then V of the block before it, as the consumers take them; the first K of a tile
  // goes before the last V of the tile before, whose stage becomes free later.
  static __device__ __forceinline__ void load_k_v(const Sm90PrefillParams& params,
                                                  const Shared& smem) {
    struct Box {
      int row, head, wrap, token;
      bool searched;
    };
    Stage k(1), v(1);
    uint32_t tile_parity = 0;
    Box last_v = {};  // not loaded yet
    bool has_last_v = false;
    const auto load_last_v = [&] {
      const uint32_t full = last_v.searched ? smem.v_loaded(v.index) : smem.v_full(v.index);
      ptx::mbarrier_try_wait_parity(smem.v_empty(v.index), v.parity);
      ptx::mbarrier_arrive_expect_tx(full, kVBytes);
#pragma unroll
      for (int c = 0; c < kVChunks; ++c) {
        ptx::cp_async_bulk_tensor_5d(smem.v(v.index) + c * kKChunk, &params.v, c * 64, last_v.row,
                                     last_v.head, last_v.wrap, last_v.token, full);
      }
      v.advance();
    };
#pragma unroll 1
    while (true) {
      const Tile tile = take_tile(smem, tile_parity);
      if (tile.num_blocks == 0) break;
      const int nope_head = params.per_head.k_nope ? tile.head : 0;
      const int pe_head = params.per_head.k_pe ? tile.head : 0;
      int key = tile.key_end - kBlockKv;  // first one of the block
#pragma unroll 1
      for (int i = 0; i < tile.num_blocks; ++i) {
        // Cut off behind the sequence, or before it.
        const Box box = key < 0 ? Box{key, 0, 0, tile.k_first, false}
                                : Box{key + kRaggedRows - tile.k_len, 0, kRaggedRows,
                                      tile.k_first + tile.k_len, false};
        const uint32_t full = smem.k_full(k.index);
        ptx::mbarrier_try_wait_parity(smem.k_empty(k.index), k.parity);
        ptx::mbarrier_arrive_expect_tx(full, kKBytes);
#pragma unroll
        for (int c = 0; c < kQkChunks; ++c) {
          const bool nope = c < kNopeChunks;
          ptx::cp_async_bulk_tensor_5d(smem.k(k.index) + c * kKChunk,
                                       nope ? &params.k_nope : &params.k_pe,
                                       (nope ? c : c - kNopeChunks) * 64, box.row,
                                       nope ? nope_head : pe_head, box.wrap, box.token, full);
        }
        k.advance();
        if (has_last_v) load_last_v();
        has_last_v = true;
        last_v = box;
        last_v.head = params.per_head.v ? tile.head : 0;
        last_v.searched = kCausal && i < tile.masked_blocks;
        key -= kBlockKv;
      }
    }
    if (has_last_v) load_last_v();
  }

  static __device__ __forceinline__ void load_q(const Sm90PrefillParams& params,
                                                const Shared& smem) {
    uint32_t parity = 1;
    uint32_t tile_parity = 0;
#pragma unroll 1
    while (true) {
      const Tile tile = take_tile(smem, tile_parity);
      if (tile.num_blocks == 0) return;
      const int end = tile.q_first + tile.q_len;
      const int first_row = kRaggedRows - tile.q_len + tile.q_begin;
      const int nope_head = params.per_head.q_nope ? tile.head : 0;
      const int pe_head = params.per_head.q_pe ? tile.head : 0;
      // Calls copy(map, column, row, head, chunk) for the boxes of 64 rows.
      const auto each_chunk = [&](int row, const auto& copy) {
#pragma unroll
        for (int c = 0; c < kQkChunks; ++c) {
          const bool nope = c < kNopeChunks;
          copy(nope ? &params.q_nope : &params.q_pe, (nope ? c : c - kNopeChunks) * 64, row,
               nope ? nope_head : pe_head, c);
        }
      };
      // Into L2 while the tile before is being computed.
#pragma unroll 1
      for (int group = 0; group < 2; ++group) {
        each_chunk(first_row + group * kGroupRows, [&](const TensorMap* map, int column, int row,
                                                       int head, int) {
          ptx::cp_async_bulk_prefetch_tensor_5d(map, column, row, head, kRaggedRows, end);
        });
      }
#pragma unroll 1
      for (uint32_t group = 0; group < 2; ++group) {
        ptx::mbarrier_try_wait_parity(smem.q_empty(group), parity);
        ptx::mbarrier_arrive_expect_tx(smem.q_full(group), kQBytes);
        each_chunk(first_row + static_cast<int>(group) * kGroupRows,
                   [&](const TensorMap* map, int column, int row, int head, int c) {
                     ptx::cp_async_bulk_tensor_5d(smem.q(group) + c * kGroupRows * kRow, map,
                                                  column, row, head, kRaggedRows, end,
                                                  smem.q_full(group));
                   });
      }
      parity ^= 1;
    }
  }

  // --- NaN in V ----------------------------------------------------------------------------------

  // 0 times NaN or infinity is NaN, so such an element of V would reach the rows of a tile that do
  // not see its key. V tiles that some row sees only in part go through the hands of warp 3: it
  // makes these elements 0 before the consumers multiply, and leaves word that there were some.
  static __device__ __forceinline__ void search_v(const Shared& smem) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    Stage v(0);
    uint32_t loaded_parities = 0;  // a bit for each stage
    uint32_t tile_parity = 0;
    uint32_t slot = 0;
#pragma unroll 1
    while (true) {
      ptx::mbarrier_try_wait_parity(smem.tile_full(), tile_parity);
      const Tile tile = read_tile(smem);
      __syncwarp();
      if (lane == 0) {
        ptx::mbarrier_arrive(smem.tile_empty());
        if (tile.num_blocks != 0) ptx::st_shared(smem.v_not_finite(slot), 0);
      }
      tile_parity ^= 1;
      if (tile.num_blocks == 0) return;
#pragma unroll 1
      for (int i = 0; i < tile.num_blocks; ++i) {
        if (i < tile.masked_blocks) {
          ptx::mbarrier_try_wait_parity(smem.v_loaded(v.index), loaded_parities >> v.index & 1);
          loaded_parities ^= 1u << v.index;
          const bool found = search_tile(smem.v(v.index) + static_cast<uint32_t>(lane) * 16);
          if (__any_sync(~0u, found)) {
            clear_tile(smem.v(v.index) + static_cast<uint32_t>(lane) * 16);
            if (lane == 0) ptx::st_shared(smem.v_not_finite(slot), 1);
            ptx::fence_proxy_async_shared();
          }
          __syncwarp();
          if (lane == 0) ptx::mbarrier_arrive(smem.v_full(v.index));
        }
        v.advance();
      }
      slot ^= 1;
    }
  }

  static constexpr uint32_t kExponent = traits.dtype == Dtype::kBf16 ? 0x7f80u : 0x7c00u;

  static __device__ __forceinline__ bool is_non_finite(uint32_t bits) {
    return (bits & kExponent) == kExponent;
  }

  // Every 32nd 16-byte unit from `address` on: 0 * x summed up is 0 unless some x is not finite.
  static __device__ __forceinline__ bool search_tile(uint32_t address) {
    uint32_t sums[4] = {};
#pragma unroll(policy.producer_registers >= 56 ? 8 : 2)
    for (uint32_t offset = 0; offset < kVBytes; offset += 512) {
      uint32_t words[4];
      ptx::ld_shared_v4(words, address + offset);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = traits.dtype == Dtype::kBf16 ? ptx::fma_rn_bf16x2(words[i], 0, sums[i])
                                               : ptx::fma_rn_f16x2(words[i], 0, sums[i]);
      }
    }
    return ((sums[0] | sums[1] | sums[2] | sums[3]) & 0x7fff7fffu) != 0;
  }

  static __device__ __forceinline__ void clear_tile(uint32_t address) {
#pragma unroll 1
    for (uint32_t offset = 0; offset < kVBytes; offset += 512) {
      uint32_t words[4];
      ptx::ld_shared_v4(words, address + offset);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_non_finite(words[i])) words[i] &= 0xffff0000u;
        if (is_non_finite(words[i] >> 16)) words[i] &= 0xffffu;
      }
      ptx::st_shared_v4(address + offset, words);
    }
  }

  // Adds the elements that warp 3 took out of a tile's V to the rows that see them. They are NaN or
  // infinite, so it doesn't matter that the sums are not complete yet.
  static __device__ __forceinline__ void add_non_finite(const PrefillParams& call, const Tile& tile,
                                                        int row, float (&o)[kO]) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int blocks = tile.masked_blocks < tile.num_blocks ? tile.masked_blocks : tile.num_blocks;
    const int begin = tile.key_end - blocks * kBlockKv;
    const int end = tile.key_end < tile.k_len ? tile.key_end : tile.k_len;
#pragma unroll 1
    for (int key = begin > 0 ? begin : 0; key < end; ++key) {
      const auto* v = static_cast<const unsigned short*>(call.v.data) +
                      (int64_t{tile.k_first} + key) * call.v.stride_token +
                      tile.head * call.v.stride_head + (lane & 3) * 2;
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(v + n * 8);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t bits = word >> (i * 16) & 0xffffu;
          if (!is_non_finite(bits)) continue;
          const bool nan = (bits & 0x7fffu) != kExponent;
          const float value =
              __uint_as_float((bits & 0x8000u) << 16 | (nan ? 0x7fc00000u : 0x7f800000u));
          if (key < tile.first_end() + row) o[4 * n + i] += value;
          if (key < tile.first_end() + row + 8) o[4 * n + 2 + i] += value;
        }
      }
    }
  }

  // --- Consumers ---------------------------------------------------------------------------------

  // Fragments: s[4 g + 2 h + e] and o[4 g + 2 h + e] are row lane / 4 + 8 h of the warp's 16 rows,
  // column 8 g + lane % 4 * 2 + e.

  // Issues S = Q K^T for the first kColumns keys of a block: kDimQk / 16 wgmma.
  template <int kColumns = kBlockKv>
  static __device__ __forceinline__ void issue_qk(float (&s)[kS], uint32_t q, uint32_t k) {
    // ptxas keeps the descriptors in uniform registers only if it sees that they are; without the
    // shuffle 50 instructions stand between the first and the second wgmma (measured: -15 %).
    const uint64_t a = ptx::wgmma_descriptor(q, 0);
    const uint64_t b = ptx::wgmma_descriptor(__shfl_sync(~0u, k, 0), 0);
#pragma unroll
    for (int c = 0; c < kQkChunks; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        ptx::wgmma_mma_async_ss<kColumns, traits.dtype>(reinterpret_cast<float(&)[kColumns / 2]>(s),
                                                        a + ((c * kGroupRows * kRow + j * 32) >> 4),
                                                        b + ((c * kKChunk + j * 32) >> 4),
                                                        (c | j) != 0);
      }
    }
  }

  // Issues O = P V, or O += P V with `accumulate`, for the first kColumns keys of a block:
  // kColumns / 16 wgmma.
  template <int kColumns = kBlockKv>
  static __device__ __forceinline__ void issue_pv(float (&o)[kO], const uint32_t (&p)[kP],
                                                  uint32_t v, int accumulate) {
    const uint64_t b = ptx::wgmma_descriptor(__shfl_sync(~0u, v, 0), kKChunk);
#pragma unroll
    for (int j = 0; j < kColumns / 16; ++j) {
      ptx::wgmma_mma_async_rs<kDimV, traits.dtype>(o, p[4 * j], p[4 * j + 1], p[4 * j + 2],
                                                   p[4 * j + 3], b + ((j * 16 * kRow) >> 4),
                                                   j != 0 ? 1 : accumulate);
    }
  }

  struct Softmax {
    float max[2];    // of the row so far, times scale_log2e, over all four lanes that share it
    float sum[2];    // of this lane's columns
    float alpha[2];  // what the step before is scaled with
  };

  // Columns of a block that a thread's two rows see, counted from the thread's first one.
  struct Visible {
    int begin;
    int end[2];
  };

  // Of columns [kFrom, kTo), those that are not visible become -inf.
  template <int kFrom, int kTo, bool kBegin>
  static __device__ __forceinline__ void mask(float (&s)[kS], const Visible& visible) {
#pragma unroll
    for (int g = kFrom / 8; g < kTo / 8; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = g * 8 + (i & 1);
        if (column >= visible.end[i >> 1] || (kBegin && column < visible.begin)) {
          s[4 * g + i] = -__int_as_float(0x7f800000);
        }
      }
    }
  }

  // The first kColumns columns of S to P in place.
  template <bool kFirst, int kColumns = kBlockKv>
  static __device__ __forceinline__ void softmax(float (&s)[kS], Softmax& state,
                                                 float scale_log2e) {
    const float minus_infinity = -__int_as_float(0x7f800000);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float part[4] = {s[2 * h], s[2 * h + 1], s[4 + 2 * h], s[5 + 2 * h]};
#pragma unroll
      for (int g = 2; g < kColumns / 8; g += 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          part[i] = fmaxf(part[i], s[4 * (g + i / 2) + 2 * h + i % 2]);
        }
      }
      float max = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
      max *= scale_log2e;
      if constexpr (!kFirst) max = fmaxf(max, state.max[h]);
      const float reference = max == minus_infinity ? 0.0f : max;
      // Exactly 1 where the maximum stays.
      state.alpha[h] = kFirst ? 1.0f : ptx::ex2_approx_ftz(state.max[h] - reference);
      state.max[h] = max;
      float sum[2] = {};
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * g + 2 * h + e];
          x = ptx::ex2_approx_ftz(x * scale_log2e - reference);
          sum[e] += x;
        }
      }
      state.sum[h] = kFirst ? sum[0] + sum[1] : state.sum[h] * state.alpha[h] + (sum[0] + sum[1]);
    }
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (traits.dtype == Dtype::kBf16) return ptx::cvt_rn_bf16x2_f32(low, high);
    return ptx::cvt_rn_f16x2_f32(low, high);
  }

  // The accumulator fragment of S is the A fragment of P. What is not computed is 0.
  template <int kColumns = kBlockKv>
  static __device__ __forceinline__ void pack_p(const float (&s)[kS], uint32_t (&p)[kP]) {
#pragma unroll
    for (int i = 0; i < kP; ++i) p[i] = i < kColumns / 4 ? pack(s[2 * i], s[2 * i + 1]) : 0;
  }

  static __device__ __forceinline__ void rescale(float (&o)[kO], const Softmax& state) {
#pragma unroll
    for (int i = 0; i < kO; ++i) o[i] *= state.alpha[i / 2 % 2];
  }

  static __device__ __forceinline__ void epilogue(const Sm90PrefillParams& params,
                                                  const Shared& smem, const float (&o)[kO],
                                                  const Softmax& state, const Tile& tile,
                                                  int warp_row) {
    const PrefillParams& call = params.call;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = state.sum[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[h] = sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz(sum);
      const int row = tile.q_begin + warp_row + lane / 4 + 8 * h;
      if (traits.return_lse && (lane & 3) == 0 && row < tile.q_len) {
        const float lse = sum == 0.0f
                              ? -__int_as_float(0x7f800000)
                              : (state.max[h] + ptx::lg2_approx_ftz(sum)) * 0.69314718055994530942f;
        static_cast<float*>(
            call.lse.data)[(int64_t{tile.q_first} + row) * call.lse.stride_token +
                           tile.head * call.lse.stride_head + tile.split * call.lse_stride_split] =
            lse;
      }
    }
    if constexpr (traits.out_dtype == Dtype::kE4m3) {
      const float quant = 1.0f / *call.output_scale;
      inverse[0] *= quant;
      inverse[1] *= quant;
    }
    char* const rows =
        static_cast<char*>(call.out.data) +
        dtype_bytes(traits.out_dtype) *
            ((int64_t{tile.q_first} + tile.q_begin + warp_row) * call.out.stride_token +
             tile.head * call.out.stride_head + tile.split * call.out_stride_split);
    const int64_t row_bytes = dtype_bytes(traits.out_dtype) * call.out.stride_token;
    const int num_rows = tile.q_len - tile.q_begin - warp_row;  // of the warp's 16, maybe more
    if constexpr (traits.out_dtype == Dtype::kFp32) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (lane / 4 + 8 * h >= num_rows) continue;
        char* const row = rows + (lane / 4 + 8 * h) * row_bytes + (lane & 3) * 8;
#pragma unroll
        for (int g = 0; g < kDimV / 8; ++g) {
          *reinterpret_cast<float2*>(row + g * 32) =
              make_float2(o[4 * g + 2 * h] * inverse[h], o[4 * g + 2 * h + 1] * inverse[h]);
        }
      }
    } else if constexpr (traits.out_dtype == Dtype::kE4m3) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        char* const row = rows + (lane / 4 + 8 * h) * row_bytes + (lane & 3) * 8;
#pragma unroll
        for (int g = 0; g < kDimV / 8; g += 4) {
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            words[i] = ptx::cvt_rn_satfinite_e4m3x2_f32(o[4 * (g + i) + 2 * h] * inverse[h],
                                                        o[4 * (g + i) + 2 * h + 1] * inverse[h]);
          }
          transpose_quad(words, lane);
          if (lane / 4 + 8 * h < num_rows) {
            *reinterpret_cast<uint2*>(row + g * 8) =
                make_uint2(words[0] | words[1] << 16, words[2] | words[3] << 16);
          }
        }
      }
    } else if constexpr (policy.staged_output) {
      store_staged(smem.out((threadIdx.x - 128) / 32), o, inverse, rows, row_bytes, num_rows, lane);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        char* const row = rows + (lane / 4 + 8 * h) * row_bytes + (lane & 3) * 16;
#pragma unroll
        for (int g = 0; g < kDimV / 8; g += 4) {
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            words[i] =
                pack(o[4 * (g + i) + 2 * h] * inverse[h], o[4 * (g + i) + 2 * h + 1] * inverse[h]);
          }
          transpose_quad(words, lane);
          if (lane / 4 + 8 * h < num_rows) {
            *reinterpret_cast<uint4*>(row + g * 16) =
                make_uint4(words[0], words[1], words[2], words[3]);
          }
        }
      }
    }
  }

  // Word i of lane q of four lanes becomes word q of lane i: a thread then has neighbouring
  // columns.
  static __device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
    const bool odd = lane & 1;
    const bool high = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t other = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
      (odd ? w[i] : w[i + 1]) = other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
      (high ? w[i] : w[i + 2]) = other;
    }
  }

  // 16 rows, 64 columns at a time, through the warp's own 2 KB: rows leave in pieces of 16 bytes.
  static __device__ __forceinline__ void store_staged(uint32_t smem, const float (&o)[kO],
                                                      const float (&inverse)[2], char* rows,
                                                      int64_t row_bytes, int num_rows, int lane) {
    const uint32_t write_row = smem + static_cast<uint32_t>(lane & 15) * kRow;
    const uint32_t read_row = smem + static_cast<uint32_t>(lane >> 3) * kRow;
    char* const out = rows + (lane >> 3) * row_bytes + (lane & 7) * 16;
#pragma unroll
    for (int c = 0; c < kVChunks; ++c) {
      __syncwarp();  // what was read before may be overwritten
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int g = c * 8 + i * 2;
        const uint32_t words[4] = {pack(o[4 * g] * inverse[0], o[4 * g + 1] * inverse[0]),
                                   pack(o[4 * g + 2] * inverse[1], o[4 * g + 3] * inverse[1]),
                                   pack(o[4 * g + 4] * inverse[0], o[4 * g + 5] * inverse[0]),
                                   pack(o[4 * g + 6] * inverse[1], o[4 * g + 7] * inverse[1])};
        ptx::stmatrix_x4(write_row + static_cast<uint32_t>((i * 2 + (lane >> 4)) ^ (lane & 7)) * 16,
                         words);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = (lane >> 3) + 4 * i;
        uint32_t words[4];
        ptx::ld_shared_v4(words, read_row + static_cast<uint32_t>(i * 4) * kRow +
                                     static_cast<uint32_t>((lane & 7) ^ (row & 7)) * 16);
        if (row < num_rows) {
          *reinterpret_cast<uint4*>(out + i * 4 * row_bytes + c * 128) =
              make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }

  template <int kGroup>
  static __device__ __forceinline__ void consume(const Sm90PrefillParams& params,
                                                 const Shared& smem) {
    // Columns of a tile's first block that these 64 rows see.
    constexpr int kFirstColumns = kTrimmed && kGroup == 0 ? kBlockKv - kGroupRows : kBlockKv;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32) & 3, 0);
    const bool elected = lane == 0;
    const int warp_row = kGroup * kGroupRows + warp * 16;
    const int thread_row = warp_row + lane / 4;
    const float scale_log2e = fmaxf(params.call.softmax_scale * 1.44269504088896340736f, 0x1p-126f);
    float s[kS], o[kO];
    uint32_t p[kP];
    Softmax state;
    Stage k(0), v(0);
    uint32_t q_parity = 0;
    uint32_t tile_parity = 0;
    uint32_t tile_slot = 0;

    const auto wait_k = [&] { ptx::mbarrier_try_wait_parity(smem.k_full(k.index), k.parity); };
    const auto wait_v = [&] { ptx::mbarrier_try_wait_parity(smem.v_full(v.index), v.parity); };
    const auto wait_q = [&] {
      ptx::mbarrier_try_wait_parity(smem.q_full(kGroup), q_parity);
      q_parity ^= 1;
    };
    const auto release_k = [&] {
      if (elected) ptx::mbarrier_arrive(smem.k_empty(k.index));
      k.advance();
    };
    const auto release_v = [&] {
      if (elected) ptx::mbarrier_arrive(smem.v_empty(v.index));
      v.advance();
    };
    const auto release_q = [&] {
      if (elected) ptx::mbarrier_arrive(smem.q_empty(kGroup));
    };
    const auto wait_turn = [&] { ptx::barrier_cta_sync(1 + kGroup, 256); };
    const auto pass_turn = [&] { ptx::barrier_cta_arrive(2 - kGroup, 256); };
    const auto next_tile = [&] {
      ptx::mbarrier_try_wait_parity(smem.tile_full(), tile_parity);
      Tile tile = read_tile(smem);
      // The same in all lanes, and known to be: uniform registers and branches.
      for (int* field :
           {&tile.q_first, &tile.q_len, &tile.k_first, &tile.k_len, &tile.q_begin, &tile.head,
            &tile.key_end, &tile.num_blocks, &tile.masked_blocks, &tile.last_masked, &tile.split}) {
        *field = __shfl_sync(~0u, *field, 0);
      }
      return tile;
    };
    const auto release_tile = [&] {
      if (elected) ptx::mbarrier_arrive(smem.tile_empty());
      tile_parity ^= 1;
    };
    // Of the block that begins with `key`.
    const auto visible = [&](const Tile& tile, int key) {
      const int first = key + (lane & 3) * 2;
      Visible result;
      result.begin = -first;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        result.end[h] = tile.first_end() + (kCausal ? thread_row + 8 * h : 0) - first;
      }
      return result;
    };

    if (kGroup == 1) ptx::barrier_cta_arrive(1, 256);
    Tile tile = next_tile();
    release_tile();
    if (tile.num_blocks == 0) return;
    wait_q();
    wait_k();
    ptx::wgmma_fence();
    issue_qk<kFirstColumns>(s, smem.q(kGroup), smem.k(k.index));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    release_k();
    if (tile.num_blocks == 1) release_q();

    int accumulate = 0;  // whether O holds anything
    while (true) {
      // S of the first block is there.
      int key = tile.key_end - kBlockKv;
      int left = tile.num_blocks - 1;
      accumulate = 0;
      if constexpr (kTrimmed) {
        if (kGroup == 0) {
          mask<0, kFirstColumns, false>(s, visible(tile, key));
        } else {
          // Rows 64 and on see all but the last 64 keys of a block that ends where the tile does.
          constexpr int kSeen = kBlockKv - kGroupRows;
          if (tile.first_end() - 1 + kBlockQ < tile.key_end)
            mask<0, kSeen, false>(s, visible(tile, key));
          mask<kSeen, kBlockKv, false>(s, visible(tile, key));
        }
      } else if (tile.masked_blocks > 0 || (tile.last_masked && left == 0)) {
        mask<0, kBlockKv, kCausal>(s, visible(tile, key));
      }
      softmax<true, kFirstColumns>(s, state, scale_log2e);
      pack_p<kFirstColumns>(s, p);

      // One more block: kPvColumns are those of the block before that have a P.
      const auto step = [&]<int kPvColumns, bool kMasked>() {
        key -= kBlockKv;
        wait_k();
        wait_turn();
        ptx::wgmma_fence();
        issue_qk(s, smem.q(kGroup), smem.k(k.index));
        ptx::wgmma_commit_group();
        wait_v();
        ptx::wgmma_fence();
        issue_pv<kPvColumns>(o, p, smem.v(v.index), accumulate);
        ptx::wgmma_commit_group();
        pass_turn();
        accumulate = 1;
        ptx::wgmma_wait_group<1>();
        release_k();
        if (left == 1) release_q();
        if constexpr (kMasked) mask<0, kBlockKv, kCausal>(s, visible(tile, key));
        softmax<false>(s, state, scale_log2e);
        ptx::wgmma_wait_group<0>();
        release_v();
        pack_p(s, p);
        rescale(o, state);
        --left;
      };
      // Loops of their own: with a branch in one, ptxas moves the exponentials before the wait for
      // O.
      if constexpr (kTrimmed && kGroup == 0) {
        if constexpr (kDiagonal > 1) {
          if (left > 0) step.template operator()<kFirstColumns, true>();
        } else {
          if (left > tile.last_masked) step.template operator()<kFirstColumns, false>();
        }
      } else if constexpr (kCausal && !kTrimmed && kDiagonal > 1) {
        if (left > 0 && tile.masked_blocks > 1) step.template operator()<kBlockKv, true>();
      }
#pragma unroll 1
      while (left > tile.last_masked) step.template operator()<kBlockKv, false>();
      if constexpr (kCausal) {
        if (left > 0) step.template operator()<kBlockKv, true>();
      }

      const Tile next = next_tile();
      wait_v();
      if (kCausal && ptx::ld_shared(smem.v_not_finite(tile_slot)) != 0) {
        if (accumulate == 0) {
#pragma unroll
          for (int i = 0; i < kO; ++i) o[i] = 0.0f;
        }
        accumulate = 1;
        add_non_finite(params.call, tile, thread_row, o);
      }
      tile_slot ^= 1;
      release_tile();
      // Decided before the last PV: a branch between it and the next QK makes ptxas serialise both.
      if (next.num_blocks == 0) break;
      wait_turn();
      ptx::wgmma_fence();
      issue_pv(o, p, smem.v(v.index), accumulate);
      ptx::wgmma_commit_group();
      wait_q();
      wait_k();
      ptx::wgmma_fence();
      issue_qk<kFirstColumns>(s, smem.q(kGroup), smem.k(k.index));
      ptx::wgmma_commit_group();
      pass_turn();
      ptx::wgmma_wait_group<1>();
      release_v();
      epilogue(params, smem, o, state, tile, warp_row);
      ptx::wgmma_wait_group<0>();
      release_k();
      if (next.num_blocks == 1) release_q();
      tile = next;
    }
    ptx::wgmma_fence();
    issue_pv(o, p, smem.v(v.index), accumulate);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    epilogue(params, smem, o, state, tile, warp_row);
  }

  static __device__ __forceinline__ void run(const Sm90PrefillParams& params, uint32_t base) {
    const Shared smem{base};
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32) & 3, 0);
    if (threadIdx.x == 0) {
      ptx::prefetch_tensormap(&params.q_nope);
      ptx::prefetch_tensormap(&params.k_nope);
      ptx::prefetch_tensormap(&params.v);
      if constexpr (traits.dims.rope != 0) {
        ptx::prefetch_tensormap(&params.q_pe);
        ptx::prefetch_tensormap(&params.k_pe);
      }
      for (uint32_t i = 0; i < 2; ++i) {
        ptx::mbarrier_init(smem.k_full(i), 1);
        ptx::mbarrier_init(smem.v_full(i), 1);
        ptx::mbarrier_init(smem.q_full(i), 1);
        ptx::mbarrier_init(smem.k_empty(i), 8);
        ptx::mbarrier_init(smem.v_empty(i), 8);
        ptx::mbarrier_init(smem.q_empty(i), 4);
        ptx::mbarrier_init(smem.v_loaded(i), 1);
      }
      ptx::mbarrier_init(smem.tile_full(), 1);
      ptx::mbarrier_init(smem.tile_empty(), kTileReaders);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (warpgroup == 0) {
      ptx::setmaxnreg_dec<policy.producer_registers>();
      if (warp == 0) {
        if (threadIdx.x == 0) load_k_v(params, smem);
      } else if (warp == 1) {
        if (threadIdx.x == 32) load_q(params, smem);
      } else if (warp == 2) {
        schedule(params, smem);
      } else if (kCausal) {
        search_v(smem);
      }
    } else {
      ptx::setmaxnreg_inc<policy.consumer_registers>();
      if (warpgroup == 1) {
        consume<0>(params, smem);
      } else {
        consume<1>(params, smem);
      }
    }
  }
};

template <PrefillTraits traits, Sm90PrefillPolicy policy>
__device__ __forceinline__ void sm90_mla_prefill(const Sm90PrefillParams& params) {
  extern __shared__ __align__(1024) char shared_memory[];
  Sm90MlaPrefill<traits, policy>::run(
      params, static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
}

}  // namespace flashprime
