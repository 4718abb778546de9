# SPDX-License-Identifier: Apache-2.0
"""GPU prefill beside FlashAttention-3, FlashAttention-4, cuDNN, FlashInfer and torch in one run.

Every result is compared with fp64 before it is timed. bench/run_gpu runs this with what it needs;
bench/gpu_prefill_report.py makes tables and plots of the CSV.
"""

import argparse
import csv
import datetime
import os
import pathlib
import site
import statistics
import time

PROTOCOL = {
    "burst": "each call after {idle} ms of idling, median of {rounds}, contenders in turns",
    "sustained": "calls back to back, {warm} s not counted, then {timed} s",
    "graph": "50 calls in one CUDA graph, median of {rounds} replays after {idle} ms of idling",
    "host": "100 calls from Python onto an idle stream, median of 41",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="libflashprime.so under test")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="LABEL=PATH",
        help="another build of it, for contenders named flashprime@LABEL",
    )
    parser.add_argument("--out", type=pathlib.Path, help="CSV file to write, cell by cell")
    parser.add_argument("--dims", nargs="+", help="only cells of these, as 192,128 (default: all)")
    parser.add_argument("--heads", nargs="+", type=int, help="only cells of these head counts")
    parser.add_argument("--cells", nargs="+", help="only these, as self512x32 or tiny128x1")
    parser.add_argument("--contenders", nargs="+", help="default: see workloads/prefill/contender.py")
    parser.add_argument("--quick", action="store_true", help="fewer contenders, shorter stretches")
    parser.add_argument(
        "--stop-after", type=float, default=float("inf"), metavar="SECONDS", help="start no cell later"
    )
    parser.add_argument("--site", nargs="+", default=[], help="folders with the peers' packages")
    parser.add_argument("--yardstick", action="store_true", help="time mma.sync alone, too")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Table:
    """The CSV, written as it grows: a run that is cut short leaves what it measured."""

    def __init__(self, path, common):
        self._common = common
        self._file = None
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = None

    def add(self, rows):
        for row in rows:
            row = {**row, **self._common}
            if self._file and self._writer is None:
                self._writer = csv.DictWriter(self._file, row)
                self._writer.writeheader()
            if self._file:
                self._writer.writerow(row)
        if self._file:
            self._file.flush()


def ratios(times, name):
    """How much faster `name` is than FA3 with cu_seqlens, FA4 and the faster of the two; "" where that
    is not known. With one of them alone nobody knows which is faster."""
    peers = {peer: times[peer] / times[name] for peer in ("fa3_varlen", "fa4") if peer in times}
    best = min(peers.values()) if len(peers) == 2 else None
    return {
        column: "" if value is None else f"{value:.4f}"
        for column, value in (
            ("ratio_to_fa3_varlen", peers.get("fa3_varlen")),
            ("ratio_to_fa4", peers.get("fa4")),
            ("ratio_to_best_peer", best),
        )
    }


