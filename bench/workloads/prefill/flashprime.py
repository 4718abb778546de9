# SPDX-License-Identifier: Apache-2.0
"""flashprime_prefill(). K in two parts, as it lies after the up-projection, or joined as the peers
need it. flashprime_fp32 shows what the rounding of the output hides. name@LABEL is the same with
another build of the library."""

import ctypes

import torch

from harness import library

from .contender import Absent, Contender

# The kernel is the selector's choice, or the portable one.
NAMES = {
    "flashprime": ("", "split"),
    "flashprime_joined": ("", "joined"),
    "flashprime_sm80": ("sm80_mla_prefill", "split"),
    "flashprime_fp32": ("", "split"),
}


def make(name, cell, data, setup):
    base, _, label = name.partition("@")
    kernel, k = NAMES[base]
    if label not in setup.libraries:
        raise Absent(f"no library is labelled {label}" if label else "no --library was given")
    lib = setup.libraries[label]
    fp32 = base == "flashprime_fp32"
    out = data.empty_out(cell, torch.float32 if fp32 else torch.bfloat16)
    lse = data.empty_lse(cell)
    out_dtype = library.FP32 if fp32 else library.BF16
    nope, rope, v = cell.dims
    problem = library.Problem(
        struct_size=ctypes.sizeof(library.Problem),
        nope=nope,
        rope=rope,
        v=v,
        num_heads=cell.heads,
        out_dtype=out_dtype,
        mask=library.MASK_CAUSAL if cell.causal else library.MASK_FULL,
        return_lse=1,
        window_left=-1,
        window_right=-1,
    )
    args = library.PrefillArgs(
        struct_size=ctypes.sizeof(library.PrefillArgs),
        max_seqlen_q=data.max_q,
        max_seqlen_k=data.max_k,
        softmax_scale=data.softmax_scale,
        out=library.view(out, out_dtype),
        lse=library.view(lse, library.FP32),
    )
    for part in ("q", "v", "k") if k == "joined" else ("q", "v", "k_nope", "k_pe"):
        setattr(args, part, library.view(getattr(data, part), library.BF16))
    for part in ("cu_seqlens_q", "cu_seqlens_k"):
        setattr(args, part, library.view(getattr(data, part), library.INT32))
    options = library.Options(
        struct_size=ctypes.sizeof(library.Options),
        device=library.DEVICE_AUTO,
        kernel=kernel.encode(),
    )
    try:
        chosen = lib.explain(problem, options).splitlines()[0]
        size = lib.workspace_bytes(problem, args, options)
    except RuntimeError as error:
        raise Absent(str(error)) from error
    workspace = torch.full((max(size, 1),), 255, dtype=torch.uint8, device=out.device)
    args.workspace = workspace.data_ptr()
    args.workspace_bytes = size
    keep = (workspace, data, out, lse)  # args does not own them

    def run(_keep=keep):
        lib.prefill(problem, args, options, torch.cuda.current_stream().cuda_stream)

    return Contender(run, lambda: out, lambda: lse, lambda: (out, lse), chosen, k)
