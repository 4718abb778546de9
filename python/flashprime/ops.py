# SPDX-License-Identifier: Apache-2.0
"""The operators: attention over a ragged batch, a layer with context, and merging of parts.

T is the number of new tokens, Tk that of keys, B of sequences, H of heads on this rank. Tensors are
those of torch, NumPy or CuPy (or any that speak DLPack, if outputs are given); nothing is copied,
and all tensors of a call are on one device. On a GPU a call is ordered on torch's (or CuPy's)
current stream and does not wait; on a CPU it has finished when it returns. The GIL is released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from . import _library
from ._errors import NumericError, ShapeError, UnsupportedError
from ._tensors import (
    FP32,
    FP64,
    argument,
    code_of,
    dtype_code,
    empty,
    shape_of,
    stream_of,
    workspace,
)
from .plan import ContextChunk, ContextPlan

Tensor: TypeAlias = Any
"""A tensor of torch, NumPy, CuPy or another library that speaks DLPack."""

LseLayout: TypeAlias = Literal["heads_tokens", "tokens_heads"]
Parts: TypeAlias = "Tensor | tuple[Tensor, Tensor | None]"
KeyValues: TypeAlias = "tuple[Parts, Tensor] | tuple[Parts, Tensor, Tensor | None]"
ContextSource: TypeAlias = "Callable[[ContextChunk], KeyValues] | Sequence[KeyValues]"

_FULL, _CAUSAL, _WINDOW = range(3)
# Set by flashprime.torch: under torch.compile the operators of torch are what can be traced.
_is_compiling: Callable[[], bool] | None = None
_traced_prefill: Any = None
_traced_merge_states: Any = None

_LAYOUTS = {"heads_tokens": 0, "tokens_heads": 1}


def _layout(lse_layout: str) -> int:
    layout = _LAYOUTS.get(lse_layout)
    if layout is None:
        raise ShapeError(
            f"lse_layout: got {lse_layout!r}, wanted 'heads_tokens', [H, T], or 'tokens_heads', "
            "[T, H]"
        )
    return layout


def mask_of(causal: bool, window: tuple[int, int] | None) -> tuple[int, int, int]:
    """Kind and reaches of a mask; a causal window reaches no key on its right."""
    if window is None:
        return (_CAUSAL if causal else _FULL), -1, -1
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ShapeError(f"window: got {window!r}, wanted (left, right)") from None
    if causal:
        right = 0
    if left < 0 and right < 0:
        return _FULL, -1, -1
    if left < 0 and right == 0:
        return _CAUSAL, -1, -1
    return _WINDOW, left, right


def _parts(name: str, tensor: Any) -> tuple[Any, Any, Any]:
    """A tensor joined, or in two parts: (joined, nope, rope)."""
    if type(tensor) is tuple or type(tensor) is list:
        if len(tensor) != 2:
            raise ShapeError(f"{name}: got {len(tensor)} parts, wanted 2: ({name}_nope, {name}_pe)")
        return None, argument(f"{name}_nope", tensor[0]), argument(f"{name}_pe", tensor[1])
    return argument(name, tensor), None, None


def _outputs(
    q: Any, v: Any, out: Any, lse: Any, return_lse: bool, out_dtype: Any, layout: int
) -> tuple[Any, Any]:
    """The outputs of a call: those given, else new ones."""
    if out is None or (return_lse and lse is None):
        rows, heads, _ = shape_of("q", q, "[T, H, nope + rope] or [T, H, nope]")
        if out is None:
            code = None if out_dtype is None else dtype_code("out_dtype", out_dtype)
            out = empty("out", q, (rows, heads, shape_of("v", v, "[Tk, H, v]")[2]), code)
            out_dtype = None
        if return_lse and lse is None:
            # The reference kernel's fp64 output comes with an fp64 LSE.
            code = FP64 if getattr(out, "itemsize", 0) == 8 else FP32
            lse = empty("lse", q, (rows, heads) if layout else (heads, rows), code)
    if out_dtype is not None and dtype_code("out_dtype", out_dtype) != code_of("out", out):
        raise ShapeError(f"out_dtype: got {out_dtype} with an out of {out.dtype}")
    return out, lse


def prefill(
    q: Parts,
    k: Parts,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    softmax_scale: float,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    return_lse: bool = False,
    lse_layout: LseLayout = "heads_tokens",
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    out_dtype: Any = None,
    output_scale: Tensor | None = None,
    rope: int | None = None,
    batch_invariant: bool = False,
    num_splits: int = 0,
    kernel: str = "",
    num_threads: int = 0,
    checked: bool = False,
    stream: Any = None,
) -> Any:
    """Attention over a ragged batch.

    Args:
        q: ``[T, H, nope + rope]``, or the pair ``([T, H, nope], [T, H, rope])``. bf16, fp16, or
            fp32 on a CPU.
        k: ``[Tk, H, nope + rope]``, or the pair ``([Tk, H, nope], [Tk, rope])`` whose rotary part
            all heads share. The second part of a pair is None where rope is 0.
        v: ``[Tk, H, v]``, for example a slice of the up-projection's output. The last axis of q, k,
            v and out has stride 1, every other stride is free.
        cu_seqlens_q: int32 ``[B + 1]``, from 0 to T, never decreasing. On a GPU trusted unless
            ``checked``.
        cu_seqlens_k: int32 ``[B + 1]``, from 0 to Tk. None: the same tensor as cu_seqlens_q.
        softmax_scale: multiplies q.k before the softmax; finite and at least 0.
        causal: query i of a sequence sees the keys up to i + (keys - queries).
        window: how many keys to the left and right of that position are seen; negative: all.
        return_lse: also return the natural logarithm of each softmax's denominator.
        lse_layout: ``"heads_tokens"``, [H, T], or ``"tokens_heads"``, [T, H].
        max_seqlen_q, max_seqlen_k: at least the longest sequence, where known.
        out, lse: where results go, instead of new tensors; lse is fp32. Giving lse asks for it.
        out_dtype: of a new ``out``: that of q (default), "fp32" or "e4m3".
        output_scale: fp32, one element, with e4m3 output: what is stored is out / scale.
        rope: how much of a joined row is rope, where q and k are both joined. Names the kernel and
            never changes a result; 64 by default where a row is longer, else 0.
        batch_invariant: never split keys.
        num_splits: splits of the keys; 0 lets the selector choose.
        kernel: a name of :func:`list_kernels` that has to run the call.
        num_threads: on a CPU; 0: all. Never changes a bit.
        checked: on a GPU: copy cu_seqlens to the host and check them, which waits.
        stream: instead of the current one: a stream of torch or CuPy, or a handle.

    Returns:
        out ``[T, H, v]``, or ``(out, lse)`` with ``return_lse``. A row that sees no key has
        out 0 and lse -inf.

    Raises:
        FlashPrimeError: one of its classes; everything is checked before anything is written.
            ShapeError, DtypeError, StrideError, AliasError, NullError, AlignmentError, RangeError,
            CuSeqlensError, NumericError and DeviceError name the argument. UnsupportedError has
            every reason for which no kernel runs the call. On a GPU also NotWarmError, FrozenError,
            ArchError, DriverError, NoCompilerError.
    """
    if _is_compiling is not None and _is_compiling():
        _refuse_when_traced(kernel=kernel, num_threads=num_threads, checked=checked, stream=stream)
        return _traced_prefill(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            softmax_scale=softmax_scale,
            causal=causal,
            window=window,
            return_lse=return_lse,
            lse_layout=lse_layout,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            out=out,
            lse=lse,
            out_dtype=out_dtype,
            output_scale=output_scale,
            rope=rope,
            batch_invariant=batch_invariant,
            num_splits=num_splits,
        )
    joined_q, q_nope, q_pe = _parts("q", q)
    joined_k, k_nope, k_pe = _parts("k", k)
    v_argument = argument("v", v)
    layout = _layout(lse_layout)
    if out is None or (return_lse and lse is None) or out_dtype is not None:
        first_q = q if q_nope is None else q[0]
        out, lse = _outputs(first_q, v, out, lse, return_lse, out_dtype, layout)
    cu_q = argument("cu_seqlens_q", cu_seqlens_q)
    mask, left, right = mask_of(causal, window)
    arguments = (
        joined_q,
        q_nope,
        q_pe,
        joined_k,
        k_nope,
        k_pe,
        v_argument,
        cu_q,
        cu_q if cu_seqlens_k is None else argument("cu_seqlens_k", cu_seqlens_k),
        argument("out", out, True),
        argument("lse", lse, True),
        argument("output_scale", output_scale),
    )
    rest = (
        _scale(softmax_scale),
        -1 if rope is None else rope,
        mask,
        left,
        right,
        layout,
        -1 if max_seqlen_q is None else max_seqlen_q,
        -1 if max_seqlen_k is None else max_seqlen_k,
        batch_invariant,
        num_splits,
        kernel,
        num_threads,
        checked,
        stream_of(v, stream),
    )
    needed = _library.prefill(*arguments, None, *rest)
    if needed:
        room = workspace(v, needed)
        _library.prefill(*arguments, argument("workspace", room), *rest)
    return (out, lse) if return_lse or lse is not None else out


def _refuse_when_traced(**options: Any) -> None:
    for name, value in options.items():
        if value:
            raise UnsupportedError(f"{name}: got {value!r} under torch.compile, wanted the default")


def _scale(softmax_scale: float) -> float:
    try:
        return float(softmax_scale)
    except (TypeError, ValueError):
        raise NumericError(
            f"softmax_scale: got {softmax_scale!r}, wanted a finite number of 0 or more"
        ) from None


def merge_states(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    return_lse: bool = True,
    lse_layout: LseLayout = "heads_tokens",
    tokens_with_prefix: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    out_dtype: Any = None,
    output_scale: Tensor | None = None,
    num_threads: int = 0,
    stream: Any = None,
) -> Any:
    """Merges two partial results over disjoint sets of keys, in fp32.

    Args:
        prefix_out, suffix_out: ``[T, H, D]`` of one dtype: attention over the earlier and the later
            keys.
        prefix_lse, suffix_lse: fp32, in ``lse_layout``, natural logarithm. An infinite one counts
            as -inf: that side is empty, and not read.
        return_lse: also return the merged LSE.
        tokens_with_prefix: tokens from this one on have no prefix and copy the suffix.
        out, lse: where results go. ``out`` may be ``prefix_out`` itself, ``lse`` ``prefix_lse``.
        out_dtype: of a new out: that of prefix_out (default), "bf16", "fp16", "fp32" or "e4m3".
        output_scale: fp32, one element, with e4m3 output.

    Returns:
        out ``[T, H, D]``, or ``(out, lse)`` with ``return_lse``.

    Raises:
        FlashPrimeError: as :func:`prefill`; AliasError for an overlap that is not exactly in place.
    """
    if _is_compiling is not None and _is_compiling():
        _refuse_when_traced(num_threads=num_threads, stream=stream)
        return _traced_merge_states(
            prefix_out,
            prefix_lse,
            suffix_out,
            suffix_lse,
            return_lse=return_lse,
            lse_layout=lse_layout,
            tokens_with_prefix=tokens_with_prefix,
            out=out,
            lse=lse,
            out_dtype=out_dtype,
            output_scale=output_scale,
        )
    layout = _layout(lse_layout)
    out, lse = _outputs(prefix_out, prefix_out, out, lse, return_lse, out_dtype, layout)
    _library.merge_states(
        argument("prefix_out", prefix_out),
        argument("prefix_lse", prefix_lse),
        argument("suffix_out", suffix_out),
        argument("suffix_lse", suffix_lse),
        argument("out", out, True),
        argument("lse", lse, True),
        argument("output_scale", output_scale),
        layout,
        -1 if tokens_with_prefix is None else tokens_with_prefix,
        num_threads,
        stream_of(prefix_out, stream),
    )
    return (out, lse) if lse is not None else out


class _Source:
    """A context source for the library: keeps each chunk's tensors, and what a callback raised."""

    def __init__(self, plan: ContextPlan, source: ContextSource) -> None:
        self.plan = plan
        self.source = source
        self.error: BaseException | None = None
        self.held: Any = None

    def __call__(self, index: int) -> Any:
        try:
            if callable(self.source):
                made = self.source(self.plan.chunks[index])
            elif index < len(self.source):
                made = self.source[index]
            else:
                raise UnsupportedError(
                    f"source: got {len(self.source)} chunks, wanted {len(self.plan.chunks)}"
                )
            self.held = made
            if type(made) not in (tuple, list) or len(made) not in (2, 3):
                raise ShapeError("source: wanted (k, v) or (k, v, cu_seqlens_k)")
            joined, nope, pe = _parts("k", made[0])
            cu = made[2] if len(made) == 3 else None
            return (joined, nope, pe, argument("v", made[1]), argument("cu_seqlens_k", cu))
        except BaseException as error:  # also an interrupt: it continues once the call is over
            self.error = error
            return None


