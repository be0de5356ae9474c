# SPDX-License-Identifier: MIT
"""Helpers of the Python benches: the clock, the CPUs, and the output of series for run.py."""

import json
import os
from time import perf_counter_ns

CPU_PRODUCER, CPU_CONSUMER = 0, 1


def pin(cpu):
    """Stay on one CPU; the two ends of a hand-over run on different ones."""
    os.sched_setaffinity(0, {cpu % os.cpu_count()})


class Series:
    """The samples of each of a topic's ways, in nanoseconds."""

    def __init__(self, topic):
        self.topic = topic
        self.samples = {}

    def time(self, name, function, keep=True):
        """Call `function` on the clock; with keep=False only to warm up. Return its result."""
        start = perf_counter_ns()
        result = function()
        spent = perf_counter_ns() - start
        if keep:
            self.add(name, spent)
        return result

    def add(self, name, spent):
        """Add a sample that the caller has timed."""
        self.samples.setdefault(name, []).append(spent)

    def print(self):
        for name, samples in self.samples.items():
            print(json.dumps({"topic": self.topic, "name": name, "ns": samples}), flush=True)
