# SPDX-License-Identifier: MIT
"""Memory of tmesh registered with an engine that reads and writes other processes' memory, and offers of it to peers.
tmesh.nixl and tmesh.mooncake share this code.

These engines have no rights: a peer with an address may write to all registered memory. Sealed memory is therefore
registered by a private view (copy-on-write) if the engine would die of such a write. An offer also names the rights
that this module's peers respect."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
import json
import math
from numbers import Real
import operator
import os
from types import TracebackType
from typing import Any, NoReturn
import weakref

from . import _tmesh
from .errors import AccessError, InvalidError, NotFoundError, ProtocolError, ReleasedError

# Limits of an offer, because a reader allocates memory by it.
MAX_OFFER = 1 << 20
MAX_PLACES = 4096
MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class Place:
    """A tensor in a peer's memory, by the peer's description."""

    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    writable: bool


@dataclass(frozen=True)
class Offer:
    """A peer's offer: its name in the engine, the engine's description of it, and its tensors. It is no secret of
    tmesh's: a process that has it can reach the memory as far as the engine permits."""

    engine: str
    peer: str
    metadata: bytes = field(repr=False)  # hundreds of bytes, not text
    places: tuple[Place, ...]

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return json.dumps({
            "v": 1, "engine": self.engine, "peer": self.peer, "metadata": base64.b64encode(self.metadata).decode(),
            "places": [{"address": place.address, "byte_size": place.nbytes, "dtype": place.dtype,
                        "shape": list(place.shape), "writable": place.writable} for place in self.places],
        }).encode()

    @classmethod
    def from_bytes(cls, data: bytes, engine: str) -> Offer:
        """Parse an offer. ProtocolError: it is not for this engine, or a number is out of range."""
        if not isinstance(data, (bytes, bytearray, memoryview, str)):
            raise TypeError(f"an offer is the bytes that a registration's offer() gave, not {type(data).__name__}")
        if isinstance(data, memoryview):
            data = data.tobytes()
        if len(data) > MAX_OFFER:
            raise _malformed(f"it has {len(data)} bytes, and may have {MAX_OFFER}")
        try:
            told = json.loads(data)
            if told["v"] != 1:
                raise _malformed(f"its version is {told['v']!r}, and this tmesh knows version 1")
            if told["engine"] != engine:
                raise _malformed(f"it is for the engine {told['engine']!r}, not {engine!r}")
            if not 0 < len(told["places"]) <= MAX_PLACES:
                raise _malformed(f"it has {len(told['places'])} tensors, and may have 1 to {MAX_PLACES}")
            if not isinstance(told["peer"], str) or not told["peer"]:
                raise _malformed("it names no peer")
            return cls(engine, told["peer"], base64.b64decode(told["metadata"], validate=True),
                       tuple(_place(one) for one in told["places"]))
        except (KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
            if isinstance(error, ProtocolError):
                raise
            raise _malformed(f"{type(error).__name__}: {error}") from None


def _malformed(why: str) -> ProtocolError:
    return ProtocolError(71, f"this is not an offer: {why}")


def _place(told: dict[str, Any]) -> Place:
    address, nbytes, shape = told["address"], told["byte_size"], told["shape"]
    numbers = [address, nbytes, *shape]
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers) or not nbytes:
        raise _malformed("an address, a length or a shape is out of its range")
    if not address or address + nbytes > 1 << 63:
        raise _malformed(f"{nbytes} bytes at {address} cannot be memory")
    if len(shape) > MAX_DIMENSIONS or not isinstance(told["dtype"], str) or type(told["writable"]) is not bool:
        raise _malformed("a tensor's type, shape or right is malformed")
    if math.prod(shape) > nbytes * 8:
        raise _malformed(f"a tensor of shape {tuple(shape)} does not lie in {nbytes} bytes")
    return Place(address, nbytes, told["dtype"], tuple(shape), told["writable"])


def bytes_of(tensor: _tmesh.Tensor) -> Any:
    """Return its bytes as a NumPy array over its memory. InvalidError: they are not contiguous."""
    if not isinstance(tensor, _tmesh.Tensor):
        raise TypeError(f"a tmesh.Tensor is needed, not {type(tensor).__module__}.{type(tensor).__name__}: tmesh.put() makes one, and many are "
                        "arguments of their own")
    if not tensor.nbytes:
        raise InvalidError(22, "a tensor without elements has no memory to register")
    try:
        flat = tensor.reshape(-1)
    except InvalidError:
        raise InvalidError(22, "an engine takes memory in one piece, and this tensor has gaps or another order, like a column: only contiguous "
                           "tensors are registered, read and written") from None
    return flat.view("uint8").numpy()


