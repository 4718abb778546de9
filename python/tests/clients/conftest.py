# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # the oracle


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)
