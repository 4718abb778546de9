# SPDX-License-Identifier: Apache-2.0
"""FlashAttention's own tests of ragged batches, with FlashPrime's functions in the place of theirs.

  flash_attention_in_place.py CHECKOUT [--tests N] [--csv FILE] [--device cuda]

CHECKOUT is a clone of FlashAttention; its kernels are neither built nor needed. The tests are read
as they are and judge as they do: an error of at most twice that of torch in the same dtype. What
differs:

- Arguments go by keyword, by the order of the original's parameters in CHECKOUT.
- Parametrisations that need what FlashPrime does not compute are deselected, with the reason.
- Of the others N of each file are run, drawn by the checksums of their names.
- Lengths given twice, as cu_seqlens and as seqused, are given once.
- A test ends, passed, where it asks for a gradient: all checks of the forward result come before.
- Switches for Hopper are off in the CuTe tests: there they skip split keys.
"""

import argparse
import ast
import collections
import csv
import importlib.util
import os
import pathlib
import sys
import types
import zlib

import flashprime
import pytest
import torch
from flashprime.compat import fa3, fa4

HOPPER, CUTE = "hopper/test_flash_attn.py", "tests/cute/test_flash_attn.py"
CUTE_VARLEN = "tests/cute/test_flash_attn_varlen.py"
TESTS = {
    HOPPER: "test_flash_attn_varlen_output",
    CUTE: "test_flash_attn_varlen_output",
    CUTE_VARLEN: "test_varlen",
}


class ForwardDone(Exception):
    """A test asks for a gradient, which FlashPrime has none of."""


def no_gradient(*arguments, **options):
    raise ForwardDone


