# SPDX-License-Identifier: Apache-2.0
"""Timing on a GPU whose power is limited: in bursts, and sustained.

What is timed are CUDA graphs, so that a contender's host code doesn't count; host time is measured
apart (host_seconds).
"""

import ctypes
import statistics
import subprocess
import threading
import time

import torch


def capture(run, calls=1):
    """A CUDA graph of so many calls. Whatever cannot be captured raises here."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph


class Gate:
    """Holds the current stream back while work is queued, so that a pair of events around that work
    does not see how long the host takes to launch it: tens of microseconds otherwise."""

    def __init__(self):
        self._flag = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._address = ctypes.c_uint64(self._flag.data_ptr())  # unified addresses: the device's too
        self._wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2

    def close(self):
        self._flag[0] = 0
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self._wait(stream, self._address, ctypes.c_uint32(1), ctypes.c_uint32(0))
        if code != 0:
            raise RuntimeError(f"cuStreamWaitValue32: CUDA error {code}")

    def open(self):
        self._flag[0] = 1


def gated_seconds(gate, graph, calls=1):
    """Device seconds of so many replays behind a gate."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    gate.close()
    # Work that waits for the stream would wait for ever.
    late = threading.Event()
    watchdog = threading.Timer(2.0, lambda: (late.set(), gate.open()))
    watchdog.start()
    try:
        begin.record()
        for _ in range(calls):
            graph.replay()
        end.record()
        time.sleep(300e-6)
    finally:
        gate.open()
        watchdog.cancel()
    end.synchronize()
    if late.is_set():
        raise RuntimeError("launching it waits for the stream: it cannot be timed behind a gate")
    return begin.elapsed_time(end) / 1e3 / calls


def burst(gate, graphs, rounds, idle=0.25):
    """Graphs of one call in turns, each once after an idle pause: the clock is high. name -> seconds,
    one for each round."""
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            time.sleep(idle)
            times[name].append(gated_seconds(gate, graph))
    return times


class Sampler:
    """SM clock in MHz and power in W by NVML, from begin.query() on until stop(); empty where NVML is
    not to be had."""

    def __init__(self):
        self._nvml = None
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            properties = torch.cuda.get_device_properties(0)
            uuid = f"GPU-{getattr(properties, 'uuid', '')}".encode()
            if nvml.nvmlInit_v2() == 0 and (
                nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)) == 0
                or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
            ):
                self._nvml, self._handle = nvml, handle
        except (OSError, AttributeError) as error:
            print(f"no clocks: {error}")

    def start(self, begin):
        self.clocks, self.watts = [], []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(begin,), daemon=True)
        self._thread.start()

    def _sample(self, begin):
        value = ctypes.c_uint()
        while not self._stop.wait(0.01):
            if self._nvml is None or not begin.query():
                continue
            sm_clock = 1  # NVML_CLOCK_SM
            if self._nvml.nvmlDeviceGetClockInfo(self._handle, sm_clock, ctypes.byref(value)) == 0:
                self.clocks.append(value.value)
            if self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(value)) == 0:
                self.watts.append(value.value / 1e3)

    def stop(self):
        """Medians of clock and power, or None."""
        self._stop.set()
        self._thread.join()
        return tuple(statistics.median(each) if each else None for each in (self.clocks, self.watts))


def sustained(graph, seconds, warm, timed, sampler):
    """A graph that takes so many seconds, back to back: `warm` seconds that are not counted, then
    `timed` ones. Seconds a replay, SM clock, power: what the power limit leaves."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(max(1, round(warm / seconds))):
        graph.replay()
    begin.record()
    sampler.start(begin)
    replays = max(1, round(timed / seconds))
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    clock, watts = sampler.stop()
    return begin.elapsed_time(end) / 1e3 / replays, clock, watts


def host_seconds(run, rounds=41, calls=100):
    """Of a call, back to back onto an idle stream without waiting: few enough calls that the queue
    never makes one wait. Median of the rounds."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return statistics.median(times)


def facts():
    """What a figure must name."""
    query = "name,driver_version,power.limit,clocks.max.sm"
    values = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[0]
    return dict(zip(("gpu", "driver", "power_limit", "max_clock"), values.split(", ")))
