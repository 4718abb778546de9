#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header alone: check_headers.py CXX CC [INCLUDE_DIR...].

A header that needs another one before it works until somebody reorders two lines.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def commands(cxx, cc, include_dirs):
    flags = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", f"-I{ROOT}"]
    flags += [f"-I{ROOT}/src", f"-I{ROOT}/cli"]
    flags += [flag for folder in include_dirs for flag in ("-isystem", folder)]
    for folder in ("include", "kernels", "src", "cli", "tests/cases"):
        for header in sorted((ROOT / folder).rglob("*.h")):
            # SIMD code that is compiled once per target, inside the target's namespace.
            if header.name.endswith("-inl.h"):
                continue
            yield header, [cxx, "-std=c++20", "-x", "c++", *flags]
            if header.name == "c_api.h":
                yield header, [cc, "-std=c99", "-pedantic", "-x", "c", *flags]


def compile_alone(job):
    header, command = job
    # Included from a file, since #pragma once in a main file is a warning of its own.
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as source:
        source.write(f'#include "{header}"\n')
        source.flush()
        run = subprocess.run([*command, source.name], capture_output=True, text=True)
    return header, run.returncode, run.stderr


def main():
    jobs = list(commands(sys.argv[1], sys.argv[2], sys.argv[3:]))
    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, code, errors in pool.map(compile_alone, jobs):
            if code != 0:
                failed = True
                print(f"{header.relative_to(ROOT)} does not compile alone:\n{errors}")
    print(f"{len(jobs)} compilations")
    sys.exit(1 if failed or not jobs else 0)


if __name__ == "__main__":
    main()
