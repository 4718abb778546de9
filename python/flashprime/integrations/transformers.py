# SPDX-License-Identifier: Apache-2.0
"""FlashPrime as an attention implementation of transformers.

>>> flashprime.integrations.transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="prime_mla")

It serves every model that goes through the attention interface with as many key heads as query
heads, the MLA models above all: DeepSeek-V2 and V3, Kimi-K2, GLM-4.7-Flash, Mistral 4,
LongCat-Flash. Causal, full and sliding-window masks, padding on either side, packed sequences,
prefill in chunks and decoding with every cache that gives plain tensors. Values are not padded to
the length of a query row. For inference: it has no gradient, and says so.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .. import torch as operators
from .._errors import UnsupportedError

# Transformers takes every name that has "flash" in it for a build of FlashAttention to be loaded.
NAME = "prime_mla"

# Functions that transformers makes masks of, as far as this implementation computes them.
_KNOWN_MASKS = ("causal", "bidirectional", "sliding_window", "packed")


def register(name: str = NAME) -> None:
    """Adds the implementation under a name; any number of times."""
    if "flash" in name:
        raise UnsupportedError(
            f"name: got {name!r}, wanted one without 'flash', which transformers takes for a build "
            "of FlashAttention"
        )
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


def _kinds_of_mask(function: Any) -> set[str]:
    """What a mask function is made of, by the names of the functions in its closures."""
    name = getattr(function, "__qualname__", repr(function))
    if name.startswith(("and_masks.", "remap_positions_for_packed_sequence.")):
        parts: list[Any] = []
        for cell in function.__closure__ or ():
            content = cell.cell_contents
            parts += content if isinstance(content, (tuple, list)) else [content]
        kinds: set[str] = set()
        for part in parts:
            if callable(part):
                kinds |= _kinds_of_mask(part)
        return kinds | ({"packed"} if name.startswith("remap_positions") else set())
    known = {
        "causal_mask_function": "causal",
        "bidirectional_mask_function": "bidirectional",
        "sliding_window_overlay.<locals>.inner_mask": "sliding_window",
        "sliding_window_bidirectional_overlay.<locals>.inner_mask": "sliding_window",
        "packed_sequence_mask_function.<locals>.inner_mask": "packed",
    }
    return {known.get(name, name)}


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    device: Any = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask that :func:`attention_forward` wants: None, or which keys are no padding, [B, Tk].

    Raises:
        UnsupportedError: a mask that is more than causal, full, a window, packed or padding.
    """
    unknown = set() if mask_function is None else _kinds_of_mask(mask_function) - set(_KNOWN_MASKS)
    if unknown:
        raise UnsupportedError(
            f"mask: got one made of {', '.join(sorted(unknown))}, wanted causal, full, sliding "
            "window, packed or padding"
        )
    if attention_mask is None:
        seen = q_length + int(q_offset) - kv_offset
        if seen >= kv_length:
            return None
        # A cache with room for more: only the keys that it has count.
        return torch.ones(batch_size, seen, dtype=torch.bool, device=device)
    attention_mask = attention_mask[:, -kv_length:].bool()
    if attention_mask.shape[1] == kv_length and bool(attention_mask.all()):
        return None
    return attention_mask


class _Ragged:
    """Where the rows of a padded batch lie, and the lengths without padding."""

    def __init__(self, mask: torch.Tensor, columns: int) -> None:
        mask = mask[:, -columns:]
        lengths = mask.sum(1, dtype=torch.int32)
        self.rows = mask.flatten().nonzero().flatten()
        self.cu = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        self.longest = int(lengths.max()) if len(lengths) else 0


# The same mask or position ids come with each layer of a step. What was made of them is kept as
# long as they live, since reading them waits for the GPU.
_made: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}


def _once(tensor: torch.Tensor, key: Any, make: Any) -> Any:
    entry = _made.get((id(tensor), key))
    if entry is not None and entry[0]() is tensor and entry[1] == tensor._version:
        return entry[2]
    made = make()
    identity = (id(tensor), key)
    reference = weakref.ref(tensor, lambda _: _made.pop(identity, None))
    _made[identity] = (reference, tensor._version, made)
    return made


