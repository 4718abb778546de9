# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of warmup, cache and dump, with a compiler that takes no time.

FLASHPRIME_COMMAND names the binary, FLASHPRIME_FAKE_NVRTC the compiler.
"""

import ast
import collections
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

COMMAND = os.environ["FLASHPRIME_COMMAND"]
FAKE_NVRTC = os.environ["FLASHPRIME_FAKE_NVRTC"]
PLAN = ["--model", "deepseek-v3", "--arch", "sm_90a"]


class KernelCommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHPRIME_")}
        self.environment["FLASHPRIME_NVRTC_PATH"] = FAKE_NVRTC
        self.environment["FLASHPRIME_CACHE_DIR"] = str(self.folder / "cache")

    def start(self, *arguments, **environment):
        return subprocess.Popen(
            [COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.environment, **environment},
        )

    def run_command(self, exit_code, *arguments, **environment):
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, exit_code, (arguments, out, err))
        return out.decode(), err.decode()

    def json(self, exit_code, *arguments, **environment):
        return json.loads(self.run_command(exit_code, *arguments, "--json", **environment)[0])

    def sources(self, exit_code=0, *arguments, **environment):
        report = self.json(exit_code, "warmup", *PLAN, *arguments, **environment)
        return collections.Counter(kernel["source"] for kernel in report["kernels"])

    def entries(self):
        return sorted((self.folder / "cache").rglob("*.fpk"))


class Warmup(KernelCommandTest):
    def test_compiles_then_finds_everything(self):
        first = self.sources()
        self.assertEqual(set(first), {"compiled"})
        self.assertEqual(self.sources(), {"disk": first["compiled"]})
        self.assertEqual(len(self.entries()), first["compiled"])

    def test_json_has_what_a_log_wants(self):
        report = self.json(0, "warmup", *PLAN)
        for kernel in report["kernels"]:
            self.assertEqual(kernel["arch"], "sm_90a")
            self.assertEqual(kernel["regs"], 42)
            self.assertEqual((kernel["spill_stores"], kernel["spill_loads"]), (4, 12))
            self.assertIn("flashprime kernel 1\n", kernel["key"])
            self.assertEqual(len(kernel["kernel_id"]), 64)
            self.assertEqual(kernel["warnings"], [])
            self.assertEqual(kernel["min_driver"], "CUDA 13.0 (driver 580)")
        self.assertTrue(report["complete"])

    def test_progress_is_one_line_a_kernel_off_a_terminal(self):
        out, err = self.run_command(0, "warmup", *PLAN)
        kernels = self.json(0, "warmup", *PLAN)["kernels"]
        lines = err.splitlines()
        self.assertEqual(len(lines), len(kernels))
        self.assertTrue(lines[0].startswith("[ 1/"), lines[0])
        self.assertIn("compiled", out)

    def warm_by_sixteen(self, *plan):
        """How often each kernel was compiled."""
        processes = [
            self.start(
                "warmup", *plan, "--json", "-j", "2", "--rank", str(rank), "--world", "16",
                FAKE_NVRTC_DELAY_MS="20",
            )
            for rank in range(16)
        ]
        compiled = collections.Counter()
        for process in processes:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, err)
            report = json.loads(out)
            self.assertTrue(report["complete"])
            for kernel in report["kernels"]:
                if kernel["source"] == "compiled":
                    compiled[kernel["kernel_id"]] += 1
        return compiled

    def test_sixteen_processes_compile_each_kernel_exactly_once(self):
        compiled = self.warm_by_sixteen(*PLAN)
        planned = len(self.json(0, "warmup", *PLAN, "--list")["kernels"])
        self.assertEqual(len(compiled), planned)
        self.assertEqual(set(compiled.values()), {1})

    def test_sixteen_processes_compile_one_kernel_exactly_once(self):
        plan = self.folder / "plan.txt"
        keys = self.run_command(0, "warmup", *PLAN, "--list")[0].split("\n\n")
        plan.write_text(keys[0] + "\n\n")
        self.assertEqual(list(self.warm_by_sixteen("--plan", str(plan)).values()), [1])

    def test_killed_processes_leave_nothing_in_the_way(self):
        for delay in (0.05, 0.1, 0.2, 0.3):
            processes = [
                self.start("warmup", *PLAN, FAKE_NVRTC_DELAY_MS="30") for _ in range(4)
            ]
            time.sleep(delay)
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.communicate()
        counts = self.sources()
        self.assertEqual(set(counts) - {"compiled", "disk"}, set())
        self.run_command(0, "cache", "verify")

    def test_interrupt_is_exit_code_130_and_says_what_is_missing(self):
        process = self.start("warmup", *PLAN, FAKE_NVRTC_DELAY_MS="300")
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)

    def test_a_log_has_a_line_for_each_kernel_that_is_compiled(self):
        log = self.folder / "log"
        kernels = self.json(0, "warmup", *PLAN, FLASHPRIME_LOG=f"info:{log}")["kernels"]
        compiled = [line for line in log.read_text().splitlines() if " info compiled: " in line]
        self.assertEqual(len(compiled), len(kernels))
        self.assertEqual(self.json(0, "info")["log"], "off")
        info = self.json(0, "info", FLASHPRIME_LOG=f"warn:{log}")
        self.assertEqual(info["log"], f"warn to {log}")
        self.assertIn("FLASHPRIME_LOG", self.json(0, "info", FLASHPRIME_LOG="loud")["kernel_cache"])

    def test_deadline_is_exit_code_1(self):
        counts = self.sources(1, "--deadline", "0.05", FAKE_NVRTC_DELAY_MS="2000")
        self.assertEqual(set(counts), {"skipped"})

    def test_dry_run_compiles_nothing(self):
        self.assertEqual(set(self.sources(0, "--dry-run")), {"skipped"})
        self.assertEqual(self.entries(), [])

    def test_frozen_is_exit_code_5(self):
        self.run_command(5, "warmup", *PLAN, FLASHPRIME_FREEZE="error")
        self.assertEqual(self.entries(), [])

    def test_a_missing_compiler_is_exit_code_5_and_names_what_was_searched(self):
        _, err = self.run_command(5, "warmup", *PLAN, FLASHPRIME_NVRTC_PATH="/no/nvrtc.so")
        self.assertIn("/no/nvrtc.so", err)
        self.assertIn("kNoCompiler", err)

    def test_loading_without_a_driver_is_exit_code_5(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a driver")
        _, err = self.run_command(5, "warmup", *PLAN, "--load-only")
        self.assertIn("kDriver", err)

    def test_bad_settings_and_arguments_are_exit_code_2(self):
        self.run_command(2, "warmup", *PLAN, FLASHPRIME_FREEZE="maybe")
        self.run_command(2, "warmup", *PLAN, FLASHPRIME_LOG="loud")
        self.run_command(2, "warmup", "--model", "deepseek-v3", "--arch", "sm_75")
        self.run_command(2, "warmup", *PLAN, "--list", "--dry-run")
        self.run_command(2, "warmup", "--arch", "sm_90a")

    def test_lists_more_kernels_with_all_and_e4m3(self):
        def count(*extra):
            return len(self.json(0, "warmup", *PLAN, "--list", *extra)["kernels"])

        self.assertEqual(count("--all"), count() + 1)
        self.assertGreater(count("--output-dtype", "e4m3"), count() + 2)
        two = ["warmup", "--model", "deepseek-v3", "--arch", "sm_80,sm_120a", "--list"]
        self.assertEqual(len(self.json(0, *two)["kernels"]), 2 * count())

    def test_lists_vllms_compile_keys_beside_the_kernels(self):
        plan = ["warmup", "--model", "deepseek-v3", "--tp", "8", "--arch", "sm_100a,sm_89", "--list"]
        listed = self.json(0, *plan)
        blackwell, ada = listed["compile_keys"]
        self.assertEqual((blackwell["arch"], len(blackwell["keys"])), ("sm_100a", 24))
        self.assertEqual((ada["arch"], ada["keys"]), ("sm_89", []))
        self.assertNotEqual(ada["why_empty"], "")
        # Ours do not depend on vLLM's gates.
        self.assertEqual({kernel["arch"] for kernel in listed["kernels"]}, {"sm_100a", "sm_89"})
        invariant = self.json(0, *plan, "--batch-invariant")["compile_keys"][0]
        self.assertEqual(len(invariant["keys"]), 8)
        self.assertEqual(self.json(0, *plan, "--fa-version", "3")["compile_keys"][0]["keys"], [])

    def test_a_kernel_serves_every_compile_key_that_a_layer_runs(self):
        def fields(text):
            return dict(line.split(" = ") for line in text.splitlines()[1:])

        for model, dims in (("deepseek-v3", (128, 64, 128)), ("glm-5", (192, 64, 256))):
            listed = self.json(0, "warmup", "--model", model, "--arch", "sm_90a,sm_103a", "--list")
            served = set()
            for kernel in listed["kernels"]:
                key = fields(kernel["key"])
                if kernel["kernel"] != "sm80_mla_prefill":
                    continue
                parts = tuple(int(key["traits.dims." + part]) for part in ("nope", "rope", "v"))
                self.assertEqual(parts, dims)
                if key["traits.out_dtype"] == key["traits.dtype"] == "bf16":
                    lse = key["traits.return_lse"] == "true"
                    served.add((kernel["arch"], key["traits.mask"] == "causal", lse))
            for row in listed["compile_keys"]:
                self.assertGreaterEqual(len(row["keys"]), 16)
                wanted = set()
                for text in row["keys"]:
                    self.assertIn("torch.bfloat16", text)
                    key = ast.literal_eval(text.replace("torch.bfloat16", "'bf16'"))
                    self.assertEqual((key[0][2], key[2][2]), (dims[0] + dims[1], dims[2]))
                    wanted.add((row["arch"], key[7], key[13]))
                self.assertEqual(wanted - served, {(row["arch"], False, False)})

    def test_dims_that_no_kernel_takes_are_exit_code_4(self):
        plan = ["warmup", "--dims", "120,64,128", "--arch", "sm_90a"]
        listed = self.json(0, *plan, "--list")
        self.assertEqual([k for k in listed["kernels"] if k["kernel"] == "sm80_mla_prefill"], [])
        self.assertIn("120/64/128", listed["skipped"][0]["reason"])
        self.run_command(4, *plan)
        self.run_command(4, "warmup", "--dims", "128,64,120", "--arch", "sm_90a")

    def test_one_file_holds_a_plan_for_another_machine(self):
        plan = self.folder / "plan.txt"
        plan.write_text(self.run_command(0, "warmup", *PLAN, "--list")[0])
        report = self.json(0, "warmup", "--plan", str(plan))
        self.assertEqual(
            [kernel["key"] for kernel in report["kernels"]],
            [kernel["key"] for kernel in self.json(0, "warmup", *PLAN, "--list")["kernels"]],
        )
        plan.write_text("flashprime kernel 9\n")
        self.run_command(2, "warmup", "--plan", str(plan))


class Cache(KernelCommandTest):
    def test_lists_checks_prunes_and_clears(self):
        self.run_command(0, "warmup", *PLAN)
        count = len(self.entries())
        self.assertEqual(len(self.json(0, "cache", "ls")["entries"]), count)
        self.assertEqual(self.json(0, "cache", "stat")["entries"], count)
        self.assertEqual(self.json(0, "cache", "path")["cache"], str(self.folder / "cache"))
        self.assertEqual(self.json(0, "cache", "prune", "--dry-run")["removed"], 0)
        self.assertEqual(self.json(0, "cache", "clear")["removed"], count)
        self.assertEqual(self.entries(), [])

    def test_verify_finds_damage(self):
        self.run_command(0, "warmup", *PLAN)
        self.run_command(0, "cache", "verify")
        victim = self.entries()[0]
        victim.write_bytes(victim.read_bytes()[:-1])
        bad = self.json(1, "cache", "verify")["bad"]
        self.assertEqual([entry["path"] for entry in bad], [str(victim)])

    def test_bundles_carry_kernels_to_machines_without_a_compiler(self):
        bundle = self.folder / "kernels.fpb"
        self.run_command(0, "cache", "pack", str(bundle), *PLAN)
        self.run_command(0, "cache", "verify", str(bundle))
        self.run_command(0, "cache", "covers", str(bundle), *PLAN)
        missing = self.json(1, "cache", "covers", str(bundle), *PLAN, "--all")["missing"]
        self.assertEqual(len(missing), 1)

        elsewhere = {
            "FLASHPRIME_CACHE_DIR": str(self.folder / "other"),
            "FLASHPRIME_NVRTC_PATH": "/no/nvrtc.so",
        }
        bundled = self.sources(0, FLASHPRIME_BUNDLE=str(bundle), **elsewhere)
        self.assertEqual(set(bundled), {"bundle"})
        self.run_command(0, "cache", "unpack", str(bundle), **elsewhere)
        self.assertEqual(set(self.sources(0, **elsewhere)), {"disk"})

        bundle.write_bytes(bundle.read_bytes()[:-1])
        self.run_command(3, "cache", "verify", str(bundle))
        self.run_command(5, "cache", "verify", str(self.folder / "none.fpb"))

    def test_bundles_of_two_builds_are_the_same_bytes(self):
        for name in ("a", "b"):
            folder = str(self.folder / name)
            self.run_command(0, "cache", "pack", folder + ".fpb", *PLAN, "--cache-dir", folder)
        self.assertEqual(
            (self.folder / "a.fpb").read_bytes(), (self.folder / "b.fpb").read_bytes()
        )

    def test_without_a_folder_there_is_no_path(self):
        self.run_command(5, "cache", "path", FLASHPRIME_CACHE_DIR="off")
        self.run_command(5, "cache", "clear", FLASHPRIME_CACHE_DIR="off")

    def test_reads_a_read_only_cache(self):
        self.run_command(0, "warmup", *PLAN)
        read_only = "ro:" + str(self.folder / "cache")
        self.assertEqual(set(self.sources(0, FLASHPRIME_CACHE_DIR=read_only)), {"disk"})


class Dump(KernelCommandTest):
    def test_shows_source_log_and_cubin(self):
        out, _ = self.run_command(0, "dump", *PLAN, "--source")
        self.assertIn('#include "kernels/sm80_mla_prefill.cuh"', out)
        out, _ = self.run_command(0, "dump", *PLAN, "--log")
        self.assertIn("Used 42 registers", out)
        cubin = self.folder / "kernel.cubin"
        self.run_command(0, "dump", *PLAN, "--cubin", str(cubin))
        self.assertEqual(cubin.read_bytes()[:4], b"\x7fELF")
        self.assertEqual(self.entries(), [])

    def test_says_where_the_cubin_is_when_nothing_disassembles_it(self):
        cubin = self.folder / "kernel.cubin"
        _, err = self.run_command(
            5, "dump", *PLAN, "--sass", "--cubin", str(cubin), PATH=str(self.folder)
        )
        self.assertIn(str(cubin), err)
        self.assertTrue(cubin.exists())

    def test_knows_how_many_kernels_there_are(self):
        self.run_command(2, "dump", *PLAN, "--index", "1000")


if __name__ == "__main__":
    unittest.main()
