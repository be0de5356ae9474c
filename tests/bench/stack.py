# SPDX-License-Identifier: MIT
"""What put() takes in a loop beside torch.stack() of the same 9.6 MB, in memory that each lets go of at once. Run by
hand: docs/measured.md has the figures."""

import statistics
import time

import torch

import tmesh

ROUNDS, WARM_UP = 40, 8
ROWS = [torch.randn(3, 223, 224) for _ in range(16)]


def median_ms(make):
    times = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.perf_counter()
        made = make()
        del made
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_UP:]) * 1e3


def named(**options):
    tensor = tmesh.put(source, **options)
    tensor.ref()
    return tensor


def stacked():
    tensor = tmesh.empty(source.shape, "float32")
    return torch.stack(ROWS, out=torch.from_dlpack(tensor))


torch.set_num_threads(1)
source = torch.stack(ROWS)
beside = median_ms(lambda: torch.stack(ROWS))
print(f"torch.stack: {beside:.2f} ms")
for name, make in (
    ("torch.stack(out=) into tmesh.empty()", stacked),
    ("tmesh.put(seal=False)", lambda: tmesh.put(source, seal=False)),
    ("tmesh.put()", lambda: tmesh.put(source)),
    ("tmesh.put() and ref()", named),
):
    print(f"{name}: {median_ms(make) / beside:.1f} times that")
