# SPDX-License-Identifier: Apache-2.0
"""The plugin against the modules of a vLLM 0.33.0 wheel.

Real: envs, logger, plugins, platforms.interface, platforms.cpu, the whole package of MLA prefill
backends (base, registry, selector, cpu_sdpa), model_executor.warmup.jit_warmup, utils.jit_monitor.
Hollow (their __init__ is not run, what lies in them is real): vllm, vllm.model_executor and in it
warmup, layers and layers.quantization. Stubs: quant_utils with one quantisation key, and of
vllm.distributed who is the first rank; for the warmup run of the registry also the helper of Triton
kernels.
"""

import inspect
import pathlib
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import flashprime
import oracle
import peers
import pytest
import torch
from flashprime.integrations import vllm as plugin
from test_prefill import check_close

HEADS, NOPE, ROPE, DIM_V = 3, 128, 64, 128
SCALE = 0.1
STATIC_FP8 = "static, per tensor, symmetric"


@pytest.fixture(scope="module")
def vllm():
    """The real modules, on the real platform of CPUs."""
    peers.hollow_package("vllm", "vllm")
    for name in ("", ".warmup", ".layers", ".layers.quantization"):
        peers.hollow_package("vllm", f"vllm.model_executor{name}")
    peers.stub("vllm.distributed", is_global_first_rank=lambda: False)
    peers.stub("vllm.distributed.parallel_state", is_local_first_rank=lambda: True)
    peers.stub("vllm.model_executor.layers.quantization.utils")
    peers.stub(
        "vllm.model_executor.layers.quantization.utils.quant_utils", kFp8StaticTensorSym=STATIC_FP8
    )
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from flashprime.integrations import vllm_backend
    from vllm.model_executor.warmup import jit_warmup
    from vllm.utils import jit_monitor
    from vllm.v1.attention.backends.mla.prefill import base, cpu_sdpa, registry, selector

    return SimpleNamespace(
        base=base,
        registry=registry,
        selector=selector,
        cpu_sdpa=cpu_sdpa,
        jit_warmup=jit_warmup,
        jit_monitor=jit_monitor,
        platforms=vllm.platforms,
        backend=vllm_backend,
        members=registry.MLAPrefillBackendEnum,
    )


@pytest.fixture(autouse=True)
def nothing_registered(vllm, monkeypatch):
    monkeypatch.delenv(plugin.OVERRIDE, raising=False)
    vllm.registry._MLA_PREFILL_OVERRIDES.clear()
    vllm.selector._auto_select_mla_prefill_backend.cache_clear()


@pytest.fixture
def gpu(vllm, monkeypatch):
    """The platform as vLLM has it on a GPU of a compute capability."""
    from vllm.platforms.interface import DeviceCapability, Platform

    class GpuPlatform(Platform):
        capability = (9, 0)

        @classmethod
        def get_device_capability(cls, device_id=0):
            return DeviceCapability(*cls.capability)

        @classmethod
        def is_cpu(cls):
            return False

    monkeypatch.setattr(vllm.platforms, "_current_platform", GpuPlatform)
    return GpuPlatform


def config(dims=(NOPE, ROPE, DIM_V), dtype=torch.bfloat16, backend=None, **kernel_config):
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=dtype, hf_text_config=SimpleNamespace(**dict(zip(names, dims, strict=True)))
        ),
        attention_config=SimpleNamespace(mla_prefill_backend=backend),
        kernel_config=SimpleNamespace(**kernel_config),
        observability_config=SimpleNamespace(jit_monitor_mode="warn"),
    )


def make(kind, vllm_config=None, heads=HEADS):
    return kind(
        num_heads=heads, scale=SCALE, kv_lora_rank=512, qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE, v_head_dim=DIM_V, vllm_config=vllm_config or config(),
    )  # fmt: skip


