# SPDX-License-Identifier: Apache-2.0
"""The plugin that makes FlashPrime an MLA prefill backend of vLLM.

vLLM calls :func:`register` in each of its processes (entry point group ``vllm.general_plugins``).
Ask for the backend by name, ``--attention-config.mla_prefill_backend CUSTOM``, or let it take the
place of vLLM's own, with ``FLASHPRIME_VLLM_OVERRIDE``: ``1`` for ``FLASH_ATTN`` (the first choice
on GPUs) and ``CPU``, or names of members separated by commas.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from .._errors import FormatError

logger = logging.getLogger("flashprime")

BACKEND_PATH = "flashprime.integrations.vllm_backend.FlashPrimeMLAPrefillBackend"
OVERRIDE = "FLASHPRIME_VLLM_OVERRIDE"
_REGISTRY = "vllm.v1.attention.backends.mla.prefill.registry"


def _overridden(members: Any) -> list[str]:
    """The names that the environment asks to be overridden."""
    value = os.environ.get(OVERRIDE, "").strip()
    if value in ("", "0"):
        return []
    names = [name for name in ("FLASH_ATTN", "CPU") if name in members] if value == "1" else []
    for name in value.split(",") if value != "1" else ():
        if name.strip() not in members:
            raise FormatError(
                f"{OVERRIDE}: got {value!r}, wanted 0, 1 or names of {', '.join(members)}"
            )
        names.append(name.strip())
    return names


def register() -> None:
    """Registers the backend, any number of times. Quiet where vLLM has no such registry.

    Raises:
        FormatError: FLASHPRIME_VLLM_OVERRIDE names a backend that vLLM does not have.
    """
    try:
        registry = importlib.import_module(_REGISTRY)
    except ImportError as error:
        logger.debug("this vLLM has no registry of MLA prefill backends: %s", error)
        return
    enum = registry.MLAPrefillBackendEnum
    members = enum.__members__
    if "CUSTOM" in members:
        custom = enum["CUSTOM"]
        if custom.is_overridden() and custom.get_path() != BACKEND_PATH:
            logger.warning("vLLM's CUSTOM MLA prefill backend stays %s", custom.get_path())
        else:
            registry.register_mla_prefill_backend(custom, BACKEND_PATH)
    for name in _overridden(members):
        registry.register_mla_prefill_backend(enum[name], BACKEND_PATH)
