# SPDX-License-Identifier: Apache-2.0
"""The Python files of engines' wheels, which ./check --clients unpacks into .peers."""

import os
import pathlib

ROOT = pathlib.Path(
    os.environ.get("FLASHPRIME_TEST_PEERS", pathlib.Path(__file__).parents[3] / ".peers")
)


def source_of(engine, path):
    """A file of an engine's wheel. Its absence is a failure: ./check --clients has put it there."""
    file = ROOT / engine / path
    assert file.is_file(), f"{file} is not there; run ./check --clients once"
    return file
