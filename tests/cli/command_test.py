# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of the flashprime command: exit codes, streams, JSON, signals.

FLASHPRIME_COMMAND names the binary, FLASHPRIME_DATA the folder of trace excerpts.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

COMMAND = os.environ["FLASHPRIME_COMMAND"]
DATA = os.environ["FLASHPRIME_DATA"]
CONVERSATION = os.path.join(DATA, "azure_llm_2023_conv_500.csv")
MOONCAKE = os.path.join(DATA, "mooncake_conversation_200.jsonl")
REPLAY = ["replay", "--trace", CONVERSATION, "--model", "deepseek-v2-lite", "--tp", "8"]


def run(*arguments, env=None, **options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHPRIME_")}
    environment.update(env or {})
    return subprocess.run(
        [COMMAND, *arguments],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=options.pop("stderr", subprocess.PIPE),
        env=environment,
        timeout=120,
        **options,
    )


class CommandTest(unittest.TestCase):
    def expect(self, exit_code, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, exit_code, (arguments, result.stdout, result.stderr))
        return result

    def expect_error(self, exit_code, text, *arguments, **options):
        """One line on stderr that contains `text`, nothing on stdout, and the same in JSON."""
        result = self.expect(exit_code, *arguments, **options)
        stderr = result.stderr.decode()
        self.assertEqual(stderr.count("\n"), 1, stderr)
        self.assertTrue(stderr.startswith("flashprime: "), stderr)
        self.assertIn(text, stderr)
        self.assertEqual(result.stdout, b"")
        with_json = self.expect(exit_code, *arguments, "--json", **options)
        error = json.loads(with_json.stdout)
        self.assertIn(text, error["error"])
        self.assertEqual(error["exit_code"], exit_code)

    def json(self, exit_code, *arguments, **options):
        return json.loads(self.expect(exit_code, *arguments, "--json", **options).stdout)


class Usage(CommandTest):
    def test_help_and_version_are_answers(self):
        for arguments in (["--help"], ["replay", "--help"], ["check", "-h"], ["--version"]):
            result = self.expect(0, *arguments)
            self.assertIn(b"flashprime", result.stdout.lower())
            self.assertEqual(result.stderr, b"")

    def test_a_misspelt_word_is_named_before_what_is_missing(self):
        for text, *arguments in (
            ("unknown verb 'frob'; want one of info, models, explain", "frob"),
            ("unknown verb 'chekc' (did you mean 'check'?)", "chekc"),
            ("no verb; want one of info, models",),
            ("got '--frob' instead of a verb", "--frob"),
            ("bench: unknown option '--bacth' (did you mean '--batch'?)", "bench", "--bacth", "q8"),
            ("info: unknown option '--frob'; see `flashprime info --help`", "info", "--frob"),
            ("info: got 'extra', which it does not take", "info", "extra"),
            ("--batch is required", "bench"),
        ):
            result = self.expect(2, *arguments)
            self.assertIn(text, result.stderr.decode())
            self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
            self.assertEqual(result.stdout, b"")
        self.assertIn(b"'--json' goes after the verb: flashprime info --json",
                      self.expect(2, "--json", "info").stderr)

    def test_bad_usage_is_exit_code_2(self):
        for arguments in (
            [],
            ["frobnicate"],
            ["info", "--frobnicate"],
            ["info", "extra"],
            ["explain"],
            ["explain", "--model"],
            ["explain", "--model", "deepseek-v9"],
            ["explain", "--model", "deepseek-v3", "--dims", "128,64,128"],
            ["explain", "--model", "deepseek-v3", "--model", "deepseek-v3"],
            ["explain", "--model", "deepseek-v3", "--tp", "3"],
            ["explain", "--model", "deepseek-v3", "--tp", "8", "--heads", "4"],
            ["explain", "--dims", "128,64"],
            ["explain", "--dims", "128,64,128,"],
            ["explain", "--dims", "128,64,0x80"],
            ["explain", "--dims", "128,64,-128"],
            ["explain", "--dims", "1e9,64,128"],
            ["explain", "--dims", "128,64,128", "--dtype", "int8"],
            ["explain", "--dims", "128,64,128", "--device", "cuda:x"],
            ["explain", "--dims", "128,64,128", "--mask", "window:1"],
            ["explain", "--dims", "128,64,128", "--lse", "maybe"],
            ["explain", "--dims", "128,64,128", "--batch", "q512_"],
            ["explain", "--dims", "128,64,128", "--batch", ""],
            ["check", "--suite", "huge"],
            ["check", "--filter", "no case has this name"],
            ["replay", "--model", "deepseek-v3"],
        ):
            with self.subTest(arguments=arguments):
                result = self.expect(2, *arguments)
                self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
                self.assertTrue(result.stderr.startswith(b"flashprime: "), result.stderr)

    def test_numbers_are_strict(self):
        for value in ("0", "-1", "+1", "0x10", "1e3", "1e999", "nan", "inf", "1.5", "", " 1", "1,000",
                      "99999999999999999999"):
            with self.subTest(value=value):
                result = self.expect(2, *REPLAY, "--steps", value)
                self.assertIn(b"--steps", result.stderr)

    def test_messages_name_got_and_wanted(self):
        self.expect_error(2, "--budget: got '0x10', want an integer", *REPLAY, "--budget", "0x10")
        self.expect_error(2, "--budget: got 100, want at least --max-seqs (256)", *REPLAY,
                          "--budget", "100")
        self.expect_error(2, "position 5: got '+'", "explain", "--dims", "1,1,1", "--batch",
                          "q512+q1")
        self.expect_error(2, "want a divisor of the 16 heads", "explain", "--model",
                          "deepseek-v2-lite", "--tp", "5")


    def test_a_variable_with_a_value_that_means_nothing_is_an_error(self):
        for value in ("", "0", "abc", "-1", "1025", "2 "):
            self.expect_error(2, "FLASHPRIME_THREADS: got '" + value + "'", "info",
                              env={"FLASHPRIME_THREADS": value})


class Answers(CommandTest):
    def test_explain_names_request_and_kernels_of_an_architecture(self):
        model = ["--model", "deepseek-v3", "--tp", "8", "--batch", "8q512s8k", "--json"]
        answer = json.loads(run("explain", *model, "--arch", "sm_120a").stdout)
        self.assertIn(".q_shape = {4096, 16, 192}", answer["request_key"])
        names = [kernel["kernel"] for kernel in answer["gpu_kernels"]]
        self.assertEqual(names, ["sm80_mla_prefill", "sm80_mla_prefill", "combine_splits"])
        self.assertIn("policy.block_kv", answer["gpu_kernels"][0]["key"])
        invariant = json.loads(
            run("explain", *model, "--arch", "sm_120a", "--batch-invariant").stdout
        )
        self.assertEqual(len(invariant["gpu_kernels"]), 1)
        self.assertIn(".num_splits = 1", invariant["request_key"])
        for arch, code in (("sm_1", 2), ("gpu", 2)):
            self.assertEqual(run("explain", *model, "--arch", arch).returncode, code)

    def test_info_names_build_processor_and_environment(self):
        result = self.expect(0, "info", env={"FLASHPRIME_THREADS": "2", "FLASHPRIME_NOSUCH": "x"})
        text = result.stdout.decode()
        self.assertRegex(text, r"cuda +(none: driver: |cuda:0 \(sm_)")
        self.assertIn("FLASHPRIME_THREADS=2  (in force)", text)
        self.assertIn("FLASHPRIME_NOSUCH=x  (no variable of FlashPrime)", text)
        info = self.json(0, "info", env={"FLASHPRIME_THREADS": "3"})
        self.assertEqual(info["cpu"]["threads"], 3)
        self.assertIn("cpu_fast", info["kernels"])

    def test_models_prints_every_preset_with_its_source(self):
        models = {model["name"]: model for model in self.json(0, "models")["models"]}
        self.assertEqual(len(models), 12)
        self.assertAlmostEqual(models["deepseek-v3"]["softmax_scale"], 0.13523378, places=7)
        self.assertIsNone(models["mistral-large-3"]["num_layers"])
        text = self.expect(0, "models").stdout.decode()
        for name, model in models.items():
            self.assertIn(name, text)
            self.assertTrue(model["source"])

    def test_explain_says_what_runs_and_why_not_the_others(self):
        result = self.json(0, "explain", "--model", "deepseek-v3", "--tp", "8", "--batch",
                           "4q512s8k")
        self.assertTrue(result["supported"])
        self.assertEqual(result["kernel"], "cpu_fast")
        self.assertEqual(result["heads"], 16)
        self.assertEqual(result["batch"]["context_tokens"], 4 * 7680)
        text = self.expect(0, "explain", "--dims", "100,64,128").stdout.decode()
        self.assertIn("kernel    cpu_fast", text)
        self.assertRegex(text, "not used  cpu_reference +lower priority")
        self.assertRegex(text, "not used  sm80_mla_prefill +.*dims: got nope 100, rope 64, v 128")

    def test_unsupported_is_exit_code_4_with_every_kernels_reasons(self):
        text = self.expect(4, "explain", "--dims", "100,64,128", "--device", "cuda:0").stdout
        self.assertIn(b"unsupported (exit 4)", text)
        self.assertIn(b"would work", text)
        result = self.json(4, "explain", "--dims", "0,64,0")
        self.assertFalse(result["supported"])
        self.assertIsNone(result["kernel"])
        verdicts = {verdict["kernel"]: verdict for verdict in result["verdicts"]}
        self.assertEqual(len(verdicts["cpu_fast"]["reasons"]), 2)  # nope and v
        one = self.json(0, "explain", "--dims", "128,64,128", "--out-dtype", "fp64")
        self.assertEqual(one["kernel"], "cpu_reference")
        self.expect_error(4, "unsupported", *REPLAY, "--device", "cuda:99")
        self.expect_error(4, "unsupported", "check", "--device", "cuda:0")

    def test_explain_prints_the_registry_as_text_and_as_markdown(self):
        self.assertIn(b"cpu_reference", self.expect(0, "explain", "--list").stdout)
        table = self.expect(0, "explain", "--support-table").stdout.decode().splitlines()
        kernels = self.json(0, "explain", "--list")["kernels"]
        self.assertEqual(len(table), 2 + len(kernels))
        self.assertTrue(all(line.startswith("|") and line.endswith("|") for line in table))

    def test_check_passes_and_names_its_worst_cases(self):
        result = self.expect(0, "check", "--filter", "causal")
        self.assertRegex(result.stdout.decode(), r"PASS \d+/\d+  worst: ")
        report = self.json(0, "check", "--suite", "known-bugs", "--filter", "1")
        self.assertEqual(report["result"], "PASS")
        self.assertEqual(report["failed"], 0)
        self.assertGreater(report["passed"], 0)


class Replay(CommandTest):
    def test_replays_the_excerpt_and_verifies_it(self):
        report = self.json(0, *REPLAY, "--steps", "3", "--verify", "8", "--layers", "2")
        self.assertEqual(report["result"], "PASS")
        self.assertEqual(report["steps"], 3)
        self.assertEqual(report["verify"]["rows"], 3 * 2 * 8)
        self.assertLess(report["verify"]["relative_rms"], report["verify"]["relative_rms_limit"])
        self.assertEqual(report["heads"], 2)
        self.assertFalse(report["complete"])
        self.assertGreater(report["attention_flop"], 0)

    def test_context_chunks_are_real_with_a_small_budget_and_workspace(self):
        report = self.json(0, *REPLAY, "--budget", "256", "--max-seqs", "64", "--steps", "25",
                           "--workspace-rows", "128", "--verify", "4")
        self.assertGreater(report["context_chunks"], 25)
        self.assertEqual(report["result"], "PASS")
        equal = self.json(0, *REPLAY, "--budget", "256", "--max-seqs", "64", "--steps", "25",
                          "--workspace-rows", "128", "--verify", "4", "--planner", "equal")
        self.assertEqual(equal["new_tokens"], report["new_tokens"])
        self.assertEqual(equal["context_tokens"], report["context_tokens"])
        self.assertEqual(equal["result"], "PASS")

    def test_the_data_does_not_depend_on_threads_but_on_the_seed(self):
        def verified(*more):
            verify = self.json(0, *REPLAY, "--steps", "2", "--verify", "16", *more)["verify"]
            return verify["relative_rms"], verify["worst_lse"]

        one = verified("--threads", "1")
        self.assertEqual(one, verified("--threads", "4"))
        self.assertNotEqual(one, verified("--seed", "1"))

    def test_the_arrival_clock_batches_less(self):
        small = ["--verify", "1"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sparse.csv")
            with open(path, "w") as out:
                out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
                for minute in range(10):
                    out.write(f"2023-11-16 18:{minute:02}:00.0000000,20,5\n")
            arguments = ["replay", "--trace", path, "--model", "deepseek-v2-lite", "--tp", "8"]
            self.assertEqual(self.json(0, *arguments, *small)["steps"], 1)
            report = self.json(0, *arguments, *small, "--clock", "arrival")
            self.assertEqual(report["steps"], 10)
            self.assertTrue(report["complete"])
            self.assertEqual(report["prompts_finished"], 10)

    def test_prefix_hits_of_a_mooncake_trace_become_context(self):
        arguments = ["replay", "--trace", MOONCAKE, "--model", "deepseek-v2-lite", "--tp", "16",
                     "--steps", "12", "--verify", "4"]
        every = self.json(0, *arguments)
        self.assertEqual(every["result"], "PASS")
        self.assertGreater(every["prefix_hit_tokens"], 0)
        self.assertEqual(every["prefix_hit_tokens"] % 512, 0)
        self.assertGreater(every["context_tokens"], 0)
        none = self.json(0, *arguments, "--prefix-cache-tokens", "0")
        self.assertEqual(none["prefix_hit_tokens"], 0)
        self.assertEqual(none["prefix_hit_rate"], 0)
        text = self.expect(0, *arguments, "--prefix-cache-tokens", "4096").stdout.decode()
        self.assertRegex(text, r"prefix hits +[0-9,]+ tokens, .* \(cache of 4,096 tokens\)")

    def test_the_format_of_a_trace_is_in_its_content(self):
        with tempfile.TemporaryDirectory() as folder:
            odd = os.path.join(folder, "trace.csv")
            os.symlink(MOONCAKE, odd)
            report = self.json(0, "replay", "--trace", odd, "--model", "deepseek-v2-lite", "--tp",
                               "16", "--steps", "1", "--verify", "1")
            self.assertEqual(report["trace_requests"], 200)
            with open(odd + "l", "w") as out:
                out.write('{"timestamp": 0, "input_length": 6, "output_length": 1, '
                          '"hash_ids": [0]}\n{"timestamp": 0}\n')
            self.expect_error(3, "trace.csvl:2 (byte 73): want a field 'input_length'",
                              "replay", "--trace", odd + "l", "--model", "deepseek-v2-lite")

    def test_synthetic_traces_need_no_file(self):
        model = ["--model", "deepseek-v2-lite", "--tp", "16", "--steps", "2", "--verify", "2"]
        for name, requests in (("azure-conv", 1000), ("azure-code:30", 30), ("mooncake:40", 40)):
            report = self.json(0, "replay", "--trace", "synthetic:" + name, *model)
            self.assertEqual(report["result"], "PASS")
            self.assertEqual(report["trace_requests"], requests)
        self.expect_error(2, "want synthetic:azure-conv", "replay", "--trace", "synthetic:x",
                          *model)
        self.expect_error(2, "--trace: requests: got '0'", "replay", "--trace",
                          "synthetic:mooncake:0", *model)

    def test_every_dtype_and_a_model_without_rope_replay(self):
        for more in (["--dtype", "fp16"], ["--dtype", "fp32"]):
            self.assertEqual(self.json(0, *REPLAY, "--steps", "1", *more)["result"], "PASS")
        report = self.json(0, "replay", "--trace", CONVERSATION, "--model", "glm-5.3-flash",
                           "--tp", "64", "--budget", "512", "--steps", "3")
        self.assertEqual(report["dims"], "256/0/256")
        self.assertEqual(report["result"], "PASS")

    def test_without_verification_it_says_so(self):
        text = self.expect(0, *REPLAY, "--steps", "1", "--verify", "0").stdout.decode()
        self.assertIn("NOT VERIFIED", text)
        self.assertNotIn("PASS", text)

    def test_the_repro_line_runs_again(self):
        arguments = [*REPLAY, "--steps", "1", "--seed", "5"]
        text = self.expect(0, *arguments).stdout.decode()
        repro = [line for line in text.splitlines() if line.startswith("repro: ")]
        self.assertEqual(len(repro), 1)
        again = shlex.split(repro[0][len("repro: "):])
        self.assertEqual(again[1:], arguments)

    def test_memory_is_capped_before_it_is_taken(self):
        self.expect_error(5, "more than --max-memory 1,048,576", *REPLAY, "--max-memory", "1M")
        # More than any machine has, and no allocation of any of it.
        self.expect_error(5, "more than --max-memory", "replay", "--trace", MOONCAKE, "--dims",
                          "65536,65536,65536", "--heads", "65536", "--budget", "1000000")
        self.expect(2, *REPLAY, "--max-memory", "0")
        self.expect(2, *REPLAY, "--max-memory", "1.5G")
        self.json(0, *REPLAY, "--steps", "1", "--max-memory", "1G")

    def test_a_replay_takes_no_more_memory_than_it_was_checked_for(self):
        arguments = ["replay", "--trace", MOONCAKE, "--model", "deepseek-v2-lite", "--tp", "4",
                     "--workspace-rows", "4096", "--steps", "4", "--verify", "0"]
        error = self.expect(5, *arguments, "--max-memory", "1").stderr.decode()
        checked = float(re.search(r"take up to ([0-9.]+) MB", error).group(1)) * 1e6
        taken = self.json(0, *arguments)["peak_memory_bytes"]
        # What a process takes without tensors is some 17 MB.
        self.assertLess(taken, checked + 40e6)
        self.assertGreater(taken, checked / 2)

    def test_a_bad_trace_is_exit_code_3_and_named(self):
        with tempfile.TemporaryDirectory() as folder:
            def replay(path):
                return ["replay", "--trace", path, "--model", "deepseek-v2-lite"]

            self.expect_error(3, ":1 (byte 0): is a directory", *replay(folder))
            self.expect_error(5, "No such file", *replay(os.path.join(folder, "absent")))
            path = os.path.join(folder, "bad.csv")
            with open(path, "wb") as out:
                out.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                          b"2023-11-16 18:15:46.6805900,-374,44\r\n")
            self.expect_error(3, "bad.csv:2 (byte 69): ContextTokens: got '-374'", *replay(path))
            fifo = os.path.join(folder, "fifo")
            os.mkfifo(fifo)
            self.expect_error(3, "empty", *replay(fifo))
            odd = os.path.join(os.fsencode(folder), b"\xff\xfe.csv")
            self.expect(5, *replay(odd))
            self.expect(5, *replay(odd), "--json")
            shutil.copy(MOONCAKE, odd)
            self.json(0, *replay(odd), "--tp", "16", "--steps", "1")

    def test_a_request_over_the_stated_model_length_is_refused(self):
        self.expect_error(2, "--max-model-len: got 100, want at least", *REPLAY,
                          "--max-model-len", "100")


class Plot(CommandTest):
    ARGUMENTS = [*REPLAY, "--steps", "3", "--verify", "1"]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def python3(self, script):
        """An environment whose only program is a python3 that is this shell script."""
        folder = self.path("bin")
        os.mkdir(folder)
        if script is not None:
            with open(os.path.join(folder, "python3"), "w") as out:
                out.write("#!/bin/sh\n" + script)
            os.chmod(os.path.join(folder, "python3"), 0o755)
        return {"PATH": folder}

    def test_an_svg_needs_no_other_program(self):
        path = self.path("plot.svg")
        self.json(0, *self.ARGUMENTS, "--plot", path, env=self.python3(None))
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        for title in ("Latency of a step", "Steps over the replay"):
            subtitle = texts[texts.index(title) + 1]
            self.assertRegex(subtitle, r"^deepseek-v2-lite, .*threads.*azure_llm_2023_conv_500\.csv$")
        self.assertIn("new tokens", texts)
        self.assertEqual(os.listdir(self.folder.name).count("plot.svg"), 1)
        self.assertEqual(len(os.listdir(self.folder.name)), 2)  # no temporary file

    def test_another_ending_is_bad_usage(self):
        for name in ("plot", "plot.pdf", "plot.SVG", ""):
            self.expect_error(2, ".png or .svg" if name else "", *self.ARGUMENTS, "--plot",
                              self.path(name))

    def test_a_png_without_python3_or_matplotlib_is_refused_before_the_replay(self):
        long = [*REPLAY, "--layers", "1000", "--plot", self.path("plot.png")]
        for script in (None, "exit 1\n"):
            with self.subTest(script=script):
                env = self.python3(script)
                self.expect_error(5, "python3 with matplotlib", *long, env=env)
                self.expect_error(5, ".svg needs neither", *long, env=env)
                shutil.rmtree(env["PATH"])
        self.assertFalse(os.path.exists(self.path("plot.png")))

    def test_what_python3_draws_is_the_file(self):
        env = self.python3(r"""
read -r json
[ -n "$json" ] && printf '\211PNG'
printf '%s' "$json"
exit 0
""")
        self.json(0, *self.ARGUMENTS, "--plot", self.path("plot.png"), env=env)
        with open(self.path("plot.png"), "rb") as file:
            png = file.read()
        self.assertEqual(png[:4], b"\x89PNG")
        plot = json.loads(png[4:])
        self.assertEqual(plot["steps"], 3)
        self.assertEqual(sum(plot["bin_counts"]), 3)

    def test_what_is_no_png_is_not_kept(self):
        path = self.path("plot.png")
        with open(path, "w") as out:
            out.write("old")
        result = self.expect(5, *self.ARGUMENTS, "--plot", path, env=self.python3("echo no\n"))
        self.assertIn(b"it wrote no PNG", result.stderr)
        self.assertIn(b"PASS", result.stdout)  # the report of the replay is not lost
        with open(path) as file:
            self.assertEqual(file.read(), "old")

    def test_a_real_png(self):
        probe = [sys.executable, "-c", "import matplotlib.pyplot"]
        if subprocess.run(probe, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("matplotlib is not installed")
        env = {"PATH": os.path.dirname(sys.executable)}
        self.json(0, *self.ARGUMENTS, "--plot", self.path("plot.png"), env=env)
        with open(self.path("plot.png"), "rb") as file:
            png = file.read()
        self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(png[-8:-4], b"IEND")

    def test_a_plot_that_cannot_be_written_is_refused_before_the_replay(self):
        long = [*REPLAY, "--layers", "1000", "--plot"]
        os.mkdir(self.path("folder.svg"))
        self.expect_error(5, "folder.svg", *long, self.path("folder.svg"))
        self.expect_error(5, "absent", *long, self.path("absent/plot.svg"))

    def test_the_trace_is_never_the_plot(self):
        trace = self.path("trace.svg")
        shutil.copy(CONVERSATION, trace)
        os.symlink(trace, self.path("soft.svg"))
        os.link(trace, self.path("hard.png"))
        for plot in (trace, self.path("soft.svg"), self.path("hard.png"), self.path("./trace.svg")):
            self.expect_error(2, "is the trace", "replay", "--trace", trace, "--model",
                              "deepseek-v2-lite", "--plot", plot)
        with open(trace, "rb") as kept, open(CONVERSATION, "rb") as original:
            self.assertEqual(kept.read(), original.read())

    def test_ctrl_c_draws_what_was_done(self):
        path = self.path("plot.svg")
        process = subprocess.Popen([COMMAND, *REPLAY, "--layers", "1000", "--plot", path],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"interrupted", out)
        xml.etree.ElementTree.parse(path)


class Streams(CommandTest):
    def test_ctrl_c_reports_what_was_done_and_exits_130(self):
        process = subprocess.Popen([COMMAND, *REPLAY, "--layers", "1000", "--json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(json.loads(out)["stopped"], "interrupted")

    def test_a_time_limit_stops_the_run_and_is_no_failure(self):
        report = self.json(0, *REPLAY, "--layers", "50", "--time-limit", "0.5")
        self.assertEqual(report["stopped"], "--time-limit reached")

    def test_a_broken_pipe_is_quiet(self):
        read_end, write_end = os.pipe()
        os.close(read_end)
        result = self.expect(0, "models", stdout=write_end)
        os.close(write_end)
        self.assertEqual(result.stderr, b"")

    def test_a_full_disk_is_an_environment_error(self):
        with open("/dev/full", "wb") as full:
            result = self.expect(5, "models", "--json", stdout=full)
        self.assertIn(b"cannot write to stdout", result.stderr)

    def test_closed_standard_streams_do_no_harm(self):
        for close in ("<&-", ">&-", "2>&-", "<&- 2>&-"):
            with self.subTest(close=close):
                command = f"{shlex.quote(COMMAND)} models {close}"
                result = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
                self.assertEqual(result.returncode, 5 if ">&-" in close[:3] else 0, result.stderr)

    def test_numbers_do_not_follow_the_locale(self):
        plain = self.expect(0, "models", env={"LC_ALL": "C"}).stdout
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "no_such_locale"):
            self.assertEqual(self.expect(0, "models", env={"LC_ALL": name}).stdout, plain)


if __name__ == "__main__":
    unittest.main(verbosity=2)
