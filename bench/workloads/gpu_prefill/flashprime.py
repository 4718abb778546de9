# SPDX-License-Identifier: Apache-2.0
"""Contenders: flashprime_prefill() with each GPU kernel, on torch's current stream."""

import ctypes

import torch

from harness import library

from .cells import NUM_HEADS

KERNELS = ("sm80_mla_prefill",)


def contenders(lib, cell, data):
    """name -> (callable, function returning [tokens, heads, v])."""
    return {f"flashprime {name}": _contender(lib, cell, data, name) for name in KERNELS}


def _contender(lib, cell, data, kernel):
    nope, rope, v = cell.dims
    out = torch.full(
        (cell.batch * cell.new, NUM_HEADS, v), float("nan"), dtype=torch.bfloat16, device="cuda"
    )
    problem = library.Problem(
        struct_size=ctypes.sizeof(library.Problem),
        nope=nope,
        rope=rope,
        v=v,
        num_heads=NUM_HEADS,
        mask=library.MASK_CAUSAL if cell.causal else library.MASK_FULL,
        window_left=-1,
        window_right=-1,
    )
    args = library.PrefillArgs(
        struct_size=ctypes.sizeof(library.PrefillArgs),
        max_seqlen_q=-1,
        max_seqlen_k=-1,
        softmax_scale=data["softmax_scale"],
        out=library.view(out, library.BF16),
    )
    for name in ("q", "k", "v"):
        setattr(args, name, library.view(data[name], library.BF16))
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        setattr(args, name, library.view(data[name], library.INT32))
    options = library.Options(
        struct_size=ctypes.sizeof(library.Options),
        device=library.DEVICE_AUTO,
        kernel=kernel.encode(),
    )
    size = lib.workspace_bytes(problem, args, options)
    workspace = torch.full((max(size, 1),), 255, dtype=torch.uint8, device="cuda")
    args.workspace = workspace.data_ptr()
    args.workspace_bytes = size
    keep = (workspace,)  # args does not own it

    def run(_keep=keep):
        lib.prefill(problem, args, options, torch.cuda.current_stream().cuda_stream)

    return run, lambda: out
