# SPDX-License-Identifier: MIT
"""Sealed memory for other machines by libtmesh-net, which is loaded at the first call: what tmesh.ray's mover "fetcher" is.

    fetcher = tmesh.fetcher.Fetcher("192.0.2.1")         # the address by which others reach this machine
    with fetcher.offer(tmesh.put(array)) as offer:
        send(offer.source)                               # a small dict, by any means
        wait_until_the_others_are_done()

    tensor = fetcher.fetch(source).view("float32")       # there: sealed memory of that machine

Whoever has a source fetches the whole region, until withdraw(): it has a key of 64 random bits. What comes is compared with a checksum
before anybody sees it. Bytes and keys travel without encryption. docs/net.md says what is promised."""

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
    """What a reader needs: where a region is, and its key."""

    v: int
    address: str
    key: str
    checksum: str
    byte_size: int


_TEXTS = "address", "key", "checksum"
# Of a source as JSON.
_MAX_TEXT = 4096
# A silence, in seconds: as nanoseconds it is a number of 64 bits.
_LONGEST = 1 << 32


class Offer:
    """A region that others may fetch, until withdraw() or its Fetcher's end; also when nobody has this object any more. Use it
    with "with"."""

    def __init__(self, handle: _tmesh.NetHandle, tensor: _tmesh.Tensor) -> None:
        self._handle = handle
        self.id, address, key, checksum, nbytes = handle.offer(tensor)
        self.source: Source = {"v": 1, "address": address, "key": key, "checksum": checksum, "byte_size": nbytes}
        self.withdrawn = False

    def withdraw(self) -> None:
        """End it: when this returns nobody reads the memory any more. Twice is as good as once, and so is after the Fetcher's end."""
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
    """Offers regions of this machine and fetches those of others, at an address of this machine and nowhere else. Any
    thread may call it. provider: of libfabric, the same at both ends; None: "tcp".

    UnsupportedError: no libtmesh-net, or libfabric cannot do it there."""

    def __init__(self, address: str, *, provider: str | None = None) -> None:
        self._handle = _tmesh.net_open(address, provider)
        self.address = address
        self.closed = False
        _open.add(self)

    def offer(self, tensor: _tmesh.Tensor) -> Offer:
        """Offer the region that a sealed tensor lies in, all of it, which is read once for its checksum and stays until the
        offer ends. InvalidError: it is not sealed. LimitError: too many are offered, or no descriptor is free."""
        return Offer(self._handle, tensor)

    def fetch(self, source: Source | str | bytes, *, timeout: float = 10.0, deadline: float | None = None,
              progress: Callable[[int], object] | None = None) -> _tmesh.Tensor:
        """The region that a source names, as bytes in sealed memory of this machine.

        timeout: the longest time without any byte, in seconds. deadline: in how many seconds all of it is to be here; None: no limit.
        progress: called with the bytes that are here, twenty times a second at most; what it raises gives the fetch up.

        GoneError: its home has died, or the offer was withdrawn, or the key is wrong. PeerTimeoutError. ProtocolError:
        no source, or other bytes came than were offered. After an error there is no memory."""
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
        """Now: offers, keys and fetches. Since it was made: fetched, failed, resumed (connections that were made again),
        bytes_fetched."""
        return self._handle.stats()

    def __repr__(self) -> str:
        return f"<tmesh.fetcher.Fetcher at {self.address}{', closed' * self.closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Fetcher stays in its process: make one in each")

    def close(self) -> None:
        """End all offers, and fetches that run. Twice is as good as once."""
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
    """Before the libraries' own ends, under which no thread of theirs may run."""
    for fetcher in list(_open):
        fetcher.close()


def _check_seconds(name: str, value: object, most: float) -> None:
    if not isinstance(value, Real):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    if not 0 < float(value) <= most:
        raise InvalidError(errno.EINVAL, f"{name} is more than 0 seconds and at most {most}, not {value}")


def read(source: object) -> Source:
    """ProtocolError unless it is a source, as a dict or as JSON."""
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
