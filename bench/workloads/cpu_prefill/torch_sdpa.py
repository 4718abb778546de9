# SPDX-License-Identifier: Apache-2.0
"""Contenders: every route that torch's scaled_dot_product_attention offers for this on a CPU.

bf16 and fp32, plain and with V padded to the query width (torch's flash kernel wants one width),
each sequence on its own. Inputs are given in [heads, tokens, dim], which is torch's own layout, and
already in the route's dtype: neither conversion is timed.
"""

import torch
from torch.nn.functional import pad, scaled_dot_product_attention


def contenders(cell, data):
    """name -> (callable, function returning [tokens, heads, v])."""
    d_qk, d_v = data["q"].shape[-1], data["v"].shape[-1]
    routes = {}
    for dtype in (torch.bfloat16, torch.float32):
        for padded in (False, True) if d_v < d_qk else (False,):
            name = f"torch {'bf16' if dtype == torch.bfloat16 else 'fp32'}"
            name += " padded" if padded else ""
            routes[name] = _route(cell, data, dtype, d_qk - d_v if padded else 0)
    return routes


def _route(cell, data, dtype, padding):
    def split(tensor, length):
        return [
            part.transpose(0, 1).contiguous().to(dtype).unsqueeze(0)
            for part in tensor.split(length)
        ]

    q, k = split(data["q"], cell.new), split(data["k"], cell.keys)
    v = split(pad(data["v"], (0, padding)), cell.keys)
    # torch aligns is_causal at the top left; a mask says what is meant where that differs.
    mask = None
    if cell.new != cell.keys:
        mask = torch.ones(cell.new, cell.keys, dtype=torch.bool).tril(cell.keys - cell.new)
    out = [None] * cell.batch

    def run():
        for i in range(cell.batch):
            out[i] = scaled_dot_product_attention(
                q[i],
                k[i],
                v[i],
                attn_mask=mask,
                is_causal=mask is None,
                scale=data["softmax_scale"],
            )

    def result():
        joined = torch.cat([part[0].transpose(0, 1) for part in out])
        return joined[..., : joined.shape[-1] - padding]

    return run, result
