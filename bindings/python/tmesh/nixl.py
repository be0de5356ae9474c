# SPDX-License-Identifier: MIT
"""Memory of tmesh for NIXL: regions as registered DRAM.

    agent = nixl_agent("store", nixl_agent_config(backends=["UCX"]))
    with tmesh.nixl.register(agent, sealed) as mine:
        send(mine.offer())                               # by any means: to a process of another machine, say

    with tmesh.nixl.register(agent, empty, writable=True) as mine:      # there
        with mine.peer(offer) as peer:
            peer.read(empty)

A peer of NIXL may write to all registered memory, and over TCP such a write into sealed memory would end the process
that has it. Sealed memory is therefore registered by a copy-on-write view: a write changes pages of that view alone.
docs/howto/integrations.md lists the versions that were tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import importlib.util
import threading
import time
from typing import Any
import weakref

from . import _tmesh, offers
from .errors import Error, ExistsError, GoneError, NotFoundError, PeerTimeoutError, ProtocolError, UnsupportedError
from .offers import Offer, Place
from .interop import lacks, load, missing, warn_of_another

__all__ = ["Offer", "Peer", "Place", "Registration", "offered", "register"]

VERSION = "1.5.1"
_FLAVOURS = "nixl_cu12", "nixl_cu13"
_ERRORS = "nixlNotAllowedError nixlNotFoundError nixlRemoteDisconnectError nixlBackendError nixlCancelledError nixlUnknownError"
_CALLS = ("name get_reg_descs register_memory deregister_memory get_agent_metadata add_remote_agent remove_remote_agent "
          "get_xfer_descs initialize_xfer transfer check_xfer_state release_xfer_handle")


def _load() -> tuple[Any, str]:
    """Return the bindings of the installed build. The package "nixl" picks one by the installed CUDA, and imports
    nothing without it."""
    for flavour in _FLAVOURS:
        if importlib.util.find_spec(flavour):
            return load(flavour.replace("_", "-"), VERSION, {f"{flavour}._bindings": _ERRORS})[0], flavour
    raise ModuleNotFoundError("tmesh.nixl needs NIXL: pip install nixl-cu12 numpy", name=_FLAVOURS[0])


_bindings, _flavour = _load()
_package = _flavour.replace("_", "-")
warn_of_another(_package, VERSION)

# The number of checks of a transfer without a pause, then the pause between two checks.
_SPINS, _PAUSE = 200, 100e-6


# When NIXL forgets an agent, UCX keeps the connection until its process ends. So an agent without a Peer stays known,
# unless a transfer with it has failed. This limits their number.
_IDLE = 256


class _Known:
    """The other agents that an agent knows: the number of Peers and abandoned transfers of each, and those with a
    failed transfer."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()
        self.failed: set[str] = set()

    def forget(self, agent: Any, name: str) -> None:
        del self.used[name]
        self.failed.discard(name)
        agent.remove_remote_agent(name)

    def give_back(self, agent: Any, name: str) -> None:
        self.used[name] -= 1
        idle = [one for one, count in self.used.items() if not count]
        if name in self.failed and name in idle:
            self.forget(agent, name)
        elif len(idle) > _IDLE:
            self.forget(agent, idle[0])


_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
# Running transfers for which no call waits any more. NIXL cannot cancel one over TCP, even if a release succeeds. Until it
# ends, it reads and writes the memory, even after the memory was deregistered and the peer forgotten.
_abandoned: list[_Abandoned] = []
_lock = threading.RLock()


