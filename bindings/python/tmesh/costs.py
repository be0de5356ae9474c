# SPDX-License-Identifier: MIT
"""What this machine's devices, the links between them and its engines take: measured, kept, and used to place graphs.

    tmesh.costs.measure()                                  # once for a machine; or: tmeshctl devices --measure
    costs = tmesh.costs.read()                             # refused when the machine is not that one any more
    at = costs.place(g, contexts)                          # by node of a tmesh.graphs.Graph: a key of contexts
    placed = tmesh.placed.Placed(g, at, contexts, weights=weights)

docs/engines.md says what is measured, and how nodes are estimated.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _tmesh, engine, errors

if TYPE_CHECKING:
    from .graphs import Graph

__all__ = ["Costs", "EngineCosts", "Link", "measure", "read"]


@dataclass(frozen=True)
class Link:
    """A copy from the memory of one device to that of another, or its own: bytes per second, and seconds of a small one."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class EngineCosts:
    """Seconds of an engine. `matmul`: operations per second by the rows of a matrix that is multiplied by one of 512 by 512."""

    launch: float
    #: By process; None: not measured.
    launch_served: float | None
    #: Of a small node more in a graph.
    node: float
    matmul: dict[int, float]


class Costs:
    """What was measured. Made by measure() and read()."""

    def __init__(self, handle: object) -> None:
        self._handle = handle
        told: dict[str, Any] = json.loads(_tmesh.engine_costs_json(handle))
        #: When (seconds of the epoch), of how many samples, copies of how many bytes, the load of the machine.
        self.how: dict[str, Any] = told["how"]
        #: By device, from and to. What was not measured is not there.
        self.links = {(link["from"], link["to"]): Link(link["bandwidth"], link["latency"])
                      for link in told["links"] if link["bandwidth"] is not None}
        #: By name. An engine that was not measured is not there.
        self.engines = {name: EngineCosts(cost["launch"], cost["launch_served"], cost["node"],
                                          {rate["rows"]: rate["flops"] for rate in cost["matmul"]})
                        for name, cost in told["engines"].items()}

    def write(self, path: str | os.PathLike[str] | None = None) -> None:
        """Keep them, in a file or where read() looks: in XDG_CACHE_HOME, else ~/.cache. At once, or not at all."""
        _tmesh.engine_costs_write(self._handle, None if path is None else os.fspath(path))

    def place(self, graph: Graph, contexts: Mapping[Hashable, engine.Context], *,
              memory: Mapping[Hashable, int] | None = None) -> dict[str, Hashable]:
        """Where each node that computes is to run, so that the last one ends early: for tmesh.placed.Placed. memory: bytes
        for weights and caches of a context; else what was free when it was measured. What does not fit raises tmesh.Error
        (ENOSPC) with the bytes needed and there."""
        places = tuple((context.backend, 0, context._served is not None, (memory or {}).get(key, 0))
                       for key, context in contexts.items())
        keys = list(contexts)
        at, _, _ = _tmesh.engine_costs_find(self._handle, graph.text(), places)
        return {node: keys[place] for node, place in at.items()}

    def __repr__(self) -> str:
        return f"<tmesh.costs.Costs of {', '.join(self.engines) or 'no engine'}>"


def measure(*, served: bool | None = None, samples: int = 9, copy_bytes: int = 32 << 20, keep: bool = True) -> Costs:
    """Measure this machine, in about a second, and keep that for read(). Each number is the median of samples. served: engines
    in processes of their own too; by default where the program tmesh-engine is installed."""
    if served is None:
        served = _has_program()
    with contextlib.ExitStack() as stack:
        servers = []
        if served:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tmesh-costs-"))
            for found in engine.engines():
                if found.reason is None and found.reads:
                    server = stack.enter_context(engine.serve(found.name, models=folder, library=found.library))
                    servers.append((found.name, server.name, folder))
        costs = Costs(_tmesh.engine_costs_measure(engine._libraries(), tuple(servers), samples, copy_bytes))
    if keep:
        costs.write()
    return costs


def read(path: str | os.PathLike[str] | None = None) -> Costs:
    """What measure() kept. NotFoundError: nothing was measured here. A file that others may write, that is malformed, or that is
    of another machine, kernel or version of an engine is refused, and says so: nothing is measured anew."""
    return Costs(_tmesh.engine_costs_read(engine._libraries(), None if path is None else os.fspath(path)))


def _has_program() -> bool:
    try:
        return bool(engine._program())
    except errors.UnsupportedError:
        return False
