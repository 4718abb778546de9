# SPDX-License-Identifier: Apache-2.0
"""Errors of GPU prefill beside FlashAttention-3, FlashAttention-4 and cuDNN on the same inputs.

13 distributions x 3 pairs of head dims x causal and full x 8 patterns of lengths x 30 heads, each head
a draw of its own. Sampled rows are compared with fp64. First, the harness shows that it accepts a
right emulation and rejects each seeded fault. bench/run_gpu accuracy runs this with what it needs.
"""

import argparse
import collections
import csv
import dataclasses
import datetime
import itertools
import math
import os
import pathlib
import site
import sys
import time

PATTERNS = {  # new tokens, keys
    "uniform512": ((512,) * 4, (512,) * 4),
    "ragged": ((1, 37, 129, 777), (1, 37, 129, 777)),
    "tile_edges": ((127, 128, 129, 255, 256, 257), (127, 128, 129, 255, 256, 257)),
    "self2048": ((2048,), (2048,)),
    "self4096": ((4096, 100), (4096, 100)),
    "self8192": ((8192,), (8192,)),
    "context": ((64, 512), (1000, 4096)),
    "few_queries": ((1, 16, 130), (777, 8192, 5000)),
}
SELF_CHECK_PATTERNS = {"self": ((300, 129), (300, 129)), "context": ((40,), (333,))}
OURS = "flashprime"
PEERS = ("fa3_varlen", "fa4", "cudnn")

# Limits. A ratio is of relative RMS errors of one head of one case.
MAX_MEAN_RATIO, MAX_P99_RATIO, MAX_RATIO = 1.02, 1.10, 1.25
MAX_BIAS = 2e-4
MAX_RMS_NORMAL, MAX_PREROUND_NORMAL = 2.6e-3, 1.8e-3
# Errors below this, in units of the result, are noise of fp32 sums: they count as equal.
RATIO_FLOOR = 1e-5
# As in tests/cases/case.h and docs/numerics.md; weights are rounded to bf16.
PREROUND, PREROUND_PER_LOGIT, WEIGHT_ROUNDING, ELEMENT_FACTOR = 1e-6, 2.0**-21, 2.0**-8, 8


@dataclasses.dataclass
class Record:
    """What one contender did in one case, all heads."""

    dims: str
    distribution: str
    mask: str
    pattern: str
    contender: str
    rms: list  # of each head: rms(out - o) / rms(o), o from fp64
    ideal_rms: float  # the same of o rounded to the output's dtype, all heads
    max_error: float  # max |out - o| / max |v|
    bias: float  # mean(out - rounded o) / rms(o) where v has one sign, else NaN
    equal_codes: float  # fraction of elements that are the rounded o
    lse_ulps: float  # largest
    lse_over_bound: float  # largest
    bad_elements: int  # beyond their bound
    unwritten: int  # NaN


