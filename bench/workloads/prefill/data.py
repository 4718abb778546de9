# SPDX-License-Identifier: Apache-2.0
"""Tensors of a cell as an engine has them, and sampled rows of the right result in fp64."""

import torch

DEVICE = "cuda"


class Data:
    """Ragged bf16 tensors on the GPU, normally distributed. k_nope and v are the two parts of the
    rows that an up-projection writes; `k` is what whoever needs K in one piece is given, and making
    it is not timed."""

    def __init__(self, cell, seed):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        nope, rope, v = cell.dims

        def normal(*shape):
            return torch.randn(shape, generator=generator, device=DEVICE).bfloat16()

        def boundaries(lengths):
            sums = torch.tensor((0, *lengths), dtype=torch.int64).cumsum(0)
            return sums.to(device=DEVICE, dtype=torch.int32)

        tokens_k = sum(cell.keys)
        self.q = normal(sum(cell.new), cell.heads, nope + rope)
        self.kv = normal(tokens_k, cell.heads, nope + v)
        self.k_nope, self.v = self.kv[..., :nope], self.kv[..., nope:]
        self.k_pe = normal(tokens_k, rope)
        shared = self.k_pe[:, None].expand(tokens_k, cell.heads, rope)
        self.k = torch.cat((self.k_nope, shared), dim=-1)
        self.cu_seqlens_q, self.cu_seqlens_k = boundaries(cell.new), boundaries(cell.keys)
        self.max_q, self.max_k = max(cell.new), max(cell.keys)
        self.softmax_scale = (nope + rope) ** -0.5

    def empty_out(self, cell, dim=None):
        shape = (self.q.shape[0], cell.heads, dim or cell.d_v)
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device=DEVICE)

    def empty_lse(self, cell):
        shape = (cell.heads, self.q.shape[0])
        return torch.full(shape, float("nan"), dtype=torch.float32, device=DEVICE)


# A wrong mask, key or row shows far above these: bf16 weights and output give 1.6e-3 to 2.5e-3.
MAX_RELATIVE_ERROR = 3e-3
MAX_ROW_ERROR = 1e-2
MAX_LSE_ERROR = 1e-4


class Reference:
    """Rows of the result in fp64: the first and last ones, around tile edges and random ones, of up
    to four sequences and three heads."""

    def __init__(self, cell, data, seed):
        generator = torch.Generator().manual_seed(seed)

        def draw(bound, count):
            return torch.randint(bound, (count,), generator=generator).tolist()

        longest = max(range(cell.batch), key=lambda s: cell.keys[s])
        sequences = sorted({0, cell.batch - 1, longest, *draw(cell.batch, 1)})
        heads = sorted({0, cell.heads - 1, *draw(cell.heads, 1)})
        tokens, of_head, out, lse = [], [], [], []
        for sequence in sequences:
            new, keys = cell.new[sequence], cell.keys[sequence]
            first_q, first_k = sum(cell.new[:sequence]), sum(cell.keys[:sequence])
            edges = {0, 1, 63, 64, 127, 128, 191, 192, 255, 256, new - 2, new - 1, *draw(new, 12)}
            rows = torch.tensor(sorted(row for row in edges if 0 <= row < new), device=DEVICE)
            visible = torch.full_like(rows, keys - 1)
            if cell.causal:
                visible = rows + keys - new
            hidden = torch.arange(keys, device=DEVICE)[None] > visible[:, None]
            for head in heads:
                q = data.q[first_q + rows, head].double()
                k = data.k[first_k : first_k + keys, head].double()
                v = data.v[first_k : first_k + keys, head].double()
                logits = (q @ k.T * data.softmax_scale).masked_fill_(hidden, float("-inf"))
                lse.append(torch.logsumexp(logits, 1))
                out.append(torch.exp(logits - lse[-1][:, None]) @ v)
                tokens.append(first_q + rows)
                of_head.append(torch.full_like(rows, head))
        self.tokens, self.heads = torch.cat(tokens), torch.cat(of_head)
        self.out, self.lse = torch.cat(out), torch.cat(lse)

    def judge(self, out, lse):
        """Relative error of out, largest error of LSE, and what is wrong ("" if nothing is)."""
        unwritten = int(torch.isnan(out).sum())
        difference = out[self.tokens, self.heads].double() - self.out
        error = (difference.norm() / self.out.norm()).item()
        row_error = (difference.norm(dim=1) / self.out.norm(dim=1)).max().item()
        wrong = []
        if unwritten:
            wrong.append(f"{unwritten} elements of out are NaN or not written")
        if not error < MAX_RELATIVE_ERROR:  # NaN too
            wrong.append(f"relative error {error:.1e} against fp64")
        if not row_error < MAX_ROW_ERROR:
            wrong.append(f"relative error of a row {row_error:.1e} against fp64")
        lse_error = (lse[self.heads, self.tokens].double() - self.lse).abs().max().item()
        if not lse_error < MAX_LSE_ERROR:
            wrong.append(f"LSE error {lse_error:.1e} against fp64")
        if unwritten := int(torch.isnan(lse).sum()):
            wrong.append(f"{unwritten} elements of LSE are NaN or not written")
        return error, lse_error, "; ".join(wrong)
