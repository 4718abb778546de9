# SPDX-License-Identifier: Apache-2.0
"""Compiles FlashAttention 4's sm_90 forward kernels without a GPU, on tensors without data.

A program of its own, for the Python that has flash-attn-4. Prints one line of JSON: seconds of the
import, and wall and processor seconds of each kernel.
"""

import itertools
import json
import os
import time
import warnings

os.environ["FLASH_ATTENTION_ARCH"] = "sm_90"
os.environ["CUTE_DSL_ARCH"] = "sm_90a"
os.environ["FLASH_ATTENTION_NUM_SMS"] = "132"
warnings.simplefilter("ignore")

begin = time.perf_counter(), time.process_time()
import torch  # noqa: E402
from flash_attn.cute.interface import flash_attn_varlen_func  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

result = {
    "import_s": time.perf_counter() - begin[0],
    "import_cpu_s": time.process_time() - begin[1],
    "torch": torch.__version__,
    "kernels": [],
}
for causal, lse in itertools.product((False, True), (False, True)):
    with FakeTensorMode():
        q, k = (torch.empty(4096, 16, 192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        v = torch.empty(4096, 16, 128, dtype=torch.bfloat16, device="cuda")
        cu = torch.empty(3, dtype=torch.int32, device="cuda")
        begin = time.perf_counter(), time.process_time()
        flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=2048, max_seqlen_k=2048,
            causal=causal, return_lse=lse,
        )
        result["kernels"].append(
            {
                "what": f"192/128 bf16 {'causal' if causal else 'full'}{' lse' if lse else ''}",
                "wall_s": time.perf_counter() - begin[0],
                "cpu_s": time.process_time() - begin[1],
            }
        )
print(json.dumps(result))