class Runner:
    def __init__(self, arguments, setup, table):
        from harness import gpu

        self.arguments, self.setup, self.table = arguments, setup, table
        self.gpu, self.gate, self.sampler = gpu, gpu.Gate(), gpu.Sampler()
        quick = arguments.quick
        self.times = {
            "rounds": 3 if quick else 5,
            "idle": 150 if quick else 250,  # ms
            "warm": 0.15 if quick else 0.35,
            "timed": 0.2 if quick else 0.4,
        }

    def names(self, cell):
        from workloads.prefill import contender

        arguments = self.arguments
        names = arguments.contenders or (contender.QUICK if arguments.quick else contender.DEFAULT)
        if not arguments.contenders and not cell.joined_too:
            names = [name for name in names if name != "flashprime_joined"]
        return names

    def prepare(self, cell):
        """name -> (contender, graph of one call, error, LSE error) of all that are right."""
        import torch

        from workloads.prefill import contender, data

        tensors = data.Data.normal(cell, self.arguments.seed)
        reference = data.Reference(cell, tensors, self.arguments.seed)
        ready = {}
        for name in self.names(cell):
            try:
                each = contender.file_of(name).make(name, cell, tensors, self.setup)
                each.run()
                torch.cuda.synchronize()
                graph = self.gpu.capture(each.run)
                # From here on run() has left its results where the graph's replays write them.
                for tensor in each.written():
                    tensor.fill_(float("nan"))
                graph.replay()
                torch.cuda.synchronize()
                error, lse_error, wrong = reference.judge(each.out(), each.lse())
            except contender.Absent as reason:
                print(f"  {name}: absent: {reason}", flush=True)
                continue
            except Exception as failure:
                text = str(failure).strip().splitlines() or [""]
                print(f"  {name}: failed: {type(failure).__name__}: {text[0]}", flush=True)
                if is_sticky(failure):
                    raise
                continue
            if wrong:
                print(f"  {name}: WRONG, not timed: {wrong}", flush=True)
                continue
            ready[name] = (each, graph, error, lse_error)
        return ready

    def time_sustained(self, ready):
        """name -> list of (seconds a call, clock, power); the first is measured again at the end."""
        graphs = {}
        for name, (each, graph, *_) in ready.items():
            self.gpu.gated_seconds(self.gate, graph)
            seconds = self.gpu.gated_seconds(self.gate, graph)
            calls = max(1, min(50, round(3e-3 / seconds)))
            graphs[name] = (self.gpu.capture(each.run, calls), seconds * calls, calls)
        results = {name: [] for name in ready}
        order = [*ready, *list(ready)[: len(ready) > 1]]
        extra = self.times["warm"]  # the first one starts with a cool card
        for name in order:
            graph, seconds, calls = graphs[name]
            per_graph, clock, watts = self.gpu.sustained(
                graph, seconds, self.times["warm"] + extra, self.times["timed"], self.sampler
            )
            extra = 0
            results[name].append((per_graph / calls, clock, watts))
        return results

    def row(self, cell, name, protocol, seconds, ready, times, spread, clock=None, watts=None):
        each, _, error, lse_error = ready[name]
        return {
            "contender": name,
            "d_qk": cell.d_qk,
            "d_v": cell.d_v,
            "heads": cell.heads,
            "cell": cell.name,
            "sequences": cell.batch,
            "causal": int(cell.causal),
            "k": each.k,
            "protocol": protocol,
            "microseconds": f"{seconds * 1e6:.3f}",
            "tflops": f"{cell.flop / seconds / 1e12:.1f}",
            **ratios(times, name),
            "spread": "" if spread is None else f"{spread:.4f}",
            "sm_clock_mhz": "" if clock is None else f"{clock:.0f}",
            "power_w": "" if watts is None else f"{watts:.0f}",
            "relative_error": f"{error:.2e}",
            "lse_error": f"{lse_error:.1e}",
            "version": each.version,
            "protocol_detail": PROTOCOL[protocol].format(**self.times),
        }

    def add(self, cell, protocol, samples, ready, facts=None):
        """Rows of one protocol; samples: name -> seconds, of which the mean (sustained) or the median
        counts."""
        middle = statistics.mean if protocol == "sustained" else statistics.median
        times = {name: middle(values) for name, values in samples.items()}
        rows = []
        for name, values in samples.items():
            spread = (max(values) - min(values)) / times[name] if len(values) > 1 else None
            rows.append(
                self.row(
                    cell, name, protocol, times[name], ready, times, spread, *(facts or {}).get(name, ())
                )
            )
        self.table.add(rows)
        for row in rows:
            clock = f" {row['sm_clock_mhz']} MHz {row['power_w']} W" if row["sm_clock_mhz"] else ""
            print(
                f"  {row['contender']:18} {protocol:9} {row['microseconds']:>10} us"
                f" {row['tflops']:>6} TFLOP/s  to FA3 {row['ratio_to_fa3_varlen'] or '-':6}"
                f" to FA4 {row['ratio_to_fa4'] or '-':6} error {row['relative_error']}"
                f" LSE {row['lse_error']}{clock}",
                flush=True,
            )

    def cell(self, cell):
        ready = self.prepare(cell)
        if not ready:
            return
        graphs = {name: graph for name, (_, graph, *_) in ready.items()}
        bursts = self.gpu.burst(self.gate, graphs, self.times["rounds"], self.times["idle"] / 1e3)
        self.add(cell, "burst", bursts, ready)
        results = self.time_sustained(ready)
        samples = {name: [seconds for seconds, *_ in values] for name, values in results.items()}
        facts = {name: values[0][1:] for name, values in results.items()}
        self.add(cell, "sustained", samples, ready, facts)

    def tiny(self, cell):
        ready = self.prepare(cell)
        if not ready:
            return
        calls = 50
        graphs = {name: self.gpu.capture(each.run, calls) for name, (each, *_) in ready.items()}
        for graph in graphs.values():  # uploads it
            graph.replay()
        replays = self.gpu.burst(self.gate, graphs, self.times["rounds"], self.times["idle"] / 1e3)
        samples = {name: [each / calls for each in values] for name, values in replays.items()}
        self.add(cell, "graph", samples, ready)
        host = {name: [self.gpu.host_seconds(each.run)] for name, (each, *_) in ready.items()}
        self.add(cell, "host", host, ready)


