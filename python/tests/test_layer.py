# SPDX-License-Identifier: Apache-2.0
import flashprime
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_prefill import check_close

NOPE, ROPE, DIM_V = 16, 8, 12


def make_layer(rng, new, context, heads=2):
    """New tokens, and the context of each request as one pair (k, v)."""
    cu = np.cumsum([0, *new], dtype=np.int32)
    q, k, v = (
        rng.standard_normal((cu[-1], heads, d), dtype=np.float32)
        for d in (NOPE + ROPE, NOPE + ROPE, DIM_V)
    )
    contexts = [
        tuple(
            rng.standard_normal((length, heads, d), dtype=np.float32) for d in (NOPE + ROPE, DIM_V)
        )
        for length in context
    ]
    return q, k, v, cu, contexts


def produce(contexts):
    """A context source over whole contexts that uses one buffer for all chunks."""
    buffers = [np.full((4096, 2, d), np.nan, np.float32) for d in (NOPE + ROPE, DIM_V)]

    def source(chunk):
        for i, buffer in enumerate(buffers):
            buffer[...] = np.nan
            rows = [
                contexts[piece.request][i][piece.start : piece.start + piece.length]
                for piece in chunk.slices
            ]
            buffer[: chunk.num_tokens] = np.concatenate(rows)
        return tuple(buffer[: chunk.num_tokens] for buffer in buffers)

    return source


def whole(q, k, v, cu, contexts, scale):
    """The same as one attention call over context and new tokens."""
    pieces = range(len(contexts))
    keys = [np.concatenate([contexts[b][0], k[cu[b] : cu[b + 1]]]) for b in pieces]
    values = [np.concatenate([contexts[b][1], v[cu[b] : cu[b + 1]]]) for b in pieces]
    cu_k = np.cumsum([0, *map(len, keys)], dtype=np.int32)
    return oracle.attention(q, np.concatenate(keys), np.concatenate(values), cu, cu_k, scale)


@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70)), min_size=1, max_size=4),
    rows=st.sampled_from([16, 32, 64]),
    planner=st.sampled_from(["greedy", "equal_slices"]),
    seed=st.integers(0, 9999),
)
def test_new_tokens_and_chunked_context_are_one_softmax(requests, rows, planner, seed):
    rng = np.random.default_rng(seed)
    new, context = zip(*requests, strict=True)
    q, k, v, cu, contexts = make_layer(rng, new, context)
    rows *= len(requests) if planner == "equal_slices" else 1
    plan = flashprime.plan_context(context, workspace_rows=rows, block_size=8, planner=planner)
    out, lse = flashprime.prefill_layer(
        q, k, v, cu, plan, produce(contexts), softmax_scale=0.2, return_lse=True, rope=ROPE
    )
    wanted_out, wanted_lse = whole(q, k, v, cu, contexts, 0.2)
    check_close(out, wanted_out, 4e-6)
    check_close(lse, wanted_lse, 4e-6)


@given(
    context=st.lists(st.integers(0, 300), min_size=1, max_size=6),
    rows=st.integers(1, 12),
    planner=st.sampled_from(["greedy", "equal_slices"]),
)
def test_a_plan_takes_every_token_once_in_order(context, rows, planner):
    rows *= 16 * (len(context) if planner == "equal_slices" else 1)
    plan = flashprime.plan_context(context, workspace_rows=rows, planner=planner)
    taken = [0] * len(context)
    for index, chunk in enumerate(plan.chunks):
        assert chunk.index == index and 0 < chunk.num_tokens <= rows
        assert len(chunk.slices) == chunk.request_end - chunk.request_begin
        assert chunk.max_seqlen_k == max(piece.length for piece in chunk.slices)
        assert list(np.diff(chunk.cu_seqlens_k)) == [piece.length for piece in chunk.slices]
        for offset, piece in enumerate(chunk.slices):
            assert piece.request == chunk.request_begin + offset
            if piece.length:
                assert piece.start == taken[piece.request]
            taken[piece.request] += piece.length
    assert taken == context == list(plan.context_lens)


def test_a_source_may_be_a_list_of_ready_views(rng):
    q, k, v, cu, contexts = make_layer(rng, [3, 2], [40, 5])
    plan = flashprime.plan_context([40, 5], workspace_rows=32)
    source = produce(contexts)
    views = [tuple(np.array(part) for part in source(chunk)) for chunk in plan.chunks]
    assert len(views) == len(plan) == 2
    out = flashprime.prefill_layer(q, k, v, cu, plan, views, softmax_scale=0.2)
    check_close(out, whole(q, k, v, cu, contexts, 0.2)[0], 4e-6)
    with pytest.raises(flashprime.UnsupportedError, match="source: got 1 chunks, wanted 2"):
        flashprime.prefill_layer(q, k, v, cu, plan, views[:1], softmax_scale=0.2)