class Oracle:
    """Sampled rows of all heads in fp64."""

    def __init__(self, cell, tensors, seed, rows_at_random):
        import torch

        from workloads.prefill import data

        generator = torch.Generator().manual_seed(seed)
        heads = torch.arange(cell.heads, device=data.DEVICE)
        parts = [
            data.rows_in_fp64(
                cell, tensors, s, data.sample_rows(new, generator, rows_at_random), heads
            )
            for s, new in enumerate(cell.new)
        ]
        self.tokens = torch.cat([part[0] for part in parts])
        self.out, self.lse, self.sizes = (torch.cat([part[i] for part in parts], 1) for i in (1, 2, 3))
        self.max_v = tensors.v.abs().max().double()
        tiny = sys.float_info.min
        self.norms = self.out.square().mean((1, 2)).sqrt().clamp(min=tiny)  # [heads]
        self.norm = self.out.square().mean().sqrt().clamp(min=tiny)
        ulps = torch.exp2(torch.floor(torch.log2(self.lse.abs().clamp(min=1e-30))) - 23)
        self.lse_ulps = ulps
        self.lse_bound = 4 * ulps + 5e-6 + self.sizes * 2.0**-20
        allowance = PREROUND + PREROUND_PER_LOGIT * self.sizes + WEIGHT_ROUNDING
        self.slack = (ELEMENT_FACTOR * allowance * self.max_v)[..., None]

    def judge(self, out, lse, one_signed):
        """The measured fields of a Record."""
        import torch

        got = out[self.tokens].transpose(0, 1).double()
        rounded = self.out.to(out.dtype).double()  # what no kernel can beat
        difference = got - self.out
        lse_difference = (lse[:, self.tokens].double() - self.lse).abs()
        low, high = (
            (self.out + sign * self.slack).to(out.dtype).double() for sign in (-1, 1)
        )
        bias = float("nan")
        if one_signed:
            bias = ((got - rounded).mean() / self.norm).item()
        return {
            "rms": (difference.square().mean((1, 2)).sqrt() / self.norms).tolist(),
            "ideal_rms": ((rounded - self.out).square().mean().sqrt() / self.norm).item(),
            "max_error": (difference.abs().max() / self.max_v).item(),
            "bias": bias,
            "equal_codes": (got == rounded).double().mean().item(),
            "lse_ulps": (lse_difference / self.lse_ulps).max().item(),
            "lse_over_bound": (lse_difference / self.lse_bound).max().item(),
            "bad_elements": int((~((got >= low) & (got <= high))).sum()),
            "unwritten": int(torch.isnan(out).sum()) + int(torch.isnan(lse).sum()),
        }


def geometric_mean(values):
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def worst(values):
    """The largest one; NaN if there is one, which max() may lose."""
    return float("nan") if any(math.isnan(value) for value in values) else max(values, default=0.0)


def ratios(records, ours, peer):
    """Of each head of each case that both have computed."""
    by_case = {}
    for record in records:
        case = (record.dims, record.distribution, record.mask, record.pattern)
        by_case.setdefault(case, {})[record.contender] = record.rms
    return [
        (a + RATIO_FLOOR) / (b + RATIO_FLOOR)
        for found in by_case.values()
        if ours in found and peer in found
        for a, b in zip(found[ours], found[peer])
    ]


def spread_of(values):
    """Geometric mean, 99th percentile, largest."""
    if any(math.isnan(value) for value in values):
        return (float("nan"),) * 3
    ordered = sorted(values)
    return geometric_mean(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]


def verdict(records, ours, peers):
    """(criterion, measured, limit, met) of each."""
    mine = [record for record in records if record.contender == ours]
    result = []

    def at_most(what, measured, limit):
        result.append((what, measured, limit, measured <= limit))  # NaN: not met

    for peer in peers:
        found = ratios(records, ours, peer)
        if found:
            mean, p99, largest = spread_of(found)
            at_most(f"RMS error over that of {peer}, geometric mean", mean, MAX_MEAN_RATIO)
            at_most(f"RMS error over that of {peer}, 99th percentile", p99, MAX_P99_RATIO)
            at_most(f"RMS error over that of {peer}, largest", largest, MAX_RATIO)
    biases = [abs(record.bias) for record in mine if not math.isnan(record.bias)]
    at_most("bias over RMS where values have one sign", worst(biases), MAX_BIAS)
    at_most("LSE error over its bound", worst([record.lse_over_bound for record in mine]), 1.0)
    at_most("elements beyond their bound", sum(record.bad_elements for record in mine), 0)
    at_most("NaN or not written", sum(record.unwritten for record in mine), 0)
    normal = [rms for record in mine if record.distribution == "normal" for rms in record.rms]
    at_most("RMS error, normal data", worst(normal), MAX_RMS_NORMAL)
    return result


def make_cell(dims, heads, lengths, causal):
    from workloads.prefill import cells

    return cells.Cell("accuracy", dims, heads, *lengths, causal)


