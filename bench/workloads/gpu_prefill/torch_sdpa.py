# SPDX-License-Identifier: Apache-2.0
"""Contenders: torch's FLASH backend (FlashAttention-2, V padded to the query width) and cuDNN.

Inputs are given in [batch, heads, tokens, dim] as torch wants them; no conversion is timed. Where
lengths of queries and keys differ the mask is full, since torch aligns is_causal at the top left.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention


def contenders(cell, data):
    """name -> (callable, function returning [tokens, heads, v])."""
    d_qk, d_v = data["q"].shape[-1], data["v"].shape[-1]
    routes = {}
    for name, backend, padding in (
        ("torch FLASH (FA2, V padded)", SDPBackend.FLASH_ATTENTION, d_qk - d_v),
        ("torch cuDNN", SDPBackend.CUDNN_ATTENTION, 0),
    ):
        route = _route(cell, data, backend, padding)
        try:
            route[0]()
        except RuntimeError as error:
            print(f"{cell.dims_name} {cell.name} {name}: {str(error).splitlines()[0]}")
            continue
        routes[name] = route
    return routes


def _route(cell, data, backend, padding):
    def split(tensor, length):
        return tensor.view(cell.batch, length, *tensor.shape[1:]).transpose(1, 2)

    q, k = split(data["q"], cell.new), split(data["k"], cell.keys)
    v = split(pad(data["v"], (0, padding)) if padding else data["v"], cell.keys)
    result = [None]

    def run():
        with sdpa_kernel(backend):
            result[0] = scaled_dot_product_attention(
                q, k, v, is_causal=cell.causal, scale=data["softmax_scale"]
            )

    def out():
        joined = result[0].transpose(1, 2).reshape(cell.batch * cell.new, q.shape[1], -1)
        return joined[..., : joined.shape[-1] - padding]

    return run, out
