# SPDX-License-Identifier: MIT
"""Load a file of safetensors and read every byte of it once, by one way:

    tmesh   tmesh.load_model(), alone
    shared  the same, one load for all processes
    small   the same as tmesh, with huge pages switched off for the process (PR_SET_THP_DISABLE)
    mmap    safe_open, which maps the file
    pread   safe_open(backend="pread"), which copies as tmesh does

usage: whole.py WAY PATH

It prints a line when it is there. With a line of stdin it takes as much memory, gives it back, and prints a line.
Without that the load would wait for a virtual machine's host, which has to find memory that was free for some seconds.
With another line it begins. It prints the time of the load and the reading together, the time of a second reading (ns),
and KiB read at each page fault of the first. It ends with stdin.
"""

import ctypes
import json
import mmap
import resource
import sys
from time import perf_counter_ns

import numpy

WAY, PATH = sys.argv[1:]
PR_SET_THP_DISABLE = 41


def by_tmesh(alone):
    model = tmesh.load_model(PATH, alone=alone)
    return model, [tensor.numpy() for tensor in model.values()]


def by_safetensors(**how):
    with safe_open(PATH, framework="pt", **how) as file:
        return file, [file.get_tensor(name).numpy() for name in file.keys()]


def read(arrays):
    return sum(int(array.view(numpy.uint64).sum()) for array in arrays)


if WAY in ("mmap", "pread"):
    import torch  # noqa: F401: safe_open needs it
    from safetensors import safe_open
else:
    import tmesh
if WAY == "small":
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

load = {
    "tmesh": lambda: by_tmesh(True),
    "small": lambda: by_tmesh(True),
    "shared": lambda: by_tmesh(False),
    "mmap": by_safetensors,
    "pread": lambda: by_safetensors(backend="pread"),
}[WAY]

def have_memory():
    memory = mmap.mmap(-1, 1_200_000_000, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    numpy.frombuffer(memory, numpy.uint8)[::4096] = 1
    memory.madvise(mmap.MADV_DONTNEED)


print("ready", flush=True)
sys.stdin.readline()
have_memory()
print("has memory", flush=True)
sys.stdin.readline()
start = perf_counter_ns()
kept, arrays = load()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = read(arrays)
done = perf_counter_ns()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
assert read(arrays) == first
again = perf_counter_ns() - done
size = sum(array.nbytes for array in arrays)
print(json.dumps({"ns": done - start, "again_ns": again, "fault_kib": size // max(faults, 1) >> 10}), flush=True)
sys.stdin.read()
