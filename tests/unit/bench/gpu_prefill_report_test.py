# SPDX-License-Identifier: Apache-2.0
"""The cells of the GPU prefill benchmark, and what its report makes of figures."""

import csv
import math
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
import gpu_prefill_report as report  # noqa: E402
from workloads.prefill import cells  # noqa: E402


def row(cell, protocol, contender, tflops, best_peer=100.0):
    return {
        "contender": contender,
        "d_qk": str(cell.d_qk),
        "d_v": str(cell.d_v),
        "heads": str(cell.heads),
        "cell": cell.name,
        "protocol": protocol,
        "microseconds": str(cell.flop / tflops / 1e6),
        "tflops": str(tflops),
        "ratio_to_best_peer": str(tflops / best_peer),
    }


def table(ratio_of, contender=report.OURS):
    """Rows of every cell under both protocols."""
    return [
        row(cell, protocol, contender, 100.0 * ratio_of(cell, protocol))
        for cell in cells.CELLS
        for protocol in report.TIMED
    ]


def met(rows, part):
    """Of the goals whose text has this part."""
    return [met for _, what, met, _ in report.goals(rows) if part in what]


class CellsTest(unittest.TestCase):
    def test_flop_count_half_of_queries_times_keys_where_causal(self):
        (causal,) = cells.select(["192,128"], [16], ["self512x32"])
        self.assertEqual(causal.flop, 32 * 512 * 512 * 16 * (192 + 128))
        (full,) = cells.select(["256,256"], [16], ["ctx512x8_8192"])
        self.assertEqual(full.flop, 2 * 8 * 512 * 8192 * 16 * (256 + 256))

    def test_128_heads_have_an_eighth_of_the_sequences_but_at_least_one(self):
        counts = {cell.name: cell.batch for cell in cells.select(["192,128"], [128])}
        self.assertEqual(counts["self512x32"], 4)
        self.assertEqual(counts["self8192x2"], 1)
        self.assertEqual(counts["ragged6"], 6)
        self.assertNotIn("self32768x1", counts)
        self.assertNotIn("ctx512x1_32768", counts)

    def test_eleven_cells_count_for_the_mean_of_each_pair_of_dims(self):
        for dims in cells.DIMS:
            names = [cell.name for cell in cells.select([dims], [16])]
            self.assertEqual(len(set(names) & set(cells.MEAN_CELLS)), 11)

    def test_an_unknown_cell_is_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "cells: got self1, wanted some of: self512x32 "):
            cells.select(names=["self1"])


class ReportTest(unittest.TestCase):
    def test_a_later_file_replaces_all_that_an_earlier_one_says_about_a_cell(self):
        first, second = cells.CELLS[:2]
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("old.csv", "new.csv")]
            for path, rows in zip(
                paths,
                (
                    [row(first, "burst", name, 1) for name in ("fa4", report.OURS)]
                    + [row(second, "burst", report.OURS, 2)],
                    [row(first, "burst", report.OURS, 3)],
                ),
            ):
                with path.open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, rows[0])
                    writer.writeheader()
                    writer.writerows(rows)
            found = [(each["cell"], each["contender"], each["tflops"]) for each in report.read(paths)]
        self.assertEqual(found, [(first.name, report.OURS, "3"), (second.name, report.OURS, "2")])

    def test_the_mean_is_geometric_over_the_cells_that_count_and_names_the_worst(self):
        ratios = {"self512x32": 2.0, "ragged6": 0.5, "ctx512x1_32768": 0.25}
        mean, count, worst, its_ratio = report.mean_of(ratios)
        self.assertAlmostEqual(mean, 1.0)
        self.assertEqual((count, worst, its_ratio), (2, "ctx512x1_32768", 0.25))

    def test_goals_are_met_when_every_cell_is_fast(self):
        rows = table(lambda cell, protocol: 1.31)
        self.assertEqual({met for *_, met, _ in report.goals(rows)}, {True})

    def test_one_slow_cell_spoils_a_goal_about_every_cell(self):
        slow = lambda cell, protocol: 0.95 if cell.name == "ragged6" else 1.31  # noqa: E731
        rows = table(slow)
        self.assertEqual(met(rows, ">= 0.90 in every cell"), [True, True])
        self.assertEqual(met(rows, "sustained >= 1.00 in every cell"), [False])
        self.assertEqual(met(rows, "burst >= 0.99 in every cell"), [False])

    def test_long_and_dense_cells_of_256_may_be_three_percent_slower(self):
        relaxed = ("self16384x1", "self32768x1", "dense8192x2")
        for dims, expected in (("256,256", True), ("128,128", False)):
            rows = table(
                lambda cell, protocol, dims=dims: 0.975
                if cell.dims_name == dims and cell.name in relaxed
                else 1.31
            )
            self.assertEqual(met(rows, "sustained >= 1.00 in every cell"), [expected])

    def test_missing_cells_leave_a_goal_open_unless_one_has_failed_already(self):
        rows = [each for each in table(lambda *_: 1.31) if each["cell"] != "ragged6"]
        self.assertEqual(met(rows, "sustained >= 1.00 in every cell"), [None])
        self.assertEqual(met(rows, "(192,128) geometric mean sustained >= 1.06"), [None])
        rows = [each for each in table(lambda *_: 0.5) if each["cell"] != "ragged6"]
        self.assertEqual(met(rows, "sustained >= 1.00 in every cell"), [False])

    def test_fixed_lengths_are_compared_by_time_where_lengths_are_uniform(self):
        rows = table(lambda *_: 1.31)
        rows += [
            each
            for each in table(lambda *_: 1.4, contender="fa3_fixed")
            if each["cell"] != "ragged6"
        ]
        self.assertEqual(met(rows, "fixed lengths"), [False, False])

    def test_a_geometric_mean_is_no_arithmetic_one(self):
        self.assertAlmostEqual(report.geometric_mean([4.0, 1.0]), 2.0)
        self.assertTrue(math.isclose(report.geometric_mean([1.1] * 5), 1.1))


if __name__ == "__main__":
    unittest.main()
