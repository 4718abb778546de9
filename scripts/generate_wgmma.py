#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes kernels/ptx/wgmma_mma_async.cuh: an instruction with a hundred operands is not for hands.

    python3 scripts/generate_wgmma.py [--check]
"""
import pathlib
import sys

FILE = pathlib.Path(__file__).resolve().parents[1] / "kernels/ptx/wgmma_mma_async.cuh"
SHARED_A = (16, 32, 64, 80, 96, 128)  # N of Q K^T: the keys of a step, or of part of one
REGISTER_A = (128, 256)  # N of P V: the columns of V

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Written by scripts/generate_wgmma.py.
// wgmma.mma_async m64nNk16: D[64][N] (+)= A[64][16] * B[16][N] for a warpgroup, fp32 accumulators,
// bf16 or fp16 in. PTX ISA, section "wgmma.mma_async" (PTX 8.0, sm_90a). Without scale_d D is not
// read. The accumulators belong to the instruction until wgmma.wait_group.
#pragma once

#include "flashprime/types.h"

namespace flashprime::ptx {

// clang-format off
"""

SHARED_TEXT = """
// A and B in shared memory, both K-major, by their matrix descriptors.
template <int kN, Dtype kDtype>
__device__ __forceinline__ void wgmma_mma_async_ss(float (&d)[kN / 2], uint64_t a_desc,
                                                   uint64_t b_desc, int scale_d) {
"""

REGISTER_TEXT = """
// A in registers; B in shared memory, N-major (transposed), by its matrix descriptor.
template <int kN, Dtype kDtype>
__device__ __forceinline__ void wgmma_mma_async_rs(float (&d)[kN / 2], uint32_t a0, uint32_t a1,
                                                   uint32_t a2, uint32_t a3, uint64_t b_desc,
                                                   int scale_d) {
"""


def wrapped(items, indent, last=""):
    """Items joined by commas in lines of at most 100 columns."""
    lines, line = [], " " * indent
    for i, item in enumerate(items):
        piece = item + (", " if i + 1 < len(items) else last)
        if len(line) + len(piece.rstrip()) > 100:
            lines.append(line.rstrip())
            line = " " * indent
        line += piece
    return "\n".join([*lines, line.rstrip()])


def asm_text(n, dtype, a):
    count = n // 2
    if a == "ss":
        operands, predicate, tail = f"%{count}, %{count + 1}", count + 2, "1, 1, 0, 0"
        inputs = '"l"(a_desc), "l"(b_desc), "r"(scale_d)'
    else:
        registers = ", ".join(f"%{count + i}" for i in range(4))
        operands, predicate, tail = f"{{{registers}}}, %{count + 4}", count + 5, "1, 1, 1"
        inputs = '"r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b_desc), "r"(scale_d)'
    pieces = [
        "{\\n.reg .pred p;\\n",
        f"setp.ne.b32 p, %{predicate}, 0;\\n",
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype}\\n{{",
    ]
    for first in range(0, count, 12):
        registers = ", ".join(f"%{i}" for i in range(first, min(first + 12, count)))
        pieces.append(registers + (", " if first + 12 < count else ""))
    pieces.append(f"}}, {operands}, p, {tail};\\n}}")
    lines = [f'        "{piece}"' for piece in pieces]
    outputs = wrapped([f'"+f"(d[{i}])' for i in range(count)], 10)
    return (
        "    asm volatile(\n" + "\n".join(lines) + "\n        : "
        + outputs.lstrip() + f"\n        : {inputs});\n"
    )


def function(text, sizes, a):
    body = f"  static_assert({' || '.join(f'kN == {n}' for n in sizes)});\n"
    first = True
    for n in sizes:
        for dtype, name in (("bf16", "kBf16"), ("f16", "kFp16")):
            body += ("  " if first else " else ") + (
                f"if constexpr (kN == {n} && kDtype == Dtype::{name}) {{\n"
            )
            body += asm_text(n, dtype, a) + "  }"
            first = False
    return text + body + "\n}\n"


def main():
    text = HEAD + function(SHARED_TEXT, SHARED_A, "ss") + function(REGISTER_TEXT, REGISTER_A, "rs")
    text += "\n// clang-format on\n\n}  // namespace flashprime::ptx\n"
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FILE.read_text() == text else f"{FILE.name}: not what this script writes")
    FILE.write_text(text)


if __name__ == "__main__":
    main()
