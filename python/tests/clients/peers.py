# SPDX-License-Identifier: Apache-2.0
"""The Python files of engines' wheels, which ./check --clients unpacks into .peers, and how their
modules are imported without the engines' heavy parts."""

import importlib
import os
import pathlib
import sys
import types

ROOT = pathlib.Path(
    os.environ.get("FLASHPRIME_TEST_PEERS", pathlib.Path(__file__).parents[3] / ".peers")
)


def source_of(engine, path):
    """A file or folder of an engine's wheel. That it is not there is a failure."""
    file = ROOT / engine / path
    assert file.exists(), f"{file} is not there; run ./check --clients once"
    return file


def hollow_package(engine, name):
    """A package whose submodules are the real ones, and whose own __init__ is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(source_of(engine, name.replace(".", "/")))]
    return put(name, module)


def stub(name, **attributes):
    """A module that only has what is given."""
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return put(name, module)


def put(name, module):
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), leaf, module)
    return module
