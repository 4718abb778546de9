# SPDX-License-Identifier: Apache-2.0
"""FlashPrime as a class behind vLLM's ``MLAPrefillBackend``; vLLM imports it by name.

It takes the three forms of the interface that vLLM has had: chunks by index, ``out`` and
``output_scale``, and chunks as objects.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from .. import kernels
from .._errors import InternalError, UnsupportedError
from ..ops import prefill
from ..selection import explain

logger = logging.getLogger("flashprime")


def _platform() -> Any:
    return importlib.import_module("vllm.platforms").current_platform


def _optional(module: str, name: str) -> Any:
    """Something that only some releases of vLLM have, or None."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


# ---- Kernels ----


def _on_event(kind: str, message: str) -> None:
    """An event of the kernel cache: a warning, by vLLM's own monitor where that is on."""
    monitor = _optional("vllm.utils.jit_monitor", "_handle_jit_event")
    is_active = _optional("vllm.utils.jit_monitor", "is_active")
    if kind == "compiled_late" and monitor is not None and is_active is not None and is_active():
        monitor(backend="FlashPrime", event="kernel compilation", fn_name=message)
    else:
        kernels.log_events(kind, message)


def _own_cache() -> None:
    """The default cache, with a handler of events, unless the process has one already."""
    try:
        kernels.set_default_cache(kernels.KernelCache(on_event=_on_event))
    except InternalError:
        logger.debug("the default kernel cache is in use; its events are not forwarded to vLLM")


def _warm_up(plan: kernels.KernelPlan, freeze: str) -> None:
    """Compiles or loads a plan's kernels; from then on a late one is what ``freeze`` says."""
    cache = kernels.default_cache()
    report = cache.warmup(plan, progress=False)
    logger.info("FlashPrime MLA prefill: %s", report)
    if torch.cuda.is_available():
        cache.warmup(plan, mode="load_only", device=torch.cuda.current_device(), progress=False)
    if cache.info().freeze == "allow":  # else the user has said what it is to be
        cache.set_freeze("error" if freeze == "error" else "warn")


_JitKernel: Any = _optional("vllm.model_executor.warmup.jit_warmup", "VllmJitKernel")
_kernel: Any = None

if _JitKernel is not None:

    class FlashPrimePrefillKernel(_JitKernel):  # type: ignore[misc]
        """FlashPrime's kernels in vLLM's registry of what to warm up; planned kernels are keys."""

        CompileKey = kernels.PlannedKernel
        freeze = "warn"

        def get_warmup_keys(
            self, dims: tuple[int, int, int], dtype: str, arch: str
        ) -> list[kernels.PlannedKernel]:
            plan = kernels.default_cache().plan(dims=dims, dtype=dtype, archs=[arch])
            return list(plan.kernels)

        def compile_many(self, compile_keys: Any) -> None:
            _warm_up(kernels.KernelPlan(tuple(compile_keys), (), ""), self.freeze)

        def compile(self, compile_key: kernels.PlannedKernel) -> None:
            self.compile_many([compile_key])

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return prefill(*args, **kwargs)

    _kernel = FlashPrimePrefillKernel()


def _attribute(value: Any, *names: str) -> Any:
    for name in names:
        value = getattr(value, name, None)
    return value


# ---- The backend ----


