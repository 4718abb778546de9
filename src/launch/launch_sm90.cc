// SPDX-License-Identifier: Apache-2.0
#include "launch/launch_sm90.h"

#include <algorithm>
#include <atomic>
#include <random>

#include "checks.h"
#include "kernels/shared/sm90_prefill_params.h"
#include "launch/launch.h"
#include "numerics/checked.h"

namespace flashprime {
namespace {

constexpr int32_t kBlockQ = 128;
constexpr int64_t kSchedulerBytes = 256;
constexpr int64_t kMaxTiles = INT32_MAX / 2;
constexpr uint64_t kWrapBytes = uint64_t{1} << 34;  // see kRaggedRows: 2^30 of them are 2^64

struct MapExtents {
  int32_t columns;
  int64_t heads;
  int64_t tokens;
  int32_t box_rows;
  Dtype dtype;
};

// A tensor of rows as sm90_prefill_params.h describes it.
Status encode(const cuda::Driver& driver, const char* name, const RowTensor& tensor,
              const MapExtents& extents, TensorMap* map) {
  const auto row_bytes = static_cast<uint64_t>(2 * tensor.stride_token);
  FLASHPRIME_REQUIRE(row_bytes < kWrapBytes, StatusCode::kStride, name, ": got rows ", row_bytes,
                     " bytes apart, wanted less than 2^34, which sm90_mla_prefill wants");
  // Strides of axes of one element are 0 here, which the driver does not take.
  const uint64_t row = row_bytes == 0 ? 128 : row_bytes;
  const uint64_t head =
      tensor.stride_head == 0 ? 128 : static_cast<uint64_t>(2 * tensor.stride_head);
  const unsigned long long sizes[] = {static_cast<unsigned>(extents.columns), kRaggedRows,
                                      static_cast<unsigned long long>(extents.heads), INT32_MAX,
                                      static_cast<unsigned long long>(extents.tokens) + 1};
  const unsigned long long strides[] = {row, head, kWrapBytes - row, row};
  const unsigned int box[] = {64, static_cast<unsigned>(extents.box_rows), 1, 1, 1};
  const unsigned int element_strides[] = {1, 1, 1, 1, 1};
  return driver.check(
      driver.api().cuTensorMapEncodeTiled(
          map, extents.dtype == Dtype::kBf16 ? cuda::kTensorMapBf16 : cuda::kTensorMapFp16, 5,
          const_cast<void*>(tensor.data), sizes, strides, box, element_strides, 0,
          cuda::kTensorMapSwizzle128B, cuda::kTensorMapL2Promotion256B, 0),
      "cuTensorMapEncodeTiled");
}

// Differs from call to call, also between processes that hand a workspace on; never 0.
uint64_t next_nonce() {
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  const uint64_t nonce = next.fetch_add(1, std::memory_order_relaxed);
  return nonce != 0 ? nonce : next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

StatusOr<int64_t> sm90_max_tiles(const PrefillParams& params) {
  FLASHPRIME_REQUIRE(params.total_q < kRaggedRows && params.total_k < kRaggedRows,
                     StatusCode::kRange, "q, k: got ", params.total_q, " and ", params.total_k,
                     " rows, wanted less than 2^30, which sm90_mla_prefill takes");
  int64_t tiles = params.total_q / kBlockQ + params.batch;
  FLASHPRIME_REQUIRE(checked_mul(tiles, params.num_heads, &tiles) &&
                         checked_mul(tiles, params.num_splits, &tiles) && tiles <= kMaxTiles,
                     StatusCode::kRange, "problem: has more than ", kMaxTiles,
                     " tiles of 128 queries, what sm90_mla_prefill can count");
  return tiles;
}

int64_t sm90_scheduler_bytes(int64_t max_tiles, const GpuDevice& device) {
  return max_tiles <= device.properties.num_sms ? 0 : kSchedulerBytes;
}

Status launch_sm90(const GpuDevice& device, const LoadedKernel& kernel, const PrefillParams& params,
                   void* scheduler, StreamHandle stream) {
  const StatusOr<int64_t> tiles = sm90_max_tiles(params);
  FLASHPRIME_RETURN_IF_ERROR(tiles.status());
  const auto& key = std::get<Sm90MlaPrefillKernel>(kernel.key.kernel);
  const HeadDims& dims = key.traits.dims;
  Sm90PrefillParams sm90;
  sm90.call = params;
  sm90.scheduler = static_cast<TileScheduler*>(scheduler);
  sm90.nonce = next_nonce();
  const auto encode_rows = [&](const char* name, RowTensor tensor, int32_t columns, int64_t tokens,
                               int32_t box_rows, TensorMap* map, bool* per_head) {
    // A tensor without rows may be null. Its map is never read from, but has to be valid.
    if (tokens == 0) tensor.data = params.q_nope.data;
    *per_head = tensor.stride_head != 0;
    const MapExtents extents{columns, *per_head ? params.num_heads : 1, tokens, box_rows,
                             key.traits.dtype};
    return encode(*device.driver, name, tensor, extents, map);
  };
  const auto encode_q = [&](const char* name, const RowTensor& tensor, int32_t columns,
                            TensorMap* map, bool* per_head) {
    return encode_rows(name, tensor, columns, params.total_q, kBlockQ / 2, map, per_head);
  };
  const auto encode_kv = [&](const char* name, const RowTensor& tensor, int32_t columns,
                             TensorMap* map, bool* per_head) {
    return encode_rows(name, tensor, columns, params.total_k, key.policy.block_kv, map, per_head);
  };
  PerHead& per_head = sm90.per_head;
  FLASHPRIME_RETURN_IF_ERROR(
      encode_q("q_nope", params.q_nope, dims.nope, &sm90.q_nope, &per_head.q_nope));
  FLASHPRIME_RETURN_IF_ERROR(
      encode_kv("k_nope", params.k_nope, dims.nope, &sm90.k_nope, &per_head.k_nope));
  FLASHPRIME_RETURN_IF_ERROR(encode_kv("v", params.v, dims.v, &sm90.v, &per_head.v));
  if (dims.rope != 0) {
    FLASHPRIME_RETURN_IF_ERROR(
        encode_q("q_pe", params.q_pe, dims.rope, &sm90.q_pe, &per_head.q_pe));
    FLASHPRIME_RETURN_IF_ERROR(
        encode_kv("k_pe", params.k_pe, dims.rope, &sm90.k_pe, &per_head.k_pe));
  }
  // K and V of the heads that run at the same time are read again and again: two thirds of L2.
  const int64_t bytes_per_key =
      2 * (dims.nope * per_head.k_nope + dims.rope * per_head.k_pe + dims.v * per_head.v);
  sm90.section_keys = static_cast<int32_t>(std::min<int64_t>(
      device.properties.l2_bytes * 2 / 3 / std::max<int64_t>(bytes_per_key, 1), INT32_MAX));
  const int64_t grid = std::min<int64_t>(*tiles, device.properties.num_sms);
  return launch_kernel(device, kernel, grid, 1, &sm90, stream);
}

}  // namespace flashprime
