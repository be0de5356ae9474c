# SPDX-License-Identifier: MIT
"""A program in Python beside a node, for net_fetch.py. Its first line is JSON of a ref that was fetched and of one that
was made here. Each further line is "fetched" or "made". The answer is the nanoseconds of an open until the
first byte, as a mean of fifty in a row with their release."""

import json
import sys
import time

import tmesh.net

TIMES = 50
fetched, made = json.loads(sys.stdin.readline())
print("> ready", flush=True)
for line in sys.stdin:
    way, ref = (tmesh.net.open, fetched) if line == "fetched\n" else (tmesh.open, made)
    started = time.perf_counter_ns()
    for _ in range(TIMES):
        tensor = way(ref)
        tensor.numpy()[0]
        del tensor
    print(f"> {(time.perf_counter_ns() - started) // TIMES}", flush=True)
