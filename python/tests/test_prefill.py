# SPDX-License-Identifier: Apache-2.0
import threading
import time

import flashprime
import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

# Relative to the largest value of a tensor. The oracle sees the rounded inputs, so what is left is
# the rounding of the output and, below fp32, of the probabilities.
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def batch(rng, lengths, heads, dims, dtype=np.float32):
    """q, k in parts and v of a batch, with cu_seqlens."""
    nope, rope, dim_v = dims
    cu_q, cu_k = (np.cumsum([0, *column], dtype=np.int32) for column in zip(*lengths, strict=True))
    tensors = [
        rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        for shape in [
            (cu_q[-1], heads, nope),
            (cu_q[-1], heads, rope),
            (cu_k[-1], heads, nope),
            (cu_k[-1], rope),
            (cu_k[-1], heads, dim_v),
        ]
    ]
    return *tensors, cu_q, cu_k


def check_close(actual, wanted, tolerance):
    actual = np.asarray(actual, dtype=np.float64)
    assert actual.shape == wanted.shape
    assert np.array_equal(np.isinf(actual), np.isinf(wanted))
    finite = np.isfinite(wanted)
    scale = max(1.0, np.abs(wanted[finite]).max(initial=0.0))
    assert np.abs(actual[finite] - wanted[finite]).max(initial=0.0) <= tolerance * scale


lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=4)


