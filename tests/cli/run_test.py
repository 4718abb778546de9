# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of `flashprime run`: files in, files out, and everything that can be wrong."""

import json
import math
import os
import random
import resource
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from command_test import COMMAND, CommandTest, run

# Three new tokens on five keys, two heads, dims 3/1/2; as floats that every dtype holds exactly.
T, TK, H, NOPE, ROPE, V = 3, 5, 2, 3, 1, 2
SCALE = 0.5


def numbers(count, seed):
    generator = random.Random(seed)
    return [generator.randint(-16, 16) / 8 for _ in range(count)]


def encode(dtype, values):
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    if dtype == "I32":
        return struct.pack(f"<{len(values)}i", *values)
    # bf16: the upper half of a float, exact for our values.
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def safetensors_bytes(tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy_bytes(descr, shape, content):
    text = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)}) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + content


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = content[8 + length + begin : 8 + length + end]
        tensors[name] = (entry["dtype"], entry["shape"], data)
    return tensors, metadata


def floats(content):
    return struct.unpack(f"<{len(content) // 4}f", content)


def inputs(dtype="F32", parts=False):
    q, k, v = numbers(T * H * 4, 1), numbers(TK * H * 3, 2), numbers(TK * H * V, 4)
    pe = numbers(TK, 3)
    # k joined has its rope part repeated in every head.
    joined = []
    for row in range(TK):
        for head in range(H):
            start = (row * H + head) * NOPE
            joined += k[start : start + NOPE] + [pe[row]]
    tensors = {"v": (dtype, [TK, H, V], encode(dtype, v))}
    if parts:
        q_nope = [x for i, x in enumerate(q) if i % 4 < 3]
        tensors["q_nope"] = (dtype, [T, H, NOPE], encode(dtype, q_nope))
        tensors["q_pe"] = (dtype, [T, H, ROPE], encode(dtype, q[3::4]))
        tensors["k_nope"] = (dtype, [TK, H, NOPE], encode(dtype, k))
        tensors["k_pe"] = (dtype, [TK, ROPE], encode(dtype, pe))
    else:
        tensors["q"] = (dtype, [T, H, 4], encode(dtype, q))
        tensors["k"] = (dtype, [TK, H, 4], encode(dtype, joined))
    return tensors


def expected(causal=True):
    """out [T, H, V] and lse [H, T] by the definition."""
    q, v = numbers(T * H * 4, 1), numbers(TK * H * V, 4)
    k, pe = numbers(TK * H * 3, 2), numbers(TK, 3)
    out, lse = [], [[0.0] * T for _ in range(H)]
    for t in range(T):
        for h in range(H):
            query = q[(t * H + h) * 4 : (t * H + h) * 4 + 4]
            logits = []
            for j in range(t + TK - T + 1 if causal else TK):
                key = k[(j * H + h) * 3 : (j * H + h) * 3 + 3] + [pe[j]]
                logits.append(SCALE * sum(a * b for a, b in zip(query, key)))
            total = sum(math.exp(x) for x in logits)
            lse[h][t] = math.log(total)
            for e in range(V):
                weighted = (math.exp(x) * v[(j * H + h) * V + e] for j, x in enumerate(logits))
                out.append(sum(weighted) / total)
    return out, [x for row in lse for x in row]


class RunTest(CommandTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.output = self.path("out.safetensors")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def good_input(self, name="in.safetensors", **options):
        metadata = {"softmax_scale": str(SCALE)}
        return self.write(name, safetensors_bytes(inputs(**options), metadata))

    def arguments(self, input_path, *more):
        return ["run", "--input", input_path, "--output", self.output, *more]

    def result(self, input_path, *more):
        """The output of a run that must succeed."""
        self.expect(0, *self.arguments(input_path, *more))
        tensors, metadata = read_safetensors(self.output)
        os.remove(self.output)
        return tensors, metadata

    def refused(self, exit_code, text, *arguments):
        """An error of one line, and nothing written."""
        before = sorted(os.listdir(self.folder.name))
        self.expect_error(exit_code, text, *arguments)
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)

    def assert_close(self, got, want):
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertAlmostEqual(a, b, delta=2e-6)


