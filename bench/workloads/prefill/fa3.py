# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3, from the package fa3-fwd or a build of its hopper folder: with cu_seqlens, its
scheduler's preparation included in each call as its API does by default, and with fixed lengths."""

import functools
import importlib
import importlib.metadata

from .contender import Absent, Contender

NAMES = ("fa3_varlen", "fa3_fixed")


@functools.cache
def _forward():
    """The operator and its version. Called below its Python interface, which has no way to name an
    output; the arguments are those that the interface passes."""
    import torch

    reasons = []
    for module, namespace, package in (
        ("fa3_fwd_interface", "fa3_fwd", "fa3-fwd"),
        ("flash_attn_interface", "flash_attn_3", "flash-attn-3"),
    ):
        try:
            importlib.import_module(module)
            operator = getattr(torch.ops, namespace).fwd
        except Exception as error:  # a wheel of another CUDA or torch fails in many ways
            reasons.append(f"{module}: {error}")
            continue
        try:
            return operator, f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            return operator, package
    raise Absent("; ".join(reasons))


def make(name, cell, data, setup):
    forward, version = _forward()
    out = data.empty_out(cell)
    q, k, v, out_given = data.q, data.k, data.v, out
    options = {
        "softmax_scale": data.softmax_scale,
        "is_causal": cell.causal,
        # 0: it chooses; its own default is 1.
        "num_splits": 0 if cell.splits else 1,
    }
    if name == "fa3_varlen":
        options.update(
            cu_seqlens_q=data.cu_seqlens_q,
            cu_seqlens_k=data.cu_seqlens_k,
            max_seqlen_q=data.max_q,
            max_seqlen_k=data.max_k,
        )
    else:
        if not cell.uniform:
            raise Absent("lengths differ")
        q, k, v, out_given = (
            tensor.unflatten(0, (cell.batch, -1)) for tensor in (data.q, data.k, data.v, out)
        )
    lse = [None]

    def run():
        lse[0] = forward(q, k, v, out=out_given, **options)[1]

    def natural_lse():
        if name == "fa3_varlen":
            return lse[0]
        return lse[0].transpose(0, 1).flatten(1)  # from [batch, heads, tokens]

    return Contender(run, lambda: out, natural_lse, lambda: (out, lse[0]), version)
