# SPDX-License-Identifier: Apache-2.0
"""Tensors of a cell as an engine has them, and sampled rows of the right result in fp64."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Data:
    """Ragged bf16 tensors. k_nope and v are the two parts of the rows that an up-projection writes,
    k_pe is shared by all heads; `k` is what whoever needs K in one piece is given, and making it is
    not timed."""

    def __init__(self, cell):
        nope, rope, v = cell.dims

        def empty(*shape):
            return torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)

        def boundaries(lengths):
            return torch.tensor((0, *lengths)).cumsum(0).to(device=DEVICE, dtype=torch.int32)

        self.tokens_q, self.tokens_k = sum(cell.new), sum(cell.keys)
        self.q = empty(self.tokens_q, cell.heads, nope + rope)  # [tokens][heads][nope + rope]
        self.kv = empty(self.tokens_k, cell.heads, nope + v)  # [tokens][heads][nope + v]
        self.k_nope, self.v = self.kv[..., :nope], self.kv[..., nope:]
        self.k_pe = empty(self.tokens_k, rope)  # [tokens][rope]
        self.k = empty(self.tokens_k, cell.heads, nope + rope)
        self.cu_seqlens_q, self.cu_seqlens_k = boundaries(cell.new), boundaries(cell.keys)
        self.max_q, self.max_k = max(cell.new), max(cell.keys)
        self.softmax_scale = (nope + rope) ** -0.5

    @classmethod
    def normal(cls, cell, seed):
        data = cls(cell)
        generator = torch.Generator(DEVICE).manual_seed(seed)
        for tensor in (data.q, data.kv, data.k_pe):
            tensor.normal_(generator=generator)
        data.join()
        return data

    def join(self):
        """Makes k of its parts."""
        nope = self.k_nope.shape[-1]
        self.k[..., :nope] = self.k_nope
        self.k[..., nope:] = self.k_pe[:, None]

    def empty_out(self, cell, dtype=torch.bfloat16):
        shape = (self.tokens_q, cell.heads, cell.d_v)
        return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)

    def empty_lse(self, cell):
        shape = (cell.heads, self.tokens_q)
        return torch.full(shape, float("nan"), dtype=torch.float32, device=DEVICE)


def rows_in_fp64(cell, data, sequence, rows, heads):
    """Of rows of a sequence, by the definition: tokens [rows], out [heads][rows][v], LSE [heads][rows]
    and scale * max_j sum_i |q_i k_ij| [heads][rows], by which errors of logits are judged."""
    new, keys = cell.new[sequence], cell.keys[sequence]
    first_q, first_k = sum(cell.new[:sequence]), sum(cell.keys[:sequence])
    tokens = first_q + rows
    q = data.q[tokens][:, heads].transpose(0, 1).double()
    k, v = (
        tensor[first_k : first_k + keys][:, heads].transpose(0, 1).double()
        for tensor in (data.k, data.v)
    )
    logits = q @ k.mT * data.softmax_scale
    sizes = q.abs() @ k.mT.abs() * data.softmax_scale
    if cell.causal:
        hidden = torch.arange(keys, device=DEVICE)[None] > (rows + keys - new)[:, None]
        logits.masked_fill_(hidden, float("-inf"))
        sizes.masked_fill_(hidden, 0)
    lse = torch.logsumexp(logits, -1)
    return tokens, torch.exp(logits - lse[..., None]) @ v, lse, sizes.amax(-1)


def sample_rows(length, generator, at_random):
    """Rows of a sequence: the first and last ones, around tile edges, random ones."""
    edges = {0, 1, 63, 64, 127, 128, 191, 192, 255, 256, length - 2, length - 1}
    drawn = torch.randint(length, (at_random,), generator=generator).tolist()
    rows = sorted(row for row in edges.union(drawn) if 0 <= row < length)
    return torch.tensor(rows, device=DEVICE)


# A wrong mask, key or row shows far above these: bf16 weights and output give 1.6e-3 to 2.5e-3.
MAX_RELATIVE_ERROR = 3e-3
MAX_ROW_ERROR = 1e-2
MAX_LSE_ERROR = 1e-4


class Reference:
    """Rows of up to four sequences and three heads."""

    def __init__(self, cell, data, seed):
        generator = torch.Generator().manual_seed(seed)

        def draw(bound):
            return int(torch.randint(bound, (1,), generator=generator))

        longest = max(range(cell.batch), key=lambda s: cell.keys[s])
        sequences = sorted({0, cell.batch - 1, longest, draw(cell.batch)})
        self.heads = torch.tensor(sorted({0, cell.heads - 1, draw(cell.heads)}), device=DEVICE)
        parts = [
            rows_in_fp64(
                cell, data, s, sample_rows(cell.new[s], generator, at_random=12), self.heads
            )
            for s in sequences
        ]
        self.tokens = torch.cat([tokens for tokens, *_ in parts])
        self.out = torch.cat([out for _, out, *_ in parts], 1)
        self.lse = torch.cat([lse for *_, lse, _ in parts], 1)

    def judge(self, out, lse):
        """Relative error of out, largest error of LSE, and what is wrong ("" if nothing is)."""
        wrong = []
        for name, tensor in (("out", out), ("LSE", lse)):
            if unwritten := int(torch.isnan(tensor).sum()):
                wrong.append(f"{unwritten} elements of {name} are NaN or not written")
        got = out[self.tokens][:, self.heads].transpose(0, 1).double()
        row_norms = self.out.norm(dim=-1)
        row_errors = (got - self.out).norm(dim=-1)
        error = (row_errors.norm() / row_norms.norm()).item()
        row_error = (row_errors / row_norms).max().item()
        lse_error = (lse[self.heads][:, self.tokens].double() - self.lse).abs().max().item()
        for what, got, limit in (
            ("relative error", error, MAX_RELATIVE_ERROR),
            ("relative error of a row", row_error, MAX_ROW_ERROR),
            ("LSE error", lse_error, MAX_LSE_ERROR),
        ):
            if not got < limit:  # NaN too
                wrong.append(f"{what} {got:.1e} against fp64")
        return error, lse_error, "; ".join(wrong)
