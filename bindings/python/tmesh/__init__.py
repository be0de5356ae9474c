# SPDX-License-Identifier: MIT
"""Tensors in memory that processes, languages and devices share.

    t = tmesh.put(array)                # one copy, into shared memory; sealed
    queue.put(t.ref())                  # a small dict, through whatever carries messages
    a = tmesh.open(ref).numpy()         # elsewhere: the same memory, nothing copied

Memory lives as long as somebody holds it. Refs and tokens hold nothing. Strides are in
elements everywhere, sizes and offsets in bytes. All functions may be called from several
threads. After os.fork() the child can read what it inherited and nothing more (AccessError);
it can put and open on its own.
"""

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
from .keeping import keep, open_kept
from .model import Model, load_model
from .pages import PagePool, Pages
from .picture import graph
from .queue import Queue
from .refs import Ref
from .sent import flush
from .slots import Slot, SlotReader, SlotValue

__all__ = [
    "AccessError",
    "Arena",
    "Bundle",
    "BusyError",
    "CancelledError",
    "Channel",
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
    "drop",
    "empty",
    "export_memory",
    "flush",
    "from_address",
    "from_dlpack",
    "from_dmabuf",
    "gather",
    "graph",
    "holders",
    "keep",
    "kept",
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