def prefill_layer(
    q: Parts,
    k: Parts,
    v: Tensor,
    cu_seqlens_q: Tensor,
    plan: ContextPlan,
    source: ContextSource,
    *,
    softmax_scale: float,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    return_lse: bool = False,
    lse_layout: LseLayout = "heads_tokens",
    max_seqlen_q: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    out_dtype: Any = None,
    output_scale: Tensor | None = None,
    rope: int | None = None,
    batch_invariant: bool = False,
    num_splits: int = 0,
    kernel: str = "",
    num_threads: int = 0,
    checked: bool = False,
    stream: Any = None,
) -> Any:
    """Attention of new tokens over themselves and over all their context, as one softmax.

    Args:
        q, k, v, cu_seqlens_q: the new tokens, one sequence per request of the plan.
        plan: how the context is cut, of :func:`plan_context`.
        source: ``source(chunk)`` gives a chunk's ``(k, v)``, or ``(k, v, cu_seqlens_k)``, rows in
            the order of its slices; k may be a pair. Called once per chunk, in order, on this
            thread and stream; the buffers may be used again by the next call. Or a list with one
            such tuple for each chunk. cu_seqlens_k is for a GPU only: int32 ``[B + 1]`` with 0 keys
            for requests outside the chunk; without it the plan's is copied there, which cannot be
            done while a graph is recorded.
        causal, window: the mask among the new tokens; all context is seen.
        Others: as in :func:`prefill`.

    Returns:
        As :func:`prefill`. Partial states are fp32; ``out_dtype`` is applied once, at the end.

    Raises:
        FlashPrimeError: as :func:`prefill`, and PlanError for a plan that contradicts the tensors.
            What ``source`` raises comes back unchanged; outputs are then unspecified.
    """
    joined_q, q_nope, q_pe = _parts("q", q)
    joined_k, k_nope, k_pe = _parts("k", k)
    layout = _layout(lse_layout)
    first_q = q if q_nope is None else q[0]
    out, lse = _outputs(first_q, v, out, lse, return_lse, out_dtype, layout)
    cu_q = argument("cu_seqlens_q", cu_seqlens_q)
    mask, left, right = mask_of(causal, window)
    longest = -1 if max_seqlen_q is None else max_seqlen_q
    arguments = (
        joined_q,
        q_nope,
        q_pe,
        joined_k,
        k_nope,
        k_pe,
        argument("v", v),
        cu_q,
        cu_q,
        argument("out", out, True),
        argument("lse", lse, True),
        argument("output_scale", output_scale),
    )
    rest = (
        _scale(softmax_scale),
        -1 if rope is None else rope,
        mask,
        left,
        right,
        layout,
        longest,
        longest,
        batch_invariant,
        num_splits,
        kernel,
        num_threads,
        checked,
        stream_of(v, stream),
        plan._handle,
    )
    needed = _library.prefill_layer(*arguments, None, *rest, None)
    room = workspace(v, needed) if needed else None
    call = _Source(plan, source)
    try:
        _library.prefill_layer(*arguments, argument("workspace", room), *rest, call)
    except BaseException:
        if call.error is None:
            raise
    if call.error is not None:
        raise call.error
    return (out, lse) if lse is not None else out


def default_softmax_scale(nope: int, rope: int) -> float:
    """``(nope + rope) ** -0.5``, for models without a YaRN factor."""
    return 1.0 / math.sqrt(nope + rope)
