# SPDX-License-Identifier: Apache-2.0
"""The plugin against the modules of an SGLang 0.5.23 wheel.

Real: plugins, arg_groups.choices, layers.attention.attention_registry, models.deepseek_common's
attention_backend_handler and forward_methods, the base class of attention backends, and the class
ForwardMode. Hollow: the packages that they lie in. Stubs: what they import of the rest, below; no
model and no KV cache is run.
"""

import ast
import importlib
import subprocess
import sys
from types import SimpleNamespace

import flashprime
import oracle
import peers
import pytest
import torch
from flashprime.integrations import sglang as plugin
from test_prefill import check_close

HEADS, NOPE, ROPE, DIM_V, SCALE = 2, 128, 64, 128, 0.1


def forward_mode():
    """The real enumeration, cut from a module that needs a GPU's libraries."""
    file = peers.source_of("sglang", "sglang/srt/model_executor/forward_batch_info.py")
    (node,) = (
        node
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "ForwardMode"
    )
    scope = {}
    code = "from __future__ import annotations\nfrom enum import IntEnum, auto\n"
    exec(code + ast.unparse(node), scope)
    return scope["ForwardMode"]


@pytest.fixture(scope="module")
def sglang():
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.attention",
                 "sglang.srt.layers.cp", "sglang.srt.models", "sglang.srt.models.deepseek_common",
                 "sglang.srt.models.deepseek_common.attention_forward_methods",
                 "sglang.srt.arg_groups", "sglang.srt.model_executor",
                 "sglang.srt.model_executor.runner_backend_utils"):  # fmt: skip
        peers.hollow_package("sglang", name)
    no = lambda *a, **k: False  # noqa: E731
    mode, stub = forward_mode(), peers.stub
    stub("sglang.srt.utils", is_gfx95_supported=no, use_intel_amx_backend=no, is_hip=no,
         get_device_capability=lambda: (9, 0), is_musa=no, is_npu=no)  # fmt: skip
    stub("sglang.srt.utils.common", is_npu=no)
    stub("sglang.srt.runtime_context", get_exec=None, get_parallel=None, get_platform=None,
         get_spec=None)  # fmt: skip
    stub("sglang.srt.configs")
    stub("sglang.srt.configs.hybrid_arch", **dict.fromkeys(
        ("glm5_next_config", "hybrid_gdn_config", "hybrid_kda_config", "hybrid_lightning_config",
         "kimi_linear_config", "mamba2_config", "mambaish_config")))  # fmt: skip
    stub("sglang.srt.configs.linear_attn_model_registry", get_linear_attn_config=None,
         import_backend_class=None)  # fmt: skip
    stub("sglang.srt.arg_groups.overrides", attention_backends_of=None, resolved_view=None)
    stub("sglang.srt.layers.attention.tbo_backend", TboAttnBackend=type("TboAttnBackend", (), {}))
    stub("sglang.srt.layers.cp.utils", is_cp_active=lambda batch: batch.context_parallel)
    stub("sglang.srt.model_executor.forward_context", get_attn_backend=None)
    stub("sglang.srt.model_executor.forward_batch_info", ForwardMode=mode)
    graphs = "sglang.srt.model_executor.runner_backend_utils"
    stub(f"{graphs}.breakable_cuda_graph", is_in_breakable_cuda_graph=no)
    stub(f"{graphs}.tc_piecewise_cuda_graph", is_in_tc_piecewise_cuda_graph=no)
    stub("sglang.srt.models.deepseek_common.utils", _is_hip=False)
    stub("sglang.kernels")
    stub("sglang.kernels.kernel_api_logging", debug_kernel_api=lambda function: function)
    load = importlib.import_module
    modules = SimpleNamespace(
        mode=mode,
        choices=load("sglang.srt.arg_groups.choices"),
        registry=load("sglang.srt.layers.attention.attention_registry"),
        handlers=load("sglang.srt.models.deepseek_common.attention_backend_handler"),
        base=load("sglang.srt.layers.attention.base_attn_backend"),
        plugins=load("sglang.srt.plugins"),
    )

    class Below(modules.base.AttentionBackend):
        """A backend of SGLang: says that it was asked."""

        def __init__(self, runner):
            self.runner = runner

        def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **rest):
            return "below", save_kv_cache, rest

    for name in ("triton", "fa3", "flashinfer"):
        modules.registry.register_attention_backend(name)(Below)
    modules.below = Below
    plugin.register()
    return modules


