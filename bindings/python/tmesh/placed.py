# SPDX-License-Identifier: MIT
"""A graph over several engines: each part of it runs on its own, and values lie in regions that all of them have.

    contexts = {"a": tmesh.engine.connect("left"), "b": tmesh.engine.connect("right")}
    placed = tmesh.placed.Placed(g, {node: "a" if node in first else "b" for node in g.nodes}, contexts, weights=weights)
    step = placed.bind({"x": x}, {"y": y})
    step.dispatch()

Parts run one after another. What goes from one to the next is written once, where the next one reads it: tmesh copies nothing.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _tmesh, errors

if TYPE_CHECKING:
    import os

    from .engine import Binding, Context, Graph
    from .graphs import Graph as Description

__all__ = ["Part", "Placed", "PlacedBinding"]

# Their value is their input's memory in another shape: whoever reads it has a node of its own.
_VIEWS = {"reshape"}
_GIVEN = {"input", "weight"}


class Part:
    """Nodes that run together. `values`: what it reads of other parts, `results`: what others, or the caller, read of it."""

    def __init__(self, device: Hashable) -> None:
        self.device = device
        self.nodes: list[str] = []
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.values: list[str] = []
        self.results: list[str] = []
        self.graph: Graph | None = None

    def __repr__(self) -> str:
        return f"<tmesh.placed.Part of {len(self.nodes)} nodes on {self.device}>"


def _wrong(message: str) -> errors.InvalidError:
    return errors.InvalidError(errno.EINVAL, message)


class Placed:
    """A graph whose nodes run where `at` says: a key of `contexts` for each node that computes (views go with who reads them).
    `folder`: where the parts are written, for engines in processes of their own one that they may read."""

    def __init__(self, graph: Description, at: Mapping[str, Hashable], contexts: Mapping[Hashable, Context], *,
                 weights: Mapping[str, _tmesh.Tensor] | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        self.description = graph
        self._nodes = graph._nodes
        self._check(at, contexts, weights or {})
        keys = list(contexts)
        places = {name: keys.index(at[name]) for name, (op, _, _) in self._nodes.items() if op not in _GIVEN | _VIEWS}
        self.parts: list[Part] = []
        texts = []
        for place, text, nodes, results in _tmesh.engine_graph_split(graph.text(), places, len(keys)):
            part = Part(keys[place])
            part.results = results
            for name, op in nodes.items():
                into = (part.nodes if op not in _GIVEN else part.weights if op == "weight" else
                        part.inputs if self._nodes[name][0] == "input" else part.values)
                into.append(name)
            self.parts.append(part)
            texts.append(text)
        # As long as this is: an engine that was started anew reads them again.
        self._own = tempfile.TemporaryDirectory(prefix="tmesh-placed-") if folder is None else None
        where = Path(self._own.name if self._own else folder or "")
        self._types: dict[str, tuple[str, tuple[int, ...]]] = {}
        for number, (part, text) in enumerate(zip(self.parts, texts)):
            path = where / f"{graph.name}.{number}.graph"
            path.write_text(text, encoding="ascii")
            part.graph = contexts[part.device].graph(path, weights={name: (weights or {})[name] for name in part.weights})
            for name in part.results:
                operand = part.graph.outputs[name]
                self._types[name] = operand.dtype, tuple(int(n) for n in operand.shape)  # type: ignore[arg-type]

    def _check(self, at: Mapping[str, Hashable], contexts: Mapping[Hashable, Context],
               weights: Mapping[str, _tmesh.Tensor]) -> None:
        for name, (op, inputs, _) in self._nodes.items():
            for needed in inputs:
                if needed not in self._nodes:
                    raise _wrong(f"node {name!r} reads {needed!r}, which is no node that was added before")
            if op not in _GIVEN | _VIEWS and (name not in at or at[name] not in contexts):
                raise _wrong(f"node {name!r} is on no device that has a context: give one of {', '.join(map(str, contexts))}")
            if op == "weight" and name not in weights:
                raise _wrong(f"weight {name!r} was not given")

    def _past(self, part: Part, name: str) -> str:
        """The operand of a part whose memory a "set_rows" of it has."""
        while self._nodes[name][0] == "set_rows" and name in part.nodes:
            name = self._nodes[name][1][0]
        return name

    def bind(self, inputs: Mapping[str, _tmesh.Tensor], outputs: Mapping[str, _tmesh.Tensor]) -> PlacedBinding:
        """Check once, to run often. Inputs and outputs are Tensors; an output of "set_rows" is the tensor of its past."""
        where: dict[str, _tmesh.Tensor] = {}
        for name, (op, needed, _) in self._nodes.items():
            if op == "input" and name not in inputs:
                raise _wrong(f"input {name!r} was not given")
            if op == "set_rows":
                where[name] = where[needed[0]] if needed[0] in where else inputs[needed[0]]
        for name, tensor in outputs.items():
            node = self.description.outputs.get(name)
            if node is None:
                raise errors.NotFoundError(errno.ENOENT, f"the graph has no output {name!r}")
            if where.setdefault(node, tensor) is not tensor:
                raise _wrong(f"output {name!r} lies in the memory of another output, or of its past: give that tensor")
        bindings = []
        for part in self.parts:
            assert part.graph is not None
            for name in part.results:
                if name not in where:
                    dtype, shape = self._types[name]
                    where[name] = _tmesh.zeros(shape, dtype)
            in_place = {name: self._past(part, name) for name in part.results if self._nodes[name][0] == "set_rows"}
            bindings.append(part.graph.bind({name: inputs[name] for name in part.inputs} | {n: where[n] for n in part.values},
                                            {name: where[name] for name in part.results}, in_place=in_place))
        return PlacedBinding(self, bindings)

    def __repr__(self) -> str:
        return f"<tmesh.placed.Placed {self.description.name}: {len(self.parts)} parts>"


class PlacedBinding:
    """The parts with their inputs and outputs. Made by Placed.bind()."""

    def __init__(self, placed: Placed, bindings: list[Binding]) -> None:
        self._placed = placed
        self._bindings = bindings

    def dispatch(self) -> None:
        """Run all parts, in their order. After an error of one those behind it have not run."""
        for binding in self._bindings:
            binding.dispatch()