@given(
    lengths=lengths,
    heads=st.integers(1, 3),
    dims=st.sampled_from([(128, 64, 128), (192, 64, 256), (64, 64, 128), (5, 3, 7), (16, 0, 9)]),
    dtype=st.sampled_from(sorted(DTYPES)),
    causal=st.booleans(),
    window=st.none() | st.tuples(st.integers(-1, 20), st.integers(-1, 20)),
    q_joined=st.booleans(),
    k_joined=st.booleans(),
    tokens_heads=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example([(0, 0)], 1, (128, 64, 128), "float32", True, None, True, True, False, 0)
@example([(3, 0), (0, 4)], 2, (128, 64, 128), "float32", False, None, True, False, True, 0)
def test_agrees_with_the_definition_in_fp64(
    lengths, heads, dims, dtype, causal, window, q_joined, k_joined, tokens_heads, seed
):
    rng = np.random.default_rng(seed)
    q_nope, q_pe, k_nope, k_pe, v, cu_q, cu_k = batch(rng, lengths, heads, dims, DTYPES[dtype])
    if dims[1] == 0:
        q_pe = k_pe = None
    q, k = (q_nope, q_pe), (k_nope, k_pe)
    scale = (dims[0] + dims[1]) ** -0.5
    wanted_out, wanted_lse = oracle.attention(
        q, k, v, cu_q, cu_k, scale, causal=causal, window=window
    )
    if q_joined:
        q = oracle.joined(q, heads).astype(DTYPES[dtype])
    if k_joined:
        k = oracle.joined(k, heads).astype(DTYPES[dtype])
    out, lse = flashprime.prefill(
        q,
        k,
        v,
        cu_q,
        cu_k,
        softmax_scale=scale,
        causal=causal,
        window=window,
        return_lse=True,
        lse_layout="tokens_heads" if tokens_heads else "heads_tokens",
        rope=dims[1],
    )
    assert out.dtype == v.dtype and lse.dtype == np.float32
    check_close(out, wanted_out, TOLERANCE[dtype])
    check_close(lse.T if tokens_heads else lse, wanted_lse, 2e-5)


def test_reads_v_through_its_strides_and_writes_out_through_its_own(rng):
    heads, tokens = 2, 9
    cu = np.array([0, 4, 9], np.int32)
    q, k = (rng.standard_normal((tokens, heads, 192), dtype=np.float32) for _ in range(2))
    up_projection = rng.standard_normal((tokens, heads, 256), dtype=np.float32)
    v = up_projection[..., 128:]
    target = np.full((tokens, heads + 1, 160), 7.0, dtype=np.float32)
    out = target[:, :heads, :128]
    assert flashprime.prefill(q, k, v, cu, softmax_scale=0.07, out=out) is out
    check_close(out, oracle.attention(q, k, v, cu, cu, 0.07)[0], 2e-6)
    assert (target[:, heads:] == 7.0).all() and (target[..., 128:] == 7.0).all()


def test_takes_read_only_inputs(rng):
    q, k, v = (rng.standard_normal((3, 1, d), dtype=np.float32) for d in (192, 192, 128))
    cu = np.array([0, 3], np.int32)
    wanted = flashprime.prefill(q, k, v, cu, softmax_scale=1.0)
    for array in (q, k, v, cu):
        array.flags.writeable = False
    assert np.array_equal(flashprime.prefill(q, k, v, cu, softmax_scale=1.0), wanted)


class Foreign:
    """An array of some other library that speaks DLPack."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_takes_any_dlpack_tensor_and_writes_to_one(rng):
    q, k, v = (rng.standard_normal((3, 1, d), dtype=np.float32) for d in (192, 192, 128))
    cu = np.array([0, 3], np.int32)
    wanted = flashprime.prefill(q, k, v, cu, softmax_scale=1.0)
    out = np.empty_like(wanted)
    flashprime.prefill(*map(Foreign, (q, k, v, cu)), softmax_scale=1.0, out=Foreign(out))
    assert np.array_equal(out, wanted)
    with pytest.raises(flashprime.DeviceError, match="out: absent, wanted with arrays of"):
        flashprime.prefill(*map(Foreign, (q, k, v, cu)), softmax_scale=1.0)


def test_is_the_same_bits_with_any_number_of_threads(rng):
    *_, v, cu_q, cu_k = tensors = batch(rng, [(70, 90), (33, 33)], 3, (128, 64, 128))
    q, k = tensors[:2], tensors[2:4]
    results = [
        flashprime.prefill(
            q, k, v, cu_q, cu_k, softmax_scale=0.1, return_lse=True, num_threads=threads
        )
        for threads in (1, 2, 5)
    ]
    for out, lse in results[1:]:
        assert out.tobytes() == results[0][0].tobytes()
        assert lse.tobytes() == results[0][1].tobytes()


def test_stores_e4m3_with_its_scale(rng):
    q, k, v = (rng.standard_normal((6, 2, d), dtype=np.float32) for d in (192, 192, 128))
    cu = np.array([0, 6], np.int32)
    scale = np.array([0.25], np.float32)
    exact = flashprime.prefill(q, k, v, cu, softmax_scale=0.1)
    out = flashprime.prefill(q, k, v, cu, softmax_scale=0.1, out_dtype="e4m3", output_scale=scale)
    assert out.dtype == ml_dtypes.float8_e4m3fn
    assert np.array_equal(out, (exact * np.float32(4)).astype(ml_dtypes.float8_e4m3fn))


def test_runs_the_kernel_that_is_asked_for(rng):
    q, k, v = (rng.standard_normal((6, 2, d), dtype=np.float32) for d in (192, 192, 128))
    cu = np.array([0, 6], np.int32)
    out, lse = flashprime.prefill(
        q, k, v, cu, softmax_scale=0.1, kernel="cpu_reference", out_dtype="fp64", return_lse=True
    )
    wanted_out, wanted_lse = oracle.attention(q, k, v, cu, cu, float(np.float32(0.1)))
    assert out.dtype == lse.dtype == np.float64
    check_close(out, wanted_out, 1e-12)
    check_close(lse, wanted_lse, 1e-12)


def test_releases_the_gil(rng):
    *_, v, cu_q, cu_k = tensors = batch(rng, [(1024, 1024)], 4, (128, 64, 128))
    times = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            times.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    flashprime.prefill(tensors[:2], tensors[2:4], v, cu_q, cu_k, softmax_scale=0.1, num_threads=1)
    end = time.monotonic()
    stop.set()
    thread.join()
    assert sum(begin < moment < end for moment in times) >= 3


def test_calls_from_many_threads_do_not_disturb_each_other(rng):
    *_, v, cu_q, cu_k = tensors = batch(rng, [(40, 50), (7, 7)], 2, (128, 64, 128))
    wanted = flashprime.prefill(tensors[:2], tensors[2:4], v, cu_q, cu_k, softmax_scale=0.1)
    results = [None] * 8

    def call(i):
        results[i] = flashprime.prefill(tensors[:2], tensors[2:4], v, cu_q, cu_k, softmax_scale=0.1)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(result, wanted) for result in results)


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=3), seed=st.integers(0, 9999))
def test_merging_two_halves_of_the_keys_is_attention_over_all(lengths, seed):
    rng = np.random.default_rng(seed)
    heads = 2
    cu = np.cumsum([0, *lengths], dtype=np.int32)
    q, k, v, k2, v2 = (
        rng.standard_normal((cu[-1], heads, d), dtype=np.float32) for d in (24, 24, 8, 24, 8)
    )
    parts = [
        flashprime.prefill(q, a, b, cu, softmax_scale=0.2, causal=False, return_lse=True)
        for a, b in ((k, v), (k2, v2))
    ]
    out, lse = flashprime.merge_states(*parts[0], *parts[1])
    wanted = oracle.merge(*parts[0], *parts[1])
    check_close(out, wanted[0], 1e-6)
    check_close(lse, wanted[1], 1e-6)
    both = [
        np.concatenate([pair[i][a:b] for a, b in zip(cu, cu[1:], strict=False) for i in (0, 1)])
        for pair in ((k, k2), (v, v2))
    ]
    whole = oracle.attention(q, *both, cu, 2 * cu, 0.2, causal=False)
    check_close(out, whole[0], 4e-6)


def test_merge_treats_an_infinite_lse_as_an_empty_side(rng):
    a, b = (rng.standard_normal((3, 1, 4), dtype=np.float32) for _ in range(2))
    a[0] = np.nan
    lse_a = np.array([[np.inf, 0.5, -np.inf]], np.float32)
    lse_b = np.array([[0.25, -np.inf, -np.inf]], np.float32)
    out, lse = flashprime.merge_states(a, lse_a, b, lse_b)
    assert np.array_equal(out[0], b[0]) and np.array_equal(out[1], a[1])
    assert np.array_equal(out[2], np.zeros((1, 4)))
    assert np.array_equal(lse, [[0.25, 0.5, -np.inf]])


def test_merges_in_place_and_past_the_tokens_with_prefix(rng):
    a, b = (rng.standard_normal((4, 2, 8), dtype=np.float32) for _ in range(2))
    lse_a, lse_b = (rng.standard_normal((2, 4), dtype=np.float32) for _ in range(2))
    wanted, wanted_lse = oracle.merge(a, lse_a, b, lse_b)
    wanted[2:], wanted_lse[:, 2:] = b[2:], lse_b[:, 2:]
    out, lse = flashprime.merge_states(a, lse_a, b, lse_b, tokens_with_prefix=2, out=a, lse=lse_a)
    assert out is a and lse is lse_a
    check_close(out, wanted, 1e-6)
    check_close(lse, wanted_lse, 1e-6)


def test_random_data_are_those_of_the_library():
    values = np.empty((2, 4), np.float32)
    flashprime.fill_random(values, seed=7)
    again = np.empty((1, 4), np.float32)
    flashprime.fill_random(again, seed=7, first_row=1)
    assert np.array_equal(again[0], values[1])
    # Sums of four bytes about their mean, as include/flashprime/random.h defines them.
    unit = np.float32(float.fromhex("0x1.bb688cp-8"))
    sums = np.round(values / unit)
    assert np.array_equal(sums * unit, values) and 0 < np.abs(sums).max() <= 510
