# SPDX-License-Identifier: Apache-2.0
"""Kernels of a model for two GPUs, built where there is no GPU, used where there is no compiler."""

import pathlib
import sys
import tempfile

import flashprime

folder = pathlib.Path(tempfile.mkdtemp())
bundle = folder / "mistral.fpb"

# [build]
builder = flashprime.KernelCache(cache_dir="off")
plan = builder.plan("mistral-small-4", archs=["sm_90a", "sm_100a"])
report = builder.pack(plan, bundle)
print(report)
(folder / "plan.txt").write_text(plan.text)
# [/build]

# [prove]
plan = flashprime.parse_plan((folder / "plan.txt").read_text())
missing = flashprime.missing_from_bundle(bundle, plan)
if missing:
    sys.exit(f"{bundle} lacks {len(missing)} of {len(plan)} kernels")
# [/prove]

# [serve]
cache = flashprime.KernelCache(cache_dir="off", bundles=[bundle], freeze="error")
flashprime.set_default_cache(cache)  # before the first call on a GPU
# [/serve]
assert cache.warmup(plan, progress=False).count("bundle") == len(plan)
