# SPDX-License-Identifier: Apache-2.0
"""Timing on a GPU whose power is limited: in bursts, and sustained."""

import statistics
import subprocess
import time

import torch


def event_seconds(run, calls):
    """Seconds a call, measured around so many of them by the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls


def burst(contenders, rounds, seconds=0.02, pause=0.15):
    """Contenders in turns, each for a moment after a pause: the clock is high. name -> seconds a
    call, one for each round."""
    calls = {}
    for name, run in contenders.items():
        run()
        torch.cuda.synchronize()
        calls[name] = max(1, round(seconds / max(event_seconds(run, 3), 1e-6)))
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            torch.cuda.synchronize()
            time.sleep(pause)
            times[name].append(event_seconds(run, calls[name]))
    return times


def sustained(contenders, seconds=1.5):
    """Each contender for so long, and then all again in reverse (A B B A): what the power limit
    leaves. The first half of each stretch is not counted. name -> seconds a call, two of them."""
    times = {name: [] for name in contenders}
    names = list(contenders)
    for name in names + names[::-1]:
        run = contenders[name]
        calls = max(1, round(seconds / 2 / max(event_seconds(run, 3), 1e-6)))
        event_seconds(run, calls)
        times[name].append(event_seconds(run, calls))
    return times


def median(values):
    return statistics.median(values)


def facts():
    """What a figure must name."""
    query = "name,driver_version,power.limit,clocks.max.sm"
    values = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return dict(zip(("gpu", "driver", "power_limit", "max_clock"), values.split(", ")))
