# SPDX-License-Identifier: MIT
"""Memory of tmesh for Mooncake's transfer engine.

    engine = TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    with tmesh.mooncake.register(engine, sealed, host="127.0.0.1") as mine:
        send(mine.offer())                               # by any means: to a process of another machine, say

    with tmesh.mooncake.register(engine, empty, host="127.0.0.1", writable=True) as mine:      # there
        mine.peer(offer).read(empty)

docs/howto/integrations.md lists the versions that were tried."""

from __future__ import annotations

from typing import Any

from . import _tmesh, offers
from .errors import Error, ExistsError, GoneError, InvalidError, UnsupportedError
from .offers import Offer, Place
from .interop import lacks, missing, warn_of_another

__all__ = ["Offer", "Peer", "Place", "Registration", "offered", "register"]

VERSION = "0.3.13"
_PACKAGE = "mooncake-transfer-engine-non-cuda"
_CALLS = ("batch_register_memory batch_unregister_memory get_engine get_rpc_port batch_transfer_sync_read "
          "batch_transfer_sync_write")
# Mooncake's return value for memory that overlaps registered memory.
_OVERLAPPED = -7
warn_of_another(_PACKAGE, VERSION)


class Registration(offers.Registration):
    """See offers.Registration."""

    ENGINE = "mooncake"

    def __init__(self, engine: Any, tensors: tuple[_tmesh.Tensor, ...], host: str, writable: bool) -> None:
        absent = missing(engine, _CALLS.split())
        if absent == ", ".join(_CALLS.split()):
            raise TypeError(f"register() takes a TransferEngine first, not a {type(engine).__module__}.{type(engine).__name__}")
        if absent:
            raise UnsupportedError(95, lacks(_PACKAGE, VERSION, f"the engine, a {type(engine).__name__}, has no {absent}"))
        self._engine, self._host = engine, host
        if not host or len(host) > 255 or any(character.isspace() for character in host):
            raise InvalidError(22, f"{host!r} is not a host: give the host that initialize() got")
        # Without initialize() its calls would end the process (SIGSEGV).
        if engine.get_engine() is None:
            raise InvalidError(22, "this TransferEngine was not started: engine.initialize(...) comes first, and returns 0")
        super().__init__(engine, tensors, writable)

    def _for_reading(self, tensor: _tmesh.Tensor, seen: Any) -> Any:
        # A peer's write into sealed memory fails at the peer and has no effect here, so no view is needed.
        return seen

    def peer(self, offer: bytes) -> Peer:
        """Return the Peer of an offer, for reads into and writes from the memory registered here."""
        return Peer(self, offer)

    def _register(self, spans: list[tuple[int, int]]) -> None:
        code = self._engine.batch_register_memory([address for address, _ in spans], [nbytes for _, nbytes in spans])
        if code == _OVERLAPPED:
            raise ExistsError(17, "some of this memory is registered with this engine already: use that registration, or close() it first")
        if code:
            raise Error(5, f"Mooncake does not register this memory ({code}); was initialize() called, and did it return 0?")

    def _unregister(self, spans: list[tuple[int, int]]) -> None:
        code = self._engine.batch_unregister_memory([address for address, _ in spans])
        if code:
            raise Error(5, f"Mooncake does not unregister the memory ({code})")

    def _describe(self) -> tuple[str, bytes]:
        return f"{self._host}:{self._engine.get_rpc_port()}", b""


class Peer(offers.Peer):
    """See offers.Peer. Mooncake's calls have no timeout, so the argument is refused."""

    _mine: Registration

    def _transfer(self, operation: str, spans: list[tuple[int, int, int]], timeout: float | None) -> None:
        if timeout is not None:
            raise UnsupportedError(95, "Mooncake's transfers have no deadline of the caller's; leave timeout away")
        engine = self._mine._engine
        move = engine.batch_transfer_sync_read if operation == "READ" else engine.batch_transfer_sync_write
        code = move(self.offer.peer, [local for local, _, _ in spans], [remote for _, remote, _ in spans],
                    [nbytes for _, _, nbytes in spans])
        if code:
            raise GoneError(32, f"Mooncake's {operation.lower()} failed ({code}): {self.offer.peer} has died or cannot be reached, or "
                            "has closed what it offered")


def register(engine: Any, *tensors: _tmesh.Tensor, host: str, writable: bool = False) -> Registration:
    """Register tensors with a TransferEngine until close(), for peers to read. host: the host name given to
    engine.initialize(), by which peers reach this process. Sealed memory is not copied, and peers cannot write to it.
    writable: for tensors that are not sealed. Peers may also write to them, and this process can read into them.
    AccessError: a tensor does not match `writable`."""
    return Registration(engine, tensors, host, writable)


def offered(offer: bytes) -> Offer:
    """Return the places of a peer's offer, so that the caller can allocate room before reading. ProtocolError: it is no
    offer."""
    return Offer.from_bytes(offer, Registration.ENGINE)
