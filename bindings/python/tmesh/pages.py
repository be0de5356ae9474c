# SPDX-License-Identifier: MIT
"""Pages of one size that processes share, and sequences of them: a KV cache.

    pool = tmesh.PagePool(page_bytes=65536, page_tokens=16)     # one process owns the pages
    token = pool.tenant()                                       # for each process that joins

    pages = tmesh.Pages.open(token)                             # in each process
    sequence = pages.sequence()
    sequence.append(40)                                         # room for 40 tokens: 3 pages
    sequence.page(0, writable=True)[:] = 7                      # NumPy, uint8
    other = sequence.fork()                                     # the same pages, copied when written
    tables, lengths = pages.tables([sequence, other])           # int32, as paged attention kernels take them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as _Listed
from typing import Any

from . import _tmesh
from .errors import InvalidError
from .slots import _Closing

_HASH_BYTES = 16


class PagePool(_Closing):
    """A pool, served by a thread of this process until it is closed. By default, which is 0, pages have 64 KiB for 16 tokens, a
    region 256 pages, the pool 4,096 pages, one device, and each device a head. Pages are in host memory. If a tenant has no
    free page, its least recently used cached blocks are dropped. InvalidError: a number is out of its range. LimitError,
    OutOfMemoryError: no free descriptor or memory."""

    _handle: _tmesh.PagePoolHandle
    _travels = "send pool.tenant(), a token, and open it there by tmesh.Pages.open(token)"

    def __init__(self, *, page_bytes: int = 0, page_tokens: int = 0, slab_pages: int = 0, max_pages: int = 0,
                 devices: int = 0, heads: int = 0) -> None:
        self._handle = _tmesh.make_page_pool(page_bytes, page_tokens, slab_pages, max_pages, devices, heads)

    def tenant(self, max_pages: int = 0) -> str:
        """Add a tenant with at most max_pages pages (0: as many as the pool), and a key of its own. Return its token
        for Pages.open() in processes of this user. ReleasedError: the pool was closed."""
        return self._handle.tenant(max_pages)

    def info(self) -> dict[str, int]:
        """Return the numbers of pages (free, cached, held), slabs, handles, tickets, and counts of events (evicted,
        refused, died, reclaimed). ReleasedError: the pool was closed."""
        return self._handle.info()

    def close(self) -> None:
        """End the pool. Handles keep their pages, and get GoneError for new ones."""
        self._handle.close()

    def __repr__(self) -> str:
        return f"<tmesh.PagePool{', closed' * self.closed}>"


class Pages(_Closing):
    """A handle on a pool for one tenant; made by Pages.open(). Several threads may use it, each sequence by one at a
    time. A forked child must open its own: it has nothing of this one, not even the arrays."""

    _handle: _tmesh.PagesHandle
    _travels = "send the tenant's token, and open it there by tmesh.Pages.open(token)"

    def __init__(self, handle: _tmesh.PagesHandle) -> None:
        self._handle = handle
        self._page_bytes = self.info()["page_bytes"]

    @classmethod
    def open(cls, token: str) -> Pages:
        """Open a tenant's token. NotFoundError: the pool is gone. ProtocolError: it is no token of a tenant."""
        return cls(_tmesh.open_pages(token))

    def info(self) -> dict[str, int]:
        """Return the pool's shape (page_bytes, page_tokens, slab_pages, max_pages, devices, heads), and this handle's
        counts: pages held and spare, and pages copied before a write (copies, bytes_copied). ReleasedError: it was
        closed."""
        return self._handle.info()

    def sequence(self) -> Sequence:
        """Make a sequence without tokens. ReleasedError: it was closed."""
        return self._new(self._handle.sequence())

    def _new(self, handle: _tmesh.SequenceHandle) -> Sequence:
        return Sequence(handle, self._page_bytes)

    def find(self, hashes: Iterable[bytes]) -> Sequence:
        """Make a sequence of the longest prefix cached under these hashes; it may have no block. InvalidError: they are
        no hashes. GoneError: the pool has ended. ReleasedError: this was closed."""
        return self._new(self._handle.find(_joined(hashes)))

    def hash(self, tokens: Any, parent: bytes | None = None) -> bytes:
        """Return the hash, 16 bytes, of a block's tokens (integers that fit int32) that follow those with the hash
        parent, under the tenant's key. InvalidError: a token does not fit int32, or they do not fill a block."""
        import numpy

        exact = numpy.asarray(tokens)
        small = numpy.ascontiguousarray(exact, "int32")
        if exact.size and (exact.dtype.kind not in "iu" or not numpy.array_equal(exact, small)):
            raise InvalidError(22, "tokens are integers that fit int32")
        return self._handle.hash(small, parent)

    def open_sequence(self, ticket: str) -> Sequence:
        """Take the sequence that another process of the tenant shares. NotFoundError: the ticket has ended."""
        return self._new(self._handle.open_sequence(ticket))

    def unshare(self, ticket: str) -> None:
        """End a ticket of this handle. Sequences taken by it stay. ProtocolError: it is no ticket."""
        self._handle.unshare(ticket)

    def tables(self, sequences: _Listed[Sequence], width: int | None = None) -> tuple[Any, Any]:
        """Return (block_tables, seq_lens) in the form of paged attention kernels. block_tables: int32 [sequences,
        width], 0 after the last block of a sequence. seq_lens: int32 [sequences], in tokens. width defaults to the
        longest sequence's. They are NumPy arrays, which torch.from_numpy() shares. InvalidError: a sequence is longer
        than width. ReleasedError: one was released."""
        import numpy

        listed = list(sequences)
        for sequence in listed:
            if not isinstance(sequence, Sequence):
                raise TypeError(f"tables are of sequences of pages, not of {sequence!r}")
        tables, width, lengths = _tmesh.sequence_tables([sequence._handle for sequence in listed], width)
        rows = len(lengths) // 4
        return numpy.frombuffer(tables, "int32").reshape(rows, width), numpy.frombuffer(lengths, "int32")

    def head(self, head: int) -> tuple[int, int]:
        """Return (device, place) of a head: its device, and its place among that device's heads. InvalidError: there is
        no such head."""
        return self._handle.head(head)

    def base(self, device: int = 0) -> int:
        """Return the address of page 0 on a device, for kernels: page p is at base + p * page_bytes. Only pages that
        this handle holds are accessible. InvalidError: there is no such device."""
        return self._handle.base(device)

    def slab(self, slab: int = 0, *, device: int = 0) -> _tmesh.Tensor:
        """Return the memory of pages [slab * slab_pages, (slab + 1) * slab_pages), a writable Tensor of bytes. It has
        all of these pages, also those of other holders. Pass it to code in another process that works on pages, such as
        an engine (tmesh.engine.Context.keep()). NotFoundError: this handle has had no page of it yet."""
        return self._handle.slab(slab, device)

    def trim(self) -> None:
        """Give the owner the pages that this handle keeps ready, up to 192. An idle handle does not do this by itself.
        ReleasedError: it was closed."""
        self._handle.trim()

    def close(self) -> None:
        """Leave the pool. Existing sequences stay usable until they are released."""
        self._handle.close()

    def __repr__(self) -> str:
        return f"<tmesh.Pages{', closed' * self.closed}>"


