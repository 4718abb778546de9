# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's ragged prefill (package flashinfer-python; it compiles its kernel with nvcc on first
use, which takes minutes). Its plan is made once, apart from the timed call, as engines do."""

import importlib.metadata

import torch

from .contender import Absent, Contender, lse_to_natural

NAMES = ("flashinfer",)


def make(name, cell, data, setup):
    try:
        import flashinfer

        version = importlib.metadata.version("flashinfer-python")
    except Exception as error:
        raise Absent(f"flashinfer: {error}") from error
    out = data.empty_out(cell)
    lse = data.empty_lse(cell).T.contiguous()  # [tokens, heads], base 2
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    try:
        wrapper.plan(
            data.cu_seqlens_q,
            data.cu_seqlens_k,
            cell.heads,
            cell.heads,
            cell.d_qk,
            head_dim_vo=cell.d_v,
            causal=cell.causal,
            sm_scale=data.softmax_scale,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )
    except Exception as error:
        raise Absent(str(error).splitlines()[0]) from error

    def run():
        wrapper.run(data.q, data.k, data.v, out=out, lse=lse, return_lse=True)

    return Contender(
        run, lambda: out, lambda: lse_to_natural(lse.T), lambda: (out, lse), version
    )
