# SPDX-License-Identifier: Apache-2.0
import pathlib
import subprocess
import sys

import flashprime
import pytest
import torch

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
NEEDS_GPU = {"cuda_graph.py"}
NEEDS_NVRTC = {"bundle.py"}


@pytest.mark.parametrize("example", sorted(file.name for file in EXAMPLES.glob("*.py")))
def test_runs_and_finds_its_own_result_right(example, tmp_path):
    if example in NEEDS_GPU and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    cache = flashprime.KernelCache(cache_dir="off")
    if example in NEEDS_NVRTC and not cache.info().compiler_found:
        pytest.skip("needs NVRTC")
    subprocess.run([sys.executable, EXAMPLES / example], check=True, cwd=tmp_path)
