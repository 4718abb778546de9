# SPDX-License-Identifier: Apache-2.0
"""The operators for torch: ``torch.ops.flashprime.*``, and functions with kinder arguments.

Importing this registers ``prefill``, ``prefill_out``, ``merge_states`` and ``merge_states_out``
with their shapes, so that ``torch.compile`` traces them without a graph break.
``flashprime.prefill`` and ``flashprime.merge_states`` become them wherever they are compiled. On a
GPU they may be captured in CUDA graphs once their kernels are loaded (by one call before the
capture, or by ``warmup`` with ``mode="load_only"``): they allocate with torch's allocator only,
never wait, and copy nothing. They have no gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _library, ops
from ._errors import ShapeError

_ATTENTION = (
    "Tensor q, Tensor? q_pe, Tensor k, Tensor? k_pe, Tensor v, Tensor cu_seqlens_q, "
    "Tensor cu_seqlens_k, float softmax_scale, bool causal=True, int window_left=-1, "
    "int window_right=-1, bool tokens_heads=False, SymInt max_seqlen_q=-1, SymInt max_seqlen_k=-1, "
    "Tensor? output_scale=None, int rope=-1, bool batch_invariant=False, int num_splits=0"
)
_MERGE = (
    "Tensor prefix_out, Tensor prefix_lse, Tensor suffix_out, Tensor suffix_lse, "
    "bool tokens_heads=False, SymInt tokens_with_prefix=-1, Tensor? output_scale=None"
)
_OUTPUTS = "*, Tensor(a!) out, Tensor(b!)? lse=None"
_SCHEMAS = {
    "prefill": f"({_ATTENTION}, *, bool return_lse=False, ScalarType? out_dtype=None) "
    "-> (Tensor, Tensor)",
    "prefill_out": f"({_ATTENTION}, {_OUTPUTS}) -> ()",
    "merge_states": f"({_MERGE}, *, ScalarType? out_dtype=None) -> (Tensor, Tensor)",
    "merge_states_out": f"({_MERGE}, {_OUTPUTS}) -> ()",
}

_registry = torch.library.Library("flashprime", "DEF")
for _name, _schema in _SCHEMAS.items():
    _registry.define(_name + _schema)


def _prefill_out(
    q: Any,
    q_pe: Any,
    k: Any,
    k_pe: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    softmax_scale: float,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    tokens_heads: bool = False,
    max_seqlen_q: int = -1,
    max_seqlen_k: int = -1,
    output_scale: Any = None,
    rope: int = -1,
    batch_invariant: bool = False,
    num_splits: int = 0,
    *,
    out: Any,
    lse: Any = None,
) -> None:
    window = None if window_left < 0 and window_right < 0 else (window_left, window_right)
    tensors = (
        *((q, None, None) if q_pe is None else (None, q, q_pe)),
        *((k, None, None) if k_pe is None else (None, k, k_pe)),
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        out,
        lse,
        output_scale,
    )
    rest = (
        softmax_scale,
        rope,
        *ops.mask_of(causal, window),
        int(tokens_heads),
        max_seqlen_q,
        max_seqlen_k,
        batch_invariant,
        num_splits,
        "",
        0,
        False,
        None,
    )
    needed = _library.prefill(*tensors, None, *rest)
    if needed:
        room = torch.empty(needed + 256, dtype=torch.uint8, device=v.device)
        _library.prefill(*tensors, room, *rest)


def _check_rank_3(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != 3:
            raise ShapeError(f"{name}: got rank {tensor.dim()}, wanted rank 3")


def _attention_outputs(
    q: Any, v: Any, tokens_heads: bool, return_lse: bool, out_dtype: Any
) -> tuple[Any, Any]:
    _check_rank_3(q=q, v=v)
    rows, heads = q.shape[0], q.shape[1]
    out = torch.empty((rows, heads, v.shape[2]), dtype=out_dtype or q.dtype, device=q.device)
    lse_shape = (rows, heads) if tokens_heads else (heads, rows)
    lse = torch.empty(lse_shape if return_lse else (0,), dtype=torch.float32, device=q.device)
    return out, lse


def _prefill(*arguments: Any, return_lse: bool = False, out_dtype: Any = None) -> tuple[Any, Any]:
    tokens_heads = arguments[11] if len(arguments) > 11 else False
    out, lse = _attention_outputs(arguments[0], arguments[4], tokens_heads, return_lse, out_dtype)
    _prefill_out(*arguments, out=out, lse=lse if return_lse else None)
    return out, lse


def _fake_prefill(
    *arguments: Any, return_lse: bool = False, out_dtype: Any = None
) -> tuple[Any, Any]:
    tokens_heads = arguments[11] if len(arguments) > 11 else False
    return _attention_outputs(arguments[0], arguments[4], tokens_heads, return_lse, out_dtype)


def _fake_out(*arguments: Any, out: Any, lse: Any = None) -> None:
    return None


def _merge_states_out(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    tokens_heads: bool = False,
    tokens_with_prefix: int = -1,
    output_scale: Any = None,
    *,
    out: Any,
    lse: Any = None,
) -> None:
    _library.merge_states(
        prefix_out,
        prefix_lse,
        suffix_out,
        suffix_lse,
        out,
        lse,
        output_scale,
        int(tokens_heads),
        tokens_with_prefix,
        0,
        None,
    )


def _fake_merge_states(
    prefix_out: Any, prefix_lse: Any, *arguments: Any, out_dtype: Any = None
) -> tuple[Any, Any]:
    out = torch.empty(
        prefix_out.shape, dtype=out_dtype or prefix_out.dtype, device=prefix_out.device
    )
    return out, torch.empty(prefix_lse.shape, dtype=torch.float32, device=prefix_lse.device)


def _merge_states(*arguments: Any, out_dtype: Any = None) -> tuple[Any, Any]:
    out, lse = _fake_merge_states(*arguments, out_dtype=out_dtype)
    _merge_states_out(*arguments, out=out, lse=lse)
    return out, lse


for _name, _function, _fake in (
    ("prefill", _prefill, _fake_prefill),
    ("prefill_out", _prefill_out, _fake_out),
    ("merge_states", _merge_states, _fake_merge_states),
    ("merge_states_out", _merge_states_out, _fake_out),
):
    for _key in ("CPU", "CUDA"):
        _registry.impl(_name, _function, _key)
    torch.library.register_fake(f"flashprime::{_name}", _fake, lib=_registry)


def prefill(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    softmax_scale: float,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    return_lse: bool = False,
    lse_layout: str = "heads_tokens",
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Any = None,
    lse: Any = None,
    out_dtype: Any = None,
    output_scale: Any = None,
    rope: int | None = None,
    batch_invariant: bool = False,
    num_splits: int = 0,
) -> Any:
    """:func:`flashprime.prefill` through ``torch.ops.flashprime``, for code that is compiled.

    Arguments, result and errors are the same; ``out_dtype`` is a torch dtype. What says how to run
    (kernel, threads, stream, checked) is not part of the operator.
    """
    q, q_pe = q if isinstance(q, (tuple, list)) else (q, None)
    k, k_pe = k if isinstance(k, (tuple, list)) else (k, None)
    left, right = (-1, -1) if window is None else window
    tokens_heads = bool(ops._layout(lse_layout))
    arguments = (
        q,
        q_pe,
        k,
        k_pe,
        v,
        cu_seqlens_q,
        cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k,
        softmax_scale,
        causal,
        left,
        right,
        tokens_heads,
        -1 if max_seqlen_q is None else max_seqlen_q,
        -1 if max_seqlen_k is None else max_seqlen_k,
        output_scale,
        -1 if rope is None else rope,
        batch_invariant,
        num_splits,
    )
    if out is None and lse is None:
        out, lse = torch.ops.flashprime.prefill(
            *arguments, return_lse=return_lse, out_dtype=out_dtype
        )
        return (out, lse) if return_lse else out
    new_out, new_lse = _attention_outputs(q, v, tokens_heads, True, out_dtype)
    out = new_out if out is None else out
    lse = new_lse if lse is None and return_lse else lse
    torch.ops.flashprime.prefill_out(*arguments, out=out, lse=lse)
    return (out, lse) if lse is not None else out


def merge_states(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    *,
    return_lse: bool = True,
    lse_layout: str = "heads_tokens",
    tokens_with_prefix: int | None = None,
    out: Any = None,
    lse: Any = None,
    out_dtype: Any = None,
    output_scale: Any = None,
) -> Any:
    """The same for :func:`flashprime.merge_states`."""
    arguments = (
        prefix_out,
        prefix_lse,
        suffix_out,
        suffix_lse,
        bool(ops._layout(lse_layout)),
        -1 if tokens_with_prefix is None else tokens_with_prefix,
        output_scale,
    )
    if out is None and lse is None:
        out, lse = torch.ops.flashprime.merge_states(*arguments, out_dtype=out_dtype)
        return (out, lse) if return_lse else out
    new_out, new_lse = _fake_merge_states(prefix_out, prefix_lse, out_dtype=out_dtype)
    out = new_out if out is None else out
    lse = new_lse if lse is None and return_lse else lse
    torch.ops.flashprime.merge_states_out(*arguments, out=out, lse=lse)
    return (out, lse) if lse is not None else out


# flashprime.prefill and flashprime.merge_states ask this and go on here while they are traced.
ops._is_compiling = torch.compiler.is_compiling
ops._traced_prefill = prefill
ops._traced_merge_states = merge_states
