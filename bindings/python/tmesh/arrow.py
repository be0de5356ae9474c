# SPDX-License-Identifier: MIT
"""Arrow tables in shared memory.

    t = tmesh.arrow.write_table(table, label="people")   # one copy, into a sealed region
    table = tmesh.arrow.open_table(t.ref())              # elsewhere: the same memory

The region holds an Arrow IPC stream, which every language with Arrow can read; in Elixir
Tmesh.Arrow does. The buffers of the table that open_table() returns are in the region, and keep it
alive. The table passes without a copy to packages with Arrow's PyCapsule protocol (Polars, DuckDB),
and to pandas with to_pandas(types_mapper=pandas.ArrowDtype). Other columns of pandas are copies.

A single Tensor does not need this module: it has __arrow_c_array__, so pyarrow.array(tensor) reads
its memory.

This module needs pyarrow.
"""

from __future__ import annotations

import errno
from typing import Any

# pyarrow's types are not installed on every machine that checks this file.
import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
import pyarrow.ipc  # type: ignore[import-not-found,import-untyped,unused-ignore]

from . import _tmesh
from .errors import AccessError, ProtocolError

__all__ = ["open_table", "write_table"]


def write_table(table: Any, /, **region: Any) -> _tmesh.Tensor:
    """Write a table into a new region, as an Arrow IPC stream, and seal it. The bytes of its
    buffers are copied once. Return a tensor of uint8; pass its ref to open_table().

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
    """Open the table of a ref (a dict or JSON), a token, or a Tensor: a pyarrow Table whose buffers
    are in the region.

    A table of another process may have wrong lengths, and reading it could then read other memory. verify=True therefore
    requires a sealed region (else AccessError). It checks every offset and text once; numbers take no time. verify=False trusts
    the table's producer.

    ProtocolError if it is no valid Arrow IPC stream; other errors as for tmesh.open().
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
        str(table.schema)  # this reads every name
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
