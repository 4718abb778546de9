# SPDX-License-Identifier: Apache-2.0
"""The interface of vLLM's FlashAttention (``vllm.vllm_flash_attn.flash_attn_varlen_func``)."""

from __future__ import annotations

from typing import Any

from ._common import attention, refuse


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    max_seqlen_q: int | None = None,
    cu_seqlens_q: Any,
    max_seqlen_k: int | None = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    q_v: Any = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    return_softmax_lse: bool = False,
    out: Any = None,
    scheduler_metadata: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    num_splits: int = 0,
    output_scale: Any = None,
    fa_version: int = 4,
    s_aux: Any = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Any = None,
    mask_mod: Any = None,
    block_sparse_tensors: Any = None,
    aux_tensors: Any = None,
    aux_tensor_leading_dims: Any = None,
    dynamic_causal: Any = None,
    gather_kv_indices: Any = None,
    gather_kv_valid_length: Any = None,
) -> Any:
    """out ``[total_q, H, v]``; with ``return_softmax_lse`` ``(out, lse [H, total_q])``.

    ``out`` is written and returned. With ``output_scale`` it is e4m3, whatever the version;
    ``fa_version`` may be 2, 3 or 4 and changes nothing.

    Raises:
        UnsupportedError: dropout, softcap, alibi slopes, sinks, fp8 inputs, paged or gathered keys,
            seqused, masks of a function, context parallelism or grouped heads.
        FlashPrimeError: as :func:`flashprime.prefill`.
    """
    refuse(
        seqused_k=(seqused_k, (None,)),
        q_v=(q_v, (None,)),
        dropout_p=(dropout_p, (0.0,)),
        softcap=(softcap, (0.0,)),
        alibi_slopes=(alibi_slopes, (None,)),
        return_attn_probs=(return_attn_probs, (False,)),
        block_table=(block_table, (None,)),
        q_descale=(q_descale, (None,)),
        k_descale=(k_descale, (None,)),
        v_descale=(v_descale, (None,)),
        fa_version=(fa_version, (2, 3, 4)),
        s_aux=(s_aux, (None,)),
        cp_world_size=(cp_world_size, (1,)),
        cp_rank=(cp_rank, (0,)),
        cp_tot_seqused_k=(cp_tot_seqused_k, (None,)),
        mask_mod=(mask_mod, (None,)),
        block_sparse_tensors=(block_sparse_tensors, (None,)),
        aux_tensors=(aux_tensors, (None,)),
        dynamic_causal=(dynamic_causal, (None,)),
        gather_kv_indices=(gather_kv_indices, (None,)),
        gather_kv_valid_length=(gather_kv_valid_length, (None,)),
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
        return_lse=return_softmax_lse,
        out=out,
        output_scale=output_scale,
    )
