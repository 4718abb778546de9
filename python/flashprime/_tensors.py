# SPDX-License-Identifier: Apache-2.0
"""What the operators need of torch, NumPy and CuPy, none of which is imported here but NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm_ffi

from . import _library
from ._errors import DeviceError, DtypeError, ShapeError, StrideError

BF16, FP16, FP32, FP64, E4M3, INT32 = range(6)  # of flashprime/types.h
_UINT8 = -1  # a workspace

_CODES = {
    "bfloat16": BF16,
    "float16": FP16,
    "float32": FP32,
    "float64": FP64,
    "float8_e4m3fn": E4M3,
    "int32": INT32,
}
_ALIASES = {"bf16": BF16, "fp16": FP16, "fp32": FP32, "fp64": FP64, "e4m3": E4M3}
_NAMES = {code: name for name, code in _ALIASES.items()}
_LONG_NAMES = {code: name for name, code in _CODES.items()}

# Types that tvm-ffi takes as they are, filled as they are met.
_direct: set[type] = set()


def dtype_code(name: str, dtype: Any) -> int:
    """The code of a dtype given as text ("bf16"), or as torch or NumPy have it."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    text = text.removeprefix("torch.")
    code = _ALIASES.get(text, _CODES.get(text))
    if code is None and isinstance(dtype, type):
        code = _CODES.get(np.dtype(dtype).name)
    if code is None:
        raise DtypeError(f"{name}: got {dtype!r}, wanted one of {', '.join(_ALIASES)}")
    return code


def dtype_name(code: int) -> str:
    return _NAMES[code]


def _host_view(name: str, array: np.ndarray[Any, Any], writable: bool) -> Any:
    code = _UINT8 if array.dtype == np.uint8 else _CODES.get(array.dtype.name)
    if code is None or not array.dtype.isnative:
        raise DtypeError(
            f"{name}: got {array.dtype}, wanted bfloat16, float16, float32, float64, "
            "float8_e4m3fn or int32, in the machine's byte order"
        )
    if writable and not array.flags.writeable:
        raise DeviceError(f"{name}: got a read-only array, wanted one that can be written")
    size = array.itemsize
    strides = array.strides
    if size > 1 and any(stride % size for stride in strides):
        raise StrideError(f"{name}: got strides {strides} in bytes, wanted multiples of {size}")
    return _library.host_view(
        array.ctypes.data, code, array.shape, tuple(stride // size for stride in strides)
    )


def argument(name: str, tensor: Any, writable: bool = False) -> Any:
    """A tensor as the library's functions take it. The original has to outlive the call."""
    if tensor is None or type(tensor) in _direct:
        return tensor
    if isinstance(tensor, np.ndarray):
        return _host_view(name, tensor, writable)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            _direct.add(type(tensor))
        return tensor
    if isinstance(tensor, tvm_ffi.Tensor):
        return tensor
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(
            f"{name}: got {type(tensor).__name__}, wanted a tensor of torch, NumPy, CuPy or "
            "another library that speaks DLPack"
        )
    if writable and type(tensor).__module__.split(".")[0] in ("jax", "jaxlib"):
        raise DeviceError(f"{name}: got a JAX array, which nothing may write")
    return tensor


def shape_of(name: str, tensor: Any, axes: str) -> tuple[int, int, int]:
    shape = tuple(tensor.shape)
    if len(shape) != 3:
        raise ShapeError(f"{name}: got rank {len(shape)}, {list(shape)}, wanted rank 3, {axes}")
    return shape


def _library_of(tensor: Any) -> str:
    if isinstance(tensor, np.ndarray):
        return "numpy"
    return type(tensor).__module__.split(".")[0]


def code_of(name: str, tensor: Any) -> int:
    return dtype_code(f"{name}.dtype", tensor.dtype)


def empty(name: str, like: Any, shape: tuple[int, ...], code: int | None) -> Any:
    """A tensor of the library and device of another, contents unspecified; code None: its dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        if code is None:
            return like.new_empty(shape)
        return like.new_empty(shape, dtype=getattr(torch, _LONG_NAMES[code]))
    library = _library_of(like)
    if library in ("numpy", "cupy"):
        dtype = like.dtype if code is None else _numpy_dtype(name, code)
        return sys.modules[library].empty(shape, dtype=dtype)
    raise DeviceError(
        f"{name}: absent, wanted with arrays of {library}: only torch, NumPy and CuPy tensors get "
        "their outputs allocated"
    )


def _numpy_dtype(name: str, code: int) -> np.dtype[Any]:
    if code in (BF16, E4M3):
        try:
            import ml_dtypes
        except ImportError:
            raise DtypeError(
                f"{name}: NumPy has no {_LONG_NAMES[code]}; wanted the ml_dtypes package, which has"
            ) from None
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _LONG_NAMES[code]))
        return dtype
    return np.dtype(_LONG_NAMES[code])


def workspace(like: Any, bytes_needed: int) -> Any:
    """Memory that the library may use during one call, with room to align its start."""
    size = bytes_needed + 256
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        # Of torch's allocator: ordered on its stream, and part of a graph that is recorded.
        return torch.empty(size, dtype=torch.uint8, device=like.device)
    library = _library_of(like)
    if library == "numpy":
        return np.empty(size, dtype=np.uint8)
    if library == "cupy":
        return sys.modules["cupy"].empty(size, dtype=np.uint8)
    raise DeviceError(
        f"workspace: this call needs {bytes_needed} bytes, which only torch, NumPy and CuPy "
        f"tensors get allocated, not those of {library}"
    )


def stream_of(tensor: Any, stream: Any) -> int | None:
    """The handle of a stream; None leaves it to the framework that tvm-ffi asks, which is torch."""
    if stream is None and type(tensor) in _direct:
        return None
    if stream is not None:
        if isinstance(stream, int):
            return stream
        for attribute in ("cuda_stream", "ptr"):  # torch, CuPy
            handle = getattr(stream, attribute, None)
            if isinstance(handle, int):
                return handle
        raise TypeError(
            f"stream: got {type(stream).__name__}, wanted a stream of torch or CuPy, or its handle"
        )
    if _library_of(tensor) == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return None
