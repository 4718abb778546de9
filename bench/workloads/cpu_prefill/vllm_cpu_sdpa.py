# SPDX-License-Identifier: Apache-2.0
"""Contender: vLLM's MLA prefill backend for CPUs, where its files are in .peers (./check --clients).

Its causal mask is aligned at the top left, so it is measured where there are as many keys as
queries. Inputs are its own: [tokens, heads, dim] in bf16, which it converts to fp32 as part of the
call.
"""

import importlib
import pathlib
import sys
import types

import torch

SOURCE = pathlib.Path(__file__).parents[3] / ".peers" / "vllm"


def _backend():
    """The class. Packages are hollow, so that only its file and its base's are run."""
    name = "vllm"
    for part in (None, "v1", "attention", "backends", "mla", "prefill"):
        name = name if part is None else f"{name}.{part}"
        if name not in sys.modules:
            sys.modules[name] = module = types.ModuleType(name)
            module.__path__ = [str(SOURCE / name.replace(".", "/"))]
    return importlib.import_module(f"{name}.cpu_sdpa").CPUSDPAMLAPrefillBackend


def contenders(cell, data):
    """name -> (callable, function returning [tokens, heads, v])."""
    if cell.new != cell.keys or not SOURCE.is_dir():
        return {}
    nope, rope, dim_v = cell.dims
    backend = _backend()(
        num_heads=data["q"].shape[1], scale=data["softmax_scale"], kv_lora_rank=512,
        qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=dim_v, vllm_config=None,
    )  # fmt: skip
    offsets = torch.arange(cell.batch + 1, dtype=torch.int32) * cell.new
    backend.prepare_metadata(
        types.SimpleNamespace(query_start_loc=offsets, max_query_len=cell.new)
    )
    out = []

    def run():
        out[:] = [backend.run_prefill_new_tokens(data["q"], data["k"], data["v"], False)]

    return {"vllm cpu_sdpa": (run, lambda: out[0])}
