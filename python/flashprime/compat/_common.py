# SPDX-License-Identifier: Apache-2.0
"""What the dialects share."""

from __future__ import annotations

from typing import Any

from .._errors import ShapeError, UnsupportedError
from ..ops import prefill


def refuse(**arguments: tuple[Any, tuple[Any, ...]]) -> None:
    """UnsupportedError for the first argument that has none of the values after it."""
    for name, (value, allowed) in arguments.items():
        if not any(value is item or (item is not None and value == item) for item in allowed):
            wanted = " or ".join(map(repr, allowed))
            shown = repr(value) if isinstance(value, (bool, int, float, str, tuple, list)) else (
                f"a {type(value).__name__}"
            )  # fmt: skip
            raise UnsupportedError(f"{name}: got {shown}, wanted {wanted}: not computed here")


def stated(longest: Any) -> int | None:
    """A length that the host knows; one that lies in a tensor is not waited for."""
    return longest if isinstance(longest, int) else None


def window_of(window_size: Any) -> tuple[int, int] | None:
    """A window in every spelling: None, or a side of it None or negative, is unbounded."""
    if window_size is None:
        return None
    left, right = (-1 if side is None or side < 0 else int(side) for side in window_size)
    return None if left < 0 and right < 0 else (left, right)


def heads_of_queries(name: str, tensor: Any, num_heads: int) -> Any:
    """Keys or values with one head for all queries, as a view that has each query's."""
    if len(tensor.shape) == 3 and tensor.shape[1] == 1 != num_heads:
        expand = getattr(tensor, "expand", None)
        if expand is not None:
            return expand(-1, num_heads, -1)
        raise UnsupportedError(f"{name}: got one head for {num_heads}, wanted a torch tensor")
    if len(tensor.shape) == 3 and tensor.shape[1] != num_heads:
        raise UnsupportedError(
            f"{name}: got {tensor.shape[1]} heads with {num_heads} of q, wanted as many, or 1"
        )
    return tensor


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    num_splits: int,
    return_lse: bool,
    out: Any = None,
    output_scale: Any = None,
) -> Any:
    """out, or (out, lse)."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        name = "cu_seqlens_q" if cu_seqlens_q is None else "cu_seqlens_k"
        raise UnsupportedError(f"{name}: got None, wanted int32 [B + 1]: batches here are ragged")
    if len(q.shape) != 3:
        raise ShapeError(f"q: got rank {len(q.shape)}, wanted [total_q, heads, head_dim]")
    heads = int(q.shape[1])
    result = prefill(
        q,
        heads_of_queries("k", k, heads),
        heads_of_queries("v", v, heads),
        cu_seqlens_q,
        cu_seqlens_k,
        softmax_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        causal=bool(causal),
        window=window_of(window_size),
        return_lse=return_lse,
        max_seqlen_q=stated(max_seqlen_q),
        max_seqlen_k=stated(max_seqlen_k),
        out=out,
        out_dtype="e4m3" if output_scale is not None and out is None else None,
        output_scale=output_scale,
        num_splits=0 if num_splits < 1 else num_splits,
    )
    return result