def self_check(seed):
    """Runs the emulation without fault, which must be accepted, and with each fault, which must not.
    Whether the harness can be trusted."""
    from workloads.prefill import data, distributions, faults

    dims = (128, 64, 128)
    records = []
    for (pattern, lengths), mask in itertools.product(SELF_CHECK_PATTERNS.items(), ("causal", "full")):
        cell = make_cell(dims, 4, lengths, mask == "causal")
        tensors = data.Data(cell)
        for distribution in distributions.NAMES:
            distributions.fill(distribution, cell, tensors, seed)
            oracle = Oracle(cell, tensors, seed, 64)
            for name in ("peer", "right", *faults.NAMES):
                out, lse = tensors.empty_out(cell), tensors.empty_lse(cell)
                fault = None if name in ("peer", "right") else name
                faults.prefill(cell, tensors, out, lse, fault, 64 if name == "peer" else 128)
                judged = oracle.judge(out, lse, distribution in distributions.ONE_SIGNED)
                records.append(Record("192,128", distribution, mask, pattern, name, **judged))
    trusted = True
    for name in ("right", *faults.NAMES):
        violated = [what for what, *_, met in verdict(records, name, ("peer",)) if not met]
        right = (name == "right") != bool(violated)
        trusted = trusted and right
        word = f"rejected by {len(violated)}: {violated[0]}" if violated else "accepted"
        print(f"  {name}: {word}{'' if right else '  <-- THE HARNESS IS WRONG'}", flush=True)
    return trusted


def measure(arguments, libraries):
    """Records of all cases."""
    import torch

    from workloads.prefill import cells, contender, data, distributions

    setup = contender.Setup(libraries)
    records, reported = [], set()
    begin = time.monotonic()

    def absent(name, reason):
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        if (name, lines[0]) not in reported:
            reported.add((name, lines[0]))
            print(f"  {name}: {type(reason).__name__}: {lines[0]}", flush=True)

    for dims_name in arguments.dims or cells.DIMS:
        dims = cells.DIMS[dims_name][0]
        for (pattern, lengths), mask in itertools.product(PATTERNS.items(), ("causal", "full")):
            cell = make_cell(dims, arguments.heads, lengths, mask == "causal")
            tensors = data.Data(cell)
            taking_part = {}
            for name in (OURS, "flashprime_fp32", *PEERS):
                try:
                    taking_part[name] = contender.file_of(name).make(name, cell, tensors, setup)
                except Exception as reason:
                    absent(name, reason)
            fp32, ours = taking_part.get("flashprime_fp32"), taking_part.get(OURS)
            if fp32 and ours and fp32.version.split(":")[0] != ours.version.split(":")[0]:
                absent("flashprime_fp32", RuntimeError("another kernel would run: " + fp32.version))
                del taking_part["flashprime_fp32"]
            for distribution in arguments.distributions or distributions.NAMES:
                distributions.fill(distribution, cell, tensors, arguments.seed)
                oracle = Oracle(cell, tensors, arguments.seed, 64)
                for name, each in list(taking_part.items()):
                    try:
                        for tensor in each.written():
                            if tensor is not None:  # one that only run() makes
                                tensor.fill_(float("nan"))
                        each.run()
                        torch.cuda.synchronize()
                        judged = oracle.judge(
                            each.out(), each.lse(), distribution in distributions.ONE_SIGNED
                        )
                    except Exception as reason:
                        absent(name, reason)
                        del taking_part[name]
                        continue
                    records.append(Record(dims_name, distribution, mask, pattern, name, **judged))
        print(f"({dims_name}) done, {time.monotonic() - begin:.0f} s", flush=True)
    return records


