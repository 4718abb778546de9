# SPDX-License-Identifier: Apache-2.0
"""The library's errors as exceptions: one class for each status code, the C++ message as text."""

from __future__ import annotations

import tvm_ffi


class FlashPrimeError(Exception):
    """Base of all errors of the library. Its text names the argument, what was got and wanted."""

    code: str = "kInternal"
    """Name of the status code, as in ``flashprime/status.h``."""


class ShapeError(FlashPrimeError, ValueError):
    """Rank, extent or layout of a tensor."""

    code = "kShape"


class UnsupportedError(FlashPrimeError, ValueError):
    """Legal, but no kernel here computes it; the text has every reason."""

    code = "kUnsupported"


class DtypeError(FlashPrimeError, TypeError):
    """Element type of a tensor, or an output scale that is there or missing."""

    code = "kDtype"


class StrideError(FlashPrimeError, ValueError):
    """A stride is not one that the call can honour."""

    code = "kStride"


class AliasError(FlashPrimeError, ValueError):
    """An output overlaps another tensor."""

    code = "kAlias"


class NullError(FlashPrimeError, ValueError):
    """A null pointer where rows exist."""

    code = "kNull"


class AlignmentError(FlashPrimeError, ValueError):
    """A pointer or stride is not aligned as it has to be."""

    code = "kAlignment"


class RangeError(FlashPrimeError, ValueError):
    """A size or offset overflows, or leaves the memory."""

    code = "kRange"


class CuSeqlensError(FlashPrimeError, ValueError):
    """cu_seqlens or max_seqlen contradict the tensors."""

    code = "kCuSeqlens"


class NumericError(FlashPrimeError, ValueError):
    """softmax_scale or output_scale is not a usable number."""

    code = "kNumeric"


class DeviceError(FlashPrimeError, RuntimeError):
    """The device does not exist or is not that of the tensors."""

    code = "kDevice"


class StreamError(FlashPrimeError, RuntimeError):
    """The stream does not belong to the device, or records what cannot be recorded."""

    code = "kStream"


class NotWarmError(FlashPrimeError, RuntimeError):
    """A kernel would have to be compiled or loaded while a graph is recorded."""

    code = "kNotWarm"


class FrozenError(FlashPrimeError, RuntimeError):
    """A kernel would have to be compiled, and compilation is frozen."""

    code = "kFrozen"


class ArchError(FlashPrimeError, RuntimeError):
    """No kernel for this GPU architecture."""

    code = "kArch"


class DriverError(FlashPrimeError, RuntimeError):
    """The GPU driver is missing or too old."""

    code = "kDriver"


class NoCompilerError(FlashPrimeError, RuntimeError):
    """NVRTC was not found."""

    code = "kNoCompiler"


class WorkspaceError(FlashPrimeError, ValueError):
    """The workspace is missing, too small or unaligned."""

    code = "kWorkspace"


class PlanError(FlashPrimeError, ValueError):
    """A context plan contradicts the call."""

    code = "kPlan"


class OutOfMemoryError(FlashPrimeError, MemoryError):
    """An allocation failed."""

    code = "kOutOfMemory"


class PriorCudaError(FlashPrimeError, RuntimeError):
    """An earlier CUDA error, not of this call."""

    code = "kPriorCudaError"


class FormatError(FlashPrimeError, ValueError):
    """A file, setting or text does not follow its format."""

    code = "kFormat"


class IoError(FlashPrimeError, OSError):
    """The operating system refused a read or a write."""

    code = "kIo"


class InternalError(FlashPrimeError, RuntimeError):
    """A defect of the library."""

    code = "kInternal"


ERRORS: dict[str, type[FlashPrimeError]] = {
    error.code: error for error in FlashPrimeError.__subclasses__()
}
for _code, _error in ERRORS.items():
    tvm_ffi.register_error(f"flashprime.{_code}", _error)
