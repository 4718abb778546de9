# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4 (package flash-attn-4), with cu_seqlens."""

import functools
import importlib.metadata

from .contender import Absent, Contender

NAMES = ("fa4",)


@functools.cache
def _forward():
    """Below flash_attn_varlen_func, which has no way to name an output."""
    try:
        from flash_attn.cute.interface import _flash_attn_fwd
    except Exception as error:
        raise Absent(f"flash_attn.cute: {error}") from error
    versions = (
        f"{package} {importlib.metadata.version(package)}"
        for package in ("flash-attn-4", "nvidia-cutlass-dsl")
    )
    return _flash_attn_fwd, ", ".join(versions)


def make(name, cell, data, setup):
    forward, version = _forward()
    out, lse = data.empty_out(cell), data.empty_lse(cell)

    def run():
        forward(
            data.q,
            data.k,
            data.v,
            cu_seqlens_q=data.cu_seqlens_q,
            cu_seqlens_k=data.cu_seqlens_k,
            max_seqlen_q=data.max_q,
            max_seqlen_k=data.max_k,
            softmax_scale=data.softmax_scale,
            causal=cell.causal,
            num_splits=1,  # its default, and all that its sm_90 kernel can
            return_lse=True,
            out=out,
            lse=lse,
        )

    return Contender(run, lambda: out, lambda: lse, lambda: (out, lse), version)
