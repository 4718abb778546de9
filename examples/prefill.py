# SPDX-License-Identifier: Apache-2.0
"""Attention of two prompts with torch, keys in two parts and values as a slice."""

import flashprime
import torch

tokens, heads = 48, 16
q = torch.randn(tokens, heads, 192).bfloat16()
up_projection = torch.randn(tokens, heads, 128 + 128).bfloat16()
k_pe = torch.randn(tokens, 64).bfloat16()

# [readme]
k_nope, v = up_projection.split(128, dim=-1)  # views: nothing is copied or padded
cu_seqlens = torch.tensor([0, 17, 48], dtype=torch.int32)  # two prompts, 17 and 31 tokens
out, lse = flashprime.prefill(
    q, (k_nope, k_pe), v, cu_seqlens, softmax_scale=192**-0.5, return_lse=True
)
# [/readme]

assert out.shape == (tokens, heads, 128) and lse.shape == (heads, tokens)
k = torch.cat([k_nope, k_pe[:, None].expand(-1, heads, -1)], dim=-1)
for rows in (slice(0, 17), slice(17, 48)):
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(tensor[rows].float().transpose(0, 1)[None] for tensor in (q, k, v)), is_causal=True
    )
    error = (out[rows].float() - wanted[0].transpose(0, 1)).abs().max()
    assert error < 0.05, error
print("two prompts agree with torch")
