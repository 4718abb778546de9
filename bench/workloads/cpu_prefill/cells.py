# SPDX-License-Identifier: Apache-2.0
"""The cells of the CPU prefill benchmark: bf16, causal, 16 heads."""

import dataclasses

import torch

NUM_HEADS = 16


@dataclasses.dataclass(frozen=True)
class Cell:
    batch: int
    new: int  # query rows of a sequence
    keys: int  # keys of a sequence, the new ones included
    dims: tuple  # nope, rope, v

    @property
    def name(self):
        lengths = f"{self.batch}x{self.new}"
        return lengths if self.new == self.keys else f"{lengths} of {self.keys}"

    @property
    def dims_name(self):
        return f"({self.dims[0] + self.dims[1]}, {self.dims[2]})"

    @property
    def flop(self):
        """Two products over the visible (query, key) pairs."""
        pairs = sum(min(self.keys, row + self.keys - self.new + 1) for row in range(self.new))
        return 2 * self.batch * NUM_HEADS * pairs * sum(self.dims)


CELLS = [
    Cell(batch, new, keys, dims)
    for dims in ((64, 64, 128), (128, 64, 128))
    for batch, new, keys in ((1, 2048, 2048), (4, 512, 512), (1, 512, 4608))
]


def make_data(cell, seed):
    """Ragged tensors [tokens, heads, dim] in bf16, normally distributed."""
    generator = torch.Generator().manual_seed(seed)
    d_qk, d_v = cell.dims[0] + cell.dims[1], cell.dims[2]

    def normal(tokens, dim):
        return torch.randn(tokens, NUM_HEADS, dim, generator=generator).bfloat16()

    return {
        "q": normal(cell.batch * cell.new, d_qk),
        "k": normal(cell.batch * cell.keys, d_qk),
        "v": normal(cell.batch * cell.keys, d_v),
        "softmax_scale": d_qk**-0.5,
    }


def reference_rows(cell, data, rows):
    """fp64 outputs of some query rows (sequence, row, head)."""
    result = []
    for sequence, row, head in rows:
        visible = row + cell.keys - cell.new + 1
        keys = slice(sequence * cell.keys, sequence * cell.keys + visible)
        q = data["q"][sequence * cell.new + row, head].double()
        logits = data["k"][keys, head].double() @ q * data["softmax_scale"]
        result.append(torch.softmax(logits, 0) @ data["v"][keys, head].double())
    return torch.stack(result)
