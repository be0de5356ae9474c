# SPDX-License-Identifier: MIT
"""The time until the other side has read a value of the table, by three ways."""

import json
import os
import statistics
import time
from multiprocessing import shared_memory

import numpy as np

import peers

ROUNDS = 3 if os.environ.get("SHORT") else 20


def measure(table, ref, elixir):
    """Print medians in milliseconds; all ways take turns in one loop."""
    segment = shared_memory.SharedMemory(create=True, size=table.nbytes)
    python = peers.Python()
    try:
        np.ndarray(table.shape, table.dtype, segment.buf)[:] = table
        ways = {
            "bytes": ("bytes through the pipe", lambda: memoryview(table).cast("B")),
            "shared_memory": ("multiprocessing.shared_memory",
                              lambda: json.dumps([segment.name, *table.shape]).encode()),
            "tmesh": ("tmesh", lambda: json.dumps(ref).encode()),
        }
        sides = {"Elixir": elixir, "Python": python}
        times = {(way, side): [] for way in ways for side in sides
                 if (way, side) != ("shared_memory", "Elixir")}
        for turn in range(-2, ROUNDS):
            for (way, side), samples in times.items():
                start = time.perf_counter()
                answer = sides[side].ask(way, ways[way][1]())
                spent = time.perf_counter() - start
                assert answer == table[0, 0].tobytes()
                if turn >= 0:
                    samples.append(1000 * spent)
    finally:
        python.close()
        segment.close()
        segment.unlink()

    print(f"Hand-over of the {table.nbytes / 1e6:.1f} MB to the other side and back with a value of"
          f" it, median of {ROUNDS}:")
    print(f"  {'':<31}{'to Elixir':>12}{'to Python':>12}")
    for way, (name, _body) in ways.items():
        cells = [f"{statistics.median(times[way, side]):.2f} ms" if (way, side) in times else "-"
                 for side in sides]
        print(f"  {name:<31}" + "".join(f"{cell:>12}" for cell in cells))