class _Abandoned:
    """An abandoned transfer. It keeps the memory, its registration and the peer."""

    def __init__(self, peer: Peer, handle: Any, spans: list[tuple[int, int, int]]) -> None:
        self.mine, self.name, self.handle = peer._mine, peer.offer.peer, handle
        self.memory = list(self.mine._pieces)
        self.spans = [(address, address + nbytes) for address, _, nbytes in spans]

    def is_ours(self) -> bool:
        """Whether this process started it. A forked child has copies of its parent's transfers."""
        return not offers.of_a_parent(self.mine._agent)

    def touches(self, spans: list[tuple[int, int, int]]) -> bool:
        return self.is_ours() and any(address < end and start < address + nbytes for address, _, nbytes in spans for start, end in self.spans)

    def runs(self) -> bool:
        try:
            state: str = self.mine._agent.check_xfer_state(self.handle)
        except Exception:  # it has failed or never begun
            return False
        return state == "PROC"


def _abandon(one: _Abandoned) -> None:
    with _lock:
        _known[one.mine._agent].used[one.name] += 1
        _abandoned.append(one)
        _sweep()


def _sweep() -> None:
    """Release everything that abandoned transfers kept, if they have ended meanwhile."""
    with _lock:
        for one in [one for one in _abandoned if one.is_ours() and not one.runs()]:
            _abandoned.remove(one)
            one.mine._agent.release_xfer_handle(one.handle)
            _known[one.mine._agent].give_back(one.mine._agent, one.name)
            one.mine._deregister()


class Registration(offers.Registration):
    """See offers.Registration."""

    ENGINE = "nixl"

    def __init__(self, agent: Any, tensors: tuple[_tmesh.Tensor, ...], writable: bool) -> None:
        absent = missing(agent, _CALLS.split())
        if absent == ", ".join(_CALLS.split()):
            raise TypeError(f"register() takes a nixl_agent first, not a {type(agent).__module__}.{type(agent).__name__}")
        if absent:
            raise UnsupportedError(95, lacks(_package, VERSION, f"the agent, a {type(agent).__name__}, has no {absent}"))
        self._agent = agent
        _sweep()
        super().__init__(agent, tensors, writable)

    def peer(self, offer: bytes) -> Peer:
        """Return the Peer of an offer, for reads into and writes from the memory registered here."""
        return Peer(self, offer)

    def _register(self, spans: list[tuple[int, int]]) -> None:
        self._descriptors = self._agent.get_reg_descs([(address, nbytes, 0, "") for address, nbytes in spans], "DRAM")
        try:
            self._agent.register_memory(self._descriptors)
        except Exception as error:
            raise Error(5, f"NIXL does not register this memory: {error}; the agent needs a backend for DRAM, such as "
                        "nixl_agent_config(backends=[\"UCX\"])") from error

    def _unregister(self, spans: list[tuple[int, int]]) -> None:
        _sweep()
        self._deregister()

    def _deregister(self) -> None:
        with _lock:
            if self.closed and self._descriptors is not None and not any(one.mine is self for one in _abandoned):
                self._agent.deregister_memory(self._descriptors)
                self._descriptors = None

    def _describe(self) -> tuple[str, bytes]:
        return self._agent.name, self._agent.get_agent_metadata()


