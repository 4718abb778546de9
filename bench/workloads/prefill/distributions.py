# SPDX-License-Identifier: Apache-2.0
"""What the numbers look like: the input distributions of the case table (tests/cases/case.h), with
torch's normal numbers in place of the library's and each head a draw of its own."""

import torch

from . import data as tensors

NAMES = (
    "normal",
    "peaky",
    "outliers",
    "positive_v",
    "tied_maxima",
    "equal_logits",
    "one_hot",
    "sink_token",
    "huge_logits",
    "tiny",
    "integer_grid",
    "rotary",
    "negative_scores",
)
# Values of one sign, in which a bias cannot hide.
ONE_SIGNED = ("positive_v", "tied_maxima")


def fill(name, cell, data, seed):
    """Overwrites the tensors of a cell."""
    generator = torch.Generator(tensors.DEVICE).manual_seed(seed)
    nope, rope, _ = cell.dims
    d = nope + rope
    device = tensors.DEVICE
    q, k, v = (
        torch.randn(tensor.shape, generator=generator, device=device)
        for tensor in (data.q, data.k, data.v)
    )

    def uniform(tensor):
        return torch.rand(tensor.shape, generator=generator, device=device)

    # Where the rows stand in their sequences, and where queries stand among their keys.
    k_row = torch.cat([torch.arange(keys, device=device) for keys in cell.keys])
    q_row = torch.cat(
        [torch.arange(new, device=device) + keys - new for new, keys in zip(cell.new, cell.keys)]
    )
    golden = 0x9E3779B97F4A7C15
    signs = torch.tensor(
        [1.0 if (i * golden & (1 << 64) - 1) >> 40 & 1 else -1.0 for i in range(d)], device=device
    )

    if name == "peaky":
        q *= 8
    elif name == "outliers":
        for tensor in (q, k, v):
            tensor[uniform(tensor) < 1e-3] *= 10
    elif name == "positive_v":
        v = uniform(v)
    elif name == "tied_maxima":
        k = k[k_row % 3]
        v = -v.abs() - 0.25
    elif name == "equal_logits":
        k = k[:1].expand_as(k).clone()
    elif name == "sink_token":
        q[..., 0] = 4
        k[..., 0] = torch.where(k_row == 0, 20 / (4 * data.softmax_scale), 0.0)[:, None]
    elif name == "huge_logits":
        q = (1e4 / (data.softmax_scale * d) * signs).expand_as(q).clone()
        sign = torch.where(uniform(k[..., :1]) < 0.5, -1.0, 1.0)
        k = sign * signs * torch.where(k < 0, 1.0, 1 - 2.0**-8)
    elif name == "tiny":
        q, k, v = (tensor * 1e-30 for tensor in (q, k, v))
    elif name == "integer_grid":
        q, k, v = (
            torch.floor(uniform(tensor) * (2 * reach + 1)) - reach
            for tensor, reach in ((q, 2), (k, 2), (v, 8))
        )
    elif name == "rotary":
        frequencies = 1e4 ** (-torch.arange(0, rope, 2, device=device) / rope)
        for tensor, row in ((q, q_row), (k, k_row)):
            angles = (row[:, None] * frequencies)[:, None]
            tensor[..., nope::2] = 2 * torch.cos(angles)
            tensor[..., nope + 1 :: 2] = 2 * torch.sin(angles)
    elif name == "negative_scores":
        q[..., 0] = 8
        k *= 0.25
        k[..., 0] = -120 / (8 * data.softmax_scale)
    elif name not in ("normal", "one_hot"):
        raise ValueError(f"distribution: got {name}, wanted some of: {' '.join(NAMES)}")

    data.k_nope.copy_(k[..., :nope])
    data.k_pe.copy_(k[:, 0, nope:])
    data.v.copy_(v)
    data.join()
    if name == "one_hot":  # the key at a row's own position, 16 times as long
        starts_k = [sum(cell.keys[:s]) for s in range(cell.batch)]
        first = torch.cat(
            [torch.full((new,), start, device=device) for new, start in zip(cell.new, starts_k)]
        )
        own = data.k[first + q_row.clamp(min=0)].float() * 16
        q = torch.where((q_row >= 0)[:, None, None], own, q)
    data.q.copy_(q)
