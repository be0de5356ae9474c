# SPDX-License-Identifier: MIT
"""Movers fetch the bytes of tmesh.ray's objects from another machine: the fetcher of libtmesh-net, NIXL or Mooncake.
The environment of both processes names one. There is no default."""

from __future__ import annotations

import importlib
import json
import os
import threading
from typing import Any, Protocol
import uuid

from . import _tmesh
from .errors import AccessError, CancelledError, Error, InvalidError, ProtocolError
from .offers import MAX_OFFER, MAX_PLACES
from .interop import load

NAMES = "fetcher", "nixl", "mooncake"
VARIABLE = "TMESH_RAY_MOVER"
# Limits in seconds: of NIXL for the bytes of one object, and of the fetcher for a silence. A machine's death is not
# visible from here. Ray waits as long. Mooncake has a limit of its own.
PATIENCE = 60.0


class Mover(Protocol):
    """An engine of this process, which is one peer for all others. Several objects may arrive at once. Only changes to
    the offers are made by one thread at a time."""

    name: str

    def offer(self, tensors: list[_tmesh.Tensor]) -> tuple[bytes, Any]:
        """Return the offer that another machine needs to read the tensors, and the registration for close()."""

    def close(self, registration: Any) -> None:
        """End the offer."""

    def fetch(self, offer: bytes, sizes: list[int], stop: threading.Event) -> list[_tmesh.Tensor]:
        """Fetch each tensor of an offer, in the given sizes, into sealed memory of this machine. stop: an event that
        cancels the fetch if the engine supports this."""


def _check_sizes(offered: list[int], meant: list[int]) -> None:
    if offered != meant:
        raise ProtocolError(71, f"its offer is of another object: {len(offered)} tensors of {sum(offered)} bytes in all, where "
                            f"{len(meant)} of {sum(meant)} are meant")


def _host() -> str:
    """Return the address by which others reach this node."""
    host: str = importlib.import_module("ray.util").get_node_ip_address()
    return host


