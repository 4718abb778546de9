# SPDX-License-Identifier: Apache-2.0
"""The interface of FlashAttention 4 (``flash_attn.cute.flash_attn_varlen_func``)."""

from __future__ import annotations

from typing import Any

from ._common import attention, refuse


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    qv: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    gather_kv_indices: Any = None,
    page_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Any = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    block_sparse_tensors: Any = None,
    aux_tensors: Any = None,
    aux_scalars: Any = None,
    return_lse: bool = False,
    scheduler_metadata: Any = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: int | None = None,
) -> Any:
    """Always a pair: ``(out [total_q, H, v], lse [H, total_q] or None)``.

    Raises:
        UnsupportedError: dense batches, softcap, sinks, score or mask functions, block sparsity,
            paged or gathered keys, seqused, qv or grouped heads.
        FlashPrimeError: as :func:`flashprime.prefill`.
    """
    refuse(
        qv=(qv, (None,)),
        seqused_q=(seqused_q, (None,)),
        seqused_k=(seqused_k, (None,)),
        gather_kv_indices=(gather_kv_indices, (None,)),
        page_table=(page_table, (None,)),
        learnable_sink=(learnable_sink, (None,)),
        softcap=(softcap, (0.0, None)),
        score_mod=(score_mod, (None,)),
        mask_mod=(mask_mod, (None,)),
        block_sparse_tensors=(block_sparse_tensors, (None,)),
        aux_tensors=(aux_tensors, (None,)),
        aux_scalars=(aux_scalars, (None,)),
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
        num_splits=num_splits,
        return_lse=return_lse,
    )
    return result if return_lse else (result, None)
