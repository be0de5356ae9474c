# SPDX-License-Identifier: MIT
"""Pages of one size that processes share, and sequences over them: a KV cache.

    pool = tmesh.PagePool(page_bytes=65536, page_tokens=16)     # one process owns the pages
    token = pool.tenant()                                       # who has it takes part

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
    """A pool, served by a thread of this process until it is closed. 0 is a default: pages of 64 KiB for 16 tokens, 256
    pages a region, 4,096 pages in all, one device, a head for each device. Pages lie in host memory; when a tenant is out
    of them, its longest unused cached blocks go. InvalidError: a number is out of its range; LimitError,
    OutOfMemoryError: there is no descriptor, or no memory."""

    _handle: _tmesh.PagePoolHandle
    _travels = "send pool.tenant(), a token, and open it there by tmesh.Pages.open(token)"

    def __init__(self, *, page_bytes: int = 0, page_tokens: int = 0, slab_pages: int = 0, max_pages: int = 0,
                 devices: int = 0, heads: int = 0) -> None:
        self._handle = _tmesh.make_page_pool(page_bytes, page_tokens, slab_pages, max_pages, devices, heads)

    def tenant(self, max_pages: int = 0) -> str:
        """A new tenant, with at most so many pages (0: as many as the pool), and a key of its own. Its token, which
        Pages.open() takes in processes of this user. ReleasedError: it was closed."""
        return self._handle.tenant(max_pages)

    def info(self) -> dict[str, int]:
        """Numbers of pages (free, cached, held), slabs, handles, tickets, and what happened so far (evicted, refused,
        died, reclaimed). ReleasedError: it was closed."""
        return self._handle.info()

    def close(self) -> None:
        """End the pool: handles keep what they have, and get GoneError for more."""
        self._handle.close()

    def __repr__(self) -> str:
        return f"<tmesh.PagePool{', closed' * self.closed}>"


class Pages(_Closing):
    """A part in a pool, as the tenant whose token it is; made by Pages.open(). May be used by several threads, each of its
    sequences by one at a time. A forked child opens its own: nothing of this is there, its arrays least of all."""

    _handle: _tmesh.PagesHandle
    _travels = "send the tenant's token, and open it there by tmesh.Pages.open(token)"

    def __init__(self, handle: _tmesh.PagesHandle) -> None:
        self._handle = handle
        self._page_bytes = self.info()["page_bytes"]

    @classmethod
    def open(cls, token: str) -> Pages:
        """Take part. NotFoundError: the pool is gone. ProtocolError: that is no token of a tenant."""
        return cls(_tmesh.open_pages(token))

    def info(self) -> dict[str, int]:
        """The pool's shape (page_bytes, page_tokens, slab_pages, max_pages, devices, heads), and of this handle: pages
        held and spare, pages copied before a write (copies, bytes_copied). ReleasedError: it was closed."""
        return self._handle.info()

    def sequence(self) -> Sequence:
        """A sequence without tokens. ReleasedError: it was closed."""
        return self._new(self._handle.sequence())

    def _new(self, handle: _tmesh.SequenceHandle) -> Sequence:
        return Sequence(handle, self._page_bytes)

    def find(self, hashes: Iterable[bytes]) -> Sequence:
        """A sequence of the longest prefix that is cached under these hashes; it may have no block. InvalidError: these are no
        hashes; GoneError: the pool has ended; ReleasedError: this was closed."""
        return self._new(self._handle.find(_joined(hashes)))

    def hash(self, tokens: Any, parent: bytes | None = None) -> bytes:
        """The hash, 16 bytes, of a block's tokens (integers that fit int32) behind those whose hash is parent, under the
        tenant's key. InvalidError: a token fits no int32, or they are no block of them."""
        import numpy

        exact = numpy.asarray(tokens)
        small = numpy.ascontiguousarray(exact, "int32")
        if exact.size and (exact.dtype.kind not in "iu" or not numpy.array_equal(exact, small)):
            raise InvalidError(22, "tokens are integers that fit int32")
        return self._handle.hash(small, parent)

    def take(self, ticket: str) -> Sequence:
        """The sequence that another process of the tenant shares. NotFoundError: the ticket has ended."""
        return self._new(self._handle.take(ticket))

    def unshare(self, ticket: str) -> None:
        """End a ticket of this handle's; what was taken by it stays. ProtocolError: that is no ticket."""
        self._handle.unshare(ticket)

    def tables(self, sequences: _Listed[Sequence], width: int | None = None) -> tuple[Any, Any]:
        """(block_tables, seq_lens) as paged attention kernels take them: int32 [sequences, width], 0 where a sequence has
        no more blocks, and int32 [sequences], in tokens. width: the longest sequence's unless given. NumPy arrays;
        torch.from_numpy() shares them. InvalidError: one is longer than width; ReleasedError: one was released."""
        import numpy

        listed = list(sequences)
        for sequence in listed:
            if not isinstance(sequence, Sequence):
                raise TypeError(f"tables are of sequences of pages, not of {sequence!r}")
        tables, width, lengths = _tmesh.sequence_tables([sequence._handle for sequence in listed], width)
        rows = len(lengths) // 4
        return numpy.frombuffer(tables, "int32").reshape(rows, width), numpy.frombuffer(lengths, "int32")

    def head(self, head: int) -> tuple[int, int]:
        """(device, place): where a head lies, the how manieth of that device's heads it is. InvalidError: there is no such head."""
        return self._handle.head(head)

    def base(self, device: int = 0) -> int:
        """The address of page 0 on a device: page p is at base + p * page_bytes. For kernels; only pages that this handle
        holds can be touched. InvalidError: there is no such device."""
        return self._handle.base(device)

    def slab(self, slab: int = 0, *, device: int = 0) -> _tmesh.Tensor:
        """The memory of pages [slab * slab_pages, (slab + 1) * slab_pages), all of it and whoever holds them: a Tensor of bytes,
        writable, for what works on pages in another process, as an engine does (tmesh.engine.Context.keep()). NotFoundError:
        this handle had no page of it so far."""
        return self._handle.slab(slab, device)

    def trim(self) -> None:
        """Give the owner the pages that this handle keeps ready, up to 192: a handle that does nothing gives none by
        itself. ReleasedError: it was closed."""
        self._handle.trim()

    def close(self) -> None:
        """Leave the pool. Sequences that exist go on until they are released."""
        self._handle.close()

    def __repr__(self) -> str:
        return f"<tmesh.Pages{', closed' * self.closed}>"


