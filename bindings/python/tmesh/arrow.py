# SPDX-License-Identifier: MIT
"""Arrow tables in shared memory.

    t = tmesh.arrow.write_table(table, label="people")   # one copy, into a sealed region
    table = tmesh.arrow.open_table(t.ref())              # elsewhere: the same memory

The region holds an Arrow IPC stream, so every language that reads Arrow reads it; Tmesh.Arrow does
in Elixir. What open_table() gives points into the region: its buffers are read in place, and keep
the region alive. It goes on without a copy to whatever speaks Arrow's PyCapsule protocol (Polars,
DuckDB), and to pandas with to_pandas(types_mapper=pandas.ArrowDtype); other columns of pandas are
its own, copied.

A single Tensor needs none of this: it has __arrow_c_array__, so that pyarrow.array(tensor) looks
at its memory.

This module needs pyarrow.
"""

from __future__ import annotations

import errno
from typing import Any

# Its types are not everywhere where these are checked.
import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
import pyarrow.ipc  # type: ignore[import-not-found,import-untyped,unused-ignore]

from . import _tmesh
from .errors import AccessError, ProtocolError

__all__ = ["open_table", "write_table"]


def write_table(table: Any, /, **region: Any) -> _tmesh.Tensor:
    """Write a table into a new region, as an Arrow IPC stream, and seal it; the bytes of its
    buffers are copied once. A tensor of uint8; its ref is what open_table() takes.

    table: a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or Polars DataFrame, or
    anything else with __arrow_c_stream__ or __arrow_c_array__. The other arguments are those of
    tmesh.empty(), such as label=.
    """
    table = _as_table(table)
    counter = pyarrow.MockOutputStream()
    _write(table, counter)
    tensor = _tmesh.empty(counter.size(), "uint8", **region)
    with pyarrow.FixedSizeBufferWriter(pyarrow.py_buffer(tensor)) as sink:
        _write(table, sink)
    del sink
    return tensor.seal()


def open_table(source: Any, /, *, verify: bool = True) -> pyarrow.Table:
    """The table behind a ref (a dict or JSON), a token, or a Tensor: a pyarrow Table whose buffers
    lie in the region.

    A table from elsewhere may lie about its lengths, and whoever believes it reads other memory.
    verify=True therefore wants a sealed region (else AccessError) and looks at every offset and
    text once; numbers take no time. verify=False trusts the table's maker.

    ProtocolError when it is no Arrow IPC stream or a lying one; else as tmesh.open().
    """
    tensor = source if isinstance(source, _tmesh.Tensor) else _tmesh.open(source)
    if not isinstance(tensor, _tmesh.Tensor):
        raise ProtocolError(errno.EPROTO, "this is the ref of a bundle, not of a table")
    if verify and not tensor.sealed:
        raise AccessError(errno.EACCES, "the region is not sealed, so the table could change while "
                          "it is read: seal it, or trust its maker with verify=False")
    try:
        table = pyarrow.ipc.open_stream(pyarrow.py_buffer(tensor)).read_all()
        table.validate(full=verify)
        str(table.schema)  # every name is read
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise ProtocolError(errno.EPROTO, f"no sound Arrow IPC stream: {error}") from error
    return table


def _as_table(table: Any) -> pyarrow.Table:
    if isinstance(table, pyarrow.RecordBatchReader):
        return table.read_all()
    return pyarrow.table(table)


def _write(table: pyarrow.Table, sink: Any) -> None:
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