class Peer(offers.Peer):
    """See offers.Peer."""

    _mine: Registration

    def _join(self) -> None:
        with _lock:
            _sweep()
            self._add(_known.setdefault(self._mine._agent, _Known()))

    def _add(self, known: _Known) -> None:
        agent = self._mine._agent
        if self.offer.peer == agent.name:
            raise ExistsError(17, f"the offer is of an agent named {agent.name!r}, as the one here is: it is this agent's own, or another process's, "
                              "which needs a name of its own")
        try:
            try:
                name = agent.add_remote_agent(self.offer.metadata)
            except _bindings.nixlNotAllowedError:
                # Another process had the name before, or the memory was registered again.
                if known.used.get(self.offer.peer) != 0:
                    raise
                known.forget(agent, self.offer.peer)
                name = agent.add_remote_agent(self.offer.metadata)
        except _bindings.nixlNotAllowedError as error:
            raise ExistsError(17, f"another agent named {self.offer.peer!r} is known here, of an earlier process perhaps: close() its "
                              "Peer, or give each process's agent a name of its own") from error
        except Exception as error:
            raise ProtocolError(71, f"NIXL does not take the offer's metadata: {error}") from error
        name = name.decode() if isinstance(name, bytes) else name
        if name != self.offer.peer:
            if name not in known.used:
                agent.remove_remote_agent(name)
            raise ProtocolError(71, f"this is not an offer: it is of {self.offer.peer!r}, and its metadata of {name!r}")
        known.used[name] += 1

    def _leave(self) -> None:
        with _lock:
            _sweep()
            _known[self._mine._agent].give_back(self._mine._agent, self.offer.peer)

    def _transfer(self, operation: str, spans: list[tuple[int, int, int]], timeout: float | None) -> None:
        try:
            self._try(operation, spans, timeout)
        except BaseException:
            _known[self._mine._agent].failed.add(self.offer.peer)
            raise

    def _try(self, operation: str, spans: list[tuple[int, int, int]], timeout: float | None) -> None:
        agent = self._mine._agent
        end = None if timeout is None else time.monotonic() + timeout
        if not _ends(lambda: _is_used(spans), end):
            raise PeerTimeoutError(110, f"an earlier transfer of this memory, which was given up, has not ended within {timeout} seconds")
        here = agent.get_xfer_descs([(local, nbytes, 0) for local, _, nbytes in spans], "DRAM")
        there = agent.get_xfer_descs([(remote, nbytes, 0) for _, remote, nbytes in spans], "DRAM")
        try:
            handle = agent.initialize_xfer(operation, here, there, self.offer.peer)
            try:
                state = self._finish(agent, handle, end, timeout)
            except BaseException:
                _abandon(_Abandoned(self, handle, spans))
                raise
            agent.release_xfer_handle(handle)
            if state != "DONE":
                raise Error(5, f"NIXL says {state} of the transfer with {self.offer.peer!r}")
        except _bindings.nixlNotFoundError as error:
            raise NotFoundError(2, f"NIXL does not find the memory of {self.offer.peer!r}, or no backend reaches it: "
                                f"{error}") from error
        except _bindings.nixlRemoteDisconnectError as error:
            raise GoneError(32, f"{self.offer.peer!r} has died, or has closed what it offered: {error}") from error
        except (_bindings.nixlBackendError, _bindings.nixlCancelledError, _bindings.nixlUnknownError) as error:
            raise Error(5, f"NIXL could not {operation.lower()}: {error}") from error

    def _finish(self, agent: Any, handle: Any, end: float | None, timeout: float | None) -> str:
        state: str = agent.transfer(handle)

        def runs() -> bool:
            nonlocal state
            state = agent.check_xfer_state(handle)
            return state == "PROC"

        if state == "PROC" and not _ends(runs, end):
            raise PeerTimeoutError(110, f"{self.offer.peer!r} has not answered within {timeout} seconds. It still may: until then nothing "
                                   "else is to lie in this memory; a read into it waits for that")
        return state


def _is_used(spans: list[tuple[int, int, int]]) -> bool:
    """Whether an abandoned transfer uses the memory."""
    with _lock:
        _sweep()
        return any(one.touches(spans) for one in _abandoned)


def _ends(runs: Callable[[], bool], end: float | None) -> bool:
    """Whether the transfer ends before its time is over."""
    asked = 0
    while runs():
        if end is not None and time.monotonic() >= end:
            return False
        asked += 1
        time.sleep(0 if asked < _SPINS else _PAUSE)
    return True


def register(agent: Any, *tensors: _tmesh.Tensor, writable: bool = False) -> Registration:
    """Register tensors with an agent until close(), for peers to read. Sealed memory is not copied, and a peer's write
    never reaches it. writable: for tensors that are not sealed. Peers may also write to them, and this process can read
    into them. AccessError: a tensor does not match `writable`."""
    return Registration(agent, tensors, writable)


def offered(offer: bytes) -> Offer:
    """Return the places of a peer's offer, so that the caller can allocate room before reading. ProtocolError: it is no
    offer."""
    return Offer.from_bytes(offer, Registration.ENGINE)