@dataclass
class _Piece:
    """A registered tensor: its bytes as this process sees them, and as the engine does."""

    dtype: str
    shape: tuple[int, ...]
    seen: Any
    registered: Any

    def spans(self, address: int, nbytes: int) -> bool:
        return 0 <= address - _address(self.seen) <= int(self.seen.nbytes) - nbytes


def _address(array: Any) -> int:
    return int(array.ctypes.data)


# The process that first registered with an engine. A forked child has the object without its threads and with its
# parent's sockets. Its calls would never end, or disturb the parent's.
_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def of_a_parent(engine: Any) -> bool:
    return _made.get(engine) != os.getpid()


def _check_fork(engine: Any, name: str) -> None:
    if of_a_parent(engine):
        raise AccessError(13, f"this engine of {name} is the parent's: a forked child makes an engine of its own, and registers with that")


# Registrations that are not closed. The engine has their memory, even if the program has dropped the object: peers may
# read.
_registered: set[Registration] = set()


class Registration:
    """Tensors that an engine has registered, until close(). Their memory stays as long. Use it in a "with" statement.
    One thread at a time."""

    ENGINE = ""

    def __init__(self, engine: Any, tensors: Sequence[_tmesh.Tensor], writable: bool) -> None:
        self._of = engine
        _made.setdefault(engine, os.getpid())
        _check_fork(engine, self.ENGINE)
        if not 0 < len(tensors) <= MAX_PLACES:
            raise InvalidError(22, f"1 to {MAX_PLACES} tensors can be registered at once, not {len(tensors)}")
        self.writable = writable
        self.closed = False
        self._pieces = [self._piece(tensor) for tensor in tensors]
        self._register([(_address(piece.registered), piece.registered.nbytes) for piece in self._pieces])
        _registered.add(self)

    def _piece(self, tensor: _tmesh.Tensor) -> _Piece:
        seen = bytes_of(tensor)
        if self.writable:
            if not tensor.writable:
                raise AccessError(13, "writable=True: this tensor is sealed or was opened for reading; it can be offered for "
                                  "reading only")
            return _Piece(tensor.dtype, tensor.shape, seen, seen)
        if not tensor.sealed:
            raise AccessError(13, "a peer can write to whatever the engine has registered, and this tensor is not sealed: "
                              "seal() it, or say writable=True")
        return _Piece(tensor.dtype, tensor.shape, seen, self._for_reading(tensor, seen))

    def _for_reading(self, tensor: _tmesh.Tensor, seen: Any) -> Any:
        """Return the view to register for sealed memory. A peer's write makes private pages of this mapping, so it
        harms neither the region nor the process."""
        return bytes_of(tensor.private())

    def offer(self) -> bytes:
        """Return the offer for peers. Send it so that strangers cannot read it."""
        self._open()
        peer, metadata = self._describe()
        return Offer(self.ENGINE, peer, metadata, tuple(
            Place(_address(piece.registered), piece.registered.nbytes, piece.dtype, piece.shape, self.writable)
            for piece in self._pieces)).to_bytes()

    def close(self) -> None:
        """End the offer: later reads of peers fail. A second call has no effect, nor has one in a forked child."""
        if not self.closed:
            self.closed = True
            if not of_a_parent(self._of):
                self._unregister([(_address(piece.registered), piece.registered.nbytes) for piece in self._pieces])
            self._pieces.clear()
            _registered.discard(self)

    def __enter__(self) -> Any:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<tmesh.{self.ENGINE}.Registration, closed>"
        nbytes = sum(int(piece.seen.nbytes) for piece in self._pieces)
        return (f"<tmesh.{self.ENGINE}.Registration tensors={len(self._pieces)} bytes={nbytes} "
                f"{'writable' if self.writable else 'for reading'}>")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Registration stays in its process: send its offer()")

    def _open(self) -> None:
        if self.closed:
            raise ReleasedError(9, "this registration is closed")
        _check_fork(self._of, self.ENGINE)

    def local(self, tensor: _tmesh.Tensor, *, writes: bool) -> tuple[int, int]:
        """Return the engine's address and the bytes of a registered tensor, or of a part of one. writes: the engine
        will write."""
        self._open()
        array = bytes_of(tensor)
        at = _address(array)
        piece = next((piece for piece in self._pieces if piece.spans(at, array.nbytes)), None)
        if piece is None:
            raise NotFoundError(2, "this tensor is not part of what was registered here: register() it, and use parts of "
                                "that very tensor")
        if writes and not self.writable:
            raise AccessError(13, "what a peer has cannot be read into sealed memory: read into a tensor of "
                              "register(..., writable=True)")
        return _address(piece.registered) + at - _address(piece.seen), array.nbytes

    def _register(self, spans: list[tuple[int, int]]) -> None:
        raise NotImplementedError

    def _unregister(self, spans: list[tuple[int, int]]) -> None:
        raise NotImplementedError

    def _describe(self) -> tuple[str, bytes]:
        raise NotImplementedError


