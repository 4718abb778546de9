# SPDX-License-Identifier: Apache-2.0
"""Kernels for GPUs, without one. What compiles needs NVRTC and is skipped where it is not."""

import logging
import pathlib
import subprocess
import sys

import flashprime
import pytest

ARCH = ["sm_90a"]


@pytest.fixture(autouse=True)
def own_settings(monkeypatch, tmp_path):
    """No variable of the machine that runs the tests, and no cache of its user."""
    for name in ("CACHE_SHARED", "CACHE_MAX_MB", "BUNDLE", "BUNDLE_SHA256", "FREEZE", "LOG",
                 "DUMP_DIR", "KERNEL_DIR", "LOCK_WAIT_S"):  # fmt: skip
        monkeypatch.delenv(f"FLASHPRIME_{name}", raising=False)
    monkeypatch.setenv("FLASHPRIME_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def cache(tmp_path):
    return flashprime.KernelCache(cache_dir=tmp_path / "own")


@pytest.fixture
def compiler(cache):
    if not cache.info().compiler_found:
        pytest.skip(f"no NVRTC: {cache.info().compiler}")


@pytest.fixture
def plan(cache):
    """Two quick kernels."""
    full = cache.plan("deepseek-v3", archs=ARCH)
    kernels = tuple(kernel for kernel in full.kernels if kernel.kernel == "merge_states")[:2]
    assert len(kernels) == 2
    return flashprime.KernelPlan(kernels, (), "")


def test_a_plan_lists_kernels_of_a_model_and_reads_back_from_text(cache):
    plan = cache.plan("deepseek-v3", archs=["sm_90a", "sm_80"])
    assert {kernel.arch for kernel in plan.kernels} == {"sm_90a", "sm_80"}
    assert any("traits.dims.rope = 64" in kernel.key for kernel in plan.kernels)
    assert flashprime.parse_plan(plan.text).kernels == plan.kernels
    more = cache.plan("deepseek-v3", archs=["sm_90a", "sm_80"], e4m3_output=True)
    assert set(plan.kernels) < set(more.kernels)
    with pytest.raises(flashprime.FormatError):
        flashprime.parse_plan("no plan")
    with pytest.raises(flashprime.UnsupportedError, match="model: got 'gpt', wanted one of"):
        cache.plan("gpt", archs=ARCH)
    with pytest.raises(flashprime.UnsupportedError, match="wanted one of them"):
        cache.plan(archs=ARCH)
    with pytest.raises(flashprime.FlashPrimeError, match="sm_1"):
        cache.plan("deepseek-v3", archs=["sm_1"])


def test_the_kernels_of_one_call_are_in_the_plan_of_its_model(cache):
    plan = cache.plan("deepseek-v3", archs=ARCH)
    call = flashprime.kernels_of("deepseek-v3", arch="sm_90a", num_heads=16, return_lse=True)
    assert call.kernels and set(call.kernels) <= set(plan.kernels)
    with pytest.raises(flashprime.UnsupportedError, match="nope"):
        flashprime.kernels_of(dims=(100, 64, 128), arch="sm_90a")


def test_without_a_gpu_its_architecture_is_a_driver_error():
    with pytest.raises(flashprime.DriverError):
        flashprime.warmup("deepseek-v3")
    assert "sm_90a" in flashprime.known_architectures()
    assert flashprime.architectures_for_capability(9, 0)[0] == "sm_90a"


def test_without_a_compiler_every_kernel_is_reported(tmp_path, plan):
    cache = flashprime.KernelCache(cache_dir="off", nvrtc_path=tmp_path / "none.so")
    with pytest.raises(flashprime.NoCompilerError, match="2 of 2 kernels failed") as caught:
        cache.warmup(plan)
    report = caught.value.report
    assert report.count("failed") == 2 and not report.complete
    assert all("kNoCompiler" in kernel.problem for kernel in report.kernels)


def test_a_dry_run_says_what_would_happen(cache, plan):
    report = cache.warmup(plan, mode="dry_run")
    assert report.count("skipped") == 2 and not report.complete
    assert cache.entries() == []
    with pytest.raises(flashprime.FormatError, match="mode: got 'wet'"):
        cache.warmup(plan, mode="wet")


def test_warms_caches_and_prunes(cache, plan, compiler, tmp_path):
    seen = []
    report = cache.warmup(
        plan, progress=lambda done, total, last: seen.append((done, total, last)) and None
    )
    assert report.complete and report.count("compiled") == 2
    assert str(report).startswith("2 kernels: 2 compiled")
    finished = [(done, total) for done, total, last in seen if last is not None]
    assert finished == [(1, 2), (2, 2)]
    assert all(last.cubin_bytes > 0 for *_, last in seen if last is not None)

    again = flashprime.KernelCache(cache_dir=tmp_path / "own").warmup(plan)
    assert again.count("disk") == 2
    entries = cache.entries()
    assert {entry.kernel_id for entry in entries} == {kernel.kernel_id for kernel in plan.kernels}
    assert not any(entry.problem for entry in entries)
    assert cache.info().cache_writable and str(tmp_path / "own") in cache.info().cache
    assert cache.prune(dry_run=True).kept == 2
    assert cache.clear().removed == 2 and cache.entries() == []


def test_a_bundle_serves_where_there_is_no_compiler(cache, plan, compiler, tmp_path):
    bundle = tmp_path / "kernels.fpb"
    cache.pack(plan, bundle)
    assert {entry.kernel_id for entry in flashprime.list_bundle(bundle)} == {
        kernel.kernel_id for kernel in plan.kernels
    }
    assert flashprime.missing_from_bundle(bundle, plan) == []
    model = cache.plan("deepseek-v3", archs=ARCH)
    assert len(flashprime.missing_from_bundle(bundle, model)) == len(model) - 2

    sealed = flashprime.KernelCache(
        cache_dir="off", bundles=[bundle], nvrtc_path=tmp_path / "none.so", freeze="error"
    )
    assert sealed.info().freeze == "error"
    assert sealed.warmup(plan).count("bundle") == 2
    other = flashprime.KernelCache(cache_dir=tmp_path / "other")
    assert other.unpack(bundle) == 2 and len(other.entries()) == 2

    bundle.write_bytes(b"no bundle")
    with pytest.raises(flashprime.FormatError):
        flashprime.list_bundle(bundle)
    with pytest.raises(flashprime.IoError):
        flashprime.list_bundle(tmp_path / "none.fpb")


def test_dumps_what_the_compiler_makes(cache, plan, compiler):
    made = cache.dump(plan.kernels[0])
    assert ".target sm_90a" in made.ptx and made.cubin.startswith(b"\x7fELF")


class OwnError(Exception):
    pass


def test_what_a_progress_callback_raises_cancels_and_comes_back(cache, plan, compiler):
    def progress(done, total, last):
        raise OwnError

    with pytest.raises(OwnError):
        cache.warmup(plan, progress=progress)


def test_a_true_result_of_the_progress_callback_cancels_what_is_left(cache, plan, compiler):
    report = cache.warmup(plan, threads=1, progress=lambda done, total, last: done == 1)
    assert report.count("compiled") == 1 and report.count("skipped") == 1


def test_draws_a_bar_on_a_terminal_only(cache, plan, capsys, monkeypatch):
    cache.warmup(plan, mode="dry_run")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    cache.warmup(plan, mode="dry_run")
    assert "2/2" in capsys.readouterr().err


def test_freezing_refuses_late_kernels(cache):
    with pytest.raises(flashprime.FormatError, match="policy: got 'never'"):
        cache.set_freeze("never")
    cache.set_freeze("error")
    assert cache.info().freeze == "error"


def test_bad_settings_are_format_errors(monkeypatch):
    with pytest.raises(flashprime.FormatError, match="got 'relative/folder', want"):
        flashprime.KernelCache(cache_dir="relative/folder")
    monkeypatch.setenv("FLASHPRIME_FREEZE", "maybe")
    with pytest.raises(flashprime.FormatError, match="maybe"):
        flashprime.KernelCache()


def test_events_reach_a_handler_and_the_log(tmp_path, caplog):
    refused = tmp_path / "for_everybody"
    refused.mkdir()
    refused.chmod(0o777)
    events = []

    def handler(kind, message):
        events.append((kind, message))
        flashprime.log_events(kind, message)

    with caplog.at_level(logging.WARNING, logger="flashprime"):
        cache = flashprime.KernelCache(cache_dir=refused, on_event=handler)
        plan = cache.plan("deepseek-v3", archs=ARCH)
        cache.warmup(plan, mode="dry_run")
    assert [kind for kind, _ in events] == ["cache_unusable"]
    assert "for_everybody" in events[0][1] and "for_everybody" in caplog.text


def test_a_default_cache_is_set_once_and_its_handler_outlives_nothing(tmp_path):
    """In a process of its own, which must also end cleanly."""
    script = """
import flashprime, sys
cache = flashprime.KernelCache(cache_dir="off", on_event=lambda kind, message: None)
flashprime.set_default_cache(cache)
assert flashprime.default_cache().info().cache == cache.info().cache
flashprime.freeze()
assert cache.info().freeze == "error"
try:
    flashprime.set_default_cache(cache)
except flashprime.InternalError as error:
    assert "in use already" in str(error)
else:
    sys.exit("a second default")
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_explains_its_choice_and_every_reason_against_others():
    explanation = flashprime.explain("deepseek-v3", num_heads=16, device="cpu")
    assert explanation and explanation.kernel == "cpu_fast"
    assert str(explanation).startswith("cpu_fast: ")
    assert any(line.startswith("sm80_mla_prefill: device") for line in explanation.reasons)
    refused = flashprime.explain(dims=(128, 64, 128), kernel="cpu_fast", out_dtype="fp64")
    assert not refused and str(refused).startswith("unsupported")
    assert any("out_dtype" in reason for reason in refused.reasons)
    with pytest.raises(flashprime.DeviceError, match="tpu"):
        flashprime.explain("deepseek-v3", device="tpu")


def test_lists_kernels_models_and_the_machine():
    assert [kernel.name for kernel in flashprime.list_kernels()][-1] == "cpu_reference"
    model = flashprime.find_model("deepseek-v3")
    assert model.dims == (128, 64, 128) and model.num_heads == 128
    assert abs(model.softmax_scale - 0.1352337788608801) < 1e-7
    info = flashprime.library_info()
    assert info["version"] == flashprime.__version__ and info["num_threads"] >= 1


def test_importing_needs_numpy_and_tvm_ffi_only(tmp_path):
    package = pathlib.Path(flashprime.__file__).parents[1]
    script = f"""
import sys
sys.path.insert(0, {str(package)!r})
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "jax", "cupy", "vllm", "tqdm", "rich", "ml_dtypes"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import flashprime
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
