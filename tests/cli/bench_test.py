# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of flashprime bench, of check --case, and of the completion scripts.

FLASHPRIME_COMMAND names the binary. torch is played by a module of the test's own.
"""

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.environ["FLASHPRIME_COMMAND"]
SMALL = ["bench", "--dims", "16,8,16", "--heads", "2", "-r", "3"]

FAKE_TORCH = """
import os
__version__ = "0.0-fake"
bfloat16, float16, float32, bool = "bf16", "fp16", "fp32", "bool"
def log(*words):
    with open(os.environ["FAKE_TORCH_LOG"], "a") as out:
        print(*words, file=out)
def set_num_threads(count): log("threads", count)
def set_grad_enabled(flag): pass
def manual_seed(seed): log("seed", seed)
class Tensor:
    def __init__(self, *shape): self.shape, self.dtype, self.cut = shape, None, ""
    def to(self, dtype): self.dtype = dtype; return self
    def tril(self, diagonal): self.cut += f"tril({diagonal})"; return self
    def triu(self, diagonal): self.cut += f"triu({diagonal})"; return self
def randn(*shape): return Tensor(*shape)
def ones(*shape, dtype): return Tensor(*shape)
"""
FAKE_FUNCTIONAL = """
import torch
def pad(tensor, padding):
    padded = torch.Tensor(*tensor.shape[:-1], tensor.shape[-1] + padding[1])
    return padded.to(tensor.dtype)
def scaled_dot_product_attention(q, k, v, attn_mask, is_causal, scale):
    if os.environ.get("FAKE_TORCH_FAILS"): raise RuntimeError("out of\\nmemory")
    torch.log("sdpa", q.dtype, q.shape, k.shape, v.shape, attn_mask.cut if attn_mask else None,
              is_causal, round(scale, 6))
