# SPDX-License-Identifier: Apache-2.0
import pathlib
import re

import flashprime
import numpy as np
import pytest
import tvm_ffi
from flashprime._errors import ERRORS

STATUS_H = pathlib.Path(__file__).parents[2] / "include" / "flashprime" / "status.h"


def call(**changes):
    rng = np.random.default_rng(0)
    arguments = {
        "q": rng.standard_normal((4, 2, 192), dtype=np.float32),
        "k": rng.standard_normal((4, 2, 192), dtype=np.float32),
        "v": rng.standard_normal((4, 2, 128), dtype=np.float32),
        "cu_seqlens_q": np.array([0, 4], np.int32),
        "softmax_scale": 0.1,
    }
    return flashprime.prefill(**(arguments | changes))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def strided(shape, strides, dtype=np.float32):
    """A view whose memory must not be touched."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, strides)


def unaligned(*shape):
    return (
        np.frombuffer(bytes(4 * int(np.prod(shape)) + 1), np.uint8)[1:]
        .view(np.float32)
        .reshape(shape)
    )


big = zeros(4, 2, 320)
SEEN = [
    (flashprime.ShapeError, r"k: got shape \[4, 1, 192\], wanted \[4, 2, 192\]",
     {"k": zeros(4, 1, 192)}),
    (flashprime.ShapeError, r"q: got rank 2, \[4, 192\], wanted rank 3", {"q": zeros(4, 192)}),
    (flashprime.ShapeError, "q: got rank 2", {"q": zeros(4, 192), "out": zeros(4, 2, 128)}),
    (flashprime.ShapeError, "q: got 3 parts", {"q": (1, 2, 3)}),
    (flashprime.ShapeError, "k_pe: absent, wanted because", {"k": (zeros(4, 2, 128), None),
                                                             "q": (zeros(4, 2, 128),
                                                                   zeros(4, 2, 64))}),
    (flashprime.ShapeError, "rope: got 32, wanted 64, the last axis of k_pe",
     {"k": (zeros(4, 2, 128), zeros(4, 64)), "rope": 32}),
    (flashprime.ShapeError, "rope: got 192, wanted less than 192", {"rope": 192}),
    (flashprime.ShapeError, "lse_layout: got 'HT'", {"lse_layout": "HT"}),
    (flashprime.ShapeError, r"lse: got shape \[4, 2\]", {"lse": zeros(4, 2)}),
    (flashprime.ShapeError, "out_dtype: got fp32 with an out of float64",
     {"out": zeros(4, 2, 128, dtype=np.float64), "out_dtype": "fp32"}),
    (flashprime.UnsupportedError, r"cpu_fast:\n +out_dtype: got fp64",
     {"kernel": "cpu_fast", "out": zeros(4, 2, 128, dtype=np.float64)}),
    (flashprime.UnsupportedError, "no_such_kernel", {"kernel": "no_such_kernel"}),
    (flashprime.UnsupportedError, "num_splits", {"num_splits": -1}),
    (flashprime.DtypeError, "v: got fp16, wanted fp32", {"v": zeros(4, 2, 128, dtype=np.float16)}),
    (flashprime.DtypeError, "q: got int64", {"q": zeros(4, 2, 192, dtype=np.int64)}),
    (flashprime.DtypeError, "cu_seqlens_q: got int64",
     {"cu_seqlens_q": np.array([0, 4], np.int64)}),
    (flashprime.DtypeError, "q: got >f4", {"q": zeros(4, 2, 192, dtype=">f4")}),
    (flashprime.DtypeError, "out_dtype: got 'fp8'", {"out_dtype": "fp8"}),
    (flashprime.DtypeError, "output_scale", {"out_dtype": "e4m3"}),
    (flashprime.DtypeError, "output_scale", {"output_scale": zeros(1)}),
    (flashprime.StrideError, "v: ", {"v": zeros(4, 2, 256)[..., ::2]}),
    (flashprime.StrideError, r"q: got strides \(2, 2, 2\) in bytes, wanted multiples of 4",
     {"q": strided((4, 2, 192), (2, 2, 2))}),
    (flashprime.AliasError, "out: ", {"q": big[..., :192], "out": big[..., 100:228]}),
    (flashprime.AlignmentError, "k: ", {"k": unaligned(4, 2, 192)}),
    (flashprime.RangeError, "v: ", {"v": strided((4, 2, 128), (1 << 62, 1 << 61, 4))}),
    (flashprime.CuSeqlensError, r"cu_seqlens_q\[1\]: got 3, wanted 4",
     {"cu_seqlens_q": np.array([0, 3], np.int32)}),
    (flashprime.CuSeqlensError, "cu_seqlens_k: got length 3",
     {"cu_seqlens_k": np.array([0, 1, 4], np.int32)}),
    (flashprime.CuSeqlensError, "max_seqlen_q: got 3, wanted at least 4", {"max_seqlen_q": 3}),
    (flashprime.NumericError, "softmax_scale: got NaN", {"softmax_scale": float("nan")}),
    (flashprime.NumericError, "softmax_scale: got None", {"softmax_scale": None}),
    (flashprime.NumericError, "output_scale: got 0",
     {"out_dtype": "e4m3", "output_scale": zeros(1)}),
    (flashprime.DeviceError, "out: got a read-only array",
     {"out": np.broadcast_to(zeros(1), (4, 2, 128))}),
    (flashprime.ShapeError, "k: got 1 parts, wanted 2", {"k": [zeros(4, 2, 192)]}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "text", "changes"), SEEN)
def test_a_bad_argument_is_named_and_nothing_is_written(error, text, changes):
    out = changes.get("out")
    before = None if out is None else out.tobytes()
    with pytest.raises(error, match=text) as caught:
        call(**changes)
    assert isinstance(caught.value, flashprime.FlashPrimeError)
    assert type(caught.value).code in ERRORS
    if out is not None:
        assert out.tobytes() == before


def test_what_is_no_tensor_is_a_type_error():
    with pytest.raises(TypeError, match="v: got str, wanted a tensor of torch, NumPy, CuPy"):
        call(v="v", out=zeros(4, 2, 128))
    with pytest.raises(TypeError, match="stream: got str"):
        call(stream="main")


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("max_seqlen_q", "4", "an integer"),
        ("rope", 1.5, "an integer"),
        ("max_seqlen_k", 2**70, "an integer"),
        ("checked", "yes", "True or False"),
        ("batch_invariant", None, "True or False"),
        ("kernel", 3, "a str"),
        ("num_threads", "2", "an integer"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(argument, value, wanted):
    with pytest.raises(TypeError, match=f"^{argument}: got .*, wanted {wanted}"):
        call(**{argument: value})


def test_windows_and_dims_of_the_wrong_form_are_named():
    for window in (3, (1,), (1, 2, 3)):
        with pytest.raises(flashprime.ShapeError, match=r"window: got .*, wanted \(left, right\)"):
            call(window=window)
    with pytest.raises(
        flashprime.ShapeError, match=r"dims: got \(1, 2\), wanted \(nope, rope, v\)"
    ):
        flashprime.explain(dims=(1, 2))
    with pytest.raises(TypeError, match="max_megabytes: got .*, wanted an integer"):
        flashprime.KernelCache(max_megabytes="many")
    with pytest.raises(TypeError, match="num_heads: got None, wanted an integer"):
        flashprime.explain("deepseek-v3", num_heads=None)


def test_every_status_code_has_its_own_exception():
    codes = re.findall(r"^  (k\w+) = (\d+),", STATUS_H.read_text(encoding="utf-8"), re.M)
    names = [name for name, number in codes if number != "0"]
    assert len(names) == 24 and set(names) == set(ERRORS)
    assert len(set(ERRORS.values())) == len(ERRORS)
    for name, error in ERRORS.items():
        raised = tvm_ffi.core.Error(f"flashprime.{name}", "the message", "").py_error()
        assert type(raised) is error and str(raised) == "the message"
        assert getattr(flashprime, error.__name__) is error


def test_the_usual_kinds_of_python_errors_catch_them():
    assert issubclass(flashprime.ShapeError, ValueError)
    assert issubclass(flashprime.DtypeError, TypeError)
    assert issubclass(flashprime.IoError, OSError)
    assert issubclass(flashprime.OutOfMemoryError, MemoryError)
    assert issubclass(flashprime.FrozenError, RuntimeError)


def test_a_failed_call_does_not_keep_its_tensors():
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    v = zeros(4, 2, 128, dtype=np.float16).view(Array)
    reference = weakref.ref(v)
    with pytest.raises(flashprime.DtypeError):
        call(v=v)
    del v
    gc.collect()
    assert reference() is None