class Engine:
    """NIXL or Mooncake, which register memory and read into it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._module: Any = importlib.import_module(f"tmesh.{name}")
        self._more: dict[str, Any] = {}
        if name == "nixl":
            api, = load(self._module._package, self._module.VERSION, {
                f"{self._module._flavour}._api": "nixl_agent nixl_agent_config nixl_thread_sync_t"})
            # Configure it so that its calls return at once and threads do not interfere.
            config = api.nixl_agent_config(backends=["UCX"], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
            self._engine: Any = api.nixl_agent(f"tmesh-{uuid.uuid4().hex}", config)
        else:
            host = _host()
            try:
                engine, = load(self._module._PACKAGE, self._module.VERSION, {"mooncake.engine": "TransferEngine"})
            except ModuleNotFoundError as problem:
                raise ModuleNotFoundError(f"the mover \"mooncake\" needs Mooncake ({problem}): pip install "
                                          "mooncake-transfer-engine-non-cuda numpy", name=problem.name) from None
            self._engine = engine.TransferEngine()
            if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
                raise Error(5, f"Mooncake does not begin at {host}")
            self._more = {"host": host}

    def _register(self, tensors: list[_tmesh.Tensor], **more: Any) -> Any:
        with self._lock:
            return self._module.register(self._engine, *tensors, **self._more, **more)

    def offer(self, tensors: list[_tmesh.Tensor]) -> tuple[bytes, Any]:
        registration = self._register(tensors)
        try:
            return registration.offer(), registration
        except BaseException:
            self.close(registration)
            raise

    def close(self, registration: Any) -> None:
        with self._lock:
            registration.close()

    def fetch(self, offer: bytes, sizes: list[int], stop: threading.Event) -> list[_tmesh.Tensor]:
        _check_sizes([place.nbytes for place in self._module.offered(offer).places], sizes)
        rooms = [_tmesh.empty(nbytes, "uint8", label="ray") for nbytes in sizes]
        mine = self._register(rooms, writable=True)
        try:
            with mine.peer(offer) as peer:
                peer.read([(room, number, 0) for number, room in enumerate(rooms)],
                          timeout=PATIENCE if self.name == "nixl" else None)
        finally:
            self.close(mine)
        return [room.seal() for room in rooms]


class Fetcher:
    """libtmesh-net, which offers regions and fetches them into new ones. A region is offered once, even if several
    objects are in it."""

    def __init__(self) -> None:
        self.name = "fetcher"
        self._module: Any = importlib.import_module("tmesh.fetcher")
        self._fetcher = self._module.Fetcher(_host())
        self._lock = threading.Lock()
        # The offers by the ids of regions, with the number of objects in each.
        self._offered: dict[str, tuple[Any, int]] = {}

    def offer(self, tensors: list[_tmesh.Tensor]) -> tuple[bytes, Any]:
        if len(tensors) > MAX_PLACES:
            raise InvalidError(22, f"an object of {len(tensors)} tensors; {MAX_PLACES} can be offered at once")
        places = [_place(tensor) for tensor in tensors]
        regions = {tensor.id: tensor for tensor in tensors}
        had: list[str] = []
        try:
            for region, tensor in regions.items():
                self._count(region, tensor)
                had.append(region)
        except BaseException:
            self.close(had)
            raise
        numbers = {region: number for number, region in enumerate(had)}
        with self._lock:
            sources = [self._offered[region][0].source for region in had]
        told = {"v": 1, "engine": self.name, "sources": sources,
                "places": [[numbers[tensor.id], *place] for tensor, place in zip(tensors, places)]}
        return json.dumps(told).encode(), had

    def _count(self, region: str, tensor: _tmesh.Tensor) -> None:
        with self._lock:
            offer, count = self._offered.get(region, (None, 0))
            self._offered[region] = offer or self._fetcher.offer(tensor), count + 1

    def close(self, registration: Any) -> None:
        for region in registration:
            with self._lock:
                offer, count = self._offered[region]
                if count > 1:
                    self._offered[region] = offer, count - 1
                else:
                    del self._offered[region]
                    offer.withdraw()

    def fetch(self, offer: bytes, sizes: list[int], stop: threading.Event) -> list[_tmesh.Tensor]:
        sources, places = self._read(offer)
        _check_sizes([nbytes for _, _, nbytes in places], sizes)

        def go_on(count: int) -> None:
            if stop.is_set():
                raise CancelledError(125, "the fetch was given up")

        regions = [self._fetcher.fetch(source, timeout=PATIENCE, progress=go_on) for source in sources]
        return [regions[number][start:start + nbytes] for number, start, nbytes in places]

    def _read(self, offer: bytes) -> tuple[list[Any], list[list[int]]]:
        """Check an offer. ProtocolError: it is of another engine, or a tensor is outside its regions."""
        try:
            told = json.loads(offer) if len(offer) <= MAX_OFFER else {}
            if told["v"] != 1 or told["engine"] != self.name:
                raise ValueError(f"version {told['v']!r} for the engine {told['engine']!r}")
            sources = [self._module.read(source) for source in told["sources"]]
            for number, start, nbytes in told["places"]:
                if not all(type(one) is int and one >= 0 for one in (number, start, nbytes)) or \
                        start + nbytes > sources[number]["byte_size"] or not nbytes:
                    raise ValueError("a tensor does not lie in its region")
            if not 0 < len(sources) <= len(told["places"]) <= MAX_PLACES:
                raise ValueError(f"{len(told['places'])} tensors in {len(sources)} regions")
        except ProtocolError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise ProtocolError(71, f"this is no offer of the fetcher's: {type(error).__name__}: {error}") from None
        return sources, told["places"]


def _place(tensor: _tmesh.Tensor) -> tuple[int, int]:
    """Return the region of a tensor and the range of its bytes. AccessError, InvalidError: it cannot be offered."""
    if not tensor.sealed:
        raise AccessError(13, "what is offered is read by others at any time, and this tensor is not sealed: seal() it")
    if not tensor.nbytes:
        raise InvalidError(22, "a tensor without elements has no memory to offer")
    whole = tensor.reshape(-1).view("uint8")
    return _tmesh.layout(whole)[3], whole.nbytes


_known: dict[str, Mover] = {}
_lock = threading.Lock()


def mover() -> Mover | None:
    """Return this process's mover, or None if the environment names none. InvalidError: it names an unknown one."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if name not in NAMES:
        raise InvalidError(22, f"{VARIABLE} is {name!r}, and may be " + " or ".join(NAMES))
    with _lock:
        if name not in _known:
            _known[name] = Fetcher() if name == "fetcher" else Engine(name)
        return _known[name]
