# SPDX-License-Identifier: Apache-2.0
"""Test data that C++ and Python make alike."""

from __future__ import annotations

from typing import Any

from . import _library
from ._tensors import argument


def fill_random(
    tensor: Any, *, seed: int, tensor_id: int = 0, first_row: int = 0, scale: float = 1.0
) -> None:
    """Fills a tensor in host memory (bf16, fp16 or fp32) with nearly normal numbers.

    The same numbers as the library, the command and the GPU make from the same seed.
    """
    view = argument("tensor", tensor, writable=True)
    _library.fill_random(view, seed, tensor_id, first_row, float(scale))
