# SPDX-License-Identifier: Apache-2.0
"""The cells of the GPU prefill benchmark: bf16, LSE on for everyone. Standard library only."""

import dataclasses
import itertools

# (d_qk, d_v) -> nope, rope, v and the models that have them.
DIMS = {
    "192,128": ((128, 64, 128), "DeepSeek-V3, Kimi-K2"),
    "256,256": ((192, 64, 256), "GLM-5"),
    "128,128": ((64, 64, 128), "Mistral MLA"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    name: str
    dims: tuple  # nope, rope, v
    heads: int
    new: tuple  # query rows of each sequence
    keys: tuple  # keys of each sequence, the new ones included
    causal: bool
    splits: bool = False  # few queries on many keys: whoever can split the keys may
    joined_too: bool = False  # short enough that a shared k_pe saves a visible part of the traffic

    @property
    def d_qk(self):
        return self.dims[0] + self.dims[1]

    @property
    def d_v(self):
        return self.dims[2]

    @property
    def dims_name(self):
        return f"{self.d_qk},{self.d_v}"

    @property
    def batch(self):
        return len(self.new)

    @property
    def uniform(self):
        return len(set(self.new)) == 1 and len(set(self.keys)) == 1

    @property
    def flop(self):
        """Two products over queries times keys, half of them where causal: the convention of
        FlashAttention's own benchmarks, under which its published figures are read."""
        pairs = sum(q * k for q, k in zip(self.new, self.keys))
        return (1 if self.causal else 2) * pairs * self.heads * (self.d_qk + self.d_v)


SELF = {512: 32, 1024: 16, 2048: 8, 4096: 4, 8192: 2, 16384: 1, 32768: 1}
RAGGED = (37, 129, 777, 1500, 3000, 9000)


def _cells(dims_name, heads):
    dims = DIMS[dims_name][0]

    def cell(name, new, keys, sequences, causal, **more):
        if heads == 128:
            sequences = max(1, sequences // 8)
        return Cell(name, dims, heads, (new,) * sequences, (keys,) * sequences, causal, **more)

    for length, sequences in SELF.items():
        if heads != 128 or length != 32768:
            name = f"self{length}x{sequences}"
            yield cell(name, length, length, sequences, True, joined_too=length <= 1024)
    yield Cell("ragged6", dims, heads, RAGGED, RAGGED, True)
    yield cell("ctx512x8_8192", 512, 8192, 8, False)
    yield cell("ctx2048x4_8192", 2048, 8192, 4, False)
    yield cell("dense8192x2", 8192, 8192, 2, False)
    if dims_name == "192,128" and heads == 16:
        yield cell("ctx512x1_32768", 512, 32768, 1, False, splits=True)


CELLS = [
    cell
    for dims_name, heads in [*itertools.product(DIMS, (16,)), ("192,128", 128)]
    for cell in _cells(dims_name, heads)
]
# A grid of tokens times sequences would be hundreds of times slower here. Only when asked for.
EXTRA_CELLS = [Cell("self34x8192", DIMS["256,256"][0], 16, (34,) * 8192, (34,) * 8192, True)]
TINY_CELLS = [
    Cell("tiny128x1", dims, 16, (128,), (128,), True, joined_too=True) for dims, _ in DIMS.values()
]

# What the geometric mean is taken over.
MEAN_CELLS = [f"self{length}x{sequences}" for length, sequences in SELF.items()]
MEAN_CELLS += ["ragged6", "ctx512x8_8192", "ctx2048x4_8192", "dense8192x2"]


def select(dims=None, heads=None, names=None, among=None):
    """Cells of these dims ("192,128"), head counts and names; None: of all. ValueError for a value
    that no cell has."""
    if among is None:
        among = CELLS + (EXTRA_CELLS if names else [])
    chosen = among
    for what, wanted, of in (
        ("dims", dims, lambda cell: cell.dims_name),
        ("heads", heads, lambda cell: cell.heads),
        ("cells", names, lambda cell: cell.name),
    ):
        if not wanted:
            continue
        known = {of(cell): None for cell in among}
        for value in wanted:
            if value not in known:
                known_text = " ".join(str(each) for each in known)
                raise ValueError(f"{what}: got {value}, wanted some of: {known_text}")
        chosen = [cell for cell in chosen if of(cell) in wanted]
    return chosen