def _joined(hashes: Iterable[bytes]) -> bytes:
    listed = list(hashes)
    if any(not isinstance(one, bytes) or len(one) != _HASH_BYTES for one in listed):
        raise InvalidError(22, "hashes are what Pages.hash() gives, 16 bytes each")
    return b"".join(listed)


class Sequence:
    """Blocks of tokens, one page each; made by Pages. Its pages are freed when it is released or collected; arrays of
    its memory keep it. For one thread at a time."""

    def __init__(self, handle: _tmesh.SequenceHandle, page_bytes: int) -> None:
        self._handle = handle
        self._page_bytes = page_bytes

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return self._handle.tokens

    @property
    def id(self) -> int:
        """Its number in this handle, which is never used again."""
        return self._handle.id

    @property
    def released(self) -> bool:
        """Whether it was released."""
        return self._handle.released

    def append(self, tokens: int) -> None:
        """Make room for more tokens. A last page that is not full is copied if others may have it. LimitError: the
        tenant has no page left, or other handles keep them ready: see trim(). InvalidError: its view has no room for
        them."""
        self._handle.append(tokens)

    def truncate(self, tokens: int) -> None:
        """Keep only the first tokens. BusyError while arrays of its memory exist."""
        self._handle.truncate(tokens)

    def fork(self) -> Sequence:
        """Make another sequence with the same pages. Each of the two copies a page before it writes there. BusyError
        while writable arrays exist."""
        return Sequence(self._handle.fork(), self._page_bytes)

    def block_table(self) -> Any:
        """Return the numbers of its pages, a new NumPy array of int32."""
        import numpy

        return numpy.frombuffer(self._handle.table(), "int32")

    def slot_mapping(self, first: int = 0, count: int | None = None) -> Any:
        """Return the places of tokens, a NumPy array of int64: page * page_tokens + place in it."""
        import numpy

        count = max(self.tokens - first, 0) if count is None else count
        return numpy.frombuffer(self._handle.slot_mapping(first, count), "int64")

    def page(self, index: int, *, device: int = 0, writable: bool = False) -> Any:
        """Return a block, by its index from 0, as a NumPy array of uint8. writable: afterwards only this sequence has
        the page; if others may have it, it is first copied. An older array still shows the old page."""
        import numpy

        return numpy.frombuffer(self._handle.page(index, device, writable, self._page_bytes), "uint8")

    def view(self, max_tokens: int, *, device: int = 0) -> Any:
        """Return all blocks as one piece of memory without a copy: a read-only NumPy array of uint8 [blocks,
        page_bytes]. The first call reserves address space for max_tokens, which then limits the sequence. After an
        append another call shows the new blocks at the same address. InvalidError: less space is left; a fork() can
        have more."""
        import numpy

        return numpy.frombuffer(self._handle.view(device, max_tokens, self._page_bytes),
                                "uint8").reshape(-1, self._page_bytes)

    def gather(self, *, device: int = 0) -> _tmesh.Tensor:
        """Return the same as a Tensor of bytes, as the sequence is now, to send or export. This requires the module."""
        return self._handle.gather(device)

    def cache(self, hashes: Iterable[bytes]) -> None:
        """Let others of this tenant find the first blocks, which are full, under these hashes. They stay cached until
        the room is needed. BusyError while writable arrays exist."""
        self._handle.cache(_joined(hashes))

    def share(self) -> str:
        """Return a ticket for the sequence as it is now, for Pages.open_sequence() in another process of the tenant. Its pages
        stay until unshare(), or until this handle ends. BusyError while writable arrays exist."""
        return self._handle.share()

    def release(self) -> None:
        """Free its pages. BusyError while arrays of its memory exist. Later use raises ReleasedError."""
        self._handle.release()

    def __len__(self) -> int:
        return self.tokens

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Sequence:
        self.tokens
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a Sequence cannot be pickled: send sequence.share(), and take it there by Pages.open_sequence(ticket)")

    def __repr__(self) -> str:
        return "<tmesh.Sequence, released>" if self.released else f"<tmesh.Sequence of {self.tokens} tokens>"
