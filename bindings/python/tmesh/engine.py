# SPDX-License-Identifier: MIT
"""Graphs run on tensors that processes share, by ONNX Runtime.

    context = tmesh.engine.Context()                       # needs the package onnxruntime, or its library
    graph = context.graph("decode.onnx")
    y = graph.dispatch({"x": array})["y"]                  # NumPy in, NumPy out
    graph.dispatch({"x": tensor}, {"y": other})            # on the tensors' own memory: nothing is copied
    step = graph.bind({"x": tensor}, {"y": other})         # checked once
    step.dispatch()                                        # run often

The names are WebNN's: context, graph, operand, dispatch, read, write, destroy. docs/engines.md says what is promised
and what there is not.
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _tmesh, errors

__all__ = ["Binding", "Context", "DeviceTensor", "Graph", "Operand"]

_READABLE, _WRITABLE, _EXPORTABLE = 1, 2, 4
HOST, ENGINE = "host", "engine"


def _flags(readable: bool, writable: bool, exportable: bool) -> int:
    return _READABLE * readable | _WRITABLE * writable | _EXPORTABLE * exportable


def _library() -> str:
    """That of the package onnxruntime, which is not imported: it has a copy of its own."""
    if os.environ.get("TMESH_ONNXRUNTIME"):
        return ""
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        return ""
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = sorted(path for folder in folders for path in Path(folder, "capi").glob("libonnxruntime.so*"))
    return str(found[-1]) if found else ""


@dataclass(frozen=True)
class Operand:
    """An input or output of a graph. A dimension is a number, a name (the same number wherever it stands), or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class DeviceTensor:
    """Where graphs read and write. Made by Context.tensor(), Context.wrap() and Graph.dispatch()."""

    def __init__(self, handle: _tmesh.EngineTensor) -> None:
        self._handle = handle

    @property
    def dtype(self) -> str:
        return self._handle.info()[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._handle.info()[1]

    @property
    def device(self) -> str:
        return "cuda" if self._handle.info()[2] else "cpu"

    @property
    def readable(self) -> bool:
        return bool(self._handle.info()[3] & _READABLE)

    @property
    def writable(self) -> bool:
        return bool(self._handle.info()[3] & _WRITABLE)

    @property
    def exportable(self) -> bool:
        return bool(self._handle.info()[3] & _EXPORTABLE)

    @property
    def rights(self) -> str:
        """What graphs may do with it: "r", or "rw" for outputs."""
        return "rw" if self._handle.info()[4] else "r"

    @property
    def nbytes(self) -> int:
        return self._handle.info()[5]

    @property
    def address(self) -> int:
        """Of its first element, in this process."""
        return self._handle.info()[6]

    @property
    def of_engine(self) -> bool:
        """The engine allocated its memory, which lies in no region."""
        return bool(self._handle.info()[7])

    def read(self, out: Any = None) -> Any:
        """A copy of the elements, in a new NumPy array or in `out`, a contiguous one; counted."""
        if out is None:
            import numpy

            out = numpy.empty(self.shape, self.dtype)
        self._handle.read_into(out)
        return out

    def write(self, array: Any) -> None:
        """Copy all elements from a contiguous array of as many bytes; counted."""
        self._handle.write_from(array)

    def export(self) -> _tmesh.Tensor:
        """A Tensor of the same memory, for others to open. AccessError: it was not made to be exported."""
        return self._handle.export()

    def destroy(self) -> None:
        """Give its memory up. All other use raises ReleasedError then, also that of bindings that have it."""
        self._handle.destroy()

    def __repr__(self) -> str:
        try:
            return f"<tmesh.engine.DeviceTensor {self.dtype}{list(self.shape)} on {self.device}>"
        except errors.ReleasedError:
            return "<tmesh.engine.DeviceTensor, destroyed>"


class Context:
    """An engine, and the sessions that it has open.

    library: the file of ONNX Runtime's library; by default TMESH_ONNXRUNTIME, else that of the package onnxruntime,
    else the system's. threads: of one run. sessions: how many stay open that no Graph uses. UnsupportedError says
    what is missing."""

    def __init__(self, backend: str = "onnx", *, device: str = "cpu", library: str | os.PathLike[str] | None = None,
                 threads: int = 1, sessions: int = 8) -> None:
        if device not in ("cpu", "cuda"):
            raise errors.InvalidError(errno.EINVAL, f"no device {device!r}: \"cpu\" or \"cuda\"")
        path = _library() if library is None and backend == "onnx" else os.fspath(library or "")
        self._handle = _tmesh.EngineContext(backend, path, device == "cuda", threads, sessions)

    @property
    def backend(self) -> str:
        return self._handle.names()[0]

    @property
    def version(self) -> str:
        """Of the engine's library."""
        return self._handle.names()[1]

    def stats(self) -> dict[str, int]:
        """What it counted so far."""
        return self._handle.stats()

    def tensor(self, shape: Any, dtype: Any, *, readable: bool = False, writable: bool = False,
               exportable: bool = False) -> DeviceTensor:
        """A device tensor of zeros in a region of its own. Graphs may read and write it; the flags say what else may be
        done: read(), write(), export()."""
        return DeviceTensor(self._handle.tensor(shape, dtype, _flags(readable, writable, exportable)))

    def wrap(self, tensor: _tmesh.Tensor, rights: str = "r", *, readable: bool = False, writable: bool = False,
             exportable: bool = False) -> DeviceTensor:
        """A device tensor on a Tensor's own memory. rights: "r", or "rw" for what graphs may write. It is a view of the
        Tensor until it is destroyed."""
        if rights not in ("r", "rw"):
            raise errors.InvalidError(errno.EINVAL, f"rights are \"r\" or \"rw\", not {rights!r}")
        return DeviceTensor(self._handle.wrap(tensor, rights == "rw", _flags(readable, writable, exportable)))

    def graph(self, path: str | os.PathLike[str], *, weights: Mapping[str, _tmesh.Tensor] | None = None,
              prepack: bool = False) -> Graph:
        """The graph of an .onnx file. weights: sealed Tensors in place of the file's, used where they lie. prepack: the
        engine may copy weights into an order of its own, for faster runs and more memory."""
        return Graph(self, self._handle.graph(path, tuple((weights or {}).items()), prepack))

    def __repr__(self) -> str:
        return f"<tmesh.engine.Context {self.backend} {self.version}>"


class Graph:
    """What is run. Made by Context.graph(). Inputs are Tensors, DeviceTensors or contiguous NumPy arrays, in any mixture.
    Outputs are Tensors (which are written), DeviceTensors, NumPy arrays, "host" for a new NumPy array, or "engine" for a
    DeviceTensor on memory that the engine allocates."""

    def __init__(self, context: Context, handle: _tmesh.EngineGraph) -> None:
        self._context = context
        self._handle = handle
        self.inputs = {name: Operand(name, dtype, shape) for name, dtype, shape in handle.inputs()}
        self.outputs = {name: Operand(name, dtype, shape) for name, dtype, shape in handle.outputs()}

    def _value(self, name: str, where: Any, output: bool, in_place: str | None = None) -> tuple[Any, ...]:
        if isinstance(where, DeviceTensor):
            return name, where._handle, None, None, in_place
        if isinstance(where, _tmesh.Tensor):
            return name, self._context._handle.wrap(where, output, 0), None, None, in_place
        if output and isinstance(where, str) and where in (HOST, ENGINE):
            return name, None, None, None, in_place
        if not hasattr(where, "dtype") or not hasattr(where, "flags"):
            more = ', "host" or "engine"' if output else ""
            raise TypeError(f"{name!r} is a Tensor, a DeviceTensor or a NumPy array{more}, not {type(where).__name__}")
        if not where.flags.c_contiguous:
            raise errors.InvalidError(errno.EINVAL, f"{name!r} is not contiguous, and nothing is copied silently: give "
                                      "numpy.ascontiguousarray() of it")
        if output and not where.flags.writeable:
            raise errors.AccessError(errno.EACCES, f"output {name!r} is a read-only array")
        return name, where, where.dtype, where.shape, in_place

    def _values(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any],
                in_place: Mapping[str, str] | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        unknown = [name for name in in_place or {} if name not in outputs]
        if unknown:
            raise errors.NotFoundError(errno.ENOENT, f"in_place names {unknown[0]!r}, which is no output here")
        return (tuple(self._value(name, where, False) for name, where in inputs.items()),
                tuple(self._value(name, where, True, (in_place or {}).get(name)) for name, where in outputs.items()))

    def dispatch(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | Iterable[str] | None = None, *,
                 in_place: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run it. outputs: where each goes, or names of those wanted, as "host"; by default all. in_place: of an output
        that lies on an input's memory, that input; the caller says by it that the graph bears that.

        A dict: of each output what was given, or what came of "host" and "engine". Everything is checked before anything
        runs, and nothing is copied but to "host"."""
        if outputs is None:
            outputs = self.outputs
        if not isinstance(outputs, Mapping) or outputs is self.outputs:
            outputs = {name: HOST for name in outputs}
        results = self._handle.dispatch(*self._values(inputs, outputs, in_place))
        out: dict[str, Any] = {}
        for (name, where), handle in zip(outputs.items(), results):
            out[name] = where
            if handle is not None:
                made = DeviceTensor(handle)
                out[name] = made if where == ENGINE else made.read()
        return out

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *,
             in_place: Mapping[str, str] | None = None) -> Binding:
        """Check once, to run often. Outputs have memory of their own: Tensors, DeviceTensors, arrays."""
        return Binding(self._handle.bind(*self._values(inputs, outputs, in_place)))

    def __repr__(self) -> str:
        return f"<tmesh.engine.Graph of {', '.join(self.inputs)} to {', '.join(self.outputs)}>"


class Binding:
    """Inputs and outputs of a graph, which it keeps. Made by Graph.bind()."""

    def __init__(self, handle: _tmesh.EngineBinding) -> None:
        self._handle = handle

    def dispatch(self) -> None:
        """Run the graph on what was bound."""
        self._handle.dispatch()
