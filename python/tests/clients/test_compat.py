# SPDX-License-Identifier: Apache-2.0
"""The dialects with torch tensors: what only torch has, and that all of them agree."""

import ast
import inspect

import torch
from flashprime.compat import fa3, vllm
from peers import source_of


def test_one_head_of_keys_serves_all_queries_without_a_copy():
    q, k, v = torch.randn(5, 4, 192), torch.randn(5, 1, 192), torch.randn(5, 1, 128)
    cu = torch.tensor([0, 5], dtype=torch.int32)
    one = fa3.flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True)
    many = fa3.flash_attn_varlen_func(
        q, k.repeat(1, 4, 1), v.repeat(1, 4, 1), cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True
    )
    assert torch.equal(one, many)


def test_has_every_argument_of_vllms_own():
    file = source_of("vllm", "vllm/vllm_flash_attn/flash_attn_interface.py")
    (original,) = (
        node
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "flash_attn_varlen_func"
    )
    theirs = [argument.arg for argument in original.args.args]
    ours = inspect.signature(vllm.flash_attn_varlen_func).parameters
    assert theirs[:3] == ["q", "k", "v"] and set(theirs) == set(ours)
