# SPDX-License-Identifier: Apache-2.0
"""A prefill recorded in a CUDA graph and replayed with other data. Needs a GPU and torch."""

import flashprime
import torch

device = torch.device("cuda")
q = torch.randn(256, 16, 192, device=device).bfloat16()
k = torch.randn(256, 16, 192, device=device).bfloat16()
v = torch.randn(256, 16, 128, device=device).bfloat16()
cu_seqlens = torch.tensor([0, 100, 256], dtype=torch.int32, device=device)

# [graph]
out = torch.empty(256, 16, 128, dtype=torch.bfloat16, device=device)
call = {"softmax_scale": 192**-0.5, "out": out, "max_seqlen_q": 256, "max_seqlen_k": 256}
flashprime.prefill(q, k, v, cu_seqlens, **call)  # loads the kernel: a capture cannot
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    flashprime.prefill(q, k, v, cu_seqlens, **call)

cu_seqlens.copy_(torch.tensor([0, 30, 256]))  # lengths are data, as q, k and v are
q.normal_()
graph.replay()
# [/graph]

torch.cuda.synchronize()
assert torch.equal(out, flashprime.prefill(q, k, v, cu_seqlens, softmax_scale=192**-0.5))
print("the replayed graph computed the new batch")
