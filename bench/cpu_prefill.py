# SPDX-License-Identifier: Apache-2.0
"""CPU prefill against torch and vLLM: bench/cpu_prefill runs this with what it needs."""

import argparse
import csv
import os
import pathlib
import subprocess
import sys

import torch

from harness import library, machine, measure
from workloads.cpu_prefill import cells, flashprime, torch_sdpa, vllm_cpu_sdpa


def check(cell, data, name, result):
    """Compares sampled rows with fp64 before anything is timed; a wrong contender stops the run."""
    rows = [
        (sequence, row, head)
        for sequence in {0, cell.batch - 1}
        for row in (0, 1, 63, 191, 192, cell.new - 1)
        for head in (0, cells.NUM_HEADS - 1)
    ]
    wanted = cells.reference_rows(cell, data, rows)
    got = torch.stack([result[s * cell.new + r, h].double() for s, r, h in rows])
    error = ((got - wanted).norm() / wanted.norm()).item()
    if not error < 1e-2:  # NaN too
        sys.exit(f"{cell.dims_name} {cell.name} {name}: relative error {error:.1e} against fp64")
    return error


def time_cell(lib, cell, arguments):
    data = cells.make_data(cell, arguments.seed)
    contenders = flashprime.contenders(lib, cell, data, arguments.threads)
    contenders.update(torch_sdpa.contenders(cell, data))
    contenders.update(vllm_cpu_sdpa.contenders(cell, data))
    errors = {}
    for name, (run, result) in contenders.items():
        run()
        errors[name] = check(cell, data, name, result())
    runs = {name: run for name, (run, _) in contenders.items()}
    timings = measure.interleave(runs, arguments.rounds)
    return timings, errors


def time_matmul(arguments):
    """torch's fp32 matrix product, 4096 cubed: what this machine can do."""
    a, b = torch.randn(2, 4096, 4096)
    return measure.interleave({"matmul": lambda: a @ b}, max(3, arguments.rounds // 2))["matmul"]


def peak_memory(arguments):
    """Bytes that a call takes beyond its inputs and outputs, in a process of its own."""
    command = [sys.executable, __file__, "--library", arguments.library, "--memory-probe"]
    command += ["--threads", str(arguments.threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_probe(lib, arguments):
    cell = cells.Cell(1, 32768, 32768, (128, 64, 128))
    data = {
        "q": torch.zeros(cell.new, cells.NUM_HEADS, 192, dtype=torch.bfloat16),
        "k": torch.zeros(cell.keys, cells.NUM_HEADS, 192, dtype=torch.bfloat16),
        "v": torch.zeros(cell.keys, cells.NUM_HEADS, 128, dtype=torch.bfloat16),
        "softmax_scale": 192**-0.5,
    }
    run, result = flashprime.contenders(lib, cell, data, arguments.threads)["flashprime"]
    for tensor in (data["q"], data["k"], data["v"], result()):
        tensor.fill_(1)  # every page is there before the call
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts at the present
    before = memory_status("VmRSS")
    run()
    print(memory_status("VmHWM") - before)


def memory_status(field):
    """A field of /proc/self/status in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="path of libflashprime.so")
    parser.add_argument("--out", type=pathlib.Path, help="CSV file to write")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-probe", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lib = library.Library(os.path.abspath(arguments.library))
    torch.set_num_threads(arguments.threads)
    if arguments.memory_probe:
        memory_probe(lib, arguments)
        return

    common = {
        "cpu": machine.cpu_brand(),
        "numerics_id": lib.numerics_id(),
        "build": lib.build_description(),
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "commit": machine.commit(),
        "date": machine.date(),
    }
    rows = []
    matmul = [time_matmul(arguments)]
    print("| dims | cell | flashprime GFLOP/s | best torch | GFLOP/s | ratio |")
    print("|---|---|---:|---|---:|---:|")
    for cell in cells.CELLS:
        timings, errors = time_cell(lib, cell, arguments)
        for name, timing in timings.items():
            rows.append(
                {
                    "dims": cell.dims_name,
                    "cell": cell.name,
                    "contender": name,
                    "gflops": f"{cell.flop / timing.median / 1e9:.1f}",
                    "median_ms": f"{timing.median * 1e3:.2f}",
                    "spread": f"{timing.spread:.3f}",
                    "relative_error": f"{errors[name]:.1e}",
                    **common,
                }
            )
        ours = timings["flashprime"].median
        best = min((n for n in timings if n.startswith("torch")), key=lambda n: timings[n].median)
        print(
            f"| {cell.dims_name} | {cell.name} | {cell.flop / ours / 1e9:.1f} | {best} "
            f"| {cell.flop / timings[best].median / 1e9:.1f} "
            f"| {timings[best].median / ours:.2f} |",
            flush=True,
        )
        if peer := timings.get("vllm cpu_sdpa"):
            print(f"|  | vllm cpu_sdpa | {cell.flop / peer.median / 1e9:.1f} | | | |", flush=True)
    matmul.append(time_matmul(arguments))
    seconds = measure.Timing(matmul[0].seconds + matmul[1].seconds)
    gflops = 2 * 4096**3 / seconds.median / 1e9
    memory = peak_memory(arguments)
    print(f"\ntorch fp32 matmul 4096^3, before and after: {gflops:.1f} GFLOP/s")
    print(f"memory beyond inputs and outputs, 1x32768 keys: {memory / 1e6:.1f} MB")
    rows.append(
        {
            "dims": "",
            "cell": "4096^3",
            "contender": "torch fp32 matmul",
            "gflops": f"{gflops:.1f}",
            "median_ms": f"{seconds.median * 1e3:.2f}",
            "spread": f"{seconds.spread:.3f}",
            **common,
        }
    )
    rows.append({"cell": "1x32768", "contender": "flashprime", "extra_bytes": memory, **common})
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        fields = list(rows[0]) + ["extra_bytes"]
        with open(arguments.out, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=fields)
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
