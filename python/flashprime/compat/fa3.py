# SPDX-License-Identifier: Apache-2.0
"""The interface of FlashAttention 3 (``flash_attn_interface.flash_attn_varlen_func``)."""

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
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """out ``[total_q, H, v]``; with ``return_attn_probs`` ``(out, lse [H, total_q])``.

    Raises:
        UnsupportedError: softcap, fp8 inputs, seqused, qv, attention chunks or grouped heads.
        FlashPrimeError: as :func:`flashprime.prefill`.
    """
    refuse(
        seqused_q=(seqused_q, (None,)),
        seqused_k=(seqused_k, (None,)),
        qv=(qv, (None,)),
        q_descale=(q_descale, (None,)),
        k_descale=(k_descale, (None,)),
        v_descale=(v_descale, (None,)),
        attention_chunk=(attention_chunk, (0,)),
        softcap=(softcap, (0.0,)),
    )
    return attention(
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
        num_splits=num_splits,
        return_lse=return_attn_probs,
    )
