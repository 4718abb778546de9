# SPDX-License-Identifier: Apache-2.0
"""FlashPrime as an engine calls it: one object a layer, one ``prepare`` a step."""

from __future__ import annotations

from typing import Any

from ._errors import RangeError, UnsupportedError
from .kernels import KernelCache, WarmupReport, warmup
from .ops import LseLayout, Parts, Tensor, prefill
from .selection import explain


class Backend:
    """MLA prefill attention of one layer on one rank.

    :meth:`prepare` once a step, then :meth:`run_new_tokens` and :meth:`run_context_chunk` for each
    layer and chunk. It computes attention only: the engine merges, for example with
    :func:`merge_states`. Nothing is padded or copied.

    Args:
        num_heads: H on this rank.
        dims: (nope, rope, v).
        softmax_scale: with the model's YaRN factor, if it has one.
        dtype: of q, k and v.
        lse_layout: of every LSE.
        batch_invariant: keys are never split.
        device: where it has to run: "auto", "cpu" or "cuda:N". "auto" asks for any.

    Raises:
        UnsupportedError: no kernel runs such a layer; with every reason.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        dims: tuple[int, int, int],
        softmax_scale: float,
        dtype: Any = "bf16",
        lse_layout: LseLayout = "heads_tokens",
        batch_invariant: bool = False,
        device: str = "auto",
    ) -> None:
        explanation = explain(
            dims=dims,
            num_heads=num_heads,
            dtype=dtype,
            return_lse=True,
            batch_invariant=batch_invariant,
            device=device,
        )
        if not explanation:
            raise UnsupportedError(str(explanation))
        self.num_heads = num_heads
        self.dims = dims
        self.softmax_scale = softmax_scale
        self.dtype = dtype
        self.lse_layout: LseLayout = lse_layout
        self.batch_invariant = batch_invariant
        self._cu_seqlens_q: Tensor = None
        self._max_seqlen_q: int | None = None

    def prepare(self, cu_seqlens_q: Tensor, max_seqlen_q: int | None = None) -> None:
        """What all layers of a step share: int32 ``[B + 1]`` and the longest of the sequences."""
        self._cu_seqlens_q = cu_seqlens_q
        self._max_seqlen_q = max_seqlen_q

    def run_new_tokens(
        self,
        q: Parts,
        k: Parts,
        v: Tensor,
        *,
        return_lse: bool,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Any:
        """Causal attention of the new tokens over themselves; shapes as in :func:`prefill`."""
        if self._cu_seqlens_q is None:
            raise RangeError("run_new_tokens: called before prepare()")
        return prefill(
            q,
            k,
            v,
            self._cu_seqlens_q,
            softmax_scale=self.softmax_scale,
            causal=True,
            return_lse=return_lse,
            lse_layout=self.lse_layout,
            max_seqlen_q=self._max_seqlen_q,
            max_seqlen_k=self._max_seqlen_q,
            out=out,
            lse=lse,
            output_scale=output_scale,
            rope=self.dims[1],
            batch_invariant=self.batch_invariant,
        )

    def run_context_chunk(
        self,
        q: Parts,
        k: Parts,
        v: Tensor,
        cu_seqlens_k: Tensor,
        *,
        max_seqlen_k: int | None = None,
        cu_seqlens_q: Tensor | None = None,
        max_seqlen_q: int | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Any:
        """Unmasked attention over one chunk of context: ``(out, lse)``.

        Without ``cu_seqlens_q`` the queries are those of the whole batch, and a request without
        keys in the chunk gets 0 and -inf; with it, q is cut to the chunk's own queries.
        """
        if cu_seqlens_q is None:
            if self._cu_seqlens_q is None:
                raise RangeError("run_context_chunk: called before prepare()")
            cu_seqlens_q, max_seqlen_q = self._cu_seqlens_q, self._max_seqlen_q
        return prefill(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            softmax_scale=self.softmax_scale,
            causal=False,
            return_lse=True,
            lse_layout=self.lse_layout,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            out=out,
            lse=lse,
            rope=self.dims[1],
            batch_invariant=self.batch_invariant,
        )

    def warmup(self, *, cache: KernelCache | None = None, **options: Any) -> WarmupReport:
        """The kernels of these calls; options as in :func:`warmup`."""
        return warmup(dims=self.dims, dtype=self.dtype, cache=cache, **options)
