# SPDX-License-Identifier: Apache-2.0
"""What warming up costs: bench/run_kernel_warmup runs this with what it needs.

Cold and warm start of DeepSeek-V3's default kernels, sixteen processes on one cold cache, the lookup
of a warmed kernel, and, beside it, the kernels of FlashAttention 4 compiled on the same machine.
Wall time says little on a machine that does other things too, so processor time is beside it.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from harness import machine

MODEL = "deepseek-v3"
ARCHS = ("sm_80", "sm_90a")


class Warmup:
    """`flashprime warmup` on a cache folder."""

    def __init__(self, arguments, folder):
        self._command = [arguments.flashprime, "warmup", "--model", MODEL, "--json"]
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHPRIME_")}
        self._environment["FLASHPRIME_NVRTC_PATH"] = arguments.nvrtc
        self._environment["FLASHPRIME_CACHE_DIR"] = folder

    def start(self, *options):
        return subprocess.Popen(
            [*self._command, *options],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @staticmethod
    def finish(process):
        out, err = process.communicate()
        if process.returncode != 0:
            sys.exit(err.decode())
        return json.loads(out)

    def run(self, *options):
        """The report, with the seconds of the whole process."""
        begin = time.perf_counter()
        report = self.finish(self.start(*options))
        report["process_ms"] = (time.perf_counter() - begin) * 1e3
        return report


def sources(report):
    return collections.Counter(kernel["source"] for kernel in report["kernels"])


def start_rows(arguments, arch):
    """Cold start at -j 2, then warm starts of the same folder."""
    cold, warm = [], []
    for _ in range(arguments.cold_rounds):
        with tempfile.TemporaryDirectory() as folder:
            warmup = Warmup(arguments, folder)
            cold.append(warmup.run("--arch", arch, "-j", "2"))
            if set(sources(cold[-1])) != {"compiled"}:
                sys.exit(f"not a cold start: {sources(cold[-1])}")
            for _ in range(5):
                warm.append(warmup.run("--arch", arch, "-j", "2"))
                if set(sources(warm[-1])) != {"disk"}:
                    sys.exit(f"not a warm start: {sources(warm[-1])}")
    kernels = cold[0]["kernels"]

    def median(reports, field):
        return statistics.median(report[field] for report in reports)

    def least(reports, field):
        return min(report[field] for report in reports)

    def row(what, reports, field, unit, scale):
        return {
            "what": f"{what}, {arch}",
            "median": f"{median(reports, field) / scale:.3f}",
            "least": f"{least(reports, field) / scale:.3f}",
            "unit": unit,
            "rounds": len(reports),
        }

    yield {"what": f"kernels of the default set, {arch}", "median": len(kernels)}
    cubins = sum(kernel["cubin_bytes"] for kernel in kernels)
    yield {"what": f"cubins of the default set, {arch}", "median": cubins, "unit": "bytes"}
    yield row("cold start at -j 2", cold, "wall_ms", "s", 1e3)
    yield row("cold start at -j 2, processor time", cold, "cpu_ms", "s", 1e3)
    yield row("one kernel, processor time", cold, "cpu_ms", "s", 1e3 * len(kernels))
    slowest = max(kernels, key=lambda kernel: kernel["compile_ms"])
    yield {
        "what": f"slowest kernel ({slowest['kernel']}), {arch}",
        "median": f"{slowest['compile_ms'] / 1e3:.3f}",
        "unit": "s",
    }
    yield row("peak memory at -j 2", cold, "peak_rss_bytes", "MB", 1e6)
    yield row("warm start, all from disk and verified", warm, "wall_ms", "ms", 1)
    yield row("warm start, processor time", warm, "cpu_ms", "ms", 1)
    yield row("warm start, whole process", warm, "process_ms", "ms", 1)


def crowd_rows(arguments):
    """Sixteen processes on one cold cache: who compiled what."""
    with tempfile.TemporaryDirectory() as folder:
        warmup = Warmup(arguments, folder)
        begin = time.perf_counter()
        processes = [
            warmup.start("--arch", "sm_90a", "-j", "1", "--rank", str(rank), "--world", "16")
            for rank in range(16)
        ]
        reports = [warmup.finish(process) for process in processes]
        seconds = time.perf_counter() - begin
    compiled = collections.Counter(
        kernel["kernel_id"]
        for report in reports
        for kernel in report["kernels"]
        if kernel["source"] == "compiled"
    )
    if len(compiled) != len(reports[0]["kernels"]) or set(compiled.values()) != {1}:
        sys.exit(f"not each kernel once: {compiled}")
    yield {
        "what": "compilations by 16 processes on a cold cache, sm_90a",
        "median": sum(compiled.values()),
    }
    yield {
        "what": "16 processes on a cold cache, sm_90a",
        "median": f"{seconds:.3f}",
        "unit": "s",
    }


def lookup_rows(arguments):
    output = subprocess.run([arguments.lookup], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        what, value, unit = line.split(",")
        yield {"what": what, "median": value, "unit": unit, "rounds": 15}


def fa4_rows(arguments):
    script = pathlib.Path(__file__).parent / "workloads/kernel_warmup_fa4.py"
    runs = []
    for _ in range(arguments.fa4_rounds):
        output = subprocess.run(
            [arguments.fa4_python, str(script)], check=True, capture_output=True, text=True
        ).stdout
        runs.append(json.loads(output.splitlines()[-1]))

    def row(what, values):
        return {
            "what": f"FlashAttention 4: {what}",
            "median": f"{statistics.median(values):.3f}",
            "least": f"{min(values):.3f}",
            "unit": "s",
            "rounds": len(values),
        }

    yield row("import", [run["import_s"] for run in runs])
    yield row("import, processor time", [run["import_cpu_s"] for run in runs])
    for i, kernel in enumerate(runs[0]["kernels"]):
        what = f"{kernel['what']}, sm_90a"
        yield row(what, [run["kernels"][i]["wall_s"] for run in runs])
        yield row(f"{what}, processor time", [run["kernels"][i]["cpu_s"] for run in runs])
    each = [kernel["cpu_s"] for run in runs for kernel in run["kernels"]]
    yield row("one kernel, processor time", each)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flashprime", required=True)
    parser.add_argument("--lookup", required=True, help="the program kernel_lookup")
    parser.add_argument("--nvrtc", required=True)
    parser.add_argument("--fa4-python", help="a Python that has flash-attn-4; none: left out")
    parser.add_argument("--fa4-version", default="")
    parser.add_argument("--cold-rounds", type=int, default=3)
    parser.add_argument("--fa4-rounds", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, help="CSV file to write")
    arguments = parser.parse_args()
    common = {"cpu": machine.cpu_brand(), "commit": machine.commit(), "date": machine.date()}
    version = json.loads(
        subprocess.run(
            [arguments.flashprime, "info", "--json"],
            check=True,
            capture_output=True,
            env={**os.environ, "FLASHPRIME_NVRTC_PATH": arguments.nvrtc},
        ).stdout
    )["compiler"]
    common["compiler"] = version.split(",")[0]
    common["fa4"] = arguments.fa4_version
    parts = [lambda arch=arch: start_rows(arguments, arch) for arch in ARCHS]
    parts += [lambda: crowd_rows(arguments), lambda: lookup_rows(arguments)]
    if arguments.fa4_python:
        parts.append(lambda: fa4_rows(arguments))
    rows = []
    print("| what | median | least | unit | runs |\n|---|---:|---:|---|---:|")
    for part in parts:
        # What else the machine does: about the cores in use before this part began.
        load = os.getloadavg()[0]
        for row in part():
            row = {"what": "", "median": "", "least": "", "unit": "", "rounds": 1, **row}
            rows.append({**row, "load_before": f"{load:.1f}", **common})
            print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with open(arguments.out, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