@pytest.fixture
def layer():
    return SimpleNamespace(
        tp_q_head_num=HEADS, tp_k_head_num=HEADS, head_dim=NOPE + ROPE, v_head_dim=DIM_V,
        scaling=SCALE, logit_cap=0.0,
    )  # fmt: skip


@pytest.fixture
def backend(sglang):
    return sglang.registry.ATTENTION_BACKENDS["flashprime"](SimpleNamespace(use_mla_backend=True))


def batch_of(sglang, lengths, **more):
    fields = {
        "forward_mode": sglang.mode.EXTEND,
        "extend_seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "extend_seq_lens_cpu": list(lengths),
        "extend_prefix_lens_cpu": [0] * len(lengths),
        "attn_attend_prefix_cache": False,
        "mha_return_lse": False,
        "context_parallel": False,
    }
    return SimpleNamespace(**(fields | more))


def cumulated(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def tensors(rows, keys):
    up = torch.randn(keys, HEADS, NOPE + DIM_V)
    k = torch.cat([up[..., :NOPE], torch.randn(keys, 1, ROPE).expand(-1, HEADS, -1)], -1)
    return torch.randn(rows, HEADS, NOPE + ROPE), k, up[..., NOPE:]


def test_sglang_finds_the_plugin(sglang):
    found = sglang.plugins.load_plugins_by_group(sglang.plugins.GENERAL_PLUGINS_GROUP)
    assert found["flashprime"][0] is plugin.register


def test_registering_twice_adds_each_name_once(sglang):
    plugin.register()
    for name in plugin.NAMES:
        assert sglang.choices.ATTENTION_BACKEND_CHOICES.count(name) == 1
        supported = sglang.choices.CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS
        assert supported.count(name) == 1
        assert name in sglang.registry.ATTENTION_BACKENDS


@pytest.mark.parametrize("name", plugin.NAMES)
def test_is_made_from_an_installed_backend(sglang, name):
    made = sglang.registry.ATTENTION_BACKENDS[name](SimpleNamespace(use_mla_backend=True))
    assert isinstance(made, sglang.below) and isinstance(made, sglang.base.AttentionBackend)
    assert made.forward_extend.func is plugin.forward_extend


def test_says_what_it_cannot_be_made_from(sglang, monkeypatch):
    with pytest.raises(flashprime.UnsupportedError, match="got a model without MLA"):
        sglang.registry.ATTENTION_BACKENDS["flashprime"](SimpleNamespace(use_mla_backend=False))
    monkeypatch.delitem(sglang.registry.ATTENTION_BACKENDS, "fa3")
    with pytest.raises(flashprime.UnsupportedError, match="has no backend fa3"):
        sglang.registry.ATTENTION_BACKENDS["flashprime_fa3"](SimpleNamespace())


def test_models_ask_for_multi_head_attention_where_it_is_computed(sglang, backend, monkeypatch):
    handler = sglang.handlers.AttentionBackendRegistry.get_handler("flashprime")
    method = sglang.handlers.AttnForwardMethod
    attn = SimpleNamespace(disable_chunked_prefix_cache=False)
    exec_ = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    monkeypatch.setattr(sglang.handlers, "get_exec", lambda: exec_)
    new = batch_of(sglang, [3, 4])
    prefixed = batch_of(sglang, [3, 4], extend_prefix_lens_cpu=[0, 9])
    assert handler(attn, new) is method.MHA_CHUNKED_KV
    assert handler(attn, prefixed) is method.MHA_CHUNKED_KV
    # What is not computed here is the choice of the backend below, which is absorbed attention.
    no_chunks = SimpleNamespace(disable_chunked_prefix_cache=True)
    assert handler(no_chunks, prefixed) is method.MLA
    assert handler(attn, batch_of(sglang, [1], forward_mode=sglang.mode.DECODE)) is method.MLA
    monkeypatch.setattr(sglang.handlers, "is_in_breakable_cuda_graph", lambda: True)
    assert handler(attn, new) is method.MLA


def test_computes_new_tokens_and_prefix_chunks(sglang, backend, layer):
    """As SGLang's own loop does: new tokens, then each chunk, merged, LSE [T, H]."""
    lengths, chunks = [4, 6], [[5, 0], [3, 7]]
    q, k, v = tensors(10, 10)
    batch = batch_of(sglang, lengths, mha_return_lse=True)
    state = backend.forward_extend(q, k, v, layer, batch, save_kv_cache=False)
    assert state[0].shape == (10, HEADS, DIM_V) and state[1].shape == (10, HEADS)
    assert state[1].is_contiguous()
    batch.prefix_chunk_cu_seq_lens = [cumulated(chunk) for chunk in chunks]
    batch.prefix_chunk_max_seq_lens = [max(chunk) for chunk in chunks]
    batch.attn_attend_prefix_cache = True
    backend.init_mha_chunk_metadata(batch)
    parts = [tensors(10, sum(chunk))[1:] for chunk in chunks]
    for index, (keys, values) in enumerate(parts):
        batch.prefix_chunk_idx = index
        part = backend.forward_extend(q, keys, values, layer, batch, save_kv_cache=False)
        state = flashprime.merge_states(*part, *state, lse_layout="tokens_heads")

    keys, values = [], []
    for b in range(2):
        for i, own in ((0, k), (1, v)):
            pieces = [
                part[i][cu[b] : cu[b + 1]]
                for part, cu in zip(parts, batch.prefix_chunk_cu_seq_lens, strict=True)
            ]
            cu = cumulated(lengths)
            (keys, values)[i].append(torch.cat([*pieces, own[cu[b] : cu[b + 1]]]))
    cu_k = cumulated([len(part) for part in keys])
    wanted, wanted_lse = oracle.attention(
        q, torch.cat(keys), torch.cat(values), cumulated(lengths).numpy(), cu_k.numpy(), SCALE
    )
    check_close(state[0], wanted, 4e-6)
    check_close(state[1].T, wanted_lse, 4e-6)


def test_one_shot_keys_cover_the_prefix(sglang, backend, layer):
    q, k, v = tensors(5, 12)
    batch = batch_of(
        sglang, [2, 3], mha_one_shot=True, seq_lens=torch.tensor([5, 7]), seq_lens_cpu=[5, 7]
    )
    out = backend.forward_extend(q, k, v, layer, batch, save_kv_cache=False)
    wanted, _ = oracle.attention(q, k, v, [0, 2, 5], [0, 5, 12], SCALE)
    check_close(out, wanted, 4e-6)


def test_padding_rows_of_a_batch_are_empty(sglang, backend, layer):
    q, k, v = tensors(9, 9)
    batch = batch_of(sglang, [2, 3], mha_return_lse=True)
    out, lse = backend.forward_extend(q, k, v, layer, batch, save_kv_cache=False)
    wanted, wanted_lse = oracle.attention(q[:5], k[:5], v[:5], [0, 2, 5], [0, 2, 5], SCALE)
    check_close(out[:5], wanted, 4e-6)
    check_close(lse[:5].T, wanted_lse, 4e-6)
    assert (out[5:] == 0).all() and torch.isneginf(lse[5:]).all()


def test_everything_else_goes_to_the_backend_below(sglang, backend, layer):
    q, k, v = tensors(5, 5)
    absorbed = batch_of(sglang, [5], attn_attend_prefix_cache=None)
    assert backend.forward_extend(q, k, v, layer, absorbed, False)[0] == "below"
    verify = batch_of(sglang, [5], forward_mode=sglang.mode.TARGET_VERIFY)
    assert backend.forward_extend(q, k, v, layer, verify, False)[0] == "below"
    new = batch_of(sglang, [5])
    assert backend.forward_extend(q, k, v, layer, new)[:2] == ("below", True)
    assert backend.forward_extend(q, k, v, layer, new, False, q_rope=q)[2] == {"q_rope": q}


def test_a_logit_cap_is_refused(sglang, backend, layer):
    layer.logit_cap = 30.0
    with pytest.raises(flashprime.UnsupportedError, match="logit_cap: got 30.0"):
        backend.forward_extend(*tensors(5, 5), layer, batch_of(sglang, [5]), save_kv_cache=False)


def test_is_quiet_where_sglang_is_not_there():
    code = "from flashprime.integrations import sglang; sglang.register()"
    subprocess.run([sys.executable, "-c", code], check=True)
