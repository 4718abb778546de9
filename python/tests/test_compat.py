# SPDX-License-Identifier: Apache-2.0
import inspect

import flashprime
import ml_dtypes
import numpy as np
import oracle
import pytest
from flashprime.compat import fa2, fa3, fa4, vllm
from test_prefill import check_close

DIALECTS = {"fa2": fa2, "fa3": fa3, "fa4": fa4, "vllm": vllm}
LSE_SWITCH = {"fa2": "return_attn_probs", "fa3": "return_attn_probs", "fa4": "return_lse",
              "vllm": "return_softmax_lse"}  # fmt: skip
# What each dialect returns without and with its switch, as (out, lse).
PARTS = {
    "fa2": (lambda result: (result, None), lambda result: result[:2]),
    "fa3": (lambda result: (result, None), lambda result: result),
    "fa4": (lambda result: result, lambda result: result),
    "vllm": (lambda result: (result, None), lambda result: result),
}


@pytest.fixture
def tensors(rng):
    cu_q, cu_k = np.array([0, 3, 7], np.int32), np.array([0, 5, 9], np.int32)
    q, k, v = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in [(7, 2, 192), (9, 2, 192), (9, 2, 128)]
    )
    return {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}


def wanted(tensors, scale=192**-0.5, **options):
    return oracle.attention(*tensors.values(), scale, **options)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("causal", [False, True])
def test_each_dialect_computes_with_its_own_defaults(name, causal, tensors):
    function = DIALECTS[name].flash_attn_varlen_func
    without, with_lse = PARTS[name]
    wanted_out, wanted_lse = wanted(tensors, causal=causal)
    out, nothing = without(function(**tensors, max_seqlen_q=4, max_seqlen_k=5, causal=causal))
    assert nothing is None
    check_close(out, wanted_out, 2e-6)
    out, lse = with_lse(function(**tensors, causal=causal, **{LSE_SWITCH[name]: True}))
    check_close(out, wanted_out, 2e-6)
    check_close(lse, wanted_lse, 2e-6)  # [H, total_q], natural logarithm
    full, _ = without(function(**tensors))
    check_close(full, wanted(tensors, causal=False)[0], 2e-6)


def test_fa2_has_a_third_result(tensors):
    *_, probabilities = fa2.flash_attn_varlen_func(**tensors, return_attn_probs=True)
    assert probabilities is None


@pytest.mark.parametrize("name", DIALECTS)
def test_windows_are_passed_through(name, tensors):
    function = DIALECTS[name].flash_attn_varlen_func
    for causal, window in [(False, (2, 1)), (True, (2, 5)), (False, (-1, 0)), (False, (1, -1))]:
        out, _ = PARTS[name][0](function(**tensors, causal=causal, window_size=window))
        # A causal window reaches no key on its right.
        check_close(out, wanted(tensors, causal=causal, window=window)[0], 2e-6)
    if name == "fa4":
        out, _ = function(**tensors, window_size=(2, None))
        check_close(out, wanted(tensors, causal=False, window=(2, -1))[0], 2e-6)


@pytest.mark.parametrize("name", DIALECTS)
def test_takes_the_arguments_of_its_original_by_keyword_only(name):
    parameters = inspect.signature(DIALECTS[name].flash_attn_varlen_func).parameters
    positional = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in positional] == ["q", "k", "v"]


UNSUPPORTED = {
    "fa2": {"dropout_p": 0.1, "softcap": 30.0, "alibi_slopes": np.ones(2), "block_table": 1},
    "fa3": {"softcap": 30.0, "qv": 1, "q_descale": np.ones(1), "seqused_k": np.ones(2),
            "attention_chunk": 4},
    "fa4": {"qv": 1, "softcap": 1.0, "page_table": 1, "score_mod": len, "mask_mod": len,
            "learnable_sink": np.ones(2), "seqused_k": np.ones(2), "gather_kv_indices": 1,
            "block_sparse_tensors": 1},
    "vllm": {"dropout_p": 0.1, "softcap": 1.0, "block_table": 1, "seqused_k": np.ones(2),
             "s_aux": np.ones(2), "q_descale": np.ones(1), "cp_world_size": 2, "fa_version": 5,
             "mask_mod": len, "dynamic_causal": 1, "return_attn_probs": True, "q_v": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name in UNSUPPORTED for argument in UNSUPPORTED[name]],
)
def test_what_is_not_computed_is_refused_by_name(name, argument, tensors):
    with pytest.raises(flashprime.UnsupportedError, match=f"^{argument}: got "):
        DIALECTS[name].flash_attn_varlen_func(**tensors, **{argument: UNSUPPORTED[name][argument]})


def test_grouped_heads_and_dense_batches_are_refused(tensors):
    grouped = tensors | {"q": np.repeat(tensors["q"], 2, axis=1)}
    with pytest.raises(flashprime.UnsupportedError, match="k: got 2 heads with 4 of q"):
        fa3.flash_attn_varlen_func(**grouped)
    with pytest.raises(flashprime.UnsupportedError, match="cu_seqlens_q: got None"):
        fa4.flash_attn_varlen_func(tensors["q"][None], tensors["k"][None], tensors["v"][None])


def test_vllm_writes_to_out_and_scales_e4m3(tensors):
    out = np.empty((7, 2, 128), np.float32)
    result = vllm.flash_attn_varlen_func(
        **tensors, out=out, fa_version=3, num_splits=1, scheduler_metadata=object()
    )
    assert result is out
    check_close(out, wanted(tensors, causal=False)[0], 2e-6)
    scale = np.array([0.5], np.float32)
    quantised = vllm.flash_attn_varlen_func(**tensors, output_scale=scale)
    assert quantised.dtype == ml_dtypes.float8_e4m3fn
    assert np.array_equal(quantised, (out * 2).astype(ml_dtypes.float8_e4m3fn))