class FlashPrimeMLAPrefillBackend(MLAPrefillBackend):  # type: ignore[misc]
    """MLA prefill attention by FlashPrime: V as it lies, nothing padded, on every device."""

    supported_dtypes = [torch.float16, torch.bfloat16]
    requires_r1_mla_dimensions = False  # of the first form of the interface

    @staticmethod
    def get_name() -> str:
        return "FLASHPRIME"

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        if device_capability is None:  # no GPU: the CPU kernels
            return bool(_platform().is_cpu())
        major, minor = device_capability
        return bool(kernels.architectures_for_capability(major, minor))

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return dtype in cls.supported_dtypes or (
            dtype == torch.float32 and bool(_platform().is_cpu())
        )

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        dims = (
            mla_dimensions.qk_nope_head_dim,
            mla_dimensions.qk_rope_head_dim,
            mla_dimensions.v_head_dim,
        )
        if _platform().is_cpu():
            return bool(explain(dims=dims, device="cpu"))
        capability = _platform().get_device_capability()
        archs = kernels.architectures_for_capability(*(capability or (8, 0)))
        try:
            return bool(archs) and len(kernels.kernels_of(dims=dims, arch=archs[0])) > 0
        except UnsupportedError:
            return False

    @classmethod
    def is_available(cls) -> bool:
        return True

    def __init__(
        self,
        num_heads: int,
        scale: float,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        vllm_config: Any,
    ) -> None:
        super().__init__(
            num_heads=num_heads,
            scale=scale,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            vllm_config=vllm_config,
        )
        self.batch_invariant = bool(_optional("vllm.envs", "VLLM_BATCH_INVARIANT"))
        self._register_warmup(vllm_config)

    def _register_warmup(self, vllm_config: Any) -> None:
        """Once for each model and device, whatever the number of layers; outside a model runner's
        set-up the registry takes no notice.
        """
        capability = None if _platform().is_cpu() else _platform().get_device_capability()
        enabled = _attribute(vllm_config, "kernel_config", "enable_jit_warmup")
        if _kernel is None or capability is None or enabled is False:
            return
        if _attribute(vllm_config, "observability_config", "jit_monitor_mode") == "error":
            _kernel.freeze = "error"
        dtype = _attribute(vllm_config, "model_config", "dtype")
        if dtype not in self.supported_dtypes:
            return
        _kernel.register_warmup(
            (self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim),
            "fp16" if dtype == torch.float16 else "bf16",
            kernels.architectures_for_capability(*capability)[0],
        )

    def supports_quant_output(self, quant_key: Any) -> bool:
        static = _optional(
            "vllm.model_executor.layers.quantization.utils.quant_utils", "kFp8StaticTensorSym"
        )
        return static is not None and bool(quant_key == static)

    def supports_out(self) -> bool:
        return True

    def _run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        causal: bool,
        return_lse: bool,
        out: torch.Tensor | None,
        output_scale: torch.Tensor | None = None,
    ) -> Any:
        return prefill(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            softmax_scale=self.scale,
            causal=causal,
            return_lse=return_lse,
            max_seqlen_q=int(max_seqlen_q),
            max_seqlen_k=int(max_seqlen_k),
            out=out,
            out_dtype="e4m3" if output_scale is not None and out is None else None,
            output_scale=output_scale,
            rope=self.qk_rope_head_dim,
            batch_invariant=self.batch_invariant,
        )

    def run_prefill_new_tokens(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        return_softmax_lse: bool,
        out: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
    ) -> Any:
        """Causal attention of the new tokens: out [T, H, v], or (out, LSE [H, T])."""
        metadata = self._prefill_metadata
        return self._run(
            q,
            k,
            v,
            metadata.query_start_loc,
            metadata.query_start_loc,
            metadata.max_query_len,
            metadata.max_query_len,
            True,
            return_softmax_lse,
            out,
            output_scale,
        )

    def run_prefill_context_chunk(
        self,
        chunk: Any = None,
        q: Any = None,
        k: Any = None,
        v: Any = None,
        out: torch.Tensor | None = None,
        *,
        chunk_idx: int | None = None,
        **later: Any,
    ) -> Any:
        """Attention over one chunk of context: (out, LSE). ``chunk`` is an object that has its own
        queries, or, as ``chunk_idx``, its position among the chunks of the batch, whose queries all
        take part. Keywords of later forms are hints that nothing here needs.
        """
        metadata = self._prefill_metadata
        index = chunk_idx if chunk_idx is not None else chunk
        if isinstance(index, int):
            context = metadata.chunked_context
            lengths = (
                metadata.query_start_loc,
                context.cu_seq_lens[index],
                metadata.max_query_len,
                context.max_seq_lens[index],
            )
        else:
            lengths = (
                chunk.query_start_loc,
                chunk.cu_seq_lens,
                chunk.max_query_len,
                chunk.max_seq_len,
            )
        return self._run(q, k, v, *lengths, False, True, out)


if not _platform().is_cpu():
    _own_cache()
