# SPDX-License-Identifier: Apache-2.0
"""The Python package on a GPU. FLASHPRIME_TEST_DEVICE=cpu tries the tests themselves elsewhere."""

import math
import os
import pathlib
import subprocess
import sys

import flashprime
import flashprime.torch
import pytest
import torch

DEVICE = os.environ.get("FLASHPRIME_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
SCALE = 192**-0.5
ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def cumulated(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, torch.int32)


def attention(q, k, v, lengths_q, lengths_k, scale, causal):
    """In fp64, a sequence and head after another: out [T, H, v] and lse [H, T]."""
    outs, lses = [], []
    parts = [t.double().split(n) for t, n in ((q, lengths_q), (k, lengths_k), (v, lengths_k))]
    for queries, keys, values in zip(*parts, strict=True):
        scores = scale * torch.einsum("qhd,khd->hqk", queries, keys)
        rows, columns = scores.shape[1:]
        if causal:
            allowed = torch.ones(rows, columns, dtype=torch.bool, device=q.device)
            scores.masked_fill_(~allowed.tril(columns - rows), -math.inf)
        lse = scores.logsumexp(-1) if columns else scores.new_full(scores.shape[:2], -math.inf)
        weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, 1)


def batch(lengths_q, lengths_k, heads, dims=(128, 64, 128), dtype=torch.bfloat16):
    nope, rope, dim_v = dims
    rows, keys = sum(lengths_q), sum(lengths_k)
    up = torch.randn(keys, heads, nope + dim_v, device=DEVICE).to(dtype)
    k_pe = torch.randn(keys, rope, device=DEVICE).to(dtype)
    q = torch.randn(rows, heads, nope + rope, device=DEVICE).to(dtype)
    k = torch.cat([up[..., :nope], k_pe[:, None].expand(-1, heads, -1)], -1)
    return q, k, up[..., nope:], (up[..., :nope], k_pe)


def check(out, lse, wanted, dtype=torch.bfloat16):
    tolerance = 2e-2 if dtype == torch.bfloat16 else 4e-3
    torch.testing.assert_close(out.double(), wanted[0], rtol=tolerance, atol=tolerance)
    if lse is not None:
        torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-3, atol=1e-3)


# ---- Cases of FlashInfer's tests of DeepSeek attention ----


