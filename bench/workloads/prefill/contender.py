# SPDX-License-Identifier: Apache-2.0
"""What takes part, one file each. A file has NAMES and
make(name, cell, data, setup) -> Contender, or raises Absent with the reason."""

import dataclasses
import importlib
import typing


class Absent(Exception):
    """Why a contender does not take part in a cell."""


@dataclasses.dataclass
class Contender:
    run: typing.Callable  # one call on torch's current stream, no other work, no waiting
    out: typing.Callable  # the tensor [tokens, heads, v] that the latest run() writes
    lse: typing.Callable  # [heads, tokens], natural logarithm
    written: typing.Callable  # the tensors themselves that run() writes, of which those may be copies
    version: str = ""
    k: str = "joined"  # how it is given K


@dataclasses.dataclass
class Setup:
    """What contenders need beyond a cell's data."""

    libraries: dict  # label -> harness.library.Library; "": the one under test


# In the order in which they are measured; the first is the anchor, measured before and after the rest.
FILES = ("fa3", "flashprime", "fa4", "cudnn", "flashinfer", "torch_sdpa")
ANCHOR = "fa3_varlen"
DEFAULT = ("fa3_varlen", "flashprime", "flashprime_joined", "fa4", "cudnn", "fa3_fixed")
QUICK = ("fa3_varlen", "flashprime", "fa4")


def file_of(name):
    """The module of a contender; ValueError for a name that none has."""
    base = name.split("@")[0]
    known = []
    for file in FILES:
        module = importlib.import_module(f"{__package__}.{file}")
        if base in module.NAMES:
            return module
        known += module.NAMES
    raise ValueError(f"contenders: got {name}, wanted some of: {' '.join(known)}")


def lse_to_natural(lse_base_2):
    return lse_base_2 * 0.6931471805599453
