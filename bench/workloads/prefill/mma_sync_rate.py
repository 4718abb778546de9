# SPDX-License-Identifier: Apache-2.0
"""What mma.sync reaches at best when ldmatrix feeds it from shared memory: the yardstick of
sm80_mla_prefill. Sixteen warps a multiprocessor with 32 rows each, as the kernel's warps have, or eight
with 64; 64 columns each; operands stay in shared memory, nothing else is done."""

import pathlib

import cupy
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEPS = 4096

SOURCE = r"""
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma_sync.cuh"
#include "kernels/tile/swizzled_tile.cuh"
using namespace flashprime;
constexpr int kRowTiles = ROWS / 16;
extern "C" __global__ void __launch_bounds__(128, BLOCKS) mma_sync_rate(const uint4* in, float* out,
                                                                   int steps) {
  using Tile = SwizzledTile<64>;
  __shared__ __align__(128) uint4 operands[2 * 128 * 8];
  for (int i = threadIdx.x; i < 2 * 128 * 8; i += 128) operands[i] = in[i];
  __syncthreads();
  const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(operands));
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Tile::LaneOffsets a_smem(smem + (warp / 2) * ROWS * 128, lane & 15, lane >> 4);
  const Tile::LaneOffsets b_smem(smem + 128 * 128 + (warp % 2) * 64 * 128,
                                 (lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
  float d[kRowTiles][8][4] = {};
  for (int step = 0; step < steps; step += 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[kRowTiles][4], b[4][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) ptx::ldmatrix_x4(a[i], a_smem.square(i, k));
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::ldmatrix_x4(b[i], b_smem.square(i, k));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          ptx::mma_sync_m16n8k16_f32_bf16(d[m][n], a[m], b[n / 2][n % 2 * 2],
                                          b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
  }
  float sum = 0;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 8; ++n) sum += d[m][n][0] + d[m][n][1] + d[m][n][2] + d[m][n][3];
  }
  out[blockIdx.x * 128 + threadIdx.x] = sum;
}
"""


def contender(rows):
    """A callable on torch's current stream, and the FLOP that it does, with 32 or 64 rows a warp."""
    blocks_per_sm = 128 // rows
    kernel = cupy.RawKernel(
        SOURCE,
        "mma_sync_rate",
        options=("-std=c++20", f"-I{ROOT}", f"-I{ROOT}/include", "-default-device")
        + (f"-DROWS={rows}", f"-DBLOCKS={blocks_per_sm}"),
        backend="nvrtc",
    )
    blocks = blocks_per_sm * torch.cuda.get_device_properties(0).multi_processor_count
    operands = torch.randn(2 * 128 * 64, device="cuda").bfloat16()
    out = torch.empty(blocks * 128, device="cuda")

    def run():
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((blocks,), (128,), (operands.data_ptr(), out.data_ptr(), STEPS))

    return run, 2 * rows * 64 * 16 * STEPS * 4 * blocks
