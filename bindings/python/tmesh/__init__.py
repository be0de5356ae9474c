# SPDX-License-Identifier: MIT
"""Tensors in memory that processes, languages and devices share.

    t = tmesh.put(array)                # one copy, into shared memory; sealed
    queue.put(t.ref())                  # a small dict; send it by any means
    a = tmesh.open(ref).numpy()         # elsewhere: the same memory, nothing copied

Memory stays while a process has a handle or a view of it. Refs and tokens do not hold
memory. Strides are in elements everywhere, sizes and offsets in bytes. All functions may be
called from several threads. After os.fork() the child can read and write the tensors that it
inherited. ref() and sending raise AccessError there until the child has written to the
tensor. It can put and open tensors of its own.
"""

from . import installed

try:
    from . import _tmesh
except ImportError as error:
    raise installed.explained(error) from None
from ._tmesh import (
    Arena,
    Channel,
    Tensor,
    __version__,
    backend,
    caps,
    configure,
    drop,
    empty,
    export_memory,
    from_address,
    from_dlpack,
    from_dmabuf,
    gather,
    holders,
    kept,
    kept_files,
    put,
    recv,
    recv_bundle,
    regions,
    stats,
    trim,
    zeros,
)
from ._tmesh import open as open  # here, but not in __all__: it would replace Python's
from .bundles import Bundle, bundle
from .errors import (
    AccessError,
    BusyError,
    CancelledError,
    Error,
    ExistsError,
    GoneError,
    InvalidError,
    LimitError,
    NotFoundError,
    OutOfMemoryError,
    PeerTimeoutError,
    ProtocolError,
    ReleasedError,
    SealedError,
    StaleError,
    UnsupportedError,
)
from .keeping import keep, keep_folder, kept_path, open_kept
from .model import Description, Model, describe_model, load_model
from .pages import PagePool, Pages
from .notebook import draw
from .queue import Queue
from .refs import Ref
from .in_transit import flush
from .slots import Slot, SlotReader, SlotValue

__all__ = [
    "AccessError",
    "Arena",
    "Bundle",
    "BusyError",
    "CancelledError",
    "Channel",
    "Description",
    "Error",
    "ExistsError",
    "GoneError",
    "InvalidError",
    "LimitError",
    "Model",
    "NotFoundError",
    "OutOfMemoryError",
    "PagePool",
    "Pages",
    "PeerTimeoutError",
    "ProtocolError",
    "Queue",
    "Ref",
    "ReleasedError",
    "SealedError",
    "Slot",
    "SlotReader",
    "SlotValue",
    "StaleError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "backend",
    "bundle",
    "caps",
    "configure",
    "describe_model",
    "draw",
    "drop",
    "empty",
    "export_memory",
    "flush",
    "from_address",
    "from_dlpack",
    "from_dmabuf",
    "gather",
    "holders",
    "keep",
    "keep_folder",
    "kept",
    "kept_files",
    "kept_path",
    "load_model",
    "open_kept",
    "put",
    "recv",
    "recv_bundle",
    "regions",
    "stats",
    "trim",
    "zeros",
]
