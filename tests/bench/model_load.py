# SPDX-License-Identifier: MIT
"""1 GB of safetensors in 300 tensors, warm, beside safetensors.safe_open and touching each page of every
tensor; the second process from path to last tensor; N processes at once beside one.

    model_load.py MODEL_OPEN [FOLDER]

runs in the environment of libtmesh-model's tests, which has safetensors and NumPy.
"""

import os
import subprocess
import sys
import tempfile
from time import perf_counter_ns

import numpy
from safetensors import safe_open
from safetensors.numpy import save_file

from harness import Series

ROUNDS, TENSORS, BYTES, REPLICAS = int(os.environ.get("ROUNDS", 5)), 300, 1_000_000_000, 4
PROGRAM = sys.argv[1]


def make(folder):
    path = os.path.join(folder, "m.safetensors")
    rng = numpy.random.default_rng(1)
    size = BYTES // TENSORS // 4
    save_file({f"layer.{i:03}.weight": rng.random(size, numpy.float32) for i in range(TENSORS)}, path)
    return path


# A process of its own each time, as ours: Python's start is not on the clock.
PEER = """
import sys
from time import perf_counter_ns
from safetensors import safe_open
import numpy
start = perf_counter_ns()
with safe_open(sys.argv[1], framework="numpy") as file:
    for name in file.keys():
        file.get_tensor(name).view(numpy.uint8)[::4096].sum()
print(perf_counter_ns() - start)
"""


def run(*words):
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main():
    series = Series("model")
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        path = make(folder)
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass
        for turn in range(-1, ROUNDS):
            for name, words in (("warm-tmesh", (PROGRAM, "load", path)),
                                ("warm-io_uring", (PROGRAM, "load", path, "io_uring")),
                                ("warm-safe_open", (sys.executable, "-c", PEER, path))):
                spent = run(*words)
                if turn >= 0:
                    series.add(name, spent)
            began = perf_counter_ns()
            replicas = [subprocess.Popen([PROGRAM, "hold", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL) for _ in range(REPLICAS)]
            for replica in replicas:
                replica.stdout.readline()
            if turn >= 0:
                series.add(f"replicas-{REPLICAS}", perf_counter_ns() - began)
                for _ in range(10):
                    series.add("second", run(PROGRAM, "second", path))
            for replica in replicas:
                replica.communicate(b"\n")
            began = perf_counter_ns()
            replica = subprocess.Popen([PROGRAM, "hold", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
            replica.stdout.readline()
            if turn >= 0:
                series.add("replicas-1", perf_counter_ns() - began)
            replica.communicate(b"\n")
    series.print()


main()
