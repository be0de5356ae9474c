# SPDX-License-Identifier: MIT
"""A graph over several engines: each engine runs a part of it, and values are in regions that all of them have.

    contexts = {"a": tmesh.engine.connect("left"), "b": tmesh.engine.connect("right")}
    placed = tmesh.placed.Placed(g, {node: "a" if node in first else "b" for node in g.nodes}, contexts, weights=weights)
    step = placed.bind({"x": x}, {"y": y})
    step.dispatch()

Parts run one after another. A value for the next part is written once, in the memory where that part reads it: tmesh
does not copy it. Placed.move() moves the graph to other places. Several graphs can share places by leases:

    places = tmesh.placed.Places({"a": tmesh.placed.Place(context, memory=1 << 30)})   # a graph that is idle for 5 s is given up
    placed = tmesh.placed.Placed(g, dict.fromkeys(g.nodes, "a"), places, weights=weights)
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import _tmesh, errors

if TYPE_CHECKING:
    from .engine import Cancellable, Context
    from .graphs import Graph as Description

__all__ = ["Partition", "Place", "Placed", "PlacedBinding", "Places"]

# Operators that give their input's memory another shape. Each reader has a node of its own.
_VIEWS = {"reshape"}
_GIVEN = {"input", "weight"}
_NEVER = (1 << 64) - 1


class Partition:
    """Nodes that run together. `values`: the values that it reads from other partitions. `results`: those that other partitions,
    or the caller, read."""

    def __init__(self, device: Hashable) -> None:
        self.device = device
        self.nodes: list[str] = []
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.values: list[str] = []
        self.results: list[str] = []

    def __repr__(self) -> str:
        return f"<tmesh.placed.Partition of {len(self.nodes)} nodes on {self.device}>"


@dataclass(frozen=True)
class Place:
    """An engine with its memory: bytes for weights and inputs of graphs (None: no limit), on a NUMA node (None:
    any)."""

    context: Context
    memory: int | None = None
    node: int | None = None


def _wrong(message: str) -> errors.InvalidError:
    return errors.InvalidError(errno.EINVAL, message)


class Places:
    """Places that graphs have by leases. A thread of the library closes a graph that has not run for `idle` seconds
    (None: never). This frees the memory of its engines and its room. Its next run takes the same places again. It
    raises tmesh.Error (ENOSPC) while other graphs have their room; Placed.move() then moves it elsewhere."""

    def __init__(self, places: Mapping[Hashable, Place | Context], *, idle: float | None = 5.0) -> None:
        if idle is not None and not 0 < idle < _NEVER / 1e9:
            raise _wrong(f"idle is None or more than 0 seconds, not {idle}")
        all_ = {key: place if isinstance(place, Place) else Place(place) for key, place in places.items()}
        for key, place in all_.items():
            if place.memory is not None and place.memory <= 0:
                raise _wrong(f"place {key!r}: memory is None or more than 0 bytes, not {place.memory}")
            if place.node is not None and place.node < 0:
                raise _wrong(f"place {key!r}: node is None or a number of a NUMA node, not {place.node}")
        self.contexts = {key: place.context for key, place in all_.items()}
        self._keys = list(all_)
        self._handle = _tmesh.engine_places_create(
            tuple((place.context._handle, place.memory or 0, -1 if place.node is None else place.node)
                  for place in all_.values()),
            _NEVER if idle is None else max(1, int(idle * 1e9)))

    def sweep(self) -> int:
        """Close graphs that are idle long enough now, and return their number. If values of a graph could not be
        copied, it keeps its places, and the first such error is raised."""
        return _tmesh.engine_places_sweep(self._handle)

    def used(self, key: Hashable) -> int:
        """Return the bytes of a place that graphs have now."""
        if key not in self.contexts:
            raise errors.NotFoundError(errno.ENOENT, f"there is no place {key!r}")
        return _tmesh.engine_places_used(self._handle, self._keys.index(key))

    def stats(self) -> dict[str, int]:
        """Return counters of graphs: held now; moves, given_up, reacquired; copies of values, and bytes_copied."""
        return _tmesh.engine_places_stats(self._handle)

    def __repr__(self) -> str:
        return f"<tmesh.placed.Places {', '.join(map(str, self._keys))}>"


class Placed:
    """A graph whose nodes run at places. `at`: for each node with an operator a key of `contexts`, or of places; views
    are with their readers. `folder`: a folder for the partitions; engines in processes of their own must be able to read
    it."""

    def __init__(self, graph: Description, at: Mapping[str, Hashable], contexts: Mapping[Hashable, Context] | Places, *,
                 weights: Mapping[str, _tmesh.Tensor] | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        self.description = graph
        self._nodes = dict(graph._nodes)
        self._outputs = dict(graph.outputs)
        self._contexts = contexts.contexts if isinstance(contexts, Places) else dict(contexts)
        self._keys = list(self._contexts)
        for name, (op, inputs, _) in self._nodes.items():
            for needed in inputs:
                if needed not in self._nodes:
                    raise _wrong(f"node {name!r} reads {needed!r}, which is no node that was added before")
            if op == "weight" and name not in (weights or {}):
                raise _wrong(f"weight {name!r} was not given")
        where = self._places(at)
        # Keep the folder as long as this object: an engine that was restarted reads the partitions again.
        self._own = tempfile.TemporaryDirectory(prefix="tmesh-placed-") if folder is None else None
        self._handle = _tmesh.engine_placed_create(
            graph.text(), where,
            contexts._handle if isinstance(contexts, Places) else tuple(context._handle for context in self._contexts.values()),
            tuple((weights or {}).items()), Path(self._own.name if self._own else folder or "").absolute())

    def _places(self, at: Mapping[str, Hashable]) -> dict[str, int]:
        computing = [name for name, (op, _, _) in self._nodes.items() if op not in _GIVEN | _VIEWS]
        for name in computing:
            if name not in at or at[name] not in self._contexts:
                raise _wrong(f"node {name!r} is on no device that has a context: give one of {', '.join(map(str, self._keys))}")
        return {name: self._keys.index(at[name]) for name in computing}

    @property
    def partitions(self) -> list[Partition]:
        """The partitions in their order, at the current places, or the last ones if it was given up."""
        partitions = []
        for place, _, nodes, results in _tmesh.engine_placed_partitions(self._handle):
            part = Partition(self._keys[place])
            part.results = results
            for name, op in nodes.items():
                into = (part.nodes if op not in _GIVEN else part.weights if op == "weight" else
                        part.inputs if self._nodes[name][0] == "input" else part.values)
                into.append(name)
            partitions.append(part)
        return partitions

    def at(self) -> dict[str, Hashable]:
        """Return the place of each node with an operator, or the last one if it was given up, in the form of the
        constructor's `at`."""
        return {name: self._keys[place] for name, place in _tmesh.engine_placed_at(self._handle).items()}

    def move(self, at: Mapping[str, Hashable]) -> None:
        """Move to other places, with all bindings. Everything is opened and bound there before the old places are
        freed. Runs end first, and later ones wait. After an error the graph stays at its places and can run."""
        _tmesh.engine_placed_move(self._handle, self._places(at))

    def bind(self, inputs: Mapping[str, _tmesh.Tensor], outputs: Mapping[str, _tmesh.Tensor]) -> PlacedBinding:
        """Check inputs and outputs once, to run often. They are Tensors; an output of "set_rows" is the tensor of its
        past. An input with cache="reuse" that is not given belongs to the binding. It is zeros at first, in the memory
        of the place that reads it."""
        own = [name for name, (op, _, line) in self._nodes.items()
               if op == "input" and name not in inputs and "cache=reuse" in line.split()]
        where: dict[str, _tmesh.Tensor] = {}
        for name, (op, needed, _) in self._nodes.items():
            if op == "input" and name not in inputs and name not in own:
                raise _wrong(f"input {name!r} was not given")
            if op == "set_rows":
                past = where[needed[0]] if needed[0] in where else inputs.get(needed[0])
                if past is not None:
                    where[name] = past
        for name, tensor in outputs.items():
            node = self._outputs.get(name)
            if node is None:
                raise errors.NotFoundError(errno.ENOENT, f"the graph has no output {name!r}")
            if where.setdefault(node, tensor) is not tensor:
                raise _wrong(f"output {name!r} lies in the memory of another output, or of its past: give that tensor")
        # As in any binding, its tensors cannot be sealed or released meanwhile.
        written = {id(tensor) for tensor in where.values()}
        context = next(iter(self._contexts.values()))
        views = [context._handle.wrap(tensor, number in written, 0)
                 for number, tensor in {id(tensor): tensor for tensor in (*inputs.values(), *outputs.values())}.items()]
        handle = _tmesh.engine_placed_bind(self._handle, (*inputs.items(), *((name, None) for name in own)),
                                           tuple(outputs.items()))
        return PlacedBinding(self, handle, views)

    def __repr__(self) -> str:
        return f"<tmesh.placed.Placed {self.description.name}: {len(self.partitions)} partitions>"


class PlacedBinding:
    """The partitions of a graph with bound inputs and outputs. Made by Placed.bind()."""

    def __init__(self, placed: Placed, handle: object, views: list[_tmesh.EngineTensor]) -> None:
        self._placed = placed
        self._handle = handle
        self._views = views

    def dispatch(self, cancellable: Cancellable | None = None) -> None:
        """Run all partitions in order. After an error of one part the later ones have not run. A graph that was given up
        first takes places. cancellable: as in tmesh.engine.Graph.dispatch()."""
        _tmesh.engine_placed_dispatch(self._handle, cancellable)

    def tensor(self, name: str) -> _tmesh.Tensor:
        """Return the tensor of an input that the binding owns. After a move to another memory it is another tensor."""
        return _tmesh.engine_placed_tensor(self._handle, name)
