# SPDX-License-Identifier: Apache-2.0
"""Contender: flashprime_prefill() on one ragged batch."""

import ctypes

import torch

from harness import library

from .cells import NUM_HEADS


def contenders(lib, cell, data, num_threads):
    """name -> (callable, function returning [tokens, heads, v])."""
    nope, rope, v = cell.dims
    out = torch.full((cell.batch * cell.new, NUM_HEADS, v), float("nan"), dtype=torch.bfloat16)
    cu_seqlens_q = torch.arange(cell.batch + 1, dtype=torch.int32) * cell.new
    cu_seqlens_k = torch.arange(cell.batch + 1, dtype=torch.int32) * cell.keys

    problem = library.Problem(
        struct_size=ctypes.sizeof(library.Problem),
        nope=nope,
        rope=rope,
        v=v,
        num_heads=NUM_HEADS,
        mask=library.MASK_CAUSAL,
        window_left=-1,
        window_right=-1,
    )
    bf16 = library.BF16
    args = library.PrefillArgs(
        struct_size=ctypes.sizeof(library.PrefillArgs),
        max_seqlen_q=-1,
        max_seqlen_k=-1,
        softmax_scale=data["softmax_scale"],
        q=library.view(data["q"], bf16),
        k=library.view(data["k"], bf16),
        v=library.view(data["v"], bf16),
        cu_seqlens_q=library.view(cu_seqlens_q, library.INT32),
        cu_seqlens_k=library.view(cu_seqlens_k, library.INT32),
        out=library.view(out, bf16),
    )
    options = library.Options(
        struct_size=ctypes.sizeof(library.Options),
        device=library.DEVICE_CPU,
        num_threads=num_threads,
    )
    keep = (cu_seqlens_q, cu_seqlens_k)  # the views do not own them

    def run(_keep=keep):
        lib.prefill(problem, args, options)

    return {"flashprime": (run, lambda: out)}