@pytest.mark.parametrize("keys", [544, 977])
@pytest.mark.parametrize("rows", [377, 177])
@pytest.mark.parametrize("heads", [4, 32, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_single_sequences_of_flashinfers_cases(keys, rows, heads, causal, dtype):
    q, k, v, _ = batch([rows], [keys], heads, dtype=dtype)
    out, lse = flashprime.prefill(
        q, k, v, cumulated([rows]), cumulated([keys]),
        softmax_scale=SCALE, causal=causal, return_lse=True,
    )  # fmt: skip
    check(out, lse, attention(q, k, v, [rows], [keys], SCALE, causal), dtype)


@pytest.mark.parametrize("size", [12, 17])
@pytest.mark.parametrize("keys", [54, 97])
@pytest.mark.parametrize("rows", [37, 17])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_batches_of_flashinfers_cases(size, keys, rows, causal):
    lengths_q, lengths_k = [rows] * size, [keys] * size
    q, k, v, parts = batch(lengths_q, lengths_k, 4)
    arguments = (cumulated(lengths_q), cumulated(lengths_k))
    options = {"softmax_scale": SCALE, "causal": causal, "return_lse": True}
    out, lse = flashprime.prefill(q, k, v, *arguments, **options)
    check(out, lse, attention(q, k, v, lengths_q, lengths_k, SCALE, causal))
    split = flashprime.prefill((q[..., :128], q[..., 128:]), parts, v, *arguments, **options)
    assert torch.equal(split[0], out) and torch.equal(split[1], lse)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dims", [(128, 64, 128), (64, 64, 128), (192, 64, 256), (256, 0, 256)])
def test_uneven_and_empty_sequences(causal, dims):
    lengths_q, lengths_k = [5, 0, 64, 1, 100], [9, 7, 64, 0, 300]
    q, k, v, _ = batch(lengths_q, lengths_k, 3, dims)
    scale = (dims[0] + dims[1]) ** -0.5
    out, lse = flashprime.prefill(
        q, k, v, cumulated(lengths_q), cumulated(lengths_k), softmax_scale=scale, causal=causal,
        return_lse=True, rope=dims[1], lse_layout="tokens_heads",
    )  # fmt: skip
    check(out, lse.T, attention(q, k, v, lengths_q, lengths_k, scale, causal))


# ---- Cases of vLLM's test of merging ----


@pytest.mark.parametrize("tokens", [256, 512, 613, 1024, 1536, 4096])
@pytest.mark.parametrize("heads", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("width", [32, 48, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_merges_as_in_vllms_cases(tokens, heads, width, dtype):
    out_a, out_b = (torch.randn(tokens, heads, width, device=DEVICE).to(dtype) for _ in range(2))
    lse_a, lse_b = (torch.randn(heads, tokens, device=DEVICE) for _ in range(2))
    # A tenth of each side without keys, as infinity of either sign.
    for lse, sign in ((lse_a, math.inf), (lse_b, -math.inf)):
        lse[torch.rand_like(lse) < 0.1] = sign
    a, b = (torch.where(lse.isinf(), -math.inf, lse.double()) for lse in (lse_a, lse_b))
    total = torch.logaddexp(a, b)
    weights = [(lse - total).exp().nan_to_num(0.0).T[..., None] for lse in (a, b)]
    wanted = weights[0] * out_a.double() + weights[1] * out_b.double()
    out, lse = flashprime.merge_states(out_a, lse_a, out_b, lse_b)
    atol, rtol = (1e-3, 1e-2) if dtype != torch.float32 else (1e-5, 1e-5)
    torch.testing.assert_close(out.double(), wanted, rtol=rtol, atol=atol)
    torch.testing.assert_close(lse.double(), total, rtol=1e-5, atol=1e-5)


# ---- Layers ----


def test_a_layer_merges_its_context():
    new, context = [40, 1, 90], [100, 300, 0]
    q, k, v, _ = batch(new, new, 8)
    _, context_k, context_v, _ = batch([0], [sum(context)], 8)
    starts = [0, 100, 400]
    plan = flashprime.plan_context(context, workspace_rows=128)

    def source(chunk):
        rows = torch.cat([
            torch.arange(piece.start, piece.start + piece.length) + starts[piece.request]
            for piece in chunk.slices
        ]).to(DEVICE)  # fmt: skip
        return context_k[rows], context_v[rows]

    out, lse = flashprime.prefill_layer(
        q, k, v, cumulated(new), plan, source, softmax_scale=SCALE, return_lse=True
    )
    keys, values = [], []
    for request in range(3):
        own = slice(sum(new[:request]), sum(new[: request + 1]))
        old = slice(starts[request], starts[request] + context[request])
        keys += [context_k[old], k[own]]
        values += [context_v[old], v[own]]
    lengths = [a + b for a, b in zip(new, context, strict=True)]
    wanted = attention(q, torch.cat(keys), torch.cat(values), new, lengths, SCALE, True)
    check(out, lse, wanted)


# ---- Streams, graphs, torch.compile ----


@needs_gpu
def test_runs_on_torchs_current_stream():
    q, k, v, _ = batch([200], [200], 8)
    cu = cumulated([200])
    wanted = flashprime.prefill(q, k, v, cu, softmax_scale=SCALE)
    late = torch.zeros_like(q)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(q)
        out = flashprime.prefill(late, k, v, cu, softmax_scale=SCALE)
    named = flashprime.prefill(late, k, v, cu, softmax_scale=SCALE, stream=stream)
    stream.synchronize()
    assert torch.equal(out, wanted) and torch.equal(named, wanted)


@needs_gpu
@pytest.mark.parametrize("lengths", [([100, 156], [100, 156]), ([1], [9000])])
def test_is_captured_in_a_graph_and_replayed(lengths):
    q, k, v, _ = batch(*lengths, 4)
    cu_q, cu_k = map(cumulated, lengths)
    call = {"softmax_scale": SCALE, "return_lse": True, "max_seqlen_q": 256, "max_seqlen_k": 9000}
    flashprime.prefill(q, k, v, cu_q, cu_k, **call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = flashprime.prefill(q, k, v, cu_q, cu_k, **call)
        merged, _ = flashprime.merge_states(out, lse, out, lse)
    for _ in range(3):
        q.normal_()
        v.normal_()
        graph.replay()
        torch.cuda.synchronize()
        wanted = flashprime.prefill(q, k, v, cu_q, cu_k, **call)
        assert torch.equal(out, wanted[0]) and torch.equal(lse, wanted[1])
        torch.testing.assert_close(merged, out, rtol=1e-2, atol=1e-2)


@needs_gpu
def test_a_cold_kernel_is_refused_while_a_graph_is_recorded():
    q, k, v, _ = batch([64], [64], 2, dims=(112, 16, 48))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(flashprime.NotWarmError):
        with torch.cuda.graph(graph):
            flashprime.prefill(q, k, v, cumulated([64]), softmax_scale=SCALE)
    torch.cuda.synchronize()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiles_without_a_graph_break(mode):
    @torch.compile(fullgraph=True, mode=mode)
    def layer(q, k, v, cu):
        out, lse = flashprime.prefill(q * 1, k, v, cu, softmax_scale=SCALE, return_lse=True)
        return out + 1, lse

    q, k, v, _ = batch([100, 156], [100, 156], 4)
    cu = cumulated([100, 156])
    wanted = flashprime.prefill(q, k, v, cu, softmax_scale=SCALE, return_lse=True)
    for _ in range(3):
        out, lse = layer(q, k, v, cu)
        assert torch.equal(out, wanted[0] + 1) and torch.equal(lse, wanted[1])


def test_operators_pass_opcheck():
    q, k, v, (k_nope, k_pe) = batch([9, 20], [9, 20], 2)
    cu = cumulated([9, 20])
    torch.library.opcheck(
        torch.ops.flashprime.prefill, (q, None, k, None, v, cu, cu, SCALE), {"return_lse": True}
    )
    torch.library.opcheck(
        torch.ops.flashprime.prefill_out, (q, None, k_nope, k_pe, v, cu, cu, SCALE),
        {"out": torch.empty(29, 2, 128, dtype=q.dtype, device=DEVICE)},
    )  # fmt: skip


# ---- Errors ----


@needs_gpu
def test_lengths_are_checked_when_asked_for():
    q, k, v, _ = batch([30], [30], 2)
    with pytest.raises(flashprime.CuSeqlensError, match="cu_seqlens_q"):
        flashprime.prefill(q, k, v, cumulated([29]), cumulated([30]), softmax_scale=SCALE,
                           checked=True)  # fmt: skip


@needs_gpu
def test_tensors_on_two_devices_are_named():
    q, k, v, _ = batch([30], [30], 2)
    with pytest.raises(flashprime.DeviceError, match="k: got cpu, wanted cuda:0"):
        flashprime.prefill(q, k.cpu(), v, cumulated([30]), softmax_scale=SCALE)
    with pytest.raises(flashprime.UnsupportedError, match="dtype: got fp32"):
        flashprime.prefill(q.float(), k.float(), v.float(), cumulated([30]), softmax_scale=SCALE)


@needs_gpu
def test_frozen_kernels_are_refused_and_warmed_ones_are_loaded(tmp_path):
    script = """
import torch, flashprime
q = torch.randn(8, 2, 128, device="cuda").bfloat16()
v = torch.randn(8, 2, 32, device="cuda").bfloat16()
cu = torch.tensor([0, 8], dtype=torch.int32, device="cuda")
flashprime.freeze()
try:
    flashprime.prefill(q, q, v, cu, softmax_scale=0.1)
except flashprime.FrozenError as error:
    assert "traits" in str(error) or "sm80" in str(error), error
else:
    raise SystemExit("not refused")
flashprime.default_cache().set_freeze("allow")
report = flashprime.warmup(dims=(64, 64, 32), progress=False)
assert report.complete, report
loaded = flashprime.warmup(dims=(64, 64, 32), mode="load_only", progress=False)
assert loaded.count("compiled") == 0, loaded
flashprime.freeze()
flashprime.prefill(q, q, v, cu, softmax_scale=0.1)
"""
    environment = os.environ | {"FLASHPRIME_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


# ---- Other software ----


@needs_gpu
def test_takes_cupys_arrays_and_stream():
    cupy = pytest.importorskip("cupy")
    q, k, v, _ = batch([50], [50], 2, dtype=torch.float16)
    cu = cumulated([50])
    wanted = flashprime.prefill(q, k, v, cu, softmax_scale=SCALE)
    torch.cuda.synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        arrays = [cupy.from_dlpack(tensor) for tensor in (q, k, v, cu)]
        out = flashprime.prefill(*arrays, softmax_scale=SCALE)
        stream.synchronize()
    assert isinstance(out, cupy.ndarray)
    assert torch.equal(torch.from_dlpack(out), wanted)


def test_jax_computes_the_same_under_jit():
    jax = pytest.importorskip("jax")
    pytest.importorskip("jax_tvm_ffi")
    from flashprime.integrations import jax as integration

    q, k, v, _ = batch([50, 14], [50, 14], 2)
    cu = cumulated([50, 14])
    wanted = flashprime.prefill(q, k, v, cu, softmax_scale=SCALE, batch_invariant=True)
    arrays = [jax.dlpack.from_dlpack(tensor.contiguous()) for tensor in (q, k, v, cu)]
    run = jax.jit(lambda *arrays: integration.prefill(*arrays, softmax_scale=SCALE, rope=64))
    out = torch.from_dlpack(run(*arrays).block_until_ready())
    assert out.device.type == torch.device(DEVICE).type and torch.equal(out, wanted)


@pytest.mark.parametrize("name", ["DeepseekV2", "DeepseekV3", "Mistral4", "Glm4MoeLite"])
@torch.no_grad()
def test_transformers_models_in_bf16_err_no_more_than_eager_does(name):
    transformers = pytest.importorskip("transformers")
    from flashprime.integrations import transformers as integration

    integration.register()
    dims = {"Mistral4": (64, 64, 128), "Glm4MoeLite": (192, 64, 256)}.get(name, (128, 64, 128))
    options = {
        "vocab_size": 128, "hidden_size": 256, "intermediate_size": 256,
        "moe_intermediate_size": 64, "num_hidden_layers": 2, "first_k_dense_replace": 2,
        "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "kv_lora_rank": 64,
        "q_lora_rank": None if name == "DeepseekV2" else 64, "qk_nope_head_dim": dims[0],
        "qk_rope_head_dim": dims[1], "v_head_dim": dims[2], "pad_token_id": 0,
    }  # fmt: skip
    kind = getattr(transformers, f"{name}ForCausalLM")
    config = getattr(transformers, f"{name}Config")
    exact = kind(config(**options, attn_implementation="eager")).eval().to(DEVICE)
    models = {}
    for implementation in ("eager", integration.NAME):
        model = kind(config(**options, attn_implementation=implementation)).eval()
        model.load_state_dict(exact.state_dict())
        models[implementation] = model.to(DEVICE, torch.bfloat16)
    ids, mask = torch.randint(3, 128, (3, 70)).to(DEVICE), torch.ones(3, 70, dtype=torch.long)
    for row, padding in enumerate((0, 9, 30)):
        mask[row, :padding] = 0
    mask = mask.to(DEVICE)
    wanted = exact(ids, attention_mask=mask).logits[mask.bool()]
    errors = {
        name: (model(ids, attention_mask=mask).logits.float()[mask.bool()] - wanted).abs().max()
        for name, model in models.items()
    }
    assert errors[integration.NAME] <= 2 * errors["eager"] + 1e-3, errors
    generated = models[integration.NAME].generate(
        ids, attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=None
    )
    assert generated.shape == (3, 74)


@pytest.mark.parametrize("example", sorted(file.name for file in (ROOT / "examples").glob("*.py")))
def test_examples_run(example, tmp_path):
    if example == "transformers_generate.py":
        pytest.importorskip("transformers")
    if example == "cuda_graph.py" and not ON_GPU:
        pytest.skip("needs a GPU")
    subprocess.run([sys.executable, ROOT / "examples" / example], check=True, cwd=tmp_path)