def test_context_keys_may_come_in_two_parts(rng):
    q, k, v, cu, _ = make_layer(rng, [3], [20])
    k_nope = rng.standard_normal((20, 2, NOPE), dtype=np.float32)
    k_pe = rng.standard_normal((20, ROPE), dtype=np.float32)
    values = rng.standard_normal((20, 2, DIM_V), dtype=np.float32)
    plan = flashprime.plan_context([20])
    out = flashprime.prefill_layer(
        q, k, v, cu, plan, [((k_nope, k_pe), values)], softmax_scale=0.2, rope=ROPE
    )
    joined = oracle.joined((k_nope, k_pe), 2).astype(np.float32)
    check_close(out, whole(q, k, v, cu, [(joined, values)], 0.2)[0], 4e-6)


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError("mine"), KeyboardInterrupt()])
def test_what_a_source_raises_comes_back(rng, error):
    q, k, v, cu, _ = make_layer(rng, [3], [20])

    def source(chunk):
        raise error

    with pytest.raises(type(error)) as caught:
        flashprime.prefill_layer(
            q, k, v, cu, flashprime.plan_context([20]), source, softmax_scale=0.2
        )
    assert caught.value is error


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (None, flashprime.ShapeError, "source: wanted"),
        ((np.zeros((20, 2, 24), np.float32),), flashprime.ShapeError, "source: wanted"),
        (
            (np.zeros((19, 2, 24), np.float32), np.zeros((19, 2, 12), np.float32)),
            flashprime.ShapeError,
            "context chunk 0: k: got 19 rows, wanted 20",
        ),
        (
            (np.zeros((20, 2, 24), np.float16), np.zeros((20, 2, 12), np.float32)),
            flashprime.DtypeError,
            "k: got fp16",
        ),
        (
            (np.zeros((20, 2, 24), np.int64), np.zeros((20, 2, 12), np.float32)),
            flashprime.DtypeError,
            "k: got int64",
        ),
        (("k", "v"), TypeError, "k: got str"),
    ],
)
def test_bad_context_is_named(rng, made, error, text):
    q, k, v, cu, _ = make_layer(rng, [3], [20])
    with pytest.raises(error, match=text):
        flashprime.prefill_layer(
            q, k, v, cu, flashprime.plan_context([20]), lambda chunk: made, softmax_scale=0.2
        )


def test_a_plan_of_another_batch_is_refused(rng):
    q, k, v, cu, contexts = make_layer(rng, [3], [20])
    plan = flashprime.plan_context([20, 20])
    with pytest.raises(flashprime.PlanError):
        flashprime.prefill_layer(q, k, v, cu, plan, produce(contexts), softmax_scale=0.2)


def test_a_workspace_without_room_for_a_block_is_a_plan_error():
    with pytest.raises(flashprime.PlanError):
        flashprime.plan_context([100, 100], workspace_rows=16, planner="equal_slices")
    with pytest.raises(flashprime.UnsupportedError, match="planner: got 'best'"):
        flashprime.plan_context([1], planner="best")


def test_workspace_rows_follow_vllm_0_33():
    rows = flashprime.context_workspace_rows
    assert rows(max_model_len=1000, max_num_seqs=8) == 8000
    assert rows(max_model_len=100_000, max_num_seqs=8) == 65536
    assert rows(max_model_len=1, max_num_seqs=100, block_size=64) == 25600
    assert rows(max_model_len=1, max_num_seqs=1) == 64


def test_a_backend_computes_a_layer_in_the_steps_of_an_engine(rng):
    q, k, v, cu, contexts = make_layer(rng, [3, 4], [20, 9])
    backend = flashprime.Backend(
        num_heads=2, dims=(NOPE, ROPE, DIM_V), softmax_scale=0.2, dtype="fp32", device="cpu"
    )
    with pytest.raises(flashprime.RangeError, match="before prepare"):
        backend.run_new_tokens(q, k, v, return_lse=True)
    backend.prepare(cu, 4)
    state = backend.run_new_tokens(q, k, v, return_lse=True)
    cu_k = np.array([0, 20, 29], np.int32)
    context = [np.concatenate([contexts[b][i] for b in range(2)]) for i in range(2)]
    chunk = backend.run_context_chunk(q, *context, cu_k, max_seqlen_k=20)
    out, lse = flashprime.merge_states(*chunk, *state)
    wanted_out, wanted_lse = whole(q, k, v, cu, contexts, 0.2)
    check_close(out, wanted_out, 4e-6)
    check_close(lse, wanted_lse, 4e-6)


def test_a_backend_that_nothing_runs_is_refused_with_every_reason():
    with pytest.raises(flashprime.UnsupportedError, match="cpu_fast: .*nope.*"):
        flashprime.Backend(num_heads=2, dims=(0, 8, 8), softmax_scale=1.0)