def summarise(records):
    """A row for each dims, distribution, mask and contender, and for all of them together."""
    groups = collections.defaultdict(list)
    for record in records:
        keys = itertools.product((record.dims, "all"), (record.distribution, "all"), (record.mask, "all"))
        for key in keys:
            groups[key].append(record)
    rows = []
    for (dims, distribution, mask), group in sorted(groups.items()):
        for name in dict.fromkeys(record.contender for record in group):
            mine = [record for record in group if record.contender == name]
            every = [rms for record in mine for rms in record.rms]
            biases = [abs(record.bias) for record in mine if not math.isnan(record.bias)]
            found = spread_of(ratios(group, OURS, name)) if name in PEERS else None
            rows.append(
                {
                    "dims": dims,
                    "distribution": distribution,
                    "mask": mask,
                    "contender": name,
                    "cases": len(mine),
                    "heads": len(every),
                    "rms_mean": f"{math.sqrt(math.fsum(rms * rms for rms in every) / len(every)):.4e}",
                    "rms_largest": f"{worst(every):.4e}",
                    "ideal_rms_largest": f"{worst([record.ideal_rms for record in mine]):.4e}",
                    "max_error_over_max_v": f"{worst([record.max_error for record in mine]):.2e}",
                    "equal_codes_least": f"{min(record.equal_codes for record in mine):.4f}",
                    "bias_largest": f"{worst(biases):.2e}" if biases else "",
                    "lse_ulps_largest": f"{worst([record.lse_ulps for record in mine]):.2f}",
                    "lse_over_bound_largest": f"{worst([r.lse_over_bound for r in mine]):.3f}",
                    "bad_elements": sum(record.bad_elements for record in mine),
                    "unwritten": sum(record.unwritten for record in mine),
                    "flashprime_ratio_mean": f"{found[0]:.4f}" if found else "",
                    "flashprime_ratio_p99": f"{found[1]:.4f}" if found else "",
                    "flashprime_ratio_largest": f"{found[2]:.4f}" if found else "",
                }
            )
    return rows


def print_tables(records, rows):
    print("\n| dims | contender | cases x heads | RMS error, normal | all | bias | LSE error / bound |"
          " FlashPrime's RMS over it: mean | p99 | largest |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    normal = {
        (row["dims"], row["contender"]): row["rms_mean"]
        for row in rows
        if row["distribution"] == "normal" and row["mask"] == "all"
    }
    for row in rows:
        if row["distribution"] != "all" or row["mask"] != "all":
            continue
        print(
            f"| {row['dims']} | {row['contender']} | {row['heads']}"
            f" | {normal.get((row['dims'], row['contender']), '–')} | {row['rms_mean']}"
            f" | {row['bias_largest'] or '–'} | {row['lse_over_bound_largest']}"
            f" | {row['flashprime_ratio_mean'] or '–'} | {row['flashprime_ratio_p99'] or '–'}"
            f" | {row['flashprime_ratio_largest'] or '–'} |"
        )
    print("\n| criterion | measured | limit | |\n|---|---:|---:|---|")
    for what, measured, limit, met in verdict(records, OURS, PEERS):
        print(f"| {what} | {measured:.4g} | {limit:g} | {'met' if met else 'NOT MET'} |")
    fp32 = [
        rms
        for record in records
        if record.contender == "flashprime_fp32" and record.distribution == "normal"
        for rms in record.rms
    ]
    if fp32:
        met = "met" if worst(fp32) <= MAX_PREROUND_NORMAL else "NOT MET"
        what = "RMS error before the output is rounded, normal data"
        print(f"| {what} | {worst(fp32):.4g} | {MAX_PREROUND_NORMAL:g} | {met} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="libflashprime.so under test")
    parser.add_argument("--out", type=pathlib.Path, help="CSV file to write")
    parser.add_argument("--dims", nargs="+", help="only these, as 192,128")
    parser.add_argument("--distributions", nargs="+")
    parser.add_argument("--heads", type=int, default=30)
    parser.add_argument("--site", nargs="+", default=[], help="folders with the peers' packages")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--self-check-only", action="store_true", help="runs on a CPU, too")
    arguments = parser.parse_args()
    for folder in arguments.site:
        site.addsitedir(folder)
    import torch

    with torch.no_grad():
        print("Seeded faults:", flush=True)
        if not self_check(arguments.seed):
            sys.exit("the harness does not tell right from wrong: nothing was measured")
        if arguments.self_check_only:
            return
        from harness import gpu, library

        libraries = {}
        if arguments.library:
            libraries[""] = library.Library(os.path.abspath(arguments.library))
        records = measure(arguments, libraries)
    if not records:
        sys.exit("no contender took part")
    rows = summarise(records)
    common = {
        **gpu.facts(),
        "torch": torch.__version__,
        "commit": arguments.commit,
        "date": datetime.date.today().isoformat(),
        "seed": arguments.seed,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, {**rows[0], **common}.keys())
            writer.writeheader()
            writer.writerows({**row, **common} for row in rows)
    print_tables(records, rows)


if __name__ == "__main__":
    main()
