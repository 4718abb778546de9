# SPDX-License-Identifier: Apache-2.0
"""The functions of ``_flashprime.so``, which ``python/src/binding.cc`` defines."""

from __future__ import annotations

import atexit
import importlib.util
import pathlib
from typing import Any

import tvm_ffi

from . import _errors as _errors  # registers the exceptions

_module = tvm_ffi.load_module(pathlib.Path(__file__).with_name("_flashprime.so"))


def _function(name: str) -> Any:
    function = _module.get_function(name)
    function.release_gil = True  # whatever tvm-ffi's default is
    return function


prefill = _function("prefill")
prefill_layer = _function("prefill_layer")
jax_prefill = _function("jax_prefill")
merge_states = _function("merge_states")
plan_context = _function("plan_context")
context_workspace_rows = _function("context_workspace_rows")
explain = _function("explain")
list_kernels = _function("list_kernels")
list_models = _function("list_models")
library_info = _function("library_info")
set_nvrtc_folders = _function("set_nvrtc_folders")
forget_event_handlers = _function("forget_event_handlers")
cache_open = _function("cache_open")
cache_default = _function("cache_default")
cache_set_default = _function("cache_set_default")
cache_set_freeze = _function("cache_set_freeze")
cache_info = _function("cache_info")
cache_entries = _function("cache_entries")
cache_prune = _function("cache_prune")
cache_clear = _function("cache_clear")
cache_plan = _function("cache_plan")
cache_warmup = _function("cache_warmup")
cache_pack = _function("cache_pack")
cache_unpack = _function("cache_unpack")
cache_dump = _function("cache_dump")
kernels_of = _function("kernels_of")
parse_plan = _function("parse_plan")
list_bundle = _function("list_bundle")
missing_from_bundle = _function("missing_from_bundle")
device_architecture = _function("device_architecture")
known_architectures = _function("known_architectures")
architectures_for_capability = _function("architectures_for_capability")
host_view = _function("host_view")
fill_random = _function("fill_random")


def plain(value: Any) -> Any:
    """Containers of tvm-ffi as those of Python."""
    if isinstance(value, tvm_ffi.Array):
        return [plain(item) for item in value]
    if isinstance(value, tvm_ffi.Map):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    return value


def _nvrtc_folders() -> list[str]:
    """Library folders of NVIDIA's packages, newest CUDA first."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    roots = spec.submodule_search_locations if spec is not None else None
    folders = [
        pathlib.Path(root, name, "lib") for root in roots or () for name in ("cu13", "cuda_nvrtc")
    ]
    return [str(folder) for folder in folders if folder.is_dir()]


set_nvrtc_folders(_nvrtc_folders())
# The default cache lives as long as the process; a handler of Python's must not be called after it.
atexit.register(forget_event_handlers)
