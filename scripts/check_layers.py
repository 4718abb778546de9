#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and the few rules that every source file keeps.

Folders are the architecture, so an include from the wrong folder is a design error.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Layer -> the layers whose headers it may include, itself aside. Tests may include anything.
ALLOWED = {
    "include": set(),
    "kernels": {"include/flashprime/types.h"},
    "src": {"include", "kernels/shared"},
    "tests/cases": {"include"},
    "cli": {"include", "tests/cases"},
    "python": {"include"},
    "examples": {"include"},
    "tests/consumers": {"include"},
    "bench": {"include", "tests/cases"},
    "tests": None,
}
# Libraries that only some layers may use; the library itself needs nothing at run time.
THIRD_PARTY = {
    "hwy": {"src", "tests"},
    "CLI": {"cli", "tests"},
    "nlohmann": {"cli", "tests", "bench"},
    "fmt": {"src", "cli", "tests", "tests/cases", "bench"},
    "gtest": {"tests"},
    "gmock": {"tests"},
    "rapidcheck": {"tests"},
    "benchmark": {"bench"},
    "mbedtls": {"src/jit"},
    "tvm": {"python"},
}
# What the builds add to the include path, beside the root.
INCLUDE_PATHS = ("include", "src", "tests")
SOURCE_SUFFIXES = {".h", ".c", ".cc", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def layer_of(path):
    """The most specific layer that a path relative to the root lies in."""
    matches = [name for name in ALLOWED if str(path).startswith(name + "/")]
    return max(matches, key=len) if matches else None


def find_header(name, including_file):
    """The project's file that an include names, or None when it is somebody else's."""
    for folder in (ROOT, *(ROOT / name for name in INCLUDE_PATHS), including_file.parent):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(ROOT)
    return None


def is_allowed(layer, header):
    allowed = ALLOWED[layer]
    if allowed is None or layer_of(header) == layer:
        return True
    return any(str(header) == rule or str(header).startswith(rule + "/") for rule in allowed)


def check_file(path):
    relative = path.relative_to(ROOT)
    layer = layer_of(relative)
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        yield f"{relative}:1: the first line is not the SPDX line"
    if path.suffix in {".h", ".cuh"} and not path.name.endswith("-inl.h"):
        if "#pragma once" not in lines:
            yield f"{relative}:1: no #pragma once"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        where = f"{relative}:{number}"
        top = name.split("/")[0]
        header = find_header(name, path)
        if header is not None:
            if not is_allowed(layer, header):
                yield f"{where}: {layer} may not include {header}"
        elif top in THIRD_PARTY:
            if not any(relative.is_relative_to(user) for user in THIRD_PARTY[top]):
                yield f"{where}: {layer} may not use {top}"
        elif quote == '"' and not name.startswith("hwy/"):
            yield f"{where}: no such header: {name}"


def main():
    files = [
        path
        for name in {layer.split("/")[0] for layer in ALLOWED}
        for path in (ROOT / name).rglob("*")
        if path.suffix in SOURCE_SUFFIXES and path.is_file() and "build" not in path.parts
    ]
    if not files:
        sys.exit("found no source file")
    problems = [problem for path in sorted(files) for problem in check_file(path)]
    print("\n".join(problems) if problems else f"{len(files)} files")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