def _packed(position_ids: torch.Tensor) -> torch.Tensor | None:
    """cu_seqlens of sequences that lie one after another in a batch of one; None if it is one."""
    steps = position_ids.flatten().diff()
    starts = (steps != 1).nonzero().flatten() + 1
    if len(starts) == 0:
        return None
    ends = torch.tensor([position_ids.numel()], device=starts.device)
    cu = torch.cat([torch.zeros_like(ends), starts, ends])
    return cu.to(torch.int32)


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer: query [B, H, Tq, d], key [B, H, Tk, d], value [B, H, Tk, v] to [B, Tq, H, v].

    Raises:
        UnsupportedError: dropout, softcap, sinks, masks of four axes, grouped heads, attention
            weights, or inputs that want a gradient.
        FlashPrimeError: as :func:`flashprime.prefill`.
    """
    batch, heads, rows, dim_qk = query.shape
    keys = key.shape[2]
    for name, bad, wanted in (
        ("dropout", dropout, "0: for inference only"),
        ("softcap", softcap, "None"),
        ("s_aux", s_aux is not None, "None: attention sinks are not computed"),
        ("output_attentions", kwargs.get("output_attentions"), "False"),
    ):
        if bad:
            raise UnsupportedError(f"{name}: got {bad}, wanted {wanted}")
    if key.shape[1] != heads:
        raise UnsupportedError(
            f"key: got {key.shape[1]} heads with {heads} of query, wanted as many"
        )
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        raise UnsupportedError(
            "query: got one that wants a gradient, wanted torch.no_grad(): for inference only"
        )
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UnsupportedError(
            f"attention_mask: got rank {attention_mask.dim()}, wanted None or [batch, keys]; masks "
            "of other forms are not computed"
        )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = None
    if sliding_window is not None and keys > sliding_window:
        window = (sliding_window - 1, 0 if causal else sliding_window - 1)
    rope = getattr(module, "qk_rope_head_dim", None)

    def run(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, longest_q: Any, longest_k: Any) -> Any:
        return operators.prefill(
            q,
            k,
            v,
            cu_q,
            cu_k,
            softmax_scale=dim_qk**-0.5 if scaling is None else scaling,
            causal=causal,
            window=window,
            max_seqlen_q=longest_q,
            max_seqlen_k=longest_k,
            rope=rope,
        )

    if attention_mask is not None and attention_mask.shape[1] < keys:
        keys = attention_mask.shape[1]
        key, value = key[:, :, :keys], value[:, :, :keys]
        if bool(attention_mask.all()):
            attention_mask = None
    # [B T, H, d]: a view of v, and of all three if the batch is one sequence.
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    if attention_mask is not None:
        mask = attention_mask
        ragged_q = _once(mask, rows, lambda: _Ragged(mask, rows))
        ragged_k = _once(mask, keys, lambda: _Ragged(mask, keys))
        packed_out = run(
            q[ragged_q.rows],
            k[ragged_k.rows],
            v[ragged_k.rows],
            ragged_q.cu,
            ragged_k.cu,
            ragged_q.longest,
            ragged_k.longest,
        )
        out = packed_out.new_zeros(batch * rows, heads, v.shape[2])
        out[ragged_q.rows] = packed_out
        return out.view(batch, rows, heads, -1), None

    cu_q: Any
    cu_k: Any
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        cu_q, cu_k = cu_seq_lens_q.to(torch.int32), cu_seq_lens_k.to(torch.int32)
        longest_q = max_length_q if isinstance(max_length_q, int) else None
        longest_k = max_length_k if isinstance(max_length_k, int) else None
    else:
        packed = None
        if batch == 1 and rows > 1 and rows == keys and position_ids is not None:
            ids = position_ids
            packed = _once(ids, "packed", lambda: _packed(ids))
        if packed is not None:
            cu_q = cu_k = packed
            longest_q = longest_k = None
        else:
            steps = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
            cu_q, cu_k = steps * rows, steps * keys
            longest_q, longest_k = rows, keys
    out = run(q, k, v, cu_q, cu_k, longest_q, longest_k)
    return out.view(batch, rows, heads, -1), None
