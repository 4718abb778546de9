#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the distributions behind `replay --trace synthetic:...` and prints cli/trace_quantiles.h.

    scripts/fit_traces.py FOLDER > cli/trace_quantiles.h
    scripts/fit_traces.py FOLDER --check     # compares instead

FOLDER has the whole traces that data/README.md names: azure_llm_2023_conv.csv,
azure_llm_2023_code.csv and mooncake_conversation.jsonl.

Each column becomes a piecewise linear quantile function: as few points of the sorted values as keep
every value in between within the tolerance.
"""

import datetime
import json
import pathlib
import sys

BLOCK = 512


def azure(path):
    rows = [line.split(",") for line in path.read_text().split("\n")[1:] if line.strip()]
    epoch = datetime.datetime(1970, 1, 1)
    arrivals = []
    for row in rows:
        seconds, _, fraction = row[0].partition(".")
        whole = (datetime.datetime.fromisoformat(seconds) - epoch) // datetime.timedelta(seconds=1)
        arrivals.append(whole * 10**9 + int(fraction.ljust(9, "0")))
    return {"prompt": [int(row[1]) for row in rows], "generated": [int(row[2]) for row in rows],
            "arrivals": arrivals, "shared": []}


def mooncake(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen = set()
    shared = []
    for row in rows:
        most = (row["input_length"] - 1) // BLOCK
        hit = 0
        while hit < most and row["hash_ids"][hit] in seen:
            hit += 1
        seen.update(row["hash_ids"][:row["input_length"] // BLOCK])
        # Once for each block: long prompts share less than short ones, and blocks are what counts.
        shared.extend([hit / most] * most if most > 0 else [])
    return {"prompt": [row["input_length"] for row in rows],
            "generated": [row["output_length"] for row in rows],
            "arrivals": [row["timestamp"] * 10**6 for row in rows], "shared": shared}


def fit(values, relative, absolute):
    """Points (share of the values, value) of the quantile function."""
    values = sorted(values)
    count = len(values)
    kept = [0]
    while kept[-1] < count - 1:
        start = kept[-1]
        low, high = float("-inf"), float("inf")
        best = start + 1
        for end in range(start + 1, count):
            run, rise = end - start, values[end] - values[start]
            if low * run <= rise <= high * run:
                best = end
            slack = relative * values[end] + absolute
            low = max(low, (rise - slack) / run)
            high = min(high, (rise + slack) / run)
            if low > high:
                break
        kept.append(best)
    return [((index + 0.5) / count, values[index]) for index in kept]


def table(name, points, digits):
    lines, line = [], ""
    for share, value in points:
        item = f"{{{share:.6f}, {value:.{digits}f}}}, "
        if len(line) + len(item) > 94:
            lines.append("    " + line.rstrip())
            line = ""
        line += item
    lines.append("    " + line.rstrip())
    return (f"inline constexpr QuantilePoint {name}[] = {{\n" + "\n".join(lines) + "\n};\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    traces = {
        "AzureConv": azure(folder / "azure_llm_2023_conv.csv"),
        "AzureCode": azure(folder / "azure_llm_2023_code.csv"),
        "Mooncake": mooncake(folder / "mooncake_conversation.jsonl"),
    }
    text = """// SPDX-License-Identifier: Apache-2.0
// Made by scripts/fit_traces.py from the traces that data/README.md names. Do not edit.
#pragma once

namespace flashprime::cli {

// A share `at` of all values is not above `value`; in between, it is linear.
struct QuantilePoint {
  double at;
  double value;
};

// clang-format off
"""
    for name, trace in traces.items():
        arrivals = sorted(trace["arrivals"])
        gaps = [b - a for a, b in zip(arrivals, arrivals[1:])]
        text += "\n" + table(f"k{name}Prompt", fit(trace["prompt"], 0.01, 0.5), 0)
        text += table(f"k{name}Generated", fit(trace["generated"], 0.01, 0.5), 0)
        text += f"// Nanoseconds from one request to the next.\n"
        text += table(f"k{name}Gap", fit(gaps, 0.02, 1000), 0)
        if trace["shared"]:
            text += "// Share of a prompt's full blocks that earlier prompts have too, of the average block.\n"
            text += table(f"k{name}Shared", fit(trace["shared"], 0.02, 0.005), 4)
    text += "\n// clang-format on\n\n}  // namespace flashprime::cli\n"
    if "--check" not in sys.argv[2:]:
        sys.stdout.write(text)
        return 0
    kept = pathlib.Path(__file__).resolve().parent.parent / "cli" / "trace_quantiles.h"
    if kept.read_text() == text:
        print(f"{kept.name} is what {folder} gives")
        return 0
    print(f"{kept.name} differs from what {folder} gives", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
