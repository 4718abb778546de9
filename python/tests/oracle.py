# SPDX-License-Identifier: Apache-2.0
"""Attention and merging in fp64, written from their definitions alone."""

import numpy as np


def joined(tensor, heads):
    """q or k as one array; a second part that all heads share is repeated."""
    if not isinstance(tensor, tuple):
        return np.asarray(tensor, dtype=np.float64)
    nope, pe = tensor
    nope = np.asarray(nope, dtype=np.float64)
    if pe is None:
        return nope
    pe = np.asarray(pe, dtype=np.float64)
    if pe.ndim == 2:
        pe = pe[:, None, :]
    return np.concatenate([nope, np.broadcast_to(pe, (len(pe), heads, pe.shape[2]))], axis=2)


def visible(queries, keys, causal, window):
    """Which keys each query sees; the last query is aligned with the last key."""
    i = np.arange(queries)[:, None] + (keys - queries)
    j = np.arange(keys)[None, :]
    seen = np.ones((queries, keys), dtype=bool)
    if causal:
        seen &= j <= i
    if window is not None:
        left, right = window
        if left >= 0:
            seen &= j >= i - left
        if right >= 0:
            seen &= j <= i + right
    return seen


def attention(q, k, v, cu_q, cu_k, scale, causal=True, window=None):
    """out [T, H, v] and lse [H, T]."""
    v = np.asarray(v, dtype=np.float64)
    heads = v.shape[1]
    q, k = joined(q, heads), joined(k, heads)
    out = np.zeros((q.shape[0], heads, v.shape[2]))
    lse = np.full((heads, q.shape[0]), -np.inf)
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        seen = visible(cu_q[b + 1] - cu_q[b], cu_k[b + 1] - cu_k[b], causal, window)
        for h in range(heads):
            scores = np.where(seen, scale * (q[rows, h] @ k[keys, h].T), -np.inf)
            for i, row in enumerate(scores):
                if not np.isfinite(row).any():
                    continue
                top = row.max()
                weights = np.exp(row - top)
                lse[h, cu_q[b] + i] = top + np.log(weights.sum())
                out[cu_q[b] + i, h] = weights @ v[keys, h] / weights.sum()
    return out, lse


def merge(prefix_out, prefix_lse, suffix_out, suffix_lse):
    """out [T, H, D] and lse [H, T] of two parts, LSEs [H, T]."""
    prefix_lse = np.where(np.isinf(prefix_lse), -np.inf, np.asarray(prefix_lse, np.float64))
    suffix_lse = np.where(np.isinf(suffix_lse), -np.inf, np.asarray(suffix_lse, np.float64))
    top = np.maximum(prefix_lse, suffix_lse)
    safe = np.where(np.isfinite(top), top, 0.0)
    weights = [np.exp(lse - safe).T[..., None] for lse in (prefix_lse, suffix_lse)]
    total = weights[0] + weights[1]
    parts = [
        np.where(weight > 0, weight * np.asarray(out, np.float64), 0.0)
        for weight, out in zip(weights, (prefix_out, suffix_out), strict=True)
    ]
    with np.errstate(divide="ignore"):
        lse = safe + np.log(total[..., 0].T)
    return (parts[0] + parts[1]) / np.where(total > 0, total, 1.0), lse
