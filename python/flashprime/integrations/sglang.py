# SPDX-License-Identifier: Apache-2.0
"""The plugin that makes FlashPrime a prefill attention backend of SGLang for MLA models.

SGLang calls :func:`register` in each of its processes (entry point group ``sglang.srt.plugins``).
Then ``--prefill-attention-backend flashprime`` has new tokens and chunks of cached prefix computed
by FlashPrime as multi-head attention. Everything else (absorbed attention, the KV cache, metadata,
decoding) stays with the backend that this one is made from: Triton's, or with
``flashprime_BACKEND`` the one of that name, such as ``flashprime_fa3`` and
``flashprime_flashinfer``.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

from .._errors import UnsupportedError
from ..ops import prefill

logger = logging.getLogger("flashprime")

NAMES = {
    "flashprime": "triton",
    "flashprime_fa3": "fa3",
    "flashprime_flashinfer": "flashinfer",
}
"""Names that SGLang knows the backend by, and the backend that each is made from."""

_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
# Where the lists of names have been, newest first.
_CHOICES = ("sglang.srt.arg_groups.choices", "sglang.srt.server_args")


def register() -> None:
    """Registers the backends, any number of times. Quiet where SGLang has no such registry."""
    try:
        registry = importlib.import_module(_REGISTRY)
        add = registry.register_attention_backend
    except (ImportError, AttributeError) as error:
        logger.debug("this SGLang has no registry of attention backends: %s", error)
        return
    for name, base in NAMES.items():
        add(name)(lambda runner, name=name, base=base: create(runner, name, base))
    _add_choices("ATTENTION_BACKEND_CHOICES")
    _add_choices("CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS")
    _add_choices("MLA_ATTENTION_BACKENDS")


def _add_choices(attribute: str) -> None:
    """Adds the names to one of SGLang's lists, where that exists."""
    for module in _CHOICES:
        try:
            names = getattr(importlib.import_module(module), attribute, None)
        except ImportError:
            continue
        if isinstance(names, list):
            names += [name for name in NAMES if name not in names]
            return


def create(runner: Any, name: str, base: str) -> Any:
    """The backend of a model runner: that of ``base`` with FlashPrime's multi-head attention."""
    if not getattr(runner, "use_mla_backend", True):
        raise UnsupportedError(f"{name}: got a model without MLA, wanted {base} for it")
    registry = importlib.import_module(_REGISTRY)
    if base not in registry.ATTENTION_BACKENDS:
        raise UnsupportedError(f"{name}: this SGLang has no backend {base} to make it from")
    _register_handlers()
    backend = registry.ATTENTION_BACKENDS[base](runner)
    # On the object: its class is that of whatever backend is installed.
    backend.forward_extend = functools.partial(forward_extend, backend.forward_extend)
    backend.init_mha_chunk_metadata = _plan_nothing
    return backend


def _register_handlers() -> None:
    """Has DeepSeek models ask for multi-head attention wherever this backend computes it."""
    handlers = importlib.import_module(_HANDLERS)
    for name, base in NAMES.items():
        handlers.AttentionBackendRegistry.register(
            name, lambda attn, batch, base=base: _method_of(handlers, base, attn, batch)
        )


def _method_of(handlers: Any, base: str, attn: Any, forward_batch: Any) -> Any:
    """Multi-head attention for new tokens, with their cached prefix in chunks. What is recorded in
    a graph, shared between ranks, speculative, or has its prefix only absorbed is the base's.
    """
    captured = handlers.is_in_tc_piecewise_cuda_graph() or handlers.is_in_breakable_cuda_graph()
    prefix = sum(forward_batch.extend_prefix_lens_cpu or ())
    if (
        captured
        or getattr(handlers, "is_cp_active", lambda batch: False)(forward_batch)
        or not forward_batch.forward_mode.is_extend_without_speculative()
        or (prefix > 0 and attn.disable_chunked_prefix_cache)
    ):
        return handlers.AttentionBackendRegistry.get_handler(base)(attn, forward_batch)
    return handlers.AttnForwardMethod.MHA_CHUNKED_KV


def _lengths_of(forward_batch: Any, device: Any) -> tuple[Any, int, int]:
    """cu_seqlens of the new tokens, how many there are, and the longest request's; once a batch."""
    made = getattr(forward_batch, "_flashprime_lengths", None)
    if made is None:
        import torch

        lengths = forward_batch.extend_seq_lens
        cu = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=device)
        torch.cumsum(lengths, 0, dtype=torch.int32, out=cu[1:])
        on_host = forward_batch.extend_seq_lens_cpu
        made = cu, sum(on_host), max(on_host, default=0)
        forward_batch._flashprime_lengths = made
    return made


def _plan_nothing(forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """In the place of ``init_mha_chunk_metadata``: lengths come with each call."""


def forward_extend(
    below: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    **rest: Any,
) -> Any:
    """New tokens or one chunk of prefix: out [T, H, v], or with ``mha_return_lse``
    (out, LSE [T, H]). Calls of other kinds go on to the backend ``below``.
    """
    mode = forward_batch.forward_mode
    multi_head = (
        getattr(forward_batch, "attn_attend_prefix_cache", None) is not None
        and not mode.is_target_verify()
        and not getattr(mode, "is_draft_extend_v2", lambda: False)()
        and not save_kv_cache
        and k is not None
        and all(value is None for value in rest.values())
    )
    if not multi_head:
        return below(q, k, v, layer, forward_batch, save_kv_cache, **rest)
    if layer.logit_cap:
        raise UnsupportedError(f"logit_cap: got {layer.logit_cap}, wanted 0")
    q = q.view(-1, layer.tp_q_head_num, layer.head_dim)
    k = k.view(-1, layer.tp_k_head_num, layer.head_dim).to(q.dtype)
    v = v.view(-1, layer.tp_k_head_num, layer.v_head_dim).to(q.dtype)
    cu_q, tokens, longest = _lengths_of(forward_batch, q.device)
    causal = not forward_batch.attn_attend_prefix_cache
    if not causal:
        index = forward_batch.prefix_chunk_idx
        cu_k = forward_batch.prefix_chunk_cu_seq_lens[index]
        longest_k = int(forward_batch.prefix_chunk_max_seq_lens[index])
    elif getattr(forward_batch, "mha_one_shot", False):
        import torch

        cu_k = torch.nn.functional.pad(forward_batch.seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
        longest_k = int(max(forward_batch.seq_lens_cpu))
    else:
        # Rows past the last request are padding of the batch.
        cu_k, longest_k, k, v = cu_q, longest, k[:tokens], v[:tokens]
    return_lse = bool(forward_batch.mha_return_lse)
    out, lse = None, None
    if q.shape[0] > tokens:
        out = q.new_zeros(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        if return_lse:
            lse = q.new_full(out.shape[:2], float("-inf")).float()
    prefilled = prefill(
        q[:tokens],
        k,
        v,
        cu_q,
        cu_k,
        softmax_scale=layer.scaling,
        causal=causal,
        return_lse=return_lse,
        lse_layout="tokens_heads",
        max_seqlen_q=longest,
        max_seqlen_k=longest_k,
        out=None if out is None else out[:tokens],
        lse=None if lse is None else lse[:tokens],
    )
    if out is None:
        return prefilled
    return (out, lse) if return_lse else out
