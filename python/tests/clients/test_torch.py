# SPDX-License-Identifier: Apache-2.0
import flashprime
import flashprime.torch
import oracle
import pytest
import torch
from test_prefill import check_close

HEADS, NOPE, ROPE, DIM_V = 2, 128, 64, 128
SCALE = (NOPE + ROPE) ** -0.5


def batch(lengths=((5, 9), (0, 3), (7, 7)), dtype=torch.float32):
    cu_q, cu_k = (
        torch.tensor([0, *column]).cumsum(0).to(torch.int32)
        for column in zip(*lengths, strict=True)
    )
    rows, keys = int(cu_q[-1]), int(cu_k[-1])
    up = torch.randn(keys, HEADS, NOPE + DIM_V).to(dtype)
    return {
        "q": (torch.randn(rows, HEADS, NOPE).to(dtype), torch.randn(rows, HEADS, ROPE).to(dtype)),
        "k": (up[..., :NOPE], torch.randn(keys, ROPE).to(dtype)),
        "v": up[..., NOPE:],
        "cu_seqlens_q": cu_q,
        "cu_seqlens_k": cu_k,
    }


def joined(tensors):
    (q_nope, q_pe), (k_nope, k_pe) = tensors["q"], tensors["k"]
    k_pe = k_pe[:, None].expand(-1, HEADS, -1)
    return tensors | {"q": torch.cat([q_nope, q_pe], -1), "k": torch.cat([k_nope, k_pe], -1)}


def operands(tensors):
    """As the operator takes them."""
    pair = [t if isinstance(t, tuple) else (t, None) for t in (tensors["q"], tensors["k"])]
    return (*pair[0], *pair[1], *(tensors[n] for n in ("v", "cu_seqlens_q", "cu_seqlens_k")), SCALE)


def wanted(tensors, **options):
    arrays = {
        name: tuple(part.double().numpy() for part in tensor)
        if isinstance(tensor, tuple)
        else tensor.double().numpy()
        for name, tensor in tensors.items()
    }
    cu = [tensors[name].numpy() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    return oracle.attention(arrays["q"], arrays["k"], arrays["v"], *cu, SCALE, **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1.6e-2),
                                                  (torch.float16, 2e-3)])  # fmt: skip
@pytest.mark.parametrize("form", [dict, joined])
@pytest.mark.parametrize("function", [flashprime.prefill, flashprime.torch.prefill])
def test_torch_tensors_give_what_the_definition_says(function, form, dtype, tolerance):
    tensors = form(batch(dtype=dtype))
    out, lse = function(**tensors, softmax_scale=SCALE, return_lse=True)
    wanted_out, wanted_lse = wanted(tensors)
    assert out.dtype == dtype and lse.dtype == torch.float32
    check_close(out.double().numpy(), wanted_out, tolerance)
    check_close(lse.numpy(), wanted_lse, 2e-5)


@pytest.mark.parametrize("form", [dict, joined])
def test_functional_operator_passes_opcheck(form):
    operator = torch.ops.flashprime.prefill
    arguments = operands(form(batch()))
    torch.library.opcheck(operator, arguments)
    torch.library.opcheck(operator, arguments, {"return_lse": True})
    torch.library.opcheck(operator, (*arguments, False, 3, 4, True, 7, 9), {"return_lse": True})
    scaled = (*arguments, True, -1, -1, False, -1, -1, torch.ones(1))
    torch.library.opcheck(operator, scaled, {"out_dtype": torch.float8_e4m3fn})
    # Contiguous: opcheck cannot copy an empty view.
    empty = [torch.zeros(t.shape, dtype=t.dtype) if isinstance(t, torch.Tensor) else t
             for t in operands(form(batch(lengths=[(0, 0)])))]  # fmt: skip
    torch.library.opcheck(operator, empty, {"return_lse": True})


@pytest.mark.parametrize("with_lse", [False, True])
def test_out_operator_passes_opcheck(with_lse):
    tensors = batch()
    rows = len(tensors["q"][0])
    outputs = {"out": torch.empty(rows, HEADS, DIM_V)}
    if with_lse:
        outputs["lse"] = torch.empty(HEADS, rows)
    torch.library.opcheck(torch.ops.flashprime.prefill_out, operands(tensors), outputs)


def test_merge_operators_pass_opcheck():
    parts = [torch.randn(6, 2, 8), torch.randn(2, 6), torch.randn(6, 2, 8), torch.randn(2, 6)]
    torch.library.opcheck(torch.ops.flashprime.merge_states, parts)
    torch.library.opcheck(torch.ops.flashprime.merge_states, (*parts, False, 3),
                          {"out_dtype": torch.bfloat16})  # fmt: skip
    torch.library.opcheck(
        torch.ops.flashprime.merge_states_out,
        parts,
        {"out": torch.empty(6, 2, 8), "lse": torch.empty(2, 6)},
    )


