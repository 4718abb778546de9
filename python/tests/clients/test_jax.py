# SPDX-License-Identifier: Apache-2.0
import flashprime
import numpy as np
import oracle
import pytest
from test_prefill import check_close

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")

import jax.numpy as jnp  # noqa: E402
from flashprime.integrations import jax as integration  # noqa: E402

HEADS, SCALE = 2, 0.07


def batch(lengths=((5, 9), (0, 3), (7, 7)), dtype=np.float32):
    rng = np.random.default_rng(0)
    cu_q, cu_k = (np.cumsum([0, *c], dtype=np.int32) for c in zip(*lengths, strict=True))
    shapes = [(cu_q[-1], HEADS, 128), (cu_q[-1], HEADS, 64), (cu_k[-1], HEADS, 128),
              (cu_k[-1], 64), (cu_k[-1], HEADS, 128)]  # fmt: skip
    q, q_pe, k, k_pe, v = (
        jnp.asarray(rng.standard_normal(s, dtype=np.float32), dtype) for s in shapes
    )
    return (q, q_pe), (k, k_pe), v, jnp.asarray(cu_q), jnp.asarray(cu_k)


def wanted(q, k, v, cu_q, cu_k, **options):
    q, k = (tuple(np.asarray(part, np.float64) for part in pair) for pair in (q, k))
    return oracle.attention(
        q, k, np.asarray(v), np.asarray(cu_q), np.asarray(cu_k), SCALE, **options
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 1.6e-2)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("compile", [lambda f: f, jax.jit])
def test_gives_what_the_definition_says(dtype, tolerance, causal, compile):
    arrays = batch(dtype=dtype)
    run = compile(
        lambda *arrays: integration.prefill(
            *arrays, softmax_scale=SCALE, causal=causal, return_lse=True
        )
    )
    out, lse = run(*arrays)
    wanted_out, wanted_lse = wanted(*arrays, causal=causal)
    assert isinstance(out, jax.Array) and out.dtype == dtype
    check_close(out, wanted_out, tolerance)
    check_close(lse, wanted_lse, 2e-5)


def test_takes_joined_rows_and_windows():
    (q, q_pe), (k, k_pe), v, cu_q, cu_k = batch()
    q = jnp.concatenate([q, q_pe], -1)
    k = jnp.concatenate([k, jnp.broadcast_to(k_pe[:, None], (*k.shape[:2], 64))], -1)
    out = jax.jit(
        lambda *a: integration.prefill(*a, softmax_scale=SCALE, window=(2, 0), rope=64) * 2
    )(q, k, v, cu_q, cu_k)
    cu = (np.asarray(cu_q), np.asarray(cu_k))
    exact, _ = oracle.attention(*map(np.asarray, (q, k, v)), *cu, SCALE, window=(2, 0))
    check_close(out, 2 * exact, 4e-6)


def test_a_compiled_function_takes_other_lengths():
    q, k, v, cu_q, cu_k = batch()
    run = jax.jit(lambda *a: integration.prefill(*a, softmax_scale=SCALE))
    run(q, k, v, cu_q, cu_k)
    other = jnp.asarray([0, 1, 3, cu_q[-1]], jnp.int32), jnp.asarray([0, 9, 9, cu_k[-1]], jnp.int32)
    check_close(run(q, k, v, *other), wanted(q, k, v, *other)[0], 2e-6)


def test_errors_name_the_argument():
    q, k, v, cu_q, cu_k = batch()
    with pytest.raises(Exception, match="cu_seqlens_k: got length 3, wanted 4"):
        jax.block_until_ready(integration.prefill(q, k, v, cu_q, cu_k[:3], softmax_scale=SCALE))
    with pytest.raises(flashprime.ShapeError, match="v: got rank 2"):
        integration.prefill(q, k, v[0], cu_q, cu_k, softmax_scale=SCALE)


def test_the_plain_function_reads_jax_arrays_and_writes_to_others():
    q, k, v, cu_q, cu_k = batch()
    out = np.empty((12, HEADS, 128), np.float32)
    flashprime.prefill(q, k, v, cu_q, cu_k, softmax_scale=SCALE, out=out)
    check_close(out, wanted(q, k, v, cu_q, cu_k)[0], 2e-6)
    with pytest.raises(flashprime.DeviceError, match="out: got a JAX array"):
        flashprime.prefill(q, k, v, cu_q, cu_k, softmax_scale=SCALE, out=v)
