#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every kernel that any model is warmed with, for every architecture that matters.

Fails on a kernel that does not compile, on a C75xx warning of ptxas (it gave up on something the
kernel counts on), on spills beyond the kernel's budget, and on registers or shared memory that the
architecture does not have. Exit code 77: there is no compiler.
"""
import argparse
import json
import os
import subprocess
import sys

# Bytes of shared memory that a block may have.
ARCHS = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90a": 227 << 10,
    "sm_100a": 227 << 10,
    "sm_103a": 227 << 10,
    "sm_120a": 99 << 10,
    "sm_121a": 99 << 10,
}
MAX_REGISTERS = 255
# Bytes of spill stores and loads that a kernel may have: what it had when it was last measured on a
# GPU, where removing them made it slower.
SPILL_BUDGETS = {"sm80_mla_prefill": (80, 104), "merge_states": (0, 0), "combine_splits": (0, 0)}


def problems_of(kernel):
    name = kernel["kernel"]
    if "error" in kernel:
        yield kernel["error"]
        return
    stores, loads = SPILL_BUDGETS.get(name, (0, 0))
    if kernel["spill_stores"] > stores or kernel["spill_loads"] > loads:
        yield (
            f"spills {kernel['spill_stores']}/{kernel['spill_loads']} bytes,"
            f" the budget is {stores}/{loads}"
        )
    if kernel["regs"] > MAX_REGISTERS:
        yield f"{kernel['regs']} registers"
    if kernel["smem_bytes"] > ARCHS[kernel["arch"]]:
        yield f"{kernel['smem_bytes']} bytes of shared memory"
    for warning in kernel["warnings"]:
        if "C75" in warning:
            yield warning


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flashprime", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--nvrtc", default="")
    options = parser.parse_args()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHPRIME_")}
    environment["FLASHPRIME_CACHE_DIR"] = os.path.abspath(options.cache)
    if options.nvrtc:
        environment["FLASHPRIME_NVRTC_PATH"] = options.nvrtc

    def run(*arguments):
        command = [options.flashprime, *arguments, "--json"]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
        if not result.stdout:
            sys.exit(f"{' '.join(command)}: exit code {result.returncode} and no answer")
        return json.loads(result.stdout)

    if not run("cache", "stat")["compiler_found"]:
        print("no NVRTC: nothing checked")
        sys.exit(77)
    dims = sorted(
        {
            tuple(model[part] for part in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
            for model in run("models")["models"]
        }
    )
    count = compiled = 0
    failures = []
    most_spills = {}
    for dim in dims:
        text = ",".join(map(str, dim))
        report = run(
            *("warmup", "--dims", text, "--arch", ",".join(ARCHS)),
            *("--all", "--output-dtype", "e4m3"),
        )
        if "kernels" not in report:
            failures.append(f"{text}: {report}")
            continue
        for kernel in report["kernels"]:
            count += 1
            compiled += kernel["source"] == "compiled"
            spills = (kernel["spill_stores"], kernel["spill_loads"])
            most_spills[kernel["kernel"]] = max(most_spills.get(kernel["kernel"], (0, 0)), spills)
            for problem in problems_of(kernel):
                failures.append(f"{kernel['kernel']} {kernel['arch']}: {problem}\n{kernel['key']}")
    print("\n".join(failures))
    print(f"{count} kernels, {compiled} of them compiled now, {len(failures)} problems")
    for name, (stores, loads) in sorted(most_spills.items()):
        print(f"{name}: spills at most {stores}/{loads} bytes")
    sys.exit(1 if failures or count == 0 else 0)


if __name__ == "__main__":
    main()