import os
"""


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHPRIME_")}

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as out:
                out.write(text)
        return path

    def expect(self, exit_code, *arguments):
        result = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120,
                                env=self.environment)
        self.assertEqual(result.returncode, exit_code, (arguments, result.stdout, result.stderr))
        return result

    def expect_error(self, exit_code, text, *arguments):
        result = self.expect(exit_code, *arguments)
        self.assertIn(text, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(result.stdout, "")
        error = json.loads(self.expect(exit_code, *arguments, "--json").stdout)
        self.assertEqual(error["exit_code"], exit_code)


class Results(BenchTest):
    def test_a_table_has_a_row_for_every_batch_of_lists_and_ranges(self):
        out = self.expect(0, *SMALL, "--batch", "q8..32,2q4s16").stdout
        lines = out.splitlines()
        self.assertTrue(lines[0].startswith("| model | heads | dtype | mask | batch | ms (median"))
        self.assertEqual([line.split(" | ")[4] for line in lines[2:6]],
                         ["q8", "q16", "q32", "2q4s16"])
        self.assertRegex(lines[2], r"\| [0-9.e-]+ ± [0-9.e-]+ \| [0-9.]+ [kMGT]? ?\|$")
        self.assertIn("\nPASS\n", out)
        repro = [line for line in lines if line.startswith("repro: ")]
        self.assertEqual(shlex.split(repro[0])[2:], [*SMALL, "--batch", "q8..32,2q4s16"])

    def test_json_and_csv_have_the_same_columns_and_real_figures(self):
        document = json.loads(self.expect(0, *SMALL, "--batch", "q8,2q4s16", "-o", "json").stdout)
        self.assertEqual(document["result"], "PASS")
        row = document["rows"][1]
        # 2 requests, 2 heads, 4 rows that see 13, 14, 15 and 16 keys of 24 + 16 elements.
        self.assertEqual(row["flop"], 2 * 2 * 2 * (13 + 14 + 15 + 16) * (24 + 16))
        self.assertEqual(row["verified_rows"], 16)
        self.assertEqual(row["runs"], 3)
        self.assertGreater(row["seconds_fastest"], 0)
        self.assertLessEqual(row["seconds_fastest"], row["seconds"])
        result = self.expect(0, *SMALL, "--batch", "q8,2q4s16", "-o", "csv")
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        self.assertEqual(list(rows[0]), list(row))
        self.assertEqual(float(rows[1]["flop"]), row["flop"])
        self.assertIn("repro: flashprime bench", result.stderr)

    def test_masks_dtypes_and_models_are_timed(self):
        for more in (["--mask", "full"], ["--mask", "window:3,1"], ["--dtype", "fp16"],
                     ["--dtype", "fp32", "--kernel", "cpu_reference"]):
            out = self.expect(0, *SMALL, "--batch", "q9s20", *more).stdout
            self.assertIn("\nPASS\n", out)
        out = self.expect(0, "bench", "--model", "deepseek-v2-lite", "--tp", "8", "--batch", "q16",
                          "-r", "1").stdout
        self.assertIn("| deepseek-v2-lite | 2 | bf16 | causal | q16 |", out)

    def test_empty_requests_are_timed_and_nothing_verified_is_said(self):
        self.assertIn("\nPASS\n", self.expect(0, *SMALL, "--batch", "q0,q0s5,q1").stdout)
        out = self.expect(0, *SMALL, "--batch", "q8", "--verify", "0").stdout
        self.assertIn("\nNOT VERIFIED\n", out)

    def test_what_cannot_be_timed_is_an_error(self):
        self.expect_error(2, "--batch: batch 'q8x', position 3", *SMALL, "--batch", "q8x")
        self.expect_error(2, "--allow requires --guard", *SMALL, "--batch", "q8", "--allow", "5")
        self.expect_error(2, "--python requires --vs", *SMALL, "--batch", "q8", "--python", "x")
        self.expect_error(2, "--mask: got 'odd'", *SMALL, "--batch", "q8", "--mask", "odd")
        self.expect_error(2, "want one of --model and --dims", "bench", "--batch", "q8")
        self.expect_error(4, "unsupported", *SMALL, "--batch", "q8", "--device", "cuda:99")
        self.expect_error(5, "more than --max-memory 1,048,576", *SMALL, "--batch", "q8,q8k",
                          "--max-memory", "1M")
        self.expect_error(5, "more than --max-memory", *SMALL, "--batch", "q1000000k")


class Guard(BenchTest):
    def setUp(self):
        super().setUp()
        result = self.expect(0, *SMALL, "--batch", "q8,q16", "-o", "csv")
        self.rows = list(csv.DictReader(io.StringIO(result.stdout)))

    def write(self, name="before.csv", **changes):
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({**row, **changes})
        return self.path(name, out.getvalue())

    def test_as_fast_as_before_passes_in_both_formats(self):
        path = self.write(seconds="1000.0")
        out = self.expect(0, *SMALL, "--batch", "q8,q16", "--guard", path).stdout
        self.assertIn("2 compared", out)
        self.assertIn("  ok  q8: ", out)
        document = self.expect(0, *SMALL, "--batch", "q8,q16", "-o", "json").stdout
        path = self.path("before.json", document)
        report = json.loads(self.expect(0, *SMALL, "--batch", "q8", "--guard", path, "--allow",
                                        "10000", "--json").stdout)
        self.assertEqual(len(report["guard"]["compared"]), 1)
        self.assertTrue(report["guard"]["passed"])

    def test_slower_is_exit_code_1(self):
        path = self.write(seconds="1e-12", seconds_spread="0.0")
        out = self.expect(1, *SMALL, "--batch", "q8,q16", "--guard", path).stdout
        self.assertIn("  SLOWER  q8: ", out)
        self.assertIn("\nFAIL\n", out)

    def test_a_guard_that_compares_nothing_fails(self):
        path = self.write(machine="another one")
        out = self.expect(1, *SMALL, "--batch", "q8", "--guard", path).stdout
        self.assertIn("0 compared", out)
        self.assertIn("not in it: q8", out)

    def test_a_bad_file_is_exit_code_3_and_nothing_is_timed(self):
        path = self.path("bad.csv", "model,batch\nx\n")
        self.expect_error(3, "bad.csv: line 2: 1 fields under 2 names", *SMALL, "--batch", "q8",
                          "--guard", path)
        self.expect_error(3, "No such file", *SMALL, "--batch", "q8", "--guard", self.path("none"))
        self.expect_error(3, "directory", *SMALL, "--batch", "q8", "--guard", self.folder)


class Torch(BenchTest):
    def setUp(self):
        super().setUp()
        self.path("lib/torch/__init__.py", FAKE_TORCH)
        self.path("lib/torch/nn/__init__.py", "")
        self.path("lib/torch/nn/functional.py", FAKE_FUNCTIONAL)
        self.environment["PYTHONPATH"] = self.path("lib")
        self.environment["FAKE_TORCH_LOG"] = self.path("log")
        self.vs = ["--vs", "torch", "--python", sys.executable]

    def calls(self):
        with open(self.path("log")) as lines:
            return lines.read().splitlines()

    def test_torch_is_timed_in_turns_on_the_same_shapes(self):
        out = self.expect(0, *SMALL, "--batch", "q8", "--threads", "1", *self.vs).stdout
        self.assertIn("in turns with torch 0.0-fake", out)
        report = json.loads(self.expect(0, *SMALL, "--batch", "q8", *self.vs, "--json").stdout)
        self.assertEqual(report["rows"][0]["torch_version"], "0.0-fake")
        self.assertRegex(out, r"(?m)^\| 16/8/16 .* \| (bf16|fp32)( padded)? \| [0-9.]+x \|$")
        calls = self.calls()
        self.assertEqual(calls[0], "threads 1")
        shape = "(1, 2, 8, 24) (1, 2, 8, 24)"
        for dtype in ("bf16", "fp32"):
            for width in (16, 24):  # as it is, and padded to the width of K
                self.assertIn(f"sdpa {dtype} {shape} (1, 2, 8, {width}) None True 0.204124", calls)

    def test_masks_that_is_causal_does_not_say_are_built(self):
        self.expect(0, *SMALL, "--batch", "3q4s10_q0s5_q6", *self.vs)
        self.assertTrue(any("(3, 2, 4, 24) (3, 2, 10, 24) (3, 2, 10, 16) tril(6) False" in call
                            for call in self.calls()))
        self.expect(0, *SMALL, "--batch", "q6s9", "--mask", "window:2,1", "--dtype", "fp32", *self.vs)
        self.assertTrue(any(call.startswith("sdpa fp32 (1, 2, 6, 24)") and
                            "tril(4)triu(1) False" in call for call in self.calls()))
        self.expect(0, *SMALL, "--batch", "q5s7", "--mask", "full", *self.vs)
        self.assertTrue(any("(1, 2, 5, 24)" in call and "None False" in call
                            for call in self.calls()))

    def test_a_torch_that_fails_leaves_its_column_empty(self):
        self.environment["FAKE_TORCH_FAILS"] = "1"
        out = self.expect(0, *SMALL, "--batch", "q8", *self.vs).stdout
        self.assertIn("torch  q8: RuntimeError: out of memory", out)
        self.assertIn("| - | - | - |", out)

    def test_what_is_missing_is_named_with_exit_code_5(self):
        batch = [*SMALL, "--batch", "q8", "--vs", "torch", "--python"]
        self.expect_error(5, "cannot run 'no-such-python'", *batch, "no-such-python")
        self.path("lib/torch/__init__.py", "raise ImportError('no torch\\nhere')")
        self.expect_error(5, "has no usable torch: ImportError: no torch here", *batch,
                          sys.executable)
        self.expect_error(5, "it ended without an answer", *batch, "true")
        self.expect_error(5, "want ready", *batch, "echo")


class Check(BenchTest):
    def test_one_case_is_checked_as_its_spec_says(self):
        report = json.loads(self.expect(0, "check", "--case", "dims=16/8/24,lens=2x5/9_0/3,heads=3,"
                                        "mask=window:inf:2,q_split=1,data=peaky", "--json").stdout)
        self.assertEqual((report["suite"], report["cases"], report["result"]), ("case", 1, "PASS"))
        self.expect_error(2, "--case: case: heads: got '0'", "check", "--case", "lens=1/1,heads=0")
        self.expect_error(2, "--case", "check", "--case", "lens=1/1", "--suite", "quick")
        # A case that no kernel takes has shown nothing.
        out = self.expect(1, "check", "--case", "lens=4/4,dtype=fp16,out=bf16").stdout
        self.assertIn("skipped", out)


class Completion(BenchTest):
    def complete(self, *words):
        script = self.path("completion", self.expect(0, "completion", "bash").stdout)
        line = " ".join(shlex.quote(word) for word in words)
        result = subprocess.run(
            ["bash", "-c", f"source {shlex.quote(script)}; COMP_WORDS=({line}); "
             f'COMP_CWORD={len(words) - 1}; _flashprime; printf "%s\\n" "${{COMPREPLY[@]}}"'],
            capture_output=True, text=True, timeout=60, cwd=self.folder)
        self.assertEqual(result.stderr, "")
        return [line for line in result.stdout.split("\n") if line]

    def test_bash_completes_verbs_options_values_and_files(self):
        self.assertEqual(self.complete("flashprime", "b"), ["bench"])
        self.assertIn("--version", self.complete("flashprime", "--"))
        self.assertEqual(self.complete("flashprime", "bench", "--gu"), ["--guard"])
        self.assertEqual(self.complete("flashprime", "check", "--suite", ""),
                         ["quick", "full", "known-bugs"])
        self.assertIn("deepseek-v3", self.complete("flashprime", "explain", "--model", "deep"))
        self.assertEqual(self.complete("flashprime", "explain", "--device", "c"), ["cpu", "cuda"])
        self.assertEqual(self.complete("flashprime", "check", "--suite", "=", "q"), ["quick"])
        self.assertEqual(self.complete("flashprime", "check", "--suite", "="),
                         ["quick", "full", "known-bugs"])
        self.path("trace of may.csv", "")
        for words in (["--trace", "tr"], ["--trace", "=", "tr"]):
            self.assertEqual(self.complete("flashprime", "replay", *words), ["trace of may.csv"])
        self.assertEqual(self.complete("flashprime", "check", "--seed", ""), [])
        self.assertEqual(self.complete("flashprime", "completion", ""),
                         ["-h", "--help", "bash", "zsh"])

    def test_a_folder_named_as_a_verb_does_not_make_the_verb_a_path(self):
        # Where all words are said to be names of files, bash completes be to bench/ in a folder
        # that has a bench.
        script = self.expect(0, "completion", "bash").stdout
        result = subprocess.run(["bash", "-c", script + "complete -p flashprime"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.stdout, "complete -F _flashprime flashprime\n", result.stderr)

    @unittest.skipUnless(shutil.which("zsh"), "no zsh here")
    def test_zsh_loads_its_script(self):
        script = self.path("_flashprime", self.expect(0, "completion", "zsh").stdout)
        result = subprocess.run(
            ["zsh", "-f", "-c", f"autoload -U compinit; compinit -u -D; source {shlex.quote(script)}; "
             "print ${_comps[flashprime]}; whence -w _flashprime_bench"],
            capture_output=True, text=True, timeout=60)
        self.assertEqual(result.stdout, "_flashprime\n_flashprime_bench: function\n", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
