# SPDX-License-Identifier: MIT
"""The operations of the tests' worker. `subprocess` and `_private` are no operations."""

import os
import subprocess  # noqa: F401
import sys
import threading
import time

import numpy

import tmesh
from tmesh import worker
from tmesh.worker import _calls

kept = []


def echo(value):
    return value


def add(a, b=1):
    return a + b


def read_input():
    """Read standard input in an operation, and in a program that it starts; then close it, as daemons do."""
    read = [sys.stdin.read(), subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout]
    os.close(0)
    return read


def double(array):
    """Double it in place, if the caller granted that."""
    array *= 2
    return int(array.sum())


def fail_next_thread():
    """Raise as the system does when it has no more threads."""
    start = threading.Thread.start

    def fail(thread):
        threading.Thread.start = start
        raise RuntimeError("can't start new thread")

    threading.Thread.start = fail


def describe(value):
    """Return the type in which an argument arrives."""
    kind = type(value).__name__
    if isinstance(value, numpy.ndarray):
        return {"kind": kind, "dtype": str(value.dtype), "shape": list(value.shape),
                "writable": bool(value.flags.writeable), "sum": float(value.sum())}
    if isinstance(value, memoryview):
        return {"kind": kind, "bytes": value.nbytes, "writable": not value.readonly,
                "sum": sum(value)}
    return {"kind": kind}


@worker.takes_tensors
def describe_tensor(value):
    return [type(value).__name__, value.dtype, value.writable]


def ones(n, dtype="float64"):
    return numpy.ones(n, dtype)


def in_place(n):
    """Return a tensor without a copy."""
    t = tmesh.empty(n, "int32", label="in place")
    t.numpy()[:] = 7
    return t


def snakepit():
    """Return Snakepit's own description of a tensor that nothing here keeps."""
    return {"__snakepit_zero_copy__": True, "kind": "dlpack", "ref": tmesh.put([1.0, 2.0])}


def blob(n):
    return bytes(n)


def text(n):
    return "x" * n


def specials():
    return [float("nan"), float("inf"), float("-inf"), 0.5, -1, None, True, "ä", b"\xff", (1, 2),
            numpy.float32(1.5), numpy.int64(3), numpy.bool_(True)]


def keep(array):
    kept.append(array)


def kept_sum():
    return float(kept.pop().sum())


def fail(message="it failed"):
    raise LookupError(message)


def leave():
    sys.exit(3)


def fork():
    """Start a process that outlives this one, such as a pool's."""
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    return child


def die():
    os._exit(9)


def chatter():
    print("an operation may print")
    return 1


def nap(seconds):
    time.sleep(seconds)


def item_and_nap(seconds):
    yield 0
    time.sleep(seconds)


def until_cancelled(seconds=3600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if worker.cancelled():
            return "noticed"
        time.sleep(0.005)
    return "not noticed"


def until_another_is_over():
    """Wait until a call that waits behind this one is cancelled, or its time is over."""
    client = _calls.running.client
    while True:
        with client.lock:
            calls = [*client.calls.values()]
        if any(call.over() for call in calls if call is not _calls.running):
            return
        time.sleep(0.005)


def count(n, size=0, delay=0):
    for i in range(n):
        time.sleep(delay)
        yield numpy.full(size, i) if size else i


def count_and_fail(n):
    yield from range(n)
    raise LookupError("after the items")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def result(name):
    """Return results that cannot be sent."""
    loop = []
    loop.append(loop)
    return {"object": object(), "integer": 1 << 63, "complex": 1j, "loop": loop, "set": {1},
            "key": {1: 2}, "reserved": {"__tmesh__": "tensor"}, "surrogate": "\ud800",
            "objects": numpy.array([object()])}[name]


def _private():
    return "not to be called"


def spoil(path):
    with open(path, "w") as file:
        file.write("called")


def part(array, start, step):
    return array[start::step]


def into(array, factor):
    """Write the result into an argument, like NumPy's own functions with out=."""
    return numpy.multiply(array, factor, out=array)


scratch = tmesh.empty(4, "int32")


def own_scratch(value):
    """Return memory that the next call writes to again."""
    array = scratch.numpy()
    array[:] = value
    return array


weights = tmesh.put(numpy.arange(8.0))


def own_weights():
    return weights.numpy()[2:]


def copied():
    return tmesh.stats()["bytes_copied"]