def cumulated(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def tensors(rows, keys, dtype=torch.float32):
    """q, k as vLLM concatenates it, and v as it slices it from the up-projection."""
    torch.manual_seed(rows * 1000 + keys)
    up = torch.randn(keys, HEADS, NOPE + DIM_V).to(dtype)
    k = torch.cat([up[..., :NOPE], torch.randn(keys, 1, ROPE).to(dtype).expand(-1, HEADS, -1)], -1)
    return torch.randn(rows, HEADS, NOPE + ROPE).to(dtype), k, up[..., NOPE:]


def metadata(lengths, **more):
    return SimpleNamespace(query_start_loc=cumulated(lengths), max_query_len=max(lengths), **more)


# ---- Registering and choosing ----


def test_vllm_finds_the_plugin_and_loads_it(vllm):
    from vllm import plugins

    found = plugins.load_plugins_by_group(plugins.DEFAULT_PLUGINS_GROUP)
    assert found["flashprime"] is plugin.register
    found["flashprime"]()
    found["flashprime"]()  # a process may call it more than once
    custom = vllm.members.CUSTOM
    assert custom.get_path() == plugin.BACKEND_PATH
    assert custom.get_class() is vllm.backend.FlashPrimeMLAPrefillBackend
    assert not vllm.members.FLASH_ATTN.is_overridden()


def test_somebody_elses_custom_backend_stays(vllm, caplog):
    vllm.registry.register_mla_prefill_backend(vllm.members.CUSTOM, "some.other.Backend")
    plugin.register()
    assert vllm.members.CUSTOM.get_path() == "some.other.Backend"
    assert "stays some.other.Backend" in caplog.text


@pytest.mark.parametrize(
    ("value", "overridden"),
    [("", []), ("0", []), ("1", ["FLASH_ATTN", "CPU"]), ("TRTLLM_RAGGED, CPU",
                                                         ["TRTLLM_RAGGED", "CPU"])],
)  # fmt: skip
def test_overrides_what_the_environment_names(vllm, monkeypatch, value, overridden):
    monkeypatch.setenv(plugin.OVERRIDE, value)
    plugin.register()
    plugin.register()
    names = [m.name for m in vllm.members if m.is_overridden() and m.name != "CUSTOM"]
    assert names == overridden


def test_an_unknown_name_to_override_is_an_error(vllm, monkeypatch):
    monkeypatch.setenv(plugin.OVERRIDE, "FLASH_ATN")
    with pytest.raises(flashprime.FormatError, match="got 'FLASH_ATN', wanted 0, 1 or names of"):
        plugin.register()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_vllm_chooses_it_by_name(vllm, gpu, capability):
    gpu.capability = capability
    plugin.register()
    chosen = vllm.selector.get_mla_prefill_backend(config(backend=vllm.members.CUSTOM))
    assert chosen is vllm.backend.FlashPrimeMLAPrefillBackend


@pytest.mark.parametrize("dims", [(128, 64, 128), (64, 64, 128), (256, 0, 256), (192, 64, 256)])
def test_vllm_chooses_it_itself_where_it_overrides_flash_attn(vllm, gpu, monkeypatch, dims):
    monkeypatch.setenv(plugin.OVERRIDE, "1")
    plugin.register()
    chosen = vllm.selector.get_mla_prefill_backend(config(dims))
    assert chosen is vllm.backend.FlashPrimeMLAPrefillBackend


@pytest.mark.parametrize(
    ("capability", "options", "reason"),
    [
        ((7, 5), {}, "compute capability 7.5 not supported"),
        ((9, 0), {"dtype": torch.float32}, "dtype torch.float32 not supported"),
        ((9, 0), {"dims": (100, 64, 128)}, "does not have supported MLA dimensions"),
        ((9, 0), {"dims": (256, 64, 256)}, "does not have supported MLA dimensions"),
    ],
)
def test_vllm_refuses_it_with_the_reason(vllm, gpu, capability, options, reason):
    gpu.capability = capability
    plugin.register()
    with pytest.raises(ValueError, match=reason):
        vllm.selector.get_mla_prefill_backend(config(backend=vllm.members.CUSTOM, **options))


def test_on_a_cpu_vllm_takes_what_overrides_its_member(vllm, monkeypatch):
    own = vllm.selector.get_mla_prefill_backend(config())
    assert own is vllm.cpu_sdpa.CPUSDPAMLAPrefillBackend
    monkeypatch.setenv(plugin.OVERRIDE, "CPU")
    plugin.register()
    vllm.selector._auto_select_mla_prefill_backend.cache_clear()
    assert vllm.selector.get_mla_prefill_backend(config()) is (
        vllm.backend.FlashPrimeMLAPrefillBackend
    )


def test_has_the_interface_of_its_base(vllm):
    ours, theirs = vllm.backend.FlashPrimeMLAPrefillBackend, vllm.base.MLAPrefillBackend
    assert issubclass(ours, theirs) and not inspect.isabstract(ours)
    for name in ("__init__", "run_prefill_new_tokens", "run_prefill_context_chunk"):
        wanted = list(inspect.signature(getattr(theirs, name)).parameters)
        assert list(inspect.signature(getattr(ours, name)).parameters)[: len(wanted)] == wanted
    assert ours.get_name() == "FLASHPRIME"


# ---- Computing ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [(5,), (7, 1, 12), (64, 3)])
def test_gives_what_vllms_own_cpu_backend_gives(vllm, dtype, lengths):
    """Where both are defined: causal over equal lengths, full over context."""
    tolerance = {torch.float32: 3e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[dtype]
    kinds = (vllm.cpu_sdpa.CPUSDPAMLAPrefillBackend, vllm.backend.FlashPrimeMLAPrefillBackend)
    theirs, ours = (make(kind) for kind in kinds)
    rows = sum(lengths)
    q, k, v = tensors(rows, rows, dtype)
    for backend in (theirs, ours):
        backend.prepare_metadata(metadata(lengths))
    wanted = theirs.run_prefill_new_tokens(q, k, v, True)
    out, lse = ours.run_prefill_new_tokens(q, k, v, True)
    assert out.shape == wanted[0].shape and lse.shape == wanted[1].shape
    torch.testing.assert_close(out, wanted[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(lse, wanted[1], rtol=0, atol=2e-5)
    only = ours.run_prefill_new_tokens(q=q, k=k, v=v, return_softmax_lse=False)
    assert torch.equal(only, out)

    context = [9] * len(lengths)
    _, k, v = tensors(rows, sum(context), dtype)
    chunk = SimpleNamespace(
        query_start_loc=cumulated(lengths), max_query_len=max(lengths),
        cu_seq_lens=cumulated(context), max_seq_len=9,
    )  # fmt: skip
    wanted = theirs.run_prefill_context_chunk(chunk=chunk, q=q, k=k, v=v)
    out, lse = ours.run_prefill_context_chunk(chunk=chunk, q=q, k=k, v=v)
    torch.testing.assert_close(out, wanted[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(lse, wanted[1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("form", ["chunk", "chunk_idx", "positional index"])
def test_new_tokens_and_context_chunks_merge_to_one_softmax(vllm, form):
    lengths, context = (4, 6), ((5, 0), (0, 7), (3, 2))
    backend = make(vllm.backend.FlashPrimeMLAPrefillBackend)
    q, k, v = tensors(10, 10)
    parts = [tensors(10, sum(chunk))[1:] for chunk in context]
    chunked = SimpleNamespace(
        cu_seq_lens=[cumulated(chunk) for chunk in context],
        max_seq_lens=[max(chunk) for chunk in context],
    )
    backend.prepare_metadata(metadata(lengths, chunked_context=chunked))
    state = backend.run_prefill_new_tokens(q, k, v, return_softmax_lse=True)
    for i, (keys, values) in enumerate(parts):
        if form == "chunk":
            chunk = SimpleNamespace(
                query_start_loc=cumulated(lengths), max_query_len=6,
                cu_seq_lens=chunked.cu_seq_lens[i], max_seq_len=chunked.max_seq_lens[i],
            )  # fmt: skip
            part = backend.run_prefill_context_chunk(chunk=chunk, q=q, k=keys, v=values)
        elif form == "chunk_idx":
            part = backend.run_prefill_context_chunk(chunk_idx=i, q=q, k=keys, v=values)
        else:
            part = backend.run_prefill_context_chunk(i, q, keys, values)
        state = flashprime.merge_states(*part, *state)

    def keys_of(b, source, own):
        begins = [cumulated(chunk) for chunk in context]
        return torch.cat([
            *(p[source][c[b] : c[b + 1]] for p, c in zip(parts, begins, strict=True)),
            own[cumulated(lengths)[b] : cumulated(lengths)[b + 1]],
        ])  # fmt: skip

    cu_k = cumulated([sum(chunk[b] for chunk in context) + lengths[b] for b in range(2)])
    wanted, wanted_lse = oracle.attention(
        q, torch.cat([keys_of(b, 0, k) for b in range(2)]),
        torch.cat([keys_of(b, 1, v) for b in range(2)]),
        cumulated(lengths).numpy(), cu_k.numpy(), SCALE,
    )  # fmt: skip
    check_close(state[0], wanted, 4e-6)
    check_close(state[1], wanted_lse, 4e-6)


def test_writes_to_out_and_returns_it(vllm):
    backend = make(vllm.backend.FlashPrimeMLAPrefillBackend)
    q, k, v = tensors(7, 7)
    backend.prepare_metadata(metadata((3, 4)))
    wanted = backend.run_prefill_new_tokens(q, k, v, False)
    assert backend.supports_out()
    whole = torch.full((9, HEADS, DIM_V), 7.0)
    returned = backend.run_prefill_new_tokens(q, k, v, False, out=whole[1:8])
    assert returned.data_ptr() == whole[1:8].data_ptr()
    assert torch.equal(whole[1:8], wanted) and (whole[[0, 8]] == 7.0).all()
    chunk = SimpleNamespace(query_start_loc=cumulated((3, 4)), max_query_len=4,
                            cu_seq_lens=cumulated((3, 4)), max_seq_len=4)  # fmt: skip
    out, _ = backend.run_prefill_context_chunk(chunk=chunk, q=q, k=k, v=v, out=whole[1:8])
    assert out.data_ptr() == whole[1:8].data_ptr() and (whole[[0, 8]] == 7.0).all()


def test_writes_static_fp8_output(vllm):
    backend = make(vllm.backend.FlashPrimeMLAPrefillBackend)
    assert backend.supports_quant_output(STATIC_FP8)
    assert not backend.supports_quant_output("dynamic")
    q, k, v = tensors(7, 7)
    backend.prepare_metadata(metadata((3, 4)))
    exact = backend.run_prefill_new_tokens(q, k, v, False)
    out = torch.empty(7, HEADS, DIM_V, dtype=torch.float8_e4m3fn)
    for scale in (torch.tensor(0.25), torch.tensor([0.25])):
        backend.run_prefill_new_tokens(q, k, v, False, out=out, output_scale=scale)
        wanted = (exact * 4).to(torch.float8_e4m3fn)
        assert torch.equal(out.view(torch.uint8), wanted.view(torch.uint8))


def test_a_clone_is_another_backend_of_the_same_layer(vllm):
    backend = make(vllm.backend.FlashPrimeMLAPrefillBackend)
    clone = backend.clone()
    assert type(clone) is type(backend) and clone is not backend
    q, k, v = tensors(4, 4)
    for one in (backend, clone):
        one.prepare_metadata(metadata((4,)))
    assert torch.equal(clone.run_prefill_new_tokens(q, k, v, False),
                       backend.run_prefill_new_tokens(q, k, v, False))  # fmt: skip


def test_is_batch_invariant_where_vllm_is(vllm, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert make(vllm.backend.FlashPrimeMLAPrefillBackend).batch_invariant
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    assert not make(vllm.backend.FlashPrimeMLAPrefillBackend).batch_invariant


# ---- Warmup ----


@pytest.fixture
def cache(vllm, tmp_path, monkeypatch):
    """An own cache in the place of the process's."""
    own = flashprime.KernelCache(cache_dir=tmp_path / "cache", on_event=vllm.backend._on_event)
    monkeypatch.setattr(vllm.backend.kernels, "default_cache", lambda: own)
    return own


def test_warmup_is_registered_once_for_all_layers(vllm, gpu, cache):
    registry = vllm.jit_warmup.JitWarmupRegistry(config())
    kind = vllm.backend.FlashPrimeMLAPrefillBackend
    make(kind)  # nobody collects
    with registry.activate():
        layers = [make(kind, config(enable_jit_warmup=True)) for _ in range(61)]
        layers[0].clone()
    assert len(registry) == 1
    with registry.activate():
        make(kind, config(enable_jit_warmup=False, dtype=torch.float16))
    assert len(registry) == 1
    (registrations,) = registry._registrations.values()
    ((arguments, _),) = registrations
    assert arguments == ((NOPE, ROPE, DIM_V), "bf16", "sm_90a")
    keys = vllm.backend._kernel.get_warmup_keys(*arguments)
    assert keys == list(cache.plan("deepseek-v3", archs=["sm_90a"]).kernels)


def test_on_a_cpu_there_is_nothing_to_warm(vllm):
    registry = vllm.jit_warmup.JitWarmupRegistry(config())
    with registry.activate():
        make(vllm.backend.FlashPrimeMLAPrefillBackend)
    assert len(registry) == 0


def test_vllms_registry_compiles_the_kernels_and_later_ones_are_told(vllm, gpu, cache, monkeypatch):
    if not cache.info().compiler_found:
        pytest.skip(f"no NVRTC: {cache.info().compiler}")
    peers.stub(
        "vllm.model_executor.warmup.jit_warmup_triton_helper",
        VllmTritonJitKernel=type("VllmTritonJitKernel", (), {}),
        compile_triton_warmup=None,
    )
    # Two kernels are enough here.
    kind, full = type(vllm.backend._kernel), type(vllm.backend._kernel).get_warmup_keys
    monkeypatch.setattr(
        kind, "get_warmup_keys",
        lambda self, *a: [key for key in full(self, *a) if key.kernel == "merge_states"],
    )  # fmt: skip
    registry = vllm.jit_warmup.JitWarmupRegistry(config())
    with registry.activate():
        make(vllm.backend.FlashPrimeMLAPrefillBackend)
    registry.warmup()
    assert len(cache.entries()) == len(vllm.backend._kernel.get_warmup_keys(
        (NOPE, ROPE, DIM_V), "bf16", "sm_90a"))  # fmt: skip
    assert cache.info().freeze == "warn"


def test_a_late_compilation_goes_to_vllms_monitor_while_that_is_on(vllm, monkeypatch, caplog):
    told = []
    monkeypatch.setattr(
        vllm.jit_monitor.logger, "warning_once", lambda text, *a: told.append(text % a)
    )
    vllm.backend._on_event("compiled_late", "sm80_mla_prefill{...}")
    assert not told and "compiled_late: sm80_mla_prefill{...}" in caplog.text
    monkeypatch.setattr(vllm.jit_monitor, "_active", True)
    vllm.backend._on_event("compiled_late", "sm80_mla_prefill{...}")
    assert len(told) == 1
    assert "FlashPrime kernel compilation during inference: sm80_mla_prefill{...}" in told[0]
    vllm.backend._on_event("cache_unusable", "no room")
    assert len(told) == 1 and "cache_unusable: no room" in caplog.text


# ---- Older generations ----

OLD_BASE = """
class MLAPrefillBackend:
    requires_r1_mla_dimensions = False
    def __init__(self, num_heads, scale, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim,
                 v_head_dim, vllm_config):
        self.num_heads, self.scale, self.vllm_config = num_heads, scale, vllm_config
        self.qk_nope_head_dim, self.qk_rope_head_dim = qk_nope_head_dim, qk_rope_head_dim
        self.v_head_dim = v_head_dim
    def prepare_metadata(self, prefill_metadata):
        self._prefill_metadata = prefill_metadata
"""
OLD_PLATFORMS = """
class current_platform:
    is_cpu = staticmethod(lambda: True)
    get_device_capability = staticmethod(lambda: None)
"""
FIRST_GENERATION = """
import torch
from types import SimpleNamespace
from flashprime.integrations import vllm as plugin
plugin.register()
from flashprime.integrations.vllm_backend import FlashPrimeMLAPrefillBackend, _kernel
assert _kernel is None
backend = FlashPrimeMLAPrefillBackend(2, 0.1, 512, 128, 64, 128, None)
cu = torch.tensor([0, 3], dtype=torch.int32)
backend.prepare_metadata(SimpleNamespace(
    query_start_loc=cu, max_query_len=3,
    chunked_context=SimpleNamespace(cu_seq_lens=[cu], max_seq_lens=[3])))
q, k, v = torch.randn(3, 2, 192), torch.randn(3, 2, 192), torch.randn(3, 2, 128)
out = backend.run_prefill_new_tokens(q, k, v, False)
out, lse = backend.run_prefill_context_chunk(chunk_idx=0, q=q, k=k, v=v)
assert out.shape == (3, 2, 128) and lse.shape == (2, 3)
assert not backend.supports_quant_output("fp8")
"""


def run_with_fake_vllm(tmp_path, files, script):
    package = pathlib.Path(flashprime.__file__).parents[1]
    tmp_path.mkdir(exist_ok=True)
    for name, text in files.items():
        file = tmp_path / name
        for folder in [*file.parents][: len(pathlib.Path(name).parts) - 1]:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        file.write_text(textwrap.dedent(text))
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(package)!r}]\n{script}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_serves_the_first_form_of_the_interface(tmp_path):
    prefill = "vllm/v1/attention/backends/mla/prefill"
    registry = """
    import enum
    paths = {}
    class MLAPrefillBackendEnum(enum.Enum):
        FLASH_ATTN = "flash"
        CUSTOM = None
        def is_overridden(self): return self in paths
        def get_path(self): return paths[self]
    def register_mla_prefill_backend(backend, class_path=None): paths[backend] = class_path
    """
    files = {f"{prefill}/base.py": OLD_BASE, f"{prefill}/registry.py": registry,
             "vllm/platforms.py": OLD_PLATFORMS, "vllm/envs.py": ""}  # fmt: skip
    run_with_fake_vllm(tmp_path, files, FIRST_GENERATION)


def test_is_quiet_where_vllm_is_too_old_or_not_there(tmp_path):
    script = "from flashprime.integrations import vllm; vllm.register()"
    run_with_fake_vllm(tmp_path, {"vllm/v1/attention/backends/mla/common.py": ""}, script)
    run_with_fake_vllm(tmp_path / "none", {"unrelated.py": ""}, script)
