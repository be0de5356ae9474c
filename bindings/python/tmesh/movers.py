# SPDX-License-Identifier: MIT
"""What brings the bytes of tmesh.ray's objects from another machine: NIXL or Mooncake, whichever the environment names in
both processes. None is taken silently."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any
import uuid

from . import _tmesh
from .errors import Error, InvalidError, ProtocolError

NAMES = "nixl", "mooncake"
VARIABLE = "TMESH_RAY_MOVER"
# The longest that the bytes of one object may take by NIXL, in seconds: the death of a machine cannot be seen from here.
# Mooncake has a limit of its own, and takes none.
PATIENCE = 60.0


class Mover:
    """One engine of this process, which is one peer to all others. Objects come at the same time: what is registered
    changes by one thread at a time, and nothing else waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._module: Any = importlib.import_module(f"tmesh.{name}")
        self._more: dict[str, Any] = {}
        if name == "nixl":
            api = importlib.import_module(f"{self._module._flavour}._api")
            # Its calls return at once, and keep threads apart.
            config = api.nixl_agent_config(backends=["UCX"], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
            self._engine: Any = api.nixl_agent(f"tmesh-{uuid.uuid4().hex}", config)
        else:
            host = importlib.import_module("ray.util").get_node_ip_address()
            self._engine = importlib.import_module("mooncake.engine").TransferEngine()
            if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
                raise Error(5, f"Mooncake does not begin at {host}")
            self._more = {"host": host}

    def _register(self, tensors: list[_tmesh.Tensor], **more: Any) -> Any:
        with self._lock:
            return self._module.register(self._engine, *tensors, **self._more, **more)

    def offer(self, tensors: list[_tmesh.Tensor]) -> tuple[bytes, Any]:
        """What another machine needs to read these, and what closes it."""
        registration = self._register(tensors)
        return registration.offer(), registration

    def close(self, registration: Any) -> None:
        with self._lock:
            registration.close()

    def fetch(self, offer: bytes, sizes: list[int]) -> list[_tmesh.Tensor]:
        """The bytes of each tensor of an offer, which are of these sizes, in memory of this machine, which is sealed."""
        places = self._module.offered(offer).places
        offered = [place.nbytes for place in places]
        if offered != sizes:
            raise ProtocolError(71, f"its offer is of another object: {len(offered)} tensors of {sum(offered)} bytes in all, where "
                                f"{len(sizes)} of {sum(sizes)} are meant")
        rooms = [_tmesh.empty(nbytes, "uint8", label="ray") for nbytes in sizes]
        mine = self._register(rooms, writable=True)
        try:
            with mine.peer(offer) as peer:
                peer.read([(room, number, 0) for number, room in enumerate(rooms)],
                          timeout=PATIENCE if self.name == "nixl" else None)
        finally:
            self.close(mine)
        return [room.seal() for room in rooms]


_known: dict[str, Mover] = {}
_lock = threading.Lock()


def mover() -> Mover | None:
    """This process's, or None where the environment names none. InvalidError where it names another."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    if name not in NAMES:
        raise InvalidError(22, f"{VARIABLE} is {name!r}, and may be " + " or ".join(NAMES))
    with _lock:
        if name not in _known:
            _known[name] = Mover(name)
        return _known[name]
