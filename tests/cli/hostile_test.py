# SPDX-License-Identifier: Apache-2.0
"""Arguments and files that nobody should give, through the whole command.

Each is refused with its exit code and one line, within seconds and a bounded address space, and
leaves nothing behind. What the readers say about each malformed byte is in tests/unit/cli.
"""

import fcntl
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import unittest

from command_test import COMMAND, CONVERSATION, MOONCAKE
from run_test import H, T, TK, V, RunTest, inputs, npy_bytes, safetensors_bytes

MODEL = ["--model", "deepseek-v2-lite", "--tp", "16"]
EXPLAIN = ["explain", "--dims", "128,64,128"]
VERBS = {
    "info": [],
    "models": [],
    "explain": MODEL,
    "check": ["--filter", "causal"],
    "replay": ["--trace", CONVERSATION, *MODEL, "--steps", "1"],
    "run": ["--input", "absent", "--output", "absent.out"],
}
NO_NUMBERS = ["", "-1", "0x10", "1e999", "nan", "1,5", " 1", "9" * 30]
NUMBERS = {
    "replay": ["--layers", "--verify", "--budget", "--max-seqs", "--prefix-cache-tokens", "--steps",
               "--time-limit", "--max-memory", "--workspace-rows", "--max-model-len", "--threads",
               "--seed", "--tp"],
    "explain": ["--heads", "--tp"],
    "check": ["--threads", "--seed"],
    "run": ["--softmax-scale", "--output-scale", "--verify", "--max-memory", "--threads"],
}