class Results(RunTest):
    def test_computes_attention_by_its_definition(self):
        for causal in (True, False):
            tensors, metadata = self.result(
                self.good_input(), "--causal" if causal else "--full", "--verify", "100"
            )
            out, lse = expected(causal)
            self.assertEqual(tensors["out"][:2], ("F32", [T, H, V]))
            self.assertEqual(tensors["lse"][:2], ("F32", [H, T]))
            self.assert_close(floats(tensors["out"][2]), out)
            self.assert_close(floats(tensors["lse"][2]), lse)
            self.assertEqual(metadata["mask"], "causal" if causal else "full")
            self.assertEqual(float(metadata["softmax_scale"]), SCALE)

    def test_q_and_k_in_parts_are_the_joined_ones(self):
        joined = self.result(self.good_input())
        self.assertEqual(self.result(self.good_input(parts=True)), joined)
        mixed = inputs() | {k: v for k, v in inputs(parts=True).items() if k[0] == "k"}
        del mixed["k"]
        path = self.write("mixed", safetensors_bytes(mixed, {"softmax_scale": str(SCALE)}))
        self.assertEqual(self.result(path), joined)

    def test_a_folder_of_npy_files_is_the_same_input(self):
        descr = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4"}
        for dtype in ("F32", "F16", "BF16"):
            tensors = inputs(dtype) | {
                "cu_seqlens_q": ("I32", [2], encode("I32", [0, T])),
                "cu_seqlens_k": ("I32", [2], encode("I32", [0, TK])),
            }
            folder = self.path("npy_" + dtype)
            os.mkdir(folder)
            for name, (kind, shape, content) in tensors.items():
                self.write(f"{folder}/{name}.npy", npy_bytes(descr[kind], shape, content))
            more = ["--dtype", "bf16"] if dtype == "BF16" else []
            self.assertEqual(
                self.result(folder, "--softmax-scale", str(SCALE), *more),
                self.result(self.good_input(dtype=dtype)),
            )

    def test_sequences_do_not_see_each_other(self):
        whole = inputs()
        lengths = {
            "cu_seqlens_q": ("I32", [4], encode("I32", [0, 1, 1, 3])),
            "cu_seqlens_k": ("I32", [4], encode("I32", [0, 2, 3, 5])),
        }
        metadata = {"softmax_scale": "0.5", "causal": "false"}
        path = self.write("batch", safetensors_bytes(whole | lengths, metadata))
        tensors, _ = self.result(path)
        out = []
        for q_rows, k_rows in (((0, 1), (0, 2)), ((1, 3), (3, 5))):
            part = {}
            for name, (dtype, shape, content) in whole.items():
                begin, end = q_rows if name == "q" else k_rows
                row = len(content) // shape[0]
                rows = content[begin * row : end * row]
                part[name] = (dtype, [end - begin, *shape[1:]], rows)
            alone, _ = self.result(self.write("alone", safetensors_bytes(part, metadata)))
            out.append(alone["out"][2])
        self.assertEqual(tensors["out"][2], b"".join(out))

    def test_options_win_over_metadata(self):
        metadata = {"softmax_scale": "9", "causal": "False", "other": "ignored"}
        path = self.write("meta", safetensors_bytes(inputs(), metadata))
        want = self.result(self.good_input(), "--causal")
        self.assertEqual(self.result(path, "--softmax-scale", "0.5", "--causal"), want)
        self.assertEqual(self.result(path)[1]["mask"], "full")
        self.assertEqual(self.result(path)[1]["softmax_scale"], "9")

    def test_lse_can_be_tokens_by_heads(self):
        lse = floats(self.result(self.good_input())[0]["lse"][2])
        tensors, metadata = self.result(self.good_input(), "--lse-layout", "tokens-heads")
        self.assertEqual(tensors["lse"][1], [T, H])
        self.assertEqual(metadata["lse_layout"], "tokens-heads")
        transposed = [lse[h * T + t] for t in range(T) for h in range(H)]
        self.assertEqual(list(floats(tensors["lse"][2])), transposed)

    def test_output_types(self):
        path = self.good_input(dtype="BF16")
        self.assertEqual(self.result(path)[0]["out"][0], "BF16")
        out = self.result(path, "--out-dtype", "fp32")[0]["out"]
        self.assertEqual(out[0], "F32")
        self.assert_close(floats(out[2]), expected()[0])
        fp8 = self.result(path, "--out-dtype", "e4m3", "--output-scale", "0.01", "--verify", "9")
        self.assertEqual(fp8[0]["out"][0], "F8_E4M3")
        self.assertEqual(len(fp8[0]["out"][2]), T * H * V)
        self.assertAlmostEqual(float(fp8[1]["output_scale"]), 0.01)
        fp64 = self.result(path, "--out-dtype", "fp64", "--kernel", "cpu_reference")[0]
        self.assertEqual((fp64["out"][0], fp64["lse"][0]), ("F64", "F64"))

    def test_a_window_hides_what_is_outside_it(self):
        everything = self.result(self.good_input(), "--full")[0]
        self.assertEqual(self.result(self.good_input(), "--window", "inf,inf")[0], everything)
        self.assertEqual(
            self.result(self.good_input(), "--window", "inf,0")[0],
            self.result(self.good_input(), "--causal")[0],
        )
        narrow = self.result(self.good_input(), "--window", "0,0", "--verify", "9")[0]
        values = floats(inputs()["v"][2])
        self.assert_close(floats(narrow["out"][2]), values[(TK - T) * H * V :])

    def test_empty_tensors_are_legal(self):
        tensors = inputs() | {"q": ("F32", [0, H, 4], b"")}
        path = self.write("no_queries", safetensors_bytes(tensors, {"softmax_scale": "1"}))
        self.assertEqual(self.result(path)[0]["out"], ("F32", [0, H, V], b""))
        tensors = inputs() | {"k": ("F32", [0, H, 4], b""), "v": ("F32", [0, H, V], b"")}
        path = self.write("no_keys", safetensors_bytes(tensors, {"softmax_scale": "1"}))
        tensors, _ = self.result(path, "--verify", "6")
        self.assertEqual(set(floats(tensors["out"][2])), {0.0})
        self.assertEqual(set(floats(tensors["lse"][2])), {-math.inf})

    def test_threads_change_no_bit(self):
        path = self.good_input()
        self.assertEqual(self.result(path, "--threads", "1"), self.result(path, "--threads", "3"))

    def test_replaces_an_older_output(self):
        self.write("out.safetensors", b"old")
        self.assertIn("out", self.result(self.good_input())[0])

    def test_report_says_what_ran_and_how_to_repeat_it(self):
        path = self.good_input()
        text = self.expect(0, *self.arguments(path, "--verify", "6")).stdout.decode()
        for part in ("4/0/2", "2 heads", "causal", "verified", "PASS", "repro: flashprime run"):
            self.assertIn(part, text)
        report = self.json(0, *self.arguments(path, "--verify", "6"))
        self.assertEqual(report["result"], "PASS")
        self.assertEqual(report["verify"]["rows"], 6)
        self.assertLessEqual(report["verify"]["worst_out_over_bound"], 1.0)
        self.assertEqual(report["output"], self.output)
        self.assertEqual(self.json(0, *self.arguments(path))["result"], "NOT VERIFIED")

    def test_paths_need_not_be_utf8(self):
        path = os.fsencode(self.path("")) + b"\xff\xfe"
        os.rename(self.good_input(), path)
        self.expect(0, "run", "--input", path, "--output", path + b".out", "--json")
        self.assertTrue(os.path.exists(path + b".out"))


