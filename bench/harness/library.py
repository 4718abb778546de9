# SPDX-License-Identifier: Apache-2.0
"""The C ABI of a shared libflashprime, as far as the benchmarks call it."""

import ctypes

BF16, FP32, INT32 = 0, 2, 5
MASK_FULL, MASK_CAUSAL = 0, 1
DEVICE_AUTO, DEVICE_CPU = 0, 1


class Tensor(ctypes.Structure):
    """flashprime_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
        ("capacity_bytes", ctypes.c_int64),
    ]


class Problem(ctypes.Structure):
    """flashprime_problem."""

    _fields_ = (
        [("struct_size", ctypes.c_size_t)]
        + [(name, ctypes.c_int32) for name in ("nope", "rope", "v", "num_heads")]
        + [(name, ctypes.c_int32) for name in ("dtype", "out_dtype", "mask", "return_lse")]
        + [("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64)]
        + [(name, ctypes.c_int32) for name in ("lse_layout", "self_attention")]
        + [(name, ctypes.c_int32) for name in ("batch_invariant", "num_splits")]
    )


class PrefillArgs(ctypes.Structure):
    """flashprime_prefill_args."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
        ("softmax_scale", ctypes.c_float),
        ("reserved", ctypes.c_int32),
    ] + [
        (name, Tensor)
        for name in (
            "q q_nope q_pe k k_nope k_pe v cu_seqlens_q cu_seqlens_k out lse output_scale"
        ).split()
    ]


class Options(ctypes.Structure):
    """flashprime_options."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("kernel", ctypes.c_char_p),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_for_user", ctypes.c_void_p),
        ("num_threads", ctypes.c_int32),
        ("checked", ctypes.c_int32),
    ]


def view(tensor, dtype):
    """A flashprime_tensor of anything with data_ptr(), shape and stride(), as torch's tensors."""
    result = Tensor(data=tensor.data_ptr(), dtype=dtype, rank=len(tensor.shape))
    for axis, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        result.shape[axis] = extent
        result.stride[axis] = stride
    return result


class Library:
    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        for name in ("last_error_message", "numerics_id", "build_description"):
            getattr(self._library, f"flashprime_{name}").restype = ctypes.c_char_p

    def numerics_id(self):
        return self._library.flashprime_numerics_id().decode()

    def build_description(self):
        return self._library.flashprime_build_description().decode()

    def prefill(self, problem, args, options, stream=None):
        self._check(
            self._library.flashprime_prefill(
                ctypes.byref(problem),
                ctypes.byref(args),
                ctypes.byref(options),
                ctypes.c_void_p(stream),
            )
        )

    def workspace_bytes(self, problem, args, options):
        result = ctypes.c_int64()
        self._check(
            self._library.flashprime_prefill_workspace_bytes(
                ctypes.byref(problem),
                ctypes.byref(args),
                ctypes.byref(options),
                ctypes.byref(result),
            )
        )
        return result.value

    def explain(self, problem, options):
        """What a call would run, and why; without tensors."""
        buffer = ctypes.create_string_buffer(1 << 16)
        self._check(
            self._library.flashprime_explain(
                ctypes.byref(problem),
                ctypes.byref(options),
                buffer,
                ctypes.c_size_t(len(buffer)),
                None,
                None,
            )
        )
        return buffer.value.decode()

    def _check(self, code):
        if code != 0:
            raise RuntimeError(self._library.flashprime_last_error_message().decode())