def few_bytes_and_seconds():
    """Far below what the files here promise."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


class HostileTest(RunTest):
    def refused_quietly(self, exit_code, pattern, *arguments, **options):
        """One printable line on stderr that matches, nothing on stdout, nothing written."""
        before = sorted(os.listdir(self.folder.name))
        result = self.expect(exit_code, *arguments, preexec_fn=few_bytes_and_seconds, **options)
        self.assertRegex(result.stderr, rb"\Aflashprime: [ -~]+\n\Z")
        self.assertRegex(result.stderr.decode(), pattern)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)

    def replay(self, path):
        return ["replay", "--trace", path, *MODEL, "--plot", self.path("plot.svg")]


class Arguments(HostileTest):
    def test_every_verb_refuses_what_it_does_not_know(self):
        for verb, good in VERBS.items():
            for more in (["--frobnicate"], ["--frobnicate=1"], ["-q"], ["extra"], [""], ["--"]):
                if more == ["--"]:
                    more = ["--", "extra"]
                with self.subTest(verb=verb, more=more):
                    self.refused_quietly(2, ".", verb, *good, *more)

    def test_options_without_a_value_or_given_twice_are_refused(self):
        for verb, options in NUMBERS.items():
            good = [] if verb == "explain" else VERBS[verb]
            for option in options:
                with self.subTest(verb=verb, option=option):
                    self.refused_quietly(2, option, verb, *good, option)
                    self.refused_quietly(2, option, verb, *good, option, "1", option, "1")

    def test_what_is_no_number_is_refused_by_every_option_that_takes_one(self):
        for verb, options in NUMBERS.items():
            good = [a for a in VERBS[verb] if a not in ("--steps", "--tp", "1", "16")]
            for option in options:
                for value in NO_NUMBERS:
                    if option.endswith("-scale") and value == "9" * 30:
                        continue  # a number, if a large one
                    with self.subTest(verb=verb, option=option, value=value):
                        self.refused_quietly(2, option, verb, *good, f"{option}={value}")

    def test_lists_of_lengths(self):
        for batch in ("", "_", "q512_", "_q512", "q512__q512", "q", "0q1", "q1s", "q2s1", "q-1",
                      "q1.5", "q1e3", "Q1", "q1,q2", "q99999999999999999999", "9" * 100_000,
                      "1000000q1000000k", "q1000000000k", "q1s99999999999k"):
            with self.subTest(batch=batch[:40]):
                self.refused_quietly(2, "--batch", *EXPLAIN, "--batch", batch)
        # One argument of the most bytes that Linux passes, all of them items.
        many = "_".join(["q1"] * 43_000)
        report = self.json(0, *EXPLAIN, "--batch", many)
        self.assertEqual(report["batch"]["requests"], 43_000)

    def test_devices_and_dims_that_are_not_there(self):
        for device in ("99", "gpu", "cuda:", "cuda:-1", "cuda:99999999999", "cpu:0", ""):
            with self.subTest(device=device):
                self.refused_quietly(2, "--device", *EXPLAIN, "--device", device)
        for dims in ("", ",", ",,", "1,1", "1,1,1,1", "1,1,1,", "a,b,c", "1;1;1", "4294967296,1,1"):
            with self.subTest(dims=dims):
                self.refused_quietly(2, "--dims", "explain", "--dims", dims)

    def test_names_are_names_and_never_paths(self):
        name = "../../../../etc/passwd"
        self.refused_quietly(2, "--model", "explain", "--model", name)
        self.refused_quietly(2, ".", "check", "--filter", name)
        self.refused_quietly(2, "--trace", "replay", "--trace", "synthetic:" + name, *MODEL)
        tensors = inputs() | {name: ("F32", [1], bytes(4))}
        path = self.write("bad", safetensors_bytes(tensors, {"softmax_scale": "1"}))
        self.refused_quietly(3, r"bad: byte \d+: unknown tensor '\.\./", *self.arguments(path))

    def test_control_bytes_of_an_argument_do_not_reach_the_terminal(self):
        for text in ("\x1b[31mred", "two\nlines", "\r", "\x7f", "tab\t"):
            for arguments in ([text], ["info", text], ["info", "--" + text], [*EXPLAIN, "--batch", text],
                              ["explain", "--model", text], ["replay", "--trace", text, *MODEL]):
                with self.subTest(arguments=arguments):
                    self.refused_quietly(5 if "--trace" in arguments else 2, ".", *arguments)

    def test_bytes_that_are_no_utf8_become_json_all_the_same(self):
        for arguments in ([b"\xff"], [b"info", b"--\xff\xfe"], [b"replay", b"--trace", b"\xff", *MODEL]):
            result = self.expect(5 if b"replay" in arguments else 2, *arguments, "--json")
            self.assertIn("error", json.loads(result.stdout))

    def test_standard_output_that_goes_away_is_no_error_and_that_is_full_is(self):
        quick = {verb: good for verb, good in VERBS.items() if verb != "run"}
        for verb, good in quick.items():
            with self.subTest(verb=verb):
                read_end, write_end = os.pipe()
                os.close(read_end)
                result = self.expect(0, verb, *good, stdout=write_end)
                os.close(write_end)
                self.assertNotIn(b"flashprime:", result.stderr)
                for json_too in ([], ["--json"]):
                    with open("/dev/full", "wb") as full:
                        result = self.expect(5, verb, *good, *json_too, stdout=full)
                    self.assertIn(b"cannot write to stdout", result.stderr)

    def test_results_do_not_go_into_a_file_that_took_the_place_of_a_closed_stream(self):
        path = self.good_input()
        self.expect(0, *self.arguments(path))
        with open(self.output, "rb") as file:
            want = file.read()
        os.remove(self.output)
        command = subprocess.list2cmdline([COMMAND, *self.arguments(path)])
        for close, code in (("<&-", 0), ("2>&-", 0), (">&-", 5), ("<&- >&- 2>&-", 5)):
            result = subprocess.run(["sh", "-c", f"{command} {close}"], capture_output=True)
            self.assertEqual(result.returncode, code, result.stderr)
            with open(self.output, "rb") as file:
                self.assertEqual(file.read(), want)


class Files(HostileTest):
    def both(self, path):
        """The command lines that read `path`."""
        yield self.replay(path)
        yield self.arguments(path)

    def test_what_is_no_file_with_contents_is_refused_by_every_reader(self):
        os.mkdir(self.path("folder"))
        os.mkfifo(self.path("fifo"))
        os.symlink("loop", self.path("loop"))
        os.symlink("nowhere", self.path("dangling"))
        self.write("empty", b"")
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        server.bind(self.path("socket"))
        for name, code in (("folder", 3), ("fifo", 3), ("empty", 3), ("loop", 5), ("dangling", 5),
                           ("absent", 5), ("socket", 5), ("empty/below", 5), ("x" * 300, 5)):
            for arguments in self.both(self.path(name)):
                with self.subTest(name=name[:20], verb=arguments[0]):
                    offset = "" if code == 5 or name == "folder" else r".*byte 0"
                    self.refused_quietly(code, name[:20] + offset, *arguments)

    def test_endless_devices_are_refused(self):
        for name in ("/dev/zero", "/dev/urandom"):
            for arguments in self.both(name):
                with self.subTest(name=name, verb=arguments[0]):
                    self.refused_quietly(3, re.escape(name) + r".*byte \d+", *arguments)

    def test_an_endless_trace_of_good_lines_ends(self):
        os.mkfifo(self.path("endless"))
        header = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        # Both ends are open before the command is started: without a writer it would see the end.
        reader = os.open(self.path("endless"), os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(self.path("endless"), os.O_WRONLY)

        def write_forever():
            with open(writer, "wb", buffering=0) as fifo:
                try:
                    fifo.write(header)
                    while True:
                        fifo.write(b"2023-11-16 18:15:46,1,1\n" * 2000)
                except BrokenPipeError:
                    pass

        thread = threading.Thread(target=write_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(os.close, reader)
        self.refused_quietly(3, r"endless:10000002 \(byte 240000040\): want at most",
                             *self.replay(self.path("endless")))

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_unreadable_files_are_refused(self):
        path = self.write("secret", b"x")
        os.chmod(path, 0)
        for arguments in self.both(path):
            self.refused_quietly(5, "secret.*Permission denied", *arguments)

    def test_hostile_safetensors_name_file_and_offset(self):
        def header(text, data=b""):
            return struct.pack("<Q", len(text)) + text.encode() + data

        def tensor(shape="[1]", offsets="[0,4]", dtype='"F32"', name="q"):
            return f'"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'

        data = bytes(8)
        for content in (
            b"\x01",
            struct.pack("<Q", 100_000_001) + b"{" * 1000,
            struct.pack("<Q", 1 << 63) + b"{}",
            header("[]"),
            header("{" + "[" * 1_000_000),
            header('{"q":' * 100_000),
            header('{"\udcff":1}'.encode("utf-8", "surrogateescape").decode("latin-1")),
            header("{" + tensor() + "," + tensor() + "}", data),
            header("{" + tensor(dtype='"F31"') + "}", data),
            header("{" + tensor(offsets="[4,0]") + "}", data),
            header("{" + tensor() + "," + tensor(offsets="[2,6]", name="k") + "}", data),
            header("{" + tensor() + "," + tensor(offsets="[6,10]", name="k") + "}", data),
            header("{" + tensor(offsets="[0,400000000000]", shape="[100000000000]") + "}", data),
            header("{" + tensor(shape="[2]") + "}", data[:4]),
            header("{" + tensor(shape="[4611686018427387904,4]") + "}", data),
            header("{" + tensor(shape="[1.0]") + "}", data),
            header("{" + tensor(shape="[18446744073709551616]") + "}", data),
            header("{" + tensor(shape="[-1]") + "}", data),
            header("{" + ",".join(tensor("[0]", "[0,0]", name=f"t{i}") for i in range(100_000)) + "}"),
            header('{"__metadata__":{"softmax_scale":1}}'),
            header('{"__metadata__":[]}'),
        ):
            with self.subTest(content=content[:60]):
                path = self.write("bad", content)
                self.refused_quietly(3, r"bad: byte \d+: ", *self.arguments(path))

    def test_hostile_npy_files_name_file_and_offset(self):
        folder = self.path("npy")
        os.mkdir(folder)
        shape = f"({T}, {H}, 4)"
        size = T * H * 4 * 4

        def npy(dict_text, data=bytes(size), version=1, length=None):
            text = dict_text.encode() + b"\n"
            form = "<H" if version == 1 else "<I"
            prefix = b"\x93NUMPY" + bytes([version & 0xFF, 0])
            return prefix + struct.pack(form, len(text) if length is None else length) + text + data

        def good(descr="'<f4'", order="False", dims=shape):
            return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {dims}, }}"

        whole = npy(good())
        cases = [
            b"\x93NUMPX" + whole[6:],
            npy(good(), version=0),
            npy(good(), version=4),
            npy(good(), version=255),
            npy(good(), length=0),
            npy(good(), length=65535),
            npy(good(), version=2, length=0xFFFFFFFF),
            npy(good(), version=2, length=1 << 30),
            npy("[]"),
            npy("(" * 60_000),
            npy("{'descr': " * 6_000),
            npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}"),
            npy("{'descr': '<f4', 'shape': (1,)}"),
            npy(good() + " x"),
            *(npy(good(descr)) for descr in
              ("'|O'", "[('a', '<f4')]", "'>f4'", "'<U1'", "'f16'", "'float32'", "4")),
            npy(good(order="True")),
            *(npy(good(dims=dims)) for dims in
              (f"({T}, -2, 4)", "(9223372036854775808, 1, 1)", "(4294967296, 4294967296, 4)", "()",
               "(" + "1," * 30_000 + ")", f"({T}, {H})", "(3.0, 2, 4)")),
            whole[:-1],
            whole + b"x",
            *(whole[:length] for length in range(0, len(whole), 7)),
        ]
        for content in cases:
            with self.subTest(content=content[:60]):
                self.write("npy/q.npy", content)
                self.refused_quietly(3, r"q\.npy: byte \d+: ", *self.arguments(folder))

    def test_hostile_traces_name_file_line_and_offset(self):
        header = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        with open(MOONCAKE, "rb") as file:
            mooncake = file.read(3000)
        first = mooncake.index(b"\n") + 1
        for content in (
            header,
            header[:-10],
            header + b"2023-11-16 18:15:46.6805900,374\r\n",
            header + b"2023-11-16 18:15:46.6805900,374,4\x004\r\n",
            header + b"2023-11-16 18:15:46.6805900,nan,44\r\n",
            header + b"2023-11-16 18:15:46.6805900,99999999999,44\r\n",
            header + header,
            header + b"7" * 1_100_000,
            b"\xff\xfe" + header.decode().encode("utf-16-le"),
            b"{" * 100_000,
            b"[" * 100_000,
            b"{}",
            mooncake[: first - 2],
            mooncake[:first] + b"\n",
            mooncake[:first] + mooncake[:10],
            mooncake[:first].replace(b'"input_length"', b'"input_lenght"'),
            mooncake[:first].replace(b"[", b"[[", 1),
            b'{"timestamp": 0, "input_length": 51200512, "output_length": 1, "hash_ids": ['
            + b"1," * 100_001 + b"1]}",
        ):
            with self.subTest(content=content[:60]):
                path = self.write("bad", content)
                self.refused_quietly(3, r"bad:\d+ \(byte \d+\): ", *self.replay(path))

    def test_real_oddities_are_read(self):
        with open(CONVERSATION, "rb") as file:
            lines = file.read().splitlines()[:4]
        one_step = ["--steps", "1", "--verify", "1"]
        for content in (b"\r\n".join(lines), b"\n".join(lines) + b"\n", b"\xef\xbb\xbf" + b"\n".join(lines)):
            path = self.write("trace", content)
            report = self.json(0, "replay", "--trace", path, *MODEL, *one_step)
            self.assertEqual(report["trace_requests"], 3)

    def test_an_interrupt_ends_a_wait_for_a_pipe(self):
        os.mkfifo(self.path("waiting"))
        end = os.open(self.path("waiting"), os.O_RDWR)
        self.addCleanup(os.close, end)
        os.write(end, b"TIMESTAMP,")
        process = subprocess.Popen([COMMAND, *self.replay(self.path("waiting"))],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        unread = b"unknown"
        while unread != bytes(4):  # then it waits for more
            time.sleep(0.01)
            unread = fcntl.ioctl(end, termios.FIONREAD, bytes(4))
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(stdout, b"")
        self.assertEqual(os.listdir(self.folder.name), ["waiting"])

    def test_a_plot_that_does_not_fit_leaves_the_older_one(self):
        path = self.write("plot.svg", b"old")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        result = self.expect(5, "replay", "--trace", MOONCAKE, *MODEL, "--steps", "1", "--plot", path,
                             preexec_fn=limit)
        self.assertIn(b"File too large", result.stderr)
        self.assertIn(b"PASS", result.stdout)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"old")
        self.assertEqual(os.listdir(self.folder.name), ["plot.svg"])


if __name__ == "__main__":
    unittest.main()