# A move: a local tensor, a peer's tensor or its number, and an offset in bytes in the peer's.
Move = tuple[_tmesh.Tensor, "int | Place", int]


def _moves(what: Any) -> list[Move]:
    try:
        moves = [(tensor, place if isinstance(place, Place) else operator.index(place), operator.index(offset))
                 for tensor, place, offset in what]
    except (TypeError, ValueError):
        raise TypeError("a tmesh.Tensor is needed, or many of (tmesh.Tensor, place, offset): place is one of the peer's places or its "
                        "number, offset a number of bytes") from None
    return moves


class Peer:
    """Another process that has made an offer, until close(). The engine reads and writes; each call waits until all is
    done. Use it in a "with" statement. One thread at a time."""

    def __init__(self, mine: Registration, offer: bytes) -> None:
        mine._open()
        self._mine = mine
        self.offer = Offer.from_bytes(offer, mine.ENGINE)
        self.closed = False
        self._join()

    @property
    def places(self) -> tuple[Place, ...]:
        """The peer's tensors."""
        return self.offer.places

    def read(self, into: _tmesh.Tensor | Iterable[Move], place: int | Place = 0, offset: int = 0,
             timeout: float | None = None) -> None:
        """Read from a tensor of the peer, at an offset in bytes, into a registered tensor or a part of one. place: one of its
        places or its number. Or read many of (tensor, place, offset) at once. After an error the target may be half filled."""
        self._move("READ", into, place, offset, timeout)

    def write(self, source: _tmesh.Tensor | Iterable[Move], place: int | Place = 0, offset: int = 0,
              timeout: float | None = None) -> None:
        """Write to the peer's tensor. AccessError: the peer offers its memory read-only."""
        self._move("WRITE", source, place, offset, timeout)

    def _move(self, operation: str, what: _tmesh.Tensor | Iterable[Move], place: int | Place, offset: int,
              timeout: float | None) -> None:
        self._open()
        if timeout is not None and not isinstance(timeout, Real):
            raise TypeError(f"timeout is None or a number of seconds, not {timeout!r}")
        if timeout is not None and not 0 <= timeout < 1 << 32:
            raise InvalidError(22, f"a timeout of {timeout} seconds")
        spans = []
        for tensor, named, start in _moves([(what, place, offset)] if isinstance(what, _tmesh.Tensor) else what):
            address, nbytes = self._mine.local(tensor, writes=operation == "READ")
            number = self._number(named)
            there = self.places[number]
            if not 0 <= start <= there.nbytes - nbytes:
                raise InvalidError(22, f"{nbytes} bytes from byte {start} are not within the peer's tensor {number}, which has "
                                   f"{there.nbytes}")
            if operation == "WRITE" and not there.writable:
                raise AccessError(13, f"the peer offers its tensor {number} for reading only")
            spans.append((address, there.address + start, nbytes))
        if spans:
            self._transfer(operation, spans, timeout)

    def _number(self, named: int | Place) -> int:
        if isinstance(named, Place):
            if named not in self.places:
                raise InvalidError(22, f"{named} is of another offer than this peer's")
            return self.places.index(named)
        if not 0 <= named < len(self.places):
            raise InvalidError(22, f"the peer offers {len(self.places)} tensors, none with the number {named}")
        return named

    def close(self) -> None:
        """Let the engine forget the peer. A second call has no effect, nor has one in a forked child."""
        if not self.closed:
            self.closed = True
            if not of_a_parent(self._mine._of):
                self._leave()

    def __repr__(self) -> str:
        return f"<tmesh.{self._mine.ENGINE}.Peer {self.offer.peer!r} tensors={len(self.places)}{', closed' * self.closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Peer stays in its process: send the offer that it was made of")

    def __enter__(self) -> Any:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self) -> None:
        if self.closed:
            raise ReleasedError(9, "this peer is closed")
        _check_fork(self._mine._of, self._mine.ENGINE)

    def _join(self) -> None:
        """Make the peer known to the engine."""

    def _leave(self) -> None:
        """Undo it."""

    def _transfer(self, operation: str, spans: list[tuple[int, int, int]], timeout: float | None) -> None:
        raise NotImplementedError