def test_compiles_without_a_graph_break_and_for_any_length():
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def layer(tensors, k2, v2, cu2):
        cu = tensors["cu_seqlens_q"]
        new = flashprime.prefill(
            tensors["q"], tensors["k"], tensors["v"], cu, softmax_scale=SCALE, return_lse=True
        )
        context = flashprime.prefill(
            tensors["q"], k2, v2, cu, cu2, softmax_scale=SCALE, causal=False, return_lse=True
        )
        return flashprime.merge_states(*context, *new, return_lse=False) * 2

    for lengths in ([(5, 5), (7, 7)], [(3, 3), (9, 9)], [(20, 20), (4, 4)]):
        tensors = batch(lengths)
        context = batch([(0, 4), (0, 11)])
        arguments = (context["k"], context["v"], context["cu_seqlens_k"])
        new = flashprime.prefill(**tensors, softmax_scale=SCALE, return_lse=True)
        old = flashprime.prefill(
            tensors["q"], context["k"], context["v"], tensors["cu_seqlens_q"],
            context["cu_seqlens_k"], softmax_scale=SCALE, causal=False, return_lse=True,
        )  # fmt: skip
        eager = flashprime.merge_states(*old, *new, return_lse=False) * 2
        assert torch.equal(layer(tensors, *arguments), eager)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_writes_into_given_outputs(backend):
    tensors = batch()
    rows = len(tensors["q"][0])

    @torch.compile(fullgraph=True, backend=backend)
    def run(tensors, out, lse):
        flashprime.prefill(**tensors, softmax_scale=SCALE, out=out, lse=lse)
        return out + 1

    out, lse = torch.full((rows, HEADS, DIM_V), 7.0), torch.full((HEADS, rows), 7.0)
    try:
        plus_one = run(tensors, out, lse)
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"inductor has no compiler here: {error}")
    eager = flashprime.prefill(**tensors, softmax_scale=SCALE, return_lse=True)
    assert torch.equal(out, eager[0]) and torch.equal(lse, eager[1])
    assert torch.equal(plus_one, eager[0] + 1)


def test_what_only_a_call_can_have_is_refused_when_traced():
    tensors = batch()

    @torch.compile(fullgraph=True, backend="eager")
    def run():
        return flashprime.prefill(**tensors, softmax_scale=SCALE, kernel="cpu_reference")

    with pytest.raises(Exception, match="kernel: got 'cpu_reference' under torch.compile"):
        run()


def test_outputs_are_of_torch_and_of_the_dtype_asked_for():
    tensors = batch(dtype=torch.bfloat16)
    assert flashprime.prefill(**tensors, softmax_scale=SCALE, out_dtype="fp32").dtype == (
        torch.float32
    )
    out = flashprime.prefill(**tensors, softmax_scale=SCALE, out_dtype=torch.float8_e4m3fn,
                             output_scale=torch.tensor(0.5))  # fmt: skip
    exact = flashprime.prefill(**tensors, softmax_scale=SCALE, out_dtype="fp32")
    assert torch.equal(out.view(torch.uint8), (exact * 2).to(torch.float8_e4m3fn).view(torch.uint8))


def test_errors_of_operators_are_typed():
    tensors = batch()
    with pytest.raises(flashprime.CuSeqlensError, match="cu_seqlens_k"):
        flashprime.torch.prefill(
            **tensors | {"cu_seqlens_k": tensors["cu_seqlens_k"] - 1}, softmax_scale=SCALE
        )
    with pytest.raises(flashprime.ShapeError, match="v: got rank 2"):
        flashprime.torch.prefill(**tensors | {"v": tensors["v"][0]}, softmax_scale=SCALE)
    with pytest.raises(flashprime.DtypeError, match="cu_seqlens_q: got int64"):
        flashprime.prefill(
            **tensors | {"cu_seqlens_q": tensors["cu_seqlens_q"].long()}, softmax_scale=SCALE
        )


def test_tensors_that_want_a_gradient_are_read_and_give_none():
    tensors = joined(batch())
    tensors["q"].requires_grad_()
    out = flashprime.prefill(**tensors, softmax_scale=SCALE)
    assert not out.requires_grad
    through = flashprime.torch.prefill(**tensors, softmax_scale=SCALE)
    assert torch.equal(through.detach(), out)
    with pytest.raises((RuntimeError, UserWarning)):
        with pytest.warns(UserWarning, match="flashprime::prefill"):
            through.sum().backward()
        if tensors["q"].grad is None:
            raise RuntimeError("no gradient")


def test_a_layer_takes_torch_tensors_from_its_source():
    tensors = joined(batch([(3, 3), (2, 2)]))
    context = joined(batch([(0, 20), (0, 9)]))
    plan = flashprime.plan_context([20, 9], workspace_rows=16)

    def source(chunk):
        starts = context["cu_seqlens_k"]
        rows = torch.cat([
            torch.arange(piece.start, piece.start + piece.length) + starts[piece.request]
            for piece in chunk.slices
        ])  # fmt: skip
        return context["k"][rows], context["v"][rows]

    cu = tensors["cu_seqlens_q"]
    out, lse = flashprime.prefill_layer(
        tensors["q"], tensors["k"], tensors["v"], cu, plan, source,
        softmax_scale=SCALE, return_lse=True,
    )  # fmt: skip
    new = flashprime.prefill(**tensors, softmax_scale=SCALE, return_lse=True)
    old = flashprime.prefill(
        tensors["q"], context["k"], context["v"], cu, context["cu_seqlens_k"],
        softmax_scale=SCALE, causal=False, return_lse=True,
    )  # fmt: skip
    merged = flashprime.merge_states(*old, *new)
    torch.testing.assert_close(out, merged[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(lse, merged[1], rtol=0, atol=2e-6)