class Usage(RunTest):
    def test_bad_usage_is_exit_code_2_and_writes_nothing(self):
        path = self.good_input()
        for more in (
            ["--softmax-scale", "nan"],
            ["--softmax-scale", "1e999"],
            ["--softmax-scale", "0x1"],
            ["--softmax-scale", "0,5"],
            ["--softmax-scale", "-1"],
            ["--softmax-scale", ""],
            ["--softmax-scale", "1", "--softmax-scale", "1"],
            ["--causal", "--full"],
            ["--window", "1,2", "--full"],
            ["--window", "1"],
            ["--window", "-1,0"],
            ["--window", "1,2,3"],
            ["--dtype", "fp8"],
            ["--out-dtype", "int8"],
            ["--out-dtype", "e4m3"],
            ["--output-scale", "1"],
            ["--out-dtype", "e4m3", "--output-scale", "0"],
            ["--out-dtype", "fp32", "--output-scale", "1"],
            ["--lse-layout", "HT"],
            ["--verify", "-1"],
            ["--verify", "1e3"],
            ["--max-memory", "0"],
            ["--max-memory", "16g"],
            ["--max-memory", "99999999T"],
            ["--threads", "0"],
            ["--frobnicate"],
            ["extra"],
        ):
            before = os.listdir(self.folder.name)
            result = self.expect(2, *self.arguments(path, *more))
            self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
            self.assertEqual(result.stdout, b"")
            self.assertEqual(os.listdir(self.folder.name), before)
        self.expect(2, "run")
        self.expect(2, "run", "--input", path)
        self.expect(2, "run", "--output", self.output)

    def test_the_scale_must_come_from_somewhere(self):
        path = self.write("no_scale", safetensors_bytes(inputs()))
        self.refused(2, "--softmax-scale", *self.arguments(path))

    def test_the_input_is_never_the_output(self):
        path = self.good_input()
        os.link(path, self.path("hard"))
        os.symlink(path, self.path("soft"))
        for output in (path, self.path("hard"), self.path("soft"), self.path("./in.safetensors")):
            self.refused(2, "is an input file", "run", "--input", path, "--output", output)
        folder = self.path("npy")
        os.mkdir(folder)
        q = self.write("npy/q.npy", npy_bytes("<f4", [T, H, 4], bytes(96)))
        self.refused(2, "is an input file", "run", "--input", folder, "--output", q)

    def test_what_no_kernel_computes_is_exit_code_4(self):
        path = self.good_input()
        fp64 = ["--out-dtype", "fp64", "--kernel", "cpu_fast"]
        self.refused(4, "fp64", *self.arguments(path, *fp64))
        self.refused(4, "no_such", *self.arguments(path, "--kernel", "no_such"))

    def test_a_gpu_is_refused_because_the_tensors_are_in_host_memory(self):
        self.refused(4, "--device cuda:99: this verb keeps its tensors in host memory",
                     *self.arguments(self.good_input(), "--device", "cuda:99"))


