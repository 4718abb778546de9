# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of what bench/gpu_prefill.py has measured.

Several files, say one a pair of head dims, count as one; a later one replaces all that an earlier one
says about a cell under a protocol, since only figures of one run may be compared. Only plots need more than the standard library: matplotlib.
"""

import argparse
import csv
import math
import pathlib
import statistics

from workloads.prefill import cells

TIMED = ("burst", "sustained")
OURS = "flashprime"
COMPARED = ("d_qk", "d_v", "heads", "cell", "protocol")


def read(paths):
    """The rows of all files."""
    groups = {}
    for path in paths:
        of_file = {}
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                of_file.setdefault(tuple(row[field] for field in COMPARED), []).append(row)
        groups.update(of_file)
    return [row for group in groups.values() for row in group]


def pairs(rows):
    """(dims, heads) in the order of the cell table."""
    found = {(f"{row['d_qk']},{row['d_v']}", int(row["heads"])) for row in rows}
    known = dict.fromkeys((cell.dims_name, cell.heads) for cell in cells.CELLS)
    return [pair for pair in known if pair in found]


def of_pair(rows, pair):
    return [
        row for row in rows if (f"{row['d_qk']},{row['d_v']}", int(row["heads"])) == pair
    ]


def ratio_table(rows, pair, protocol, column="ratio_to_best_peer"):
    """cell -> ratio of FlashPrime, in the order of the cell table."""
    found = {
        row["cell"]: float(row[column])
        for row in of_pair(rows, pair)
        if row["contender"] == OURS and row["protocol"] == protocol and row[column]
    }
    names = [cell.name for cell in cells.select([pair[0]], [pair[1]])]
    return {name: found[name] for name in names if name in found}


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def mean_of(table):
    """Geometric mean over the cells that have a say, how many of them there are, and the worst cell."""
    counted = {name: ratio for name, ratio in table.items() if name in cells.MEAN_CELLS}
    if not counted:
        return None
    worst = min(table, key=table.get)
    return geometric_mean(counted.values()), len(counted), worst, table[worst]


def print_cells(rows):
    for pair in pairs(rows):
        mine = of_pair(rows, pair)
        contenders = list(dict.fromkeys(row["contender"] for row in mine))
        print(f"\n({pair[0]}), {pair[1]} heads: TFLOP/s burst / sustained; ratio to the best peer\n")
        print("| cell | " + " | ".join(contenders) + " | ratio |")
        print("|---|" + "---:|" * (len(contenders) + 1))
        ratios = {protocol: ratio_table(rows, pair, protocol) for protocol in TIMED}
        for cell in dict.fromkeys(row["cell"] for row in mine if row["protocol"] in TIMED):
            figures = {
                (row["contender"], row["protocol"]): f"{float(row['tflops']):.0f}"
                for row in mine
                if row["cell"] == cell
            }
            columns = [
                " / ".join(figures.get((contender, protocol), "–") for protocol in TIMED)
                for contender in contenders
            ]
            found = [ratios[protocol].get(cell) for protocol in TIMED]
            ratio = " / ".join("–" if each is None else f"{each:.3f}" for each in found)
            print(f"| {cell} | " + " | ".join(columns) + f" | {ratio} |")


def print_tiny(rows):
    tiny = [row for row in rows if row["protocol"] in ("graph", "host")]
    if not tiny:
        return
    print("\n1 sequence of 128 tokens: microseconds a call on the GPU; of the host, from Python\n")
    print("| dims | contender | GPU | host |\n|---|---|---:|---:|")
    found = {}
    for row in tiny:
        key = (f"({row['d_qk']},{row['d_v']})", row["contender"])
        found.setdefault(key, {})[row["protocol"]] = f"{float(row['microseconds']):.2f}"
    for (dims, name), values in found.items():
        print(f"| {dims} | {name} | {values.get('graph', '–')} | {values.get('host', '–')} |")


def print_summary(rows):
    print("\nFlashPrime beside the faster of FlashAttention-3 (cu_seqlens) and FlashAttention-4\n")
    print("| dims | heads | protocol | geometric mean | cells | worst cell | its ratio |")
    print("|---|---:|---|---:|---:|---|---:|")
    for pair in pairs(rows):
        for protocol in TIMED:
            mean = mean_of(ratio_table(rows, pair, protocol))
            if mean:
                print(
                    f"| ({pair[0]}) | {pair[1]} | {protocol} | {mean[0]:.3f} | {mean[1]} | {mean[2]}"
                    f" | {mean[3]:.3f} |"
                )


def goals(rows):
    """(level, what, met, by what) of each goal for which there are figures; met is None where only
    cells that are missing could still spoil it."""
    result = []
    deepseek = ("192,128", 16)

    def every(level, what, found, limit, wanted):
        """found: label -> ratio; limit(label); how many labels are wanted."""
        if not found:
            return
        worst = min(found, key=lambda label: found[label] - limit(label))
        met = all(found[label] >= limit(label) for label in found)
        if met and len(found) < wanted:
            met = None
        (dims, heads), cell = worst
        by = f"{len(found)} of {wanted} cells, worst ({dims}) H={heads} {cell}: {found[worst]:.3f}"
        result.append((level, what, met, by))

    def labelled(protocol):
        return {
            (pair, name): ratio
            for pair in pairs(rows)
            for name, ratio in ratio_table(rows, pair, protocol).items()
        }

    def long_or_dense_256(label):
        (dims, _), name = label
        return dims == "256,256" and name in ("self16384x1", "self32768x1", "dense8192x2")

    def mean(level, pair, protocol, limit):
        found = mean_of(ratio_table(rows, pair, protocol))
        if found:
            whole = found[1] == len(cells.MEAN_CELLS)
            what = f"({pair[0]}) geometric mean {protocol} >= {limit}"
            met = found[0] >= limit if whole else None
            result.append((level, what, met, f"{found[0]:.3f} over {found[1]} cells"))

    sustained, burst = labelled("sustained"), labelled("burst")
    total = len(cells.CELLS)
    every(1, "sustained >= 0.90 in every cell", sustained, lambda _: 0.9, total)
    every(1, "burst >= 0.90 in every cell", burst, lambda _: 0.9, total)
    relaxed = "; (256,256) dense and from 16k: 0.97"
    every(
        2,
        "sustained >= 1.00 in every cell" + relaxed,
        sustained,
        lambda label: 0.97 if long_or_dense_256(label) else 1.0,
        total,
    )
    every(
        2,
        "burst >= 0.99 in every cell" + relaxed,
        burst,
        lambda label: 0.97 if long_or_dense_256(label) else 0.99,
        total,
    )
    mean(2, deepseek, "sustained", 1.06)
    mean(2, deepseek, "burst", 1.07)
    mean(2, ("256,256", 16), "sustained", 1.02)
    mean(2, ("128,128", 16), "sustained", 1.02)
    mean(3, deepseek, "sustained", 1.12)
    mean(3, deepseek, "burst", 1.12)
    every(3, "sustained >= 1.03 in every cell", sustained, lambda _: 1.03, total)
    steps = {"self512x32": 1.30, "self1024x16": 1.22, "self2048x8": 1.15}
    steps.update({name: 1.06 for name in ("self8192x2", "self16384x1", "self32768x1")})
    own = ratio_table(rows, deepseek, "sustained")
    for name, limit in steps.items():
        every(
            3,
            f"(192,128) {name} sustained >= {limit}",
            {(deepseek, name): own[name]} if name in own else {},
            lambda _, limit=limit: limit,
            1,
        )
    for protocol in TIMED:
        fixed = {}
        for pair in pairs(rows):
            mine = [row for row in of_pair(rows, pair) if row["protocol"] == protocol]
            seconds = {(row["contender"], row["cell"]): float(row["microseconds"]) for row in mine}
            for (contender, cell), time in seconds.items():
                if contender == "fa3_fixed" and (OURS, cell) in seconds:
                    fixed[(pair, cell)] = time / seconds[(OURS, cell)]
        what = f"{protocol} at least FlashAttention-3 with fixed lengths in every uniform cell"
        every(3, what, fixed, lambda _: 1.0, sum(cell.uniform for cell in cells.CELLS))
    for row in of_pair(rows, deepseek):
        if row["contender"] == OURS and row["protocol"] == "graph":
            time = float(row["microseconds"])
            for level, limit in ((2, 6.0), (3, 5.0)):
                what = f"128 tokens: GPU time <= {limit:.0f} us"
                result.append((level, what, time <= limit, f"{time:.2f} us"))
    return sorted(result, key=lambda goal: goal[0])


def print_goals(rows):
    found = goals(rows)
    if not found:
        return
    print("\nGoals (host time from C++ is what bench/gpu_host_time prints)\n")
    print("| level | goal | | measured |\n|---:|---|---|---|")
    for level, what, met, measured in found:
        word = {True: "met", False: "NOT MET", None: "incomplete"}[met]
        print(f"| {level} | {what} | {word} | {measured} |")


def plot(rows, folder):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # The same bytes from the same figures.
    matplotlib.rcParams.update({"svg.hashsalt": "flashprime", "svg.fonttype": "none", "font.size": 9})
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def save(figure, name):
        path = folder / name
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)
        written.append(path)

    for pair in pairs(rows):
        mine = of_pair(rows, pair)
        gpu, date, commit = (mine[-1][field] for field in ("gpu", "date", "commit"))
        names = {cell.name: cell for cell in cells.select([pair[0]], [pair[1]])}
        stem = f"prefill_{pair[0].replace(',', '_')}_h{pair[1]}"
        models = cells.DIMS[pair[0]][1]
        title = f"({pair[0]}), {pair[1]} heads: {models}. {gpu}, {date}, {commit}"

        figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
        for axis, protocol in zip(axes, TIMED):
            for contender in dict.fromkeys(row["contender"] for row in mine):
                points = sorted(
                    (names[row["cell"]].new[0], float(row["tflops"]))
                    for row in mine
                    if row["contender"] == contender
                    and row["protocol"] == protocol
                    and row["cell"] in names
                    and row["cell"].startswith("self")
                )
                if points:
                    style = {"linewidth": 2.5} if contender == OURS else {"linewidth": 1.2}
                    axis.plot(*zip(*points), marker="o", markersize=4, label=contender, **style)
            axis.set_xscale("log", base=2)
            axis.set_xticks(list(cells.SELF), [str(length) for length in cells.SELF], fontsize=8)
            axis.set_xlabel("tokens a sequence, causal")
            axis.set_title(protocol)
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("TFLOP/s")
        axes[0].set_ylim(bottom=0)
        if axes[1].get_legend_handles_labels()[1]:
            axes[1].legend()
        figure.suptitle(title)
        save(figure, stem + "_tflops.svg")

        tables = {protocol: ratio_table(rows, pair, protocol) for protocol in TIMED}
        shown = [name for name in names if any(name in table for table in tables.values())]
        if not shown:
            continue
        figure, axis = plt.subplots(figsize=(10, 4))
        for offset, (protocol, table) in zip((-0.2, 0.2), tables.items()):
            places = [i + offset for i, name in enumerate(shown) if name in table]
            values = [table[name] for name in shown if name in table]
            for bar in axis.bar(places, values, width=0.38, label=protocol):
                text = f"{bar.get_height():.2f}"
                middle = bar.get_x() + bar.get_width() / 2
                axis.annotate(text, (middle, bar.get_height()), ha="center", va="bottom", fontsize=7)
        axis.axhline(1.0, color="black", linewidth=1)
        axis.set_ylim(0.8 * min(1, *(min(table.values()) for table in tables.values() if table)))
        axis.set_xticks(range(len(shown)), shown, rotation=30, ha="right")
        axis.set_ylabel("times the faster of FA3 and FA4")
        axis.legend()
        axis.set_title(title)
        save(figure, stem + "_ratio.svg")
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="all rows as one CSV")
    parser.add_argument("--plots", type=pathlib.Path, help="folder for SVG files")
    arguments = parser.parse_args()
    rows = read(arguments.files)
    if not rows:
        parser.error("the files have no rows")
    print_cells(rows)
    print_tiny(rows)
    print_summary(rows)
    print_goals(rows)
    if arguments.out:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    if arguments.plots:
        for path in plot(rows, arguments.plots):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
