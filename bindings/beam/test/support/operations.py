# SPDX-License-Identifier: MIT
"""Functions that the tests let workers run."""

import os
import re
import time

import numpy

import tmesh
from tmesh import worker


def echo(value):
    return value


def multiply(array, scalar):
    """The seed of all this: in place where it may, else anew."""
    if array.flags.writeable:
        array *= scalar
        return None
    return array * scalar


def describe(value):
    if isinstance(value, numpy.ndarray):
        return ["ndarray", str(value.dtype), list(value.shape), bool(value.flags.writeable),
                float(value.sum())]
    if isinstance(value, memoryview):
        return ["memoryview", value.nbytes, value[0], value[-1]]
    return [type(value).__name__, value if isinstance(value, str) else repr(value)]


def table(rows):
    return {"sums": numpy.arange(rows, dtype="int64"), "names": ["a", {"deep": numpy.ones(2)}],
            "blob": bytes(range(256)) * 8, "nan": float("nan"), "inf": [float("inf"), -float("inf")]}


def shared(n):
    t = tmesh.empty(n, "uint8")
    t.numpy()[:] = 5
    return t


def names(table):
    return [table.num_rows, table.column_names, table["age"].to_pylist()]


def older(table):
    import pyarrow.compute

    ages = pyarrow.compute.add(table["age"], 1)
    return table.set_column(table.column_names.index("age"), "age", ages)


def snakepit(n):
    """Twice: held by the worker until it was opened, and held here, for a ref holds nothing."""
    t = tmesh.put(numpy.arange(n, dtype="uint8"), seal=True)
    kept.append(t)
    plain = {"__snakepit_zero_copy__": True, "kind": "dlpack", "shape": [n], "bytes": n}
    return [{**plain, "ref": tmesh.put(t, seal=True)}, {**plain, "ref": t.ref(), "device": "cpu"}]


def snakepit_table(table):
    import tmesh.arrow

    return {"__snakepit_zero_copy__": True, "kind": "arrow", "ref": tmesh.arrow.write_table(table)}


kept = []


noted = []


def note(value):
    noted.append(value)
    return noted


def fail(message):
    raise LookupError(message)


def pid():
    return os.getpid()


def die():
    os._exit(9)


def nap(seconds):
    time.sleep(seconds)
    return os.getpid()


def until_file(path):
    """For as long as a test wants."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return os.getpid()


def stuck():
    """Holds the interpreter's lock for longer than any caller waits."""
    return bool(re.match("(a+)+$", "a" * 60 + "b"))


def until_cancelled():
    while not worker.cancelled():
        time.sleep(0.005)
    return "noticed"


def count(n, size=0):
    for i in range(n):
        yield numpy.full(size, i, "uint8") if size else i


def count_and_die(n):
    yield from range(n)
    os._exit(9)


def malformed():
    while True:
        yield {"__snakepit_zero_copy__": True}


def unsendable():
    return object()


def text(n):
    return "x" * n