def is_sticky(failure):
    """Whether the CUDA context is lost with it."""
    return any(text in str(failure) for text in ("illegal memory", "misaligned", "unspecified launch"))


def yardstick(gpu, gate, sampler):
    """What mma.sync does at best; see the file."""
    from workloads.prefill import mma_sync_rate

    for rows in (32, 64):
        run, flop = mma_sync_rate.contender(rows)
        run()
        graph = gpu.capture(run)
        seconds = statistics.median(gpu.burst(gate, {"": graph}, 5)[""])
        steady, clock, _ = gpu.sustained(graph, seconds, 0.35, 0.4, sampler)
        print(
            f"mma.sync fed by ldmatrix, {rows} rows a warp: {flop / seconds / 1e12:.0f} TFLOP/s burst,"
            f" {flop / steady / 1e12:.0f} sustained at {clock} MHz",
            flush=True,
        )


def main():
    arguments = parse()
    begin = time.monotonic()
    for folder in arguments.site:
        site.addsitedir(folder)
    import torch

    from harness import gpu, library
    from workloads.prefill import cells, contender

    tiny_name = cells.TINY_CELLS[0].name
    names = [name for name in arguments.cells or () if name != tiny_name]
    chosen = []
    if names or not arguments.cells:
        chosen += cells.select(arguments.dims, arguments.heads, names)
    if not arguments.cells or tiny_name in arguments.cells:
        chosen += [
            cell
            for cell in cells.TINY_CELLS
            if cell.dims_name in (arguments.dims or cells.DIMS)
            and cell.heads in (arguments.heads or (cell.heads,))
        ]
    for name in arguments.contenders or ():
        contender.file_of(name)
    libraries = {}
    if arguments.library:
        libraries[""] = library.Library(os.path.abspath(arguments.library))
    for also in arguments.also:
        label, _, path = also.partition("=")
        libraries[label] = library.Library(os.path.abspath(path))
    common = {
        **gpu.facts(),
        "torch": torch.__version__,
        "commit": arguments.commit,
        "date": datetime.date.today().isoformat(),
    }
    print(", ".join(f"{key} {value}" for key, value in common.items()), flush=True)
    not_run = []
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        runner = Runner(arguments, contender.Setup(libraries), Table(arguments.out, common))
        if arguments.yardstick:
            yardstick(gpu, runner.gate, runner.sampler)
        for cell in chosen:
            label = f"({cell.dims_name}) H={cell.heads} {cell.name}"
            passed = time.monotonic() - begin
            if passed > arguments.stop_after:
                not_run.append(label)
                continue
            print(f"{label}, {passed:.0f} s", flush=True)
            (runner.tiny if cell.name == tiny_name else runner.cell)(cell)
            torch.cuda.empty_cache()
    print(f"{time.monotonic() - begin:.0f} s")
    if not_run:
        print("NOT RUN, out of time: " + "; ".join(not_run))


if __name__ == "__main__":
    main()
