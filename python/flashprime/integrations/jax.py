# SPDX-License-Identifier: Apache-2.0
"""Prefill attention for JAX, also under ``jax.jit``; by the package ``jax-tvm-ffi``.

On a GPU a kernel that is not loaded is compiled by the first call, as with torch.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _library
from .._errors import ShapeError
from ..ops import mask_of

_TARGET = "flashprime_prefill"
_ATTRIBUTES = ("q_parts", "k_parts", "softmax_scale", "rope", "mask", "left", "right")


@functools.cache
def _register() -> None:
    import jax_tvm_ffi

    spec = [*(f"attrs.{name}" for name in _ATTRIBUTES), "args", "rets"]
    platforms = {device.platform for device in jax.devices()} | {"cpu"}
    for platform in platforms & {"cpu", "gpu", "cuda"}:
        jax_tvm_ffi.register_ffi_target(
            _TARGET,
            _library.jax_prefill,
            arg_spec=spec,
            platform="cpu" if platform == "cpu" else "gpu",
            allow_cuda_graph=True,
        )


def prefill(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    softmax_scale: float,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    return_lse: bool = False,
    rope: int | None = None,
) -> Any:
    """:func:`flashprime.prefill` for arrays of JAX: the same shapes, results and errors.

    q and k joined or as pairs. Arrays are dense, so v is copied if it was sliced. The scale, the
    mask and the shapes are constants of what ``jax.jit`` compiles; lengths are data. Keys are not
    split.
    """
    _register()
    q_parts = q if isinstance(q, (tuple, list)) else (q,)
    k_parts = k if isinstance(k, (tuple, list)) else (k,)
    for name, array in (("q", q_parts[0]), ("v", v)):
        if array.ndim != 3:
            raise ShapeError(f"{name}: got rank {array.ndim}, wanted rank 3")
    rows, heads = q_parts[0].shape[:2]
    outputs = [jax.ShapeDtypeStruct((rows, heads, v.shape[2]), q_parts[0].dtype)]
    if return_lse:
        outputs.append(jax.ShapeDtypeStruct((heads, rows), jnp.float32))
    mask, left, right = mask_of(causal, window)
    made = jax.ffi.ffi_call(_TARGET, outputs)(
        *q_parts,
        *k_parts,
        v,
        cu_seqlens_q,
        cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k,
        q_parts=np.int64(len(q_parts)),
        k_parts=np.int64(len(k_parts)),
        softmax_scale=np.float64(softmax_scale),
        rope=np.int64(-1 if rope is None else rope),
        mask=np.int64(mask),
        left=np.int64(left),
        right=np.int64(right),
    )
    return tuple(made) if return_lse else made[0]
