# SPDX-License-Identifier: Apache-2.0
"""The interface of FlashAttention 2 (``flash_attn.flash_attn_varlen_func``)."""

from __future__ import annotations

from typing import Any

from ._common import attention, refuse


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """out ``[total_q, H, v]``; with ``return_attn_probs`` ``(out, lse [H, total_q], None)``.

    Raises:
        UnsupportedError: dropout, softcap, alibi slopes, paged keys or grouped heads.
        FlashPrimeError: as :func:`flashprime.prefill`.
    """
    refuse(
        dropout_p=(dropout_p, (0.0,)),
        softcap=(softcap, (0.0,)),
        alibi_slopes=(alibi_slopes, (None,)),
        block_table=(block_table, (None,)),
    )
    result = attention(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        num_splits=0,
        return_lse=return_attn_probs,
    )
    return (*result, None) if return_attn_probs else result