def in_place_of(original, function):
    """A function that takes the original's arguments by position, too."""
    (node,) = (
        node
        for node in ast.parse(original.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "flash_attn_varlen_func"
    )
    names = [argument.arg for argument in node.args.args]

    def call(*arguments, **options):
        options |= dict(zip(names, arguments, strict=False))
        for side in "qk":
            used, cu = options.get(f"seqused_{side}"), options.get(f"cu_seqlens_{side}")
            if used is not None and cu is not None and torch.equal(used, cu.diff()):
                del options[f"seqused_{side}"]  # says what cu_seqlens says
        if isinstance(options.get("window_size"), torch.Tensor):
            options["window_size"] = tuple(options["window_size"].tolist())
        with torch.no_grad():
            return function(**options)

    return call


def absent(name):
    def function(*arguments, **options):
        pytest.skip(f"{name} is not FlashPrime's to compute")

    return function


def install_stubs(checkout):
    def module(name, **attributes):
        made = types.ModuleType(name)
        made.__path__ = []
        vars(made).update(attributes)
        sys.modules[name] = made
        return made

    sys.path.insert(0, str(checkout / "hopper"))  # padding, test_util
    names = ("flash_attn_func", "flash_attn_combine", "flash_attn_with_kvcache",
             "get_scheduler_metadata")  # fmt: skip
    ours = in_place_of(checkout / "hopper/flash_attn_interface.py", fa3.flash_attn_varlen_func)
    module(
        "flash_attn_interface",
        flash_attn_varlen_func=ours,
        **{name: absent(name) for name in names},
    )
    ours = in_place_of(checkout / "flash_attn/cute/interface.py", fa4.flash_attn_varlen_func)
    module("flash_attn")
    module("flash_attn.cute", flash_attn_varlen_func=ours)
    module("flash_attn.cute.cache_utils", JITCache=object)
    names = ("flash_attn_func", "_flash_attn_fwd", "_flash_attn_bwd", "_flash_attn_bwd_sparse_mla")
    module(
        "flash_attn.cute.interface",
        flash_attn_varlen_func=ours,
        get_scheduler_metadata=lambda **options: None,  # a hint, which nothing needs
        **{name: absent(name) for name in names},
    )
    spec = importlib.util.spec_from_file_location(
        "flash_attn.cute.testing", checkout / "flash_attn/cute/testing.py"
    )
    testing = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = testing
    spec.loader.exec_module(testing)


def why_not(file, parameters):
    """Why a parametrisation is not FlashPrime's, or None."""
    get = parameters.get
    if get("mha_type") == "gqa":
        return "grouped heads"
    if get("softcap"):
        return "softcap"
    if get("has_qv") or get("has_learnable_sink"):
        return "qv or sinks"
    if get("dtype") == torch.float8_e4m3fn:
        return "fp8 inputs"
    if get("add_unused_qkv") or not get("unpad_q", True) or not get("unpad_kv", True):
        return "seqused: rows that are there and not used"
    if file == HOPPER and get("d") == 64:
        return "values of 512"
    if file == HOPPER and get("local"):
        return "attention chunks, drawn with every window"
    if get("deterministic"):
        return "deterministic: the same as not"
    if (get("local_enum") and get("causal")) or get("min_seq_len", 0) > get("max_seq_len", 0):
        return "skipped by the test itself"
    return None


class Selection:
    """Chooses tests, and counts what becomes of them."""

    def __init__(self, tests):
        self.tests = tests
        self.counts = collections.Counter()
        self.deselected = collections.Counter()
        self.rows = []

    def pytest_collection_modifyitems(self, config, items):
        left_out = []
        possible = collections.defaultdict(list)
        for item in items:
            item.file = next(name for name in TESTS if str(item.path).endswith(name))
            if item.originalname != TESTS[item.file]:
                left_out.append(item)
                continue
            reason = why_not(item.file, item.callspec.params)
            if reason is None:
                possible[item.file].append(item)
            else:
                self.deselected[item.file, reason] += 1
                left_out.append(item)
        kept = []
        for file, found in possible.items():
            found.sort(key=lambda item: zlib.crc32(item.name.encode()))
            kept += found[: self.tests]
            left_out += found[self.tests :]
            self.deselected[file, "not drawn"] += len(found[self.tests :])
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        try:
            return (yield)
        except ForwardDone:
            return True
        except flashprime.UnsupportedError as error:
            pytest.skip(" ".join(str(error).split()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "call" or report.outcome != "passed":
            self.counts[item.file, report.outcome] += 1
            reason = report.longrepr[2] if report.skipped else ""
            self.rows.append((item.file, item.name, report.outcome, reason))
        return report

    def pytest_collection_finish(self, session):
        for item in session.items:
            if hasattr(item.module, "IS_SM90"):
                item.module.IS_SM90 = False


def on_device(checkout, device, folder):
    """The test files; for another device than theirs, copies that name it."""
    if device == "cuda":
        return [checkout / name for name in TESTS]
    torch.cuda.get_device_capability = lambda *arguments: (9, 0)
    copies = []
    for name in TESTS:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = (checkout / name).read_text(encoding="utf-8")
        copy.write_text(text.replace('"cuda"', f'"{device}"'), encoding="utf-8")
        copies.append(copy)
    return copies


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--tests", type=int, default=150, help="of each file")
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--device", default="cuda", help="cpu to try the harness itself")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/flash_attention"))
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    # Windows of the hopper tests come with attention chunks.
    os.environ |= {"FLASH_ATTENTION_DISABLE_BACKWARD": "TRUE",
                   "FLASH_ATTENTION_DISABLE_LOCAL": "TRUE"}  # fmt: skip
    if options.device != "cuda":  # only kernels for GPUs split keys
        os.environ["FLASH_ATTENTION_DISABLE_SPLIT"] = "TRUE"
    install_stubs(checkout)
    torch.autograd.grad = no_gradient
    torch.Tensor.backward = no_gradient
    selection = Selection(options.tests)
    files = on_device(checkout, options.device, options.work)
    code = pytest.main(
        [*map(str, files), "-q", "-rs", "-p", "no:cacheprovider", "--import-mode=importlib",
         "--noconftest", "-o", "addopts=", "--show-capture=no", "--tb=short",
         "--rootdir", str(files[0].parents[1])],
        plugins=[selection],
    )  # fmt: skip
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("file", "parametrisation", "result", "reason"))
            writer.writerows(sorted(selection.rows))
            for (name, reason), count in sorted(selection.deselected.items()):
                writer.writerow((name, f"{count} parametrisations", "deselected", reason))
    for name in TESTS:
        counts = {
            outcome: selection.counts[name, outcome] for outcome in ("passed", "failed", "skipped")
        }
        print(name, *(f"{count} {outcome}" for outcome, count in counts.items()), sep=", ")
        for (file, reason), count in sorted(selection.deselected.items()):
            if file == name:
                print(f"  {count} deselected: {reason}")
        if not counts["passed"]:
            print(f"{name}: nothing passed")
            code = 1
    sys.exit(int(code))


if __name__ == "__main__":
    main()
