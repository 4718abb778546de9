# SPDX-License-Identifier: Apache-2.0
"""Which kernels exist, which one runs a problem and why not the others; models; this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import _library
from ._errors import ShapeError, UnsupportedError
from ._tensors import dtype_code
from .ops import mask_of


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """One kernel of the library and what it declares to support."""

    name: str
    device: str
    summary: str
    head_dims: str
    dtypes: str
    out_dtypes: str
    masks: str
    tested_on: str


@dataclasses.dataclass(frozen=True)
class Model:
    """Head dims and softmax scale of a published model."""

    name: str
    nope: int
    rope: int
    v: int
    num_heads: int
    num_layers: int
    kv_lora_rank: int
    q_lora_rank: int
    softmax_scale: float
    source: str

    @property
    def dims(self) -> tuple[int, int, int]:
        return self.nope, self.rope, self.v


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A kernel, whether it can run the problem, and every reason why not."""

    kernel: str
    supported: bool
    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The selector's answer. True if some kernel runs the problem."""

    supported: bool
    kernel: str
    detail: str
    verdicts: tuple[Verdict, ...]

    def __bool__(self) -> bool:
        return self.supported

    @property
    def reasons(self) -> list[str]:
        """Every reason against every kernel, in order of preference."""
        return [f"{v.kernel}: {reason}" for v in self.verdicts for reason in v.reasons]

    def __str__(self) -> str:
        first = f"{self.kernel}: {self.detail}" if self.supported else "unsupported"
        return "\n  ".join([first, *self.reasons])


def list_kernels() -> list[KernelInfo]:
    """All kernels, in the order in which the selector prefers them."""
    return [KernelInfo(**row) for row in _library.plain(_library.list_kernels())]


def list_models() -> list[Model]:
    """Presets of published models."""
    return [Model(**row) for row in _library.plain(_library.list_models())]


def find_model(name: str) -> Model:
    """The preset of that name.

    Raises:
        UnsupportedError: naming those that exist.
    """
    models = list_models()
    for model in models:
        if model.name == name:
            return model
    raise UnsupportedError(
        f"model: got {name!r}, wanted one of {', '.join(model.name for model in models)}"
    )


def dims_of(model: str | None, dims: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """The head dims (nope, rope, v) that one of the two gives."""
    if (model is None) == (dims is None):
        raise UnsupportedError("model, dims: wanted one of them: a preset, or (nope, rope, v)")
    if model is not None:
        return find_model(model).dims
    if not isinstance(dims, (tuple, list)) or len(dims) != 3:
        raise ShapeError(f"dims: got {dims!r}, wanted (nope, rope, v)")
    return dims[0], dims[1], dims[2]


def explain(
    model: str | None = None,
    *,
    dims: tuple[int, int, int] | None = None,
    num_heads: int = 1,
    dtype: Any = "bf16",
    out_dtype: Any = None,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    return_lse: bool = False,
    batch_invariant: bool = False,
    num_splits: int = 0,
    device: str = "auto",
    kernel: str = "",
) -> Explanation:
    """What :func:`prefill` would run, and every reason against the other kernels.

    Args:
        model: a preset's name, or
        dims: (nope, rope, v).
        device: "auto" (the first that can run it, a GPU before the CPU), "cpu" or "cuda:N".
        Others: as in :func:`prefill`.

    An unsupported problem is an Explanation that is false, and no error.
    """
    code = dtype_code("dtype", dtype)
    out_code = code if out_dtype is None else dtype_code("out_dtype", out_dtype)
    supported, chosen, detail, verdicts = _library.plain(
        _library.explain(
            *dims_of(model, dims),
            num_heads,
            code,
            out_code,
            *mask_of(causal, window),
            return_lse,
            batch_invariant,
            num_splits,
            device,
            kernel,
        )
    )
    return Explanation(
        supported, chosen, detail, tuple(Verdict(k, s, tuple(r)) for k, s, r in verdicts)
    )


def library_info() -> dict[str, Any]:
    """Version, build, numerics id and what the CPU kernels run on."""
    info: dict[str, Any] = _library.plain(_library.library_info())
    return info
