# SPDX-License-Identifier: Apache-2.0
"""GPU prefill against torch's FlashAttention-2 and cuDNN in one run, in bursts and sustained.

Results of every contender are compared with fp64 before anything is timed. Run on a machine with a
GPU: PYTHONPATH=bench python3 bench/gpu_prefill.py --library .../libflashprime.so --out FILE.csv
"""

import argparse
import csv
import datetime
import os
import pathlib
import sys

import torch

from harness import gpu, library
from workloads.gpu_prefill import cells, flashprime, mma_sync_rate, torch_sdpa


def check(cell, data, name, result, seed):
    error = cells.relative_error(cell, data, result, seed)
    if not error < 3e-3:  # NaN too
        sys.exit(f"{cell.dims_name} {cell.name} {name}: relative error {error:.1e} against fp64")
    return error


def time_rates(arguments):
    """Name, TFLOP/s in bursts and sustained."""
    for rows in (32, 64):
        run, flop = mma_sync_rate.contender(rows)
        name = f"mma.sync fed by ldmatrix, {rows} rows a warp"
        burst = gpu.median(gpu.burst({name: run}, arguments.rounds)[name])
        sustained = gpu.median(gpu.sustained({name: run}, arguments.seconds)[name])
        yield name, flop / burst / 1e12, flop / sustained / 1e12


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="path of libflashprime.so")
    parser.add_argument("--out", type=pathlib.Path, help="CSV file to write")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a sustained stretch")
    parser.add_argument("--dims", help="only cells of these, as (192, 128)")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    lib = library.Library(os.path.abspath(arguments.library))
    common = {
        "heads": cells.NUM_HEADS,
        **gpu.facts(),
        "torch": torch.__version__,
        "commit": arguments.commit,
        "date": datetime.date.today().isoformat(),
        "protocol": f"{arguments.rounds} bursts of 20 ms after 150 ms, median;"
        f" sustained: second half of {arguments.seconds} s, A B B A, median",
    }
    rows = []

    def add(dims, cell, contender, burst, sustained, spread, error):
        rows.append(
            {
                "dims": dims,
                "cell": cell,
                "contender": contender,
                "tflops_burst": f"{burst:.1f}",
                "tflops_sustained": f"{sustained:.1f}",
                "burst_spread": spread,
                "relative_error": error,
                **common,
            }
        )
        print(f"| {dims} | {cell} | {contender} | {burst:.0f} | {sustained:.0f} | {error} |", flush=True)

    print("| dims | cell | contender | TFLOP/s burst | sustained | error |")
    print("|---|---|---|---:|---:|---|")
    for rate in time_rates(arguments):
        add("", "", *rate, "", "")
    for cell in cells.CELLS:
        if arguments.dims and cell.dims_name != arguments.dims:
            continue
        data = cells.make_data(cell, arguments.seed)
        contenders = flashprime.contenders(lib, cell, data)
        contenders.update(torch_sdpa.contenders(cell, data))
        errors = {}
        for name, (run, result) in contenders.items():
            run()
            torch.cuda.synchronize()
            errors[name] = check(cell, data, name, result(), arguments.seed)
        runs = {name: run for name, (run, _) in contenders.items()}
        burst = gpu.burst(runs, arguments.rounds)
        sustained = gpu.sustained(runs, arguments.seconds)
        for name in runs:
            times = sorted(burst[name])
            spread = (times[-1] - times[0]) / gpu.median(times)
            add(
                cell.dims_name,
                cell.name,
                name,
                cell.flop / gpu.median(times) / 1e12,
                cell.flop / gpu.median(sustained[name]) / 1e12,
                f"{spread:.3f}",
                f"{errors[name]:.1e}",
            )
    for rate in time_rates(arguments):
        add("", "", *rate, "", "")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
