# SPDX-License-Identifier: MIT
"""Sealed memory for other machines by libtmesh-net, which is loaded at the first call. tmesh.ray's mover "fetcher" uses
it.

    fetcher = tmesh.fetcher.Fetcher("192.0.2.1")         # the address by which others reach this machine
    with fetcher.offer(tmesh.put(array)) as offer:
        send(offer.source)                               # a small dict, by any means
        wait_until_the_others_are_done()

    tensor = fetcher.fetch(source).view("float32")       # there: sealed memory of that machine

A process with a source can fetch the whole region until withdraw(): the source has a key of 64 random bits. Fetched
bytes are compared with a checksum before they become visible. Bytes and keys travel without encryption.
docs/reference/net.md lists the promises."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import time
from collections.abc import Callable
from numbers import Real
from types import TracebackType
from typing import Any, NoReturn, TypedDict
import weakref

from . import _tmesh
from .errors import InvalidError, PeerTimeoutError, ProtocolError, ReleasedError

__all__ = ["Fetcher", "Offer", "Source"]


class Source(TypedDict):
    """The address of an offered region, and its key."""

    v: int
    address: str
    key: str
    checksum: str
    byte_size: int


_TEXTS = "address", "key", "checksum"
# The most bytes of a source as JSON.
_MAX_TEXT = 4096
# The longest silence, in seconds: in nanoseconds it must fit in 64 bits.
_LONGEST = 1 << 32


class Offer:
    """A region that others may fetch, until withdraw() or until its Fetcher closes. It stays even if this object is
    collected. Use it in a "with" statement."""

    def __init__(self, handle: _tmesh.NetHandle, tensor: _tmesh.Tensor) -> None:
        self._handle = handle
        self.id, address, key, checksum, nbytes = handle.offer(tensor)
        self.source: Source = {"v": 1, "address": address, "key": key, "checksum": checksum, "byte_size": nbytes}
        self.withdrawn = False

    def withdraw(self) -> None:
        """End the offer: when this returns, no peer reads the memory. A second call, or a call after the Fetcher was
        closed, has no effect."""
        if not self.withdrawn:
            with contextlib.suppress(ReleasedError):
                self._handle.withdraw(self.id)
            self.withdrawn = True

    def __repr__(self) -> str:
        return f"<tmesh.fetcher.Offer {self.source['byte_size']} bytes at {self.source['address']}{', withdrawn' * self.withdrawn}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Offer stays in its process: send its source, which others fetch")

    def __enter__(self) -> Offer:
        if self.withdrawn:
            raise ReleasedError(errno.EBADF, "this offer was withdrawn: offer the tensor again")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.withdraw()


_open: weakref.WeakSet[Fetcher] = weakref.WeakSet()


class Fetcher:
    """Offers regions of this machine and fetches those of others, at one address of this machine. Any thread may call
    it. provider: of libfabric, the same at both ends; None: "tcp".

    UnsupportedError: libtmesh-net is missing, or libfabric does not work there."""

    def __init__(self, address: str, *, provider: str | None = None) -> None:
        self._handle = _tmesh.net_open(address, provider)
        self.address = address
        self.closed = False
        _open.add(self)

    def offer(self, tensor: _tmesh.Tensor) -> Offer:
        """Offer the whole region of a sealed tensor. It is read once for its checksum, and stays until the offer ends.
        InvalidError: it is not sealed. LimitError: too many offers, or no free descriptor."""
        return Offer(self._handle, tensor)

    def fetch(self, source: Source | str | bytes, *, timeout: float = 10.0, deadline: float | None = None,
              progress: Callable[[int], object] | None = None) -> _tmesh.Tensor:
        """Fetch the region of a source, as bytes in sealed memory of this machine.

        timeout: the longest time without any byte, in seconds. deadline: seconds until all bytes must have arrived,
        None: no limit. progress: called with the number of bytes that have arrived, at most twenty times a second. An
        exception of it cancels the fetch.

        GoneError: its home has died, the offer was withdrawn, or the key is wrong. PeerTimeoutError: a time was
        exceeded. ProtocolError: it is no source, or other bytes than the offered ones have arrived. After an error no
        memory stays."""
        known = read(source)
        _check_seconds("timeout", timeout, _LONGEST)
        if deadline is not None:
            _check_seconds("deadline", deadline, math.inf)
        if progress is not None and not callable(progress):
            raise TypeError(f"progress is called with a number of bytes, and {progress!r} cannot be called")
        end = None if deadline is None else time.monotonic() + deadline

        def tell(count: int) -> None:
            if end is not None and time.monotonic() >= end:
                raise PeerTimeoutError(errno.ETIMEDOUT, f"{count} of {known['byte_size']} bytes had come from {known['address']} within "
                                       f"{deadline} seconds")
            if progress is not None:
                progress(count)

        return self._handle.fetch(known["address"], known["key"], known["checksum"], known["byte_size"], timeout,
                                  tell if progress or end is not None else None)

    def stats(self) -> dict[str, int]:
        """Return counts. Now: offers, keys and fetches. Since the start: fetched, failed, resumed (new connections for
        a fetch), bytes_fetched."""
        return self._handle.stats()

    def __repr__(self) -> str:
        return f"<tmesh.fetcher.Fetcher at {self.address}{', closed' * self.closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Fetcher stays in its process: make one in each")

    def close(self) -> None:
        """End all offers and running fetches. A second call has no effect."""
        self.closed = True
        self._handle.close()

    def __enter__(self) -> Fetcher:
        if self.closed:
            raise ReleasedError(errno.EBADF, "the fetcher is closed")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@atexit.register
def _end() -> None:
    """Close before the libraries' own exit handlers, which require that none of their threads runs."""
    for fetcher in list(_open):
        fetcher.close()


def _check_seconds(name: str, value: object, most: float) -> None:
    if not isinstance(value, Real):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    if not 0 < float(value) <= most:
        raise InvalidError(errno.EINVAL, f"{name} is more than 0 seconds and at most {most}, not {value}")


def read(source: object) -> Source:
    """Check a source, a dict or JSON. ProtocolError: it is none."""
    told = source
    if isinstance(source, (str, bytes)):
        if len(source) > _MAX_TEXT:
            raise _malformed(f"it has {len(source)} characters, and may have {_MAX_TEXT}")
        try:
            told = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise _malformed(str(error)) from None
    if not isinstance(told, dict):
        raise _malformed("a source is a JSON object, or a dict, as offer.source is")
    if told.get("v") != 1:
        raise _malformed(f"its version is {told.get('v')!r}, and this tmesh knows version 1")
    for name in _TEXTS:
        if not isinstance(told.get(name), str) or "\0" in told[name]:
            raise _malformed(f"its {name} is no text")
    nbytes = told.get("byte_size")
    if type(nbytes) is not int or not 0 < nbytes < 1 << 63:
        raise _malformed("its byte_size is out of its range")
    return {"v": 1, "address": told["address"], "key": told["key"], "checksum": told["checksum"], "byte_size": nbytes}


def _malformed(why: str) -> ProtocolError:
    return ProtocolError(errno.EPROTO, f"this is no source of a fetch: {why}")