def _joined(hashes: Iterable[bytes]) -> bytes:
    listed = list(hashes)
    if any(not isinstance(one, bytes) or len(one) != _HASH_BYTES for one in listed):
        raise InvalidError(22, "hashes are what Pages.hash() gives, 16 bytes each")
    return b"".join(listed)


class Sequence:
    """Blocks of tokens, a page each; made by Pages. Its pages go when it is released or collected; arrays of its memory
    hold it. For one thread at a time."""

    def __init__(self, handle: _tmesh.SequenceHandle, page_bytes: int) -> None:
        self._handle = handle
        self._page_bytes = page_bytes

    @property
    def tokens(self) -> int:
        """How many it has."""
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
        """Room for so many more. A last page that is not full and that others may have is copied. LimitError: the tenant
        has no page left, or other handles keep them ready: see trim(). InvalidError: its view has no room for them."""
        self._handle.append(tokens)

    def truncate(self, tokens: int) -> None:
        """Only the first tokens stay. BusyError while arrays of its memory exist."""
        self._handle.truncate(tokens)

    def fork(self) -> Sequence:
        """Another sequence with the same pages; either copies a page before it writes there. BusyError while writable
        arrays exist."""
        return Sequence(self._handle.fork(), self._page_bytes)

    def block_table(self) -> Any:
        """The numbers of its pages, a NumPy array of int32, of one's own."""
        import numpy

        return numpy.frombuffer(self._handle.table(), "int32")

    def slot_mapping(self, first: int = 0, count: int | None = None) -> Any:
        """Where tokens go, a NumPy array of int64: page * page_tokens + place in it."""
        import numpy

        count = max(self.tokens - first, 0) if count is None else count
        return numpy.frombuffer(self._handle.slots(first, count), "int64")

    def page(self, index: int, *, device: int = 0, writable: bool = False) -> Any:
        """Block index, from 0, as a NumPy array of uint8. writable: the page is this sequence's alone afterwards; one that
        others may have is copied first. An array goes on showing the page that it was made of."""
        import numpy

        return numpy.frombuffer(self._handle.page(index, device, writable, self._page_bytes), "uint8")

    def view(self, max_tokens: int, *, device: int = 0) -> Any:
        """All blocks as one piece of memory, one behind the other, nothing copied: a NumPy array of uint8 [blocks,
        page_bytes], to be read. The first call reserves address space for max_tokens, and the sequence grows no further;
        after an append another call shows the new blocks behind the same address. InvalidError: there is less space; a
        fork() can have more."""
        import numpy

        return numpy.frombuffer(self._handle.view(device, max_tokens, self._page_bytes),
                                "uint8").reshape(-1, self._page_bytes)

    def gather(self, *, device: int = 0) -> _tmesh.Tensor:
        """The same as a Tensor of bytes, as the sequence is now, to send or export; with the module alone."""
        return self._handle.gather(device)

    def cache(self, hashes: Iterable[bytes]) -> None:
        """Others of this tenant may find the first blocks, which are full, under these hashes; they stay cached until the
        room is needed. BusyError while writable arrays exist."""
        self._handle.cache(_joined(hashes))

    def share(self) -> str:
        """A ticket for the sequence as it is now, for Pages.take() in another process of the tenant. Its pages stay until
        unshare(), or until this handle ends. BusyError while writable arrays exist."""
        return self._handle.share()

    def release(self) -> None:
        """Let its pages go. BusyError while arrays of its memory exist. Later use raises ReleasedError."""
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
        raise TypeError("a Sequence cannot be pickled: send sequence.share(), and take it there by Pages.take(ticket)")

    def __repr__(self) -> str:
        return "<tmesh.Sequence, released>" if self.released else f"<tmesh.Sequence of {self.tokens} tokens>"
