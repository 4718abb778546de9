# SPDX-License-Identifier: Apache-2.0
"""torch's own routes for fixed lengths: its cuDNN backend, and its FLASH backend (FlashAttention-2),
which wants V padded to the width of q. Padding and packing V are not timed."""

import torch
from torch.nn.functional import pad

from .contender import Absent, Contender

NAMES = ("torch_cudnn", "torch_fa2")


def make(name, cell, data, setup):
    if not cell.uniform:
        raise Absent("lengths differ")
    if cell.causal and cell.new != cell.keys:
        raise Absent("torch aligns is_causal at the top left")
    padding = cell.d_qk - cell.d_v if name == "torch_fa2" else 0

    def batched(tensor):  # [batch, heads, tokens, dim]
        return tensor.unflatten(0, (cell.batch, -1)).transpose(1, 2)

    q, k = batched(data.q), batched(data.k)
    v = batched(pad(data.v, (0, padding)) if padding else data.v.contiguous())
    options = {"is_causal": cell.causal, "scale": data.softmax_scale}
    result = [None, None]

    def run():
        if name == "torch_cudnn":
            route = torch.ops.aten._scaled_dot_product_cudnn_attention
            result[:] = route(q, k, v, None, True, **options)[:2]
        else:
            route = torch.ops.aten._scaled_dot_product_flash_attention
            result[:] = route(q, k, v, **options)[:2]

    def out():
        return result[0].transpose(1, 2).flatten(0, 1)[..., : cell.d_v]

    def lse():  # from [batch, heads, tokens] or [batch, heads, tokens, 1]
        return result[1].reshape(cell.batch, cell.heads, -1).transpose(0, 1).flatten(1)

    return Contender(run, out, lse, lambda: tuple(result), f"torch {torch.__version__}")
