# SPDX-License-Identifier: Apache-2.0
"""The cells of the GPU prefill benchmark: bf16, 16 heads, LSE not wanted."""

import dataclasses

import torch

NUM_HEADS = 16


@dataclasses.dataclass(frozen=True)
class Cell:
    batch: int
    new: int  # query rows of a sequence
    keys: int  # keys of a sequence, the new ones included
    dims: tuple  # nope, rope, v
    causal: bool = True

    @property
    def name(self):
        lengths = f"{self.new}x{self.batch}"
        if self.new != self.keys:
            lengths += f" on {self.keys}"
        return lengths if self.causal else lengths + " full"

    @property
    def dims_name(self):
        return f"({self.dims[0] + self.dims[1]}, {self.dims[2]})"

    @property
    def flop(self):
        """Two products over the visible (query, key) pairs."""
        pairs = self.new * self.keys
        if self.causal:
            pairs -= self.new * (self.new - 1) // 2
        return 2 * self.batch * NUM_HEADS * pairs * sum(self.dims)


CELLS = [
    Cell(batch, new, keys, dims, causal)
    for dims in ((128, 64, 128), (64, 64, 128), (192, 64, 256))
    for batch, new, keys, causal in (
        (8, 2048, 2048, True),
        (2, 8192, 8192, True),
        (1, 512, 32768, False),
    )
] + [
    # Ragged and short: a grid of tokens times sequences would be hundreds of times slower.
    Cell(8192, 34, 34, (192, 64, 256))
]


def make_data(cell, seed):
    """Ragged tensors [tokens, heads, dim] in bf16, normally distributed, on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    d_qk, d_v = cell.dims[0] + cell.dims[1], cell.dims[2]

    def normal(tokens, dim):
        shape = (tokens, NUM_HEADS, dim)
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    def lengths(length):
        steps = torch.arange(cell.batch + 1, dtype=torch.int32, device="cuda")
        return (steps * length).contiguous()

    return {
        "q": normal(cell.batch * cell.new, d_qk),
        "k": normal(cell.batch * cell.keys, d_qk),
        "v": normal(cell.batch * cell.keys, d_v),
        "cu_seqlens_q": lengths(cell.new),
        "cu_seqlens_k": lengths(cell.keys),
        "softmax_scale": d_qk**-0.5,
    }


def relative_error(cell, data, out, seed):
    """Of sampled rows against fp64: first and last, tile edges, random ones."""
    generator = torch.Generator().manual_seed(seed)
    rows = {row for row in (0, 1, 63, 127, 128, cell.new - 1) if row < cell.new}
    rows |= set(torch.randint(cell.new, (16,), generator=generator).tolist())
    error = norm = 0.0
    for sequence in {0, cell.batch - 1}:
        for row in rows:
            for head in (0, NUM_HEADS - 1):
                visible = row + cell.keys - cell.new + 1 if cell.causal else cell.keys
                keys = slice(sequence * cell.keys, sequence * cell.keys + visible)
                q = data["q"][sequence * cell.new + row, head].double()
                logits = data["k"][keys, head].double() @ q * data["softmax_scale"]
                wanted = torch.softmax(logits, 0) @ data["v"][keys, head].double()
                got = out[sequence * cell.new + row, head].double()
                error += (got - wanted).square().sum().item()
                norm += wanted.square().sum().item()
    return (error / norm) ** 0.5
