# SPDX-License-Identifier: Apache-2.0
"""Host time of a warmed call, beside FlashAttention's entries where they are installed.

1 sequence of 128 tokens, 16 heads, joined K, with LSE, bf16 at 192/128. Each round times 200 calls
without waiting for the GPU, after it has been waited for; the median of 50 rounds is printed.
"""

import argparse
import csv
import statistics
import sys
import time

import flashprime
import flashprime.torch
import torch

ROUNDS, CALLS = 50, 200


def candidates(q, k, v, cu, out, lse):
    scale = 192**-0.5
    given = {"softmax_scale": scale, "max_seqlen_q": 128, "max_seqlen_k": 128, "rope": 64}
    yield (
        "flashprime.prefill, outputs given",
        lambda: flashprime.prefill(q, k, v, cu, out=out, lse=lse, **given),
    )
    yield (
        "flashprime.prefill, outputs made",
        lambda: flashprime.prefill(q, k, v, cu, return_lse=True, **given),
    )
    operator = torch.ops.flashprime.prefill_out
    yield "torch.ops.flashprime.prefill_out", lambda: operator(
        q, None, k, None, v, cu, cu, scale, max_seqlen_q=128, max_seqlen_k=128, rope=64,
        out=out, lse=lse,
    )  # fmt: skip
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 128, "max_seqlen_k": 128}
    for module, name, switch in (
        ("flash_attn_interface", "FlashAttention 3", {"return_attn_probs": True}),
        ("flash_attn.cute", "FlashAttention 4", {"return_lse": True}),
    ):
        try:
            function = __import__(module, fromlist=["x"]).flash_attn_varlen_func
            function(q, k, v, softmax_scale=scale, causal=True, **lengths, **switch)
        except Exception as error:
            print(f"{name}: not measured: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        yield (
            name,
            lambda function=function, switch=switch: function(
                q, k, v, softmax_scale=scale, causal=True, **lengths, **switch
            ),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    q, k = (torch.randn(128, 16, 192, device=device).bfloat16() for _ in range(2))
    v = torch.randn(128, 16, 128, device=device).bfloat16()
    cu = torch.tensor([0, 128], dtype=torch.int32, device=device)
    out = torch.empty_like(v)
    lse = torch.empty(16, 128, device=device)
    rows = []
    for name, call in candidates(q, k, v, cu, out, lse):
        for _ in range(CALLS):
            call()
        times = []
        for _ in range(ROUNDS):
            wait()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times.append((time.perf_counter() - begin) / CALLS * 1e6)
        wait()
        times.sort()
        row = (name, statistics.median(times), times[0], times[int(0.9 * ROUNDS)])
        rows.append(row)
        print("{}: median {:.2f} us, least {:.2f}, p90 {:.2f}".format(*row))
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("call", "median_us", "least_us", "p90_us"))
            writer.writerows((name, *(f"{t:.2f}" for t in times)) for name, *times in rows)


if __name__ == "__main__":
    main()