class BadInput(RunTest):
    def refused_file(self, text, content, *more):
        self.refused(3, text, *self.arguments(self.write("bad", content), *more))

    def test_every_truncation_is_refused(self):
        with open(self.good_input(), "rb") as file:
            content = file.read()
        step = max(1, len(content) // 40)
        for size in [*range(0, 12), *range(12, len(content), step), len(content) - 1]:
            path = self.write("bad", content[:size])
            result = self.expect(3, *self.arguments(path))
            self.assertRegex(result.stderr.decode(), r"bad: byte \d+: ")
            self.assertFalse(os.path.exists(self.output))

    def test_hostile_headers_name_file_and_offset(self):
        for text, content in (
            ("bad: byte 0: header length: got 18446744073709551615", b"\xff" * 8 + b"{}"),
            ("bad: byte 0: header length: got 100000001", struct.pack("<Q", 100_000_001) + b"{}"),
            ("bad: byte 8: header: want it to begin", struct.pack("<Q", 2) + b"[]"),
            ("unknown tensor 'weights'", safetensors_bytes({"weights": ("F32", [0], b"")})),
            ("missing tensor 'q'", safetensors_bytes({})),
        ):
            self.refused_file(text, content)

    def test_tensors_that_contradict_each_other_are_refused(self):
        def replaced(**tensors):
            return safetensors_bytes(inputs() | tensors, {"softmax_scale": "1"})

        def lengths(q, k, dtype="I32"):
            return replaced(
                cu_seqlens_q=(dtype, [len(q)], encode("I32", q)),
                cu_seqlens_k=("I32", [len(k)], encode("I32", k)),
            )

        v3 = ("F32", [TK, H + 1, V], bytes(4 * TK * (H + 1) * V))
        short_k = ("F32", [TK - 1, H, 4], bytes(4 * (TK - 1) * H * 4))
        for text, content in (
            ("'v': got F16", replaced(v=inputs("F16")["v"])),
            ("'q': got shape [3, 8], want 3 axes", replaced(q=("F32", [T, 8], bytes(96)))),
            ("kShape", replaced(v=v3)),
            ("kShape", replaced(k=short_k)),
            ("kCuSeqlens", lengths([0, T - 1], [0, TK])),
            ("kCuSeqlens", lengths([1, T], [0, TK])),
            ("kCuSeqlens", lengths([0, 2, 1, T], [0, 1, 2, TK])),
            ("kCuSeqlens", lengths([0, 1, T], [0, TK])),
            ("kCuSeqlens", lengths([0, T], [0, 2**31 - 1])),
            ("'cu_seqlens_q': got F32, want I32", lengths([0, T], [0, TK], "F32")),
        ):
            self.refused_file(text, content)

    def test_bad_metadata_are_refused(self):
        for key, value in (("softmax_scale", "one"), ("softmax_scale", "nan"), ("causal", "2")):
            metadata = {"softmax_scale": "1"} | {key: value}
            self.refused_file(f"{key}: got '{value}'", safetensors_bytes(inputs(), metadata))
        metadata = {"softmax_scale": "1e300"}
        self.refused_file("kNumeric", safetensors_bytes(inputs(), metadata))

    def test_a_bad_npy_file_is_named(self):
        folder = self.path("npy")
        os.mkdir(folder)
        self.refused(3, "npy: the folder has no .npy file", *self.arguments(folder))
        path = self.write("npy/q.npy", b"\x93NUMPX\x01\x00")
        self.refused(3, "q.npy: byte ", *self.arguments(folder))
        self.write("npy/q.npy", npy_bytes(">f4", [T, H, 4], bytes(96)))
        self.refused(3, "descr: got '>f4'", *self.arguments(folder))
        os.rename(path, self.path("npy/query.npy"))
        self.refused(3, "query.npy: byte 0: unknown tensor 'query'", *self.arguments(folder))

    def test_what_is_no_regular_file_is_refused(self):
        self.refused(3, "is a device", *self.arguments("/dev/zero"))
        os.mkfifo(self.path("fifo"))
        self.refused(3, "is a FIFO", *self.arguments(self.path("fifo")))
        self.refused(5, "No such file", *self.arguments(self.path("none")))
        os.symlink("loop", self.path("loop"))
        self.refused(5, "symbolic links", *self.arguments(self.path("loop")))

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_an_unreadable_file_is_refused(self):
        path = self.good_input()
        os.chmod(path, 0)
        self.refused(5, "Permission denied", *self.arguments(path))

    def test_memory_is_capped_before_it_is_allocated(self):
        path = self.good_input()
        self.refused(5, "--max-memory 100", *self.arguments(path, "--max-memory", "100"))
        # Sparse: 20 GiB of data that nobody wrote.
        rows = 5 << 20
        header = {"q": {"dtype": "F32", "shape": [rows, 256, 4], "data_offsets": [0, rows * 4096]}}
        end = rows * 4096
        for name, width in (("k", 4), ("v", 2)):
            size = TK * H * width * 4
            shape = [TK, H, width]
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        path = self.write("sparse", struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + end)
        more = ["--softmax-scale", "1"]
        self.refused(5, "--max-memory 17,179,869,184", *self.arguments(path, *more))


class Output(RunTest):
    def test_paths_that_cannot_be_written_are_refused_at_once(self):
        path = self.good_input()
        os.mkdir(self.path("folder"))
        for text, output in (
            ("is a directory", self.path("folder")),
            ("name of a file", self.path("folder/")),
            ("No such file", self.path("no/such/out")),
            ("Not a directory", path + "/out"),
            ("not a regular file", "/dev/null"),
            ("not a regular file", "/dev/full"),
        ):
            self.refused(5, text, "run", "--input", path, "--output", output)

    def test_a_file_size_limit_leaves_nothing(self):
        path = self.good_input()

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        before = sorted(os.listdir(self.folder.name))
        result = self.expect(5, *self.arguments(path), preexec_fn=limit)
        self.assertIn(b"File too large", result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)

    def test_an_interrupt_leaves_nothing_and_long_runs_show_progress(self):
        # Seconds of work on any processor, in parts of a fraction of that.
        rows, heads, dim = 24576, 8, 64
        content = bytes(rows * heads * dim * 2)
        tensors = {name: ("BF16", [rows, heads, dim], content) for name in "qkv"}
        path = self.write("long", safetensors_bytes(tensors, {"softmax_scale": "1"}))
        arguments = self.arguments(path, "--full", "--threads", "1")
        before = sorted(os.listdir(self.folder.name))
        process = subprocess.Popen(
            [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        line = process.stderr.readline()
        self.assertRegex(line.decode(), r"^run  \d+ of \d+ parts  ")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"interrupted, nothing written", stderr)
        self.assertEqual(stdout, b"")
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)


if __name__ == "__main__":
    unittest.main()
