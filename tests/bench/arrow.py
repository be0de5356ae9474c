# SPDX-License-Identifier: MIT
"""The other end of arrow.exs: it reads a line with the place of a table, and answers with the same when the table has
been in pandas. It fails if anything is copied.
"""

import os
import sys
import tempfile

from harness import CPU_CONSUMER, pin

try:
    import pandas
    import pyarrow
    import tmesh.arrow
except ImportError as error:
    sys.exit(print(f"{error.name} is not installed"))

import tmesh


def by_tmesh(ref):
    return tmesh.arrow.open_table(ref)


def by_file(path):
    with pyarrow.memory_map(path) as file:
        return pyarrow.ipc.open_file(file).read_all()


def write(ref):
    """A file with the same table."""
    table = by_tmesh(ref)
    path = tempfile.mkstemp(prefix="tmesh-bench-", dir="/dev/shm")[1]
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


def to_pandas_and_back(table):
    frame = table.to_pandas(types_mapper=pandas.ArrowDtype)
    back = pyarrow.Table.from_pandas(frame, preserve_index=False)
    assert frame.iat[len(frame) - 1, -1] == 1
    assert back.column(0).chunk(0).buffers()[1].address == \
        table.column(0).chunk(0).buffers()[1].address


def copied():
    return tmesh.stats()["bytes_copied"] + pyarrow.total_allocated_bytes()


def main():
    pin(CPU_CONSUMER)
    print("ready", flush=True)
    path = None
    try:
        for line in sys.stdin:
            way, what = line.strip().split(" ", 1)
            if way == "write":
                path = what = write(what)
            else:
                before = copied()
                to_pandas_and_back({"tmesh": by_tmesh, "file": by_file}[way](what))
                assert copied() - before < 4096
            print(what, flush=True)
    finally:
        if path:
            os.unlink(path)


main()
