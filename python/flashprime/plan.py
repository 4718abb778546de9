# SPDX-License-Identifier: Apache-2.0
"""How the context of a prefill batch is cut into chunks that fit a workspace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from . import _library
from ._errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class ContextSlice:
    """Context tokens [start, start + length) of one request."""

    request: int
    start: int
    length: int


@dataclasses.dataclass(frozen=True, eq=False)
class ContextChunk:
    """One attention call over context: ``slices[i]`` is of request ``request_begin + i``."""

    index: int
    request_begin: int
    request_end: int
    slices: tuple[ContextSlice, ...]
    cu_seqlens_k: np.ndarray[Any, np.dtype[np.int32]]
    """Prefix sums of the slice lengths, from 0."""
    max_seqlen_k: int
    has_empty_slice: bool

    @property
    def num_tokens(self) -> int:
        return int(self.cu_seqlens_k[-1])


class ContextPlan:
    """A partition of every request's context, in the order in which the chunks run. Immutable."""

    def __init__(self, context_lens: tuple[int, ...], handle: Any, chunks: Any) -> None:
        self.context_lens = context_lens
        self._handle = handle
        self.chunks = tuple(
            _chunk(index, *_library.plain(fields)) for index, fields in enumerate(chunks)
        )

    def __len__(self) -> int:
        return len(self.chunks)

    def __repr__(self) -> str:
        return f"ContextPlan({list(self.context_lens)}: {len(self.chunks)} chunks)"


def _chunk(
    index: int, begin: int, end: int, slices: list[int], cu: list[int], longest: int, empty: bool
) -> ContextChunk:
    cu_seqlens_k = np.array(cu, dtype=np.int32)
    cu_seqlens_k.flags.writeable = False
    starts = range(0, len(slices), 3)
    return ContextChunk(
        index,
        begin,
        end,
        tuple(ContextSlice(*slices[i : i + 3]) for i in starts),
        cu_seqlens_k,
        longest,
        empty,
    )


def plan_context(
    context_lens: Sequence[int],
    *,
    workspace_rows: int = 65536,
    block_size: int = 16,
    dcp_size: int = 1,
    dcp_interleave: int = 1,
    planner: Literal["greedy", "equal_slices"] = "greedy",
) -> ContextPlan:
    """Cuts the context of a batch into chunks of at most ``workspace_rows`` tokens.

    Args:
        context_lens: tokens of context of each request, 0 for none.
        workspace_rows: rows that a chunk may take; :func:`context_workspace_rows` has vLLM's rule.
        block_size: of the KV cache: cuts fall on multiples of it.
        dcp_size, dcp_interleave: ranks that share the context, and tokens that one holds in a row.
        planner: "greedy" packs whole contexts in request order; "equal_slices" gives every request
            with context the same number of rows in each chunk.

    Raises:
        PlanError: the workspace is too small for a block of each request.
    """
    if planner not in ("greedy", "equal_slices"):
        raise UnsupportedError(f"planner: got {planner!r}, wanted 'greedy' or 'equal_slices'")
    lens = tuple(int(length) for length in context_lens)
    handle, chunks = _library.plan_context(
        planner == "greedy", lens, workspace_rows, block_size, dcp_size, dcp_interleave
    )
    return ContextPlan(lens, handle, chunks)


def context_workspace_rows(
    *,
    max_model_len: int,
    max_num_seqs: int,
    block_size: int = 16,
    dcp_size: int = 1,
    dcp_interleave: int = 1,
) -> int:
    """Rows of the context workspace as vLLM 0.33.0 sizes it."""
    return int(
        _library.context_workspace_rows(
            max_model_len, max_num_seqs, block_size, dcp_size, dcp_interleave
        )
    )
