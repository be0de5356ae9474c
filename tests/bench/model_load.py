#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""1 GB of safetensors in 300 tensors, each way a process of its own whose start is not on the clock.

  warm      from the page cache, each page of every tensor touched, beside safetensors.safe_open
  cold      the same from the disk, beside the better of dd's reads, by O_DIRECT and buffered
  second    from the path to the last tensor's object while another process holds the model, in C and in
            Python, beside safe_open and its tensors, untouched
  kept      the same when all processes that had it are gone
  replicas  processes that are there and load at once, until all have the model, beside one

usage: tests/bench/model_load.py MODEL_OPEN KEEPER TMESHCTL FOLDER

FOLDER is on the disk that is measured. safe_open gives tensors of PyTorch, which it does not copy.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from time import perf_counter_ns

from harness import Series

try:
    import numpy
    import torch  # noqa: F401: safe_open needs it
    from safetensors.numpy import save_file
except ImportError as error:
    numpy = None
    LACKING = str(error)

ROUNDS, COLD_ROUNDS, LOOKS, TENSORS, BYTES, REPLICAS = 3, 6, 7, 300, 1_000_000_000, 4
PROGRAM, KEEPER, TMESHCTL, FOLDER = sys.argv[1:]

SAFETENSORS = """
import sys
from time import perf_counter_ns
import torch
from safetensors import safe_open
torch.empty(1).view(torch.uint8)[::4096].sum().item()
start = perf_counter_ns()
with safe_open(sys.argv[1], framework="pt") as file:
    tensors = [file.get_tensor(name) for name in file.keys()]
"""
TOUCH = """
for tensor in tensors:
    tensor.view(torch.uint8)[::4096].sum().item()
"""
TMESH = """
import sys
from time import perf_counter_ns
import tmesh
start = perf_counter_ns()
model = tmesh.load_model(sys.argv[1])
tensors = list(model.values())
"""
END = """
print(perf_counter_ns() - start)
"""


def make(path):
    rng = numpy.random.default_rng(1)
    size = BYTES // TENSORS // 4
    save_file({f"layer.{i:03}.weight": rng.random(size, numpy.float32) for i in range(TENSORS)}, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def output(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def spent(*words):
    """Return the time in nanoseconds that a process prints."""
    return int(output(*words))


def python(*parts):
    return sys.executable, "-c", "".join((*parts, END))


def cold(path):
    """No page of the file is in the page cache; a host below this machine may have them."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(*words):
    start = perf_counter_ns()
    output(*words)
    return perf_counter_ns() - start


@contextlib.contextmanager
def held(path, count=1):
    """Load and hold the model in so many processes; yield the time until all have it."""
    processes = [subprocess.Popen([PROGRAM, "hold", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL) for _ in range(count)]
    for process in processes:
        assert process.stdout.readline(), "a replica could not start"
    start = perf_counter_ns()
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout.readline(), "a replica could not load"
    yield perf_counter_ns() - start
    for process in processes:
        process.communicate(b"\n")


def seconds(series, path, name):
    for turn in range(-1, LOOKS):
        for way, words in ((name, (PROGRAM, "second", path)), (f"{name}-python", (*python(TMESH), path))):
            taken = spent(*words)
            if turn >= 0:
                series.add(way, taken)
    for _ in range(ROUNDS):
        series.add(f"{name}-safe_open", spent(*python(SAFETENSORS), path))


def measure(series, path):
    for turn in range(-1, ROUNDS):
        for name, words in (("warm", (PROGRAM, "load", path)),
                            ("warm-safe_open", (*python(SAFETENSORS, TOUCH), path))):
            taken = spent(*words)
            if turn >= 0:
                series.add(name, taken)
        for count in (1, REPLICAS):
            with held(path, count) as taken:
                if turn >= 0:
                    series.add(f"replicas-{count}", taken)
    with held(path):
        seconds(series, path, "second")
    name = output(PROGRAM, "keep", path).strip()
    seconds(series, path, "kept")
    output(TMESHCTL, "drop", name)
    for _ in range(COLD_ROUNDS):
        for way, how, words in (
                ("cold", spent, (PROGRAM, "load", path)),
                ("cold-safe_open", spent, (*python(SAFETENSORS, TOUCH), path)),
                ("cold-dd-direct", timed, ("dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct")),
                ("cold-dd-buffered", timed, ("dd", f"if={path}", "of=/dev/null", "bs=4M"))):
            cold(path)
            series.add(way, how(*words))
    ways = "cold-dd-direct", "cold-dd-buffered"
    best = min(ways, key=lambda way: statistics.median(series.samples[way]))
    series.samples["cold-dd"] = series.samples[best]


def main():
    series = Series("model")
    if numpy is None:
        for name in ("warm", "cold", "second", "second-python", "kept", "kept-python", f"replicas-{REPLICAS}"):
            print(json.dumps({"topic": "model", "name": name, "skip": LACKING}))
        return
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, tempfile.TemporaryDirectory() as runtime:
        os.environ.update(TMESH_RUNTIME_DIR=runtime, TMESH_KEEPER=os.path.abspath(KEEPER))
        path = os.path.join(folder, "model.safetensors")
        make(path)
        measure(series, path)
    series.print()


main()
