# SPDX-License-Identifier: Apache-2.0
"""A tiled prefill in torch as tensor cores do it (weights rounded to bf16, fp32 sums), with a switch for
each mistake that a kernel could make. It tests the accuracy harness: right code must pass it, every
mistake must not."""

import torch

NAMES = (
    "weights_truncated",
    "denominator_of_truncated_weights",
    "coarse_exponential",
    "first_key_dropped",
    "last_key_dropped",
    "partial_tile_skipped",
    "mask_one_too_strict",
    "mask_one_too_loose",
    "causal_top_left",
    "scale_off_by_64_ulps",
    "scale_applied_twice",
    "scale_without_log2e",
    "bf16_accumulator_reversed_tiles",
    "key_row_shifted",
    "value_row_shifted",
    "running_max_reset_per_tile",
    "output_not_rescaled",
    "maximum_starts_at_zero",
    "lse_base_2",
    "lse_of_maximum_only",
    "last_row_not_written",
    "output_truncated",
    "heads_swapped",
    "rope_part_dropped",
    "two_elements_swapped",
)


def _truncated(x):
    """To bf16, towards zero."""
    return (x.contiguous().view(torch.int32) & -65536).view(torch.float32)


def _rounded(x):
    return x.bfloat16().float()


def prefill(cell, data, out, lse, fault=None, tile=128):
    """Writes out [tokens][heads][v] (bf16) and lse [heads][tokens]."""
    if fault is not None and fault not in NAMES:
        raise ValueError(f"fault: got {fault}")
    first_q = first_k = 0
    for new, keys in zip(cell.new, cell.keys):
        rows_q, rows_k = slice(first_q, first_q + new), slice(first_k, first_k + keys)
        q, k, v = (
            tensor[rows].transpose(0, 1).float()
            for tensor, rows in ((data.q, rows_q), (data.k, rows_k), (data.v, rows_k))
        )
        result, log_sum = _sequence(q, k, v, data.softmax_scale, cell, fault, tile)
        if fault == "output_truncated":
            result = _truncated(result)
        result = result.transpose(0, 1)
        if fault == "two_elements_swapped":  # the norm of the row stays
            result[-1, :, [0, 1]] = result[-1, :, [1, 0]]
        written = new - (fault == "last_row_not_written")
        out[first_q : first_q + written] = result[:written]
        lse[:, rows_q] = log_sum
        first_q, first_k = first_q + new, first_k + keys


def _sequence(q, k, v, scale, cell, fault, tile):
    heads, new, keys = q.shape[0], q.shape[1], k.shape[1]
    device = q.device
    if fault == "heads_swapped":
        k, v = k.flip(0), v.flip(0)
    if fault == "rope_part_dropped":
        k = k.clone()
        k[..., cell.dims[0] :] = 0
    shifted = torch.arange(1, keys + 1, device=device).clamp(max=keys - 1)
    if fault == "key_row_shifted":
        k = k[:, shifted]
    if fault == "value_row_shifted":
        v = v[:, shifted]
    if fault == "scale_applied_twice":
        scale *= scale
    if fault == "scale_off_by_64_ulps":
        scale *= 1 + 64 * 2.0**-23
    log2e = 1.0 if fault == "scale_without_log2e" else 1.4426950408889634

    position = torch.arange(new, device=device)[:, None] + (
        0 if fault == "causal_top_left" else keys - new
    )
    position = position + {"mask_one_too_strict": -1, "mask_one_too_loose": 1}.get(fault, 0)
    j = torch.arange(keys, device=device)[None]
    visible = j <= position if cell.causal else torch.ones(new, keys, dtype=bool, device=device)
    last = visible.sum(1, keepdim=True) - 1
    if fault == "first_key_dropped":
        visible = visible & ((j > 0) | (last < 1))
    if fault == "last_key_dropped":
        visible = visible & ((j != last) | (last < 1))
    if fault == "partial_tile_skipped" and keys > tile:
        visible = visible & (j < keys // tile * tile)

    infinity = float("inf")
    maximum = torch.full((heads, new, 1), -infinity, device=device)
    if fault == "maximum_starts_at_zero":
        maximum.zero_()
    total = torch.zeros((heads, new, 1), device=device)
    result = torch.zeros((heads, new, v.shape[-1]), device=device)
    starts = list(range(0, keys, tile))
    if fault == "bf16_accumulator_reversed_tiles":
        starts.reverse()
    for start in starts:
        part = slice(start, start + tile)
        logits = (q @ k[:, part].mT * scale).masked_fill(~visible[:, part], -infinity)
        tile_maximum = logits.amax(-1, keepdim=True)
        new_maximum = torch.maximum(maximum, tile_maximum)
        if fault == "running_max_reset_per_tile":
            new_maximum = tile_maximum
        reference = torch.where(new_maximum == -infinity, 0.0, new_maximum)
        alpha = torch.exp2((maximum - reference) * log2e)
        if fault == "running_max_reset_per_tile" and start != starts[0]:
            alpha = torch.ones_like(alpha)
        p = torch.exp2((logits - reference) * log2e)
        if fault == "coarse_exponential":
            p = p * (1 + 2e-3 * torch.sin(40 * logits.clamp(-1e4, 1e4)))
        truncated = _truncated(p)
        weights = truncated if fault == "weights_truncated" else _rounded(p)
        summed = truncated if fault == "denominator_of_truncated_weights" else p
        total = total * alpha + summed.sum(-1, keepdim=True)
        if fault == "output_not_rescaled":
            alpha = torch.ones_like(alpha)
        result = result * alpha + weights @ v[:, part]
        if fault == "bf16_accumulator_reversed_tiles":
            result = _rounded(result)
        maximum = new_maximum
    log_sum = maximum + torch.log(total)
    if fault == "lse_base_2":
        log_sum = log_sum * 1.4426950408889634
    if fault == "lse_of_maximum_only":
        log_sum = maximum
    return result / total, log_sum[..., 0]
