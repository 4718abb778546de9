# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Reproducible, and without a deadline: the machine that runs the tests may be busy.
settings.register_profile(
    "check", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("check")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
