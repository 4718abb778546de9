# SPDX-License-Identifier: Apache-2.0
"""Timing of several contenders in turns, so that what else the machine does hits all alike."""

import dataclasses
import statistics
import time


@dataclasses.dataclass
class Timing:
    seconds: list

    @property
    def median(self):
        return statistics.median(self.seconds)

    @property
    def spread(self):
        """Half the distance between the quartiles, as a fraction of the median."""
        ordered = sorted(self.seconds)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / 2 / self.median


def interleave(contenders, rounds):
    """Runs every callable of `contenders` (name -> callable) once to warm up, then once in each
    round, in an order that turns by one each round. Returns name -> Timing."""
    names = list(contenders)
    for name in names:
        contenders[name]()
    seconds = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - begin)
    return {name: Timing(values) for name, values in seconds.items()}
