# SPDX-License-Identifier: MIT
"""Graphs run on tensors that processes share, by ONNX Runtime or ggml.

    context = tmesh.engine.Context()                       # needs the package onnxruntime, or its library
    graph = context.graph("decode.onnx")
    y = graph.dispatch({"x": array})["y"]                  # NumPy in, NumPy out
    graph.dispatch({"x": tensor}, {"y": other})            # on the tensors' own memory: nothing is copied
    step = graph.bind({"x": tensor}, {"y": other})         # checked once
    step.dispatch()                                        # run often

    with tmesh.engine.serve(models="models") as server:     # an engine in a process of its own
        context = server.connect()                         # or, in any process, tmesh.engine.connect(server.name)

The names are WebNN's: context, graph, operand, dispatch, read, write, destroy. docs/reference/engines.md lists the
promises and the limits.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import _tmesh, elements, errors, installed
from ._tmesh import Cancellable
from .pages import Pages

__all__ = ["Binding", "Cancellable", "Context", "Device", "DeviceTensor", "Engine", "Graph", "Operand", "Server", "connect",
           "devices", "engines", "serve"]

_READABLE, _WRITABLE, _EXPORTABLE = 1, 2, 4
HOST, ENGINE = "host", "engine"


def _flags(readable: bool, writable: bool, exportable: bool) -> int:
    return _READABLE * readable | _WRITABLE * writable | _EXPORTABLE * exportable


@dataclass(frozen=True)
class Operand:
    """An input or output of a graph. A dimension is a number, a name (equal names have equal numbers), or None."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Device:
    """A device for graphs: the processors of a NUMA node ("cpu:0") or a GPU ("cuda:0"). None means unknown."""

    id: str
    kind: str
    name: str
    node: int | None
    processors: int
    memory: int
    memory_free: int | None
    engines: tuple[str, ...]
    #: Engines that were never run on a device of this kind. Their code for it was compiled, and at most tried on
    #: stand-ins.
    never_seen: tuple[str, ...]
    #: Why no engine can use it.
    reason: str | None


@dataclass(frozen=True)
class Engine:
    """An engine, found or not. `operators`: for an engine that reads "graph", the operators that it runs, with the
    dtypes of the operand that may have several. They were tried, not declared."""

    name: str
    version: str | None
    library: str | None
    reads: str | None
    dtypes: tuple[str, ...]
    operators: dict[str, tuple[str, ...]]
    #: Kinds of devices on which it was never run.
    never_seen: tuple[str, ...]
    #: Why it cannot be used.
    reason: str | None


def _libraries() -> tuple[tuple[str, str], ...]:
    return tuple((name, path) for name in installed.LIBRARIES if (path := installed.library(name)))


def _look() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_tmesh.engine_devices(_libraries(), None))
    return found


def devices() -> list[Device]:
    """List this machine's devices. This loads the engines that are found into this process, for good."""
    return [Device(**{**device, "engines": tuple(device["engines"]), "never_seen": tuple(device["never_seen"])}) for device in _look()["devices"]]


def engines() -> list[Engine]:
    """List the engines that are found, with the reason if one cannot be used. This loads them as devices() does."""
    return [Engine(**{**found, "dtypes": tuple(found["dtypes"]), "never_seen": tuple(found["never_seen"]),
                      "operators": {op: tuple(dtypes) for op, dtypes in found["operators"].items()}})
            for found in _look()["engines"]]


def _array(shape: Any, dtype: str, else_: str) -> Any:
    import numpy

    kind = elements.numpy_type(dtype)
    if kind is None:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"NumPy has no {dtype}: {else_}")
    return numpy.empty(shape, kind)


class DeviceTensor:
    """Memory that graphs read and write. Made by Context.tensor(), Context.wrap() and Graph.dispatch()."""

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
    def backend(self) -> str:
        """The engine whose graphs accept it: "onnx", "ggml"."""
        return self._handle.info()[8]

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
        """The use that graphs may make of it: "r", or "rw" for outputs."""
        return "rw" if self._handle.info()[4] else "r"

    @property
    def nbytes(self) -> int:
        return self._handle.info()[5]

    @property
    def address(self) -> int:
        """The address of its first element in this process."""
        return self._handle.info()[6]

    @property
    def of_engine(self) -> bool:
        """Whether the engine allocated its memory, which is then in no region."""
        return bool(self._handle.info()[7])

    def read(self, out: Any = None) -> Any:
        """Copy the elements to a new NumPy array or to `out`, a contiguous one; counted."""
        if out is None:
            out = _array(self.shape, self.dtype, "give read() an array of bytes")
        self._handle.read_into(out)
        return out

    def write(self, array: Any) -> None:
        """Copy all elements from a contiguous array with as many bytes; counted."""
        self._handle.write_from(array)

    def export(self) -> _tmesh.Tensor:
        """Return a Tensor of the same memory, which other processes can open. AccessError: it was not made for
        export."""
        return self._handle.export()

    def destroy(self) -> None:
        """Free its memory. All later use raises ReleasedError, even by bindings that have it."""
        self._handle.destroy()

    def __reduce__(self) -> Any:
        raise TypeError("a DeviceTensor belongs to its process: send the Tensor of its export()")

    def __repr__(self) -> str:
        try:
            return f"<tmesh.engine.DeviceTensor {self.dtype}{list(self.shape)} on {self.device}>"
        except errors.ReleasedError:
            return "<tmesh.engine.DeviceTensor, destroyed>"


class Context:
    """An engine, and the sessions that it has open.

    backend: "onnx", or "ggml" for graphs of tmesh. library: the file of the engine's library. By default it is that of
    TMESH_ONNXRUNTIME (TMESH_GGML), else of the package onnxruntime (libggml-python), else of the system. threads: for
    each run. sessions: the most that stay open after their last Graph is gone. UnsupportedError names the missing
    part."""

    def __init__(self, backend: str = "onnx", *, device: str = "cpu", library: str | os.PathLike[str] | None = None,
                 threads: int = 1, sessions: int = 8) -> None:
        if device not in ("cpu", "cuda"):
            raise errors.InvalidError(errno.EINVAL, f"no device {device!r}: \"cpu\" or \"cuda\"")
        path = installed.library(backend) if library is None else os.fspath(library)
        self._handle = _tmesh.EngineContext(backend, path, device == "cuda", threads, sessions)
        self._apart = device == "cuda"
        self._kept: weakref.WeakSet[Pages] = weakref.WeakSet()
        self._served: tuple[str, float | None, int] | None = None
        self._server: Server | None = None

    @property
    def backend(self) -> str:
        return self._handle.names()[0]

    @property
    def version(self) -> str:
        """The version of the engine's library."""
        return self._handle.names()[1]

    @property
    def pid(self) -> int | None:
        """The process that runs the graphs; None: this one. It changes after a crash."""
        return self._handle.pid() or None

    def stats(self) -> dict[str, int]:
        """The context's counts so far."""
        return self._handle.stats()

    def tensor(self, shape: Any, dtype: Any, *, readable: bool = False, writable: bool = False,
               exportable: bool = False) -> DeviceTensor:
        """Make a device tensor of zeros in a region of its own. Graphs may read and write it. The flags permit read(),
        write() and export()."""
        return DeviceTensor(self._handle.tensor(shape, dtype, _flags(readable, writable, exportable)))

    def wrap(self, tensor: _tmesh.Tensor, rights: str = "r", *, readable: bool = False, writable: bool = False,
             exportable: bool = False) -> DeviceTensor:
        """Make a device tensor on a Tensor's own memory. rights: "r", or "rw" if graphs may write to it. It is a view
        of the Tensor until it is destroyed."""
        if rights not in ("r", "rw"):
            raise errors.InvalidError(errno.EINVAL, f"rights are \"r\" or \"rw\", not {rights!r}")
        return DeviceTensor(self._handle.wrap(tensor, rights == "rw", _flags(readable, writable, exportable)))

    def graph(self, path: str | os.PathLike[str], *, weights: Mapping[str, _tmesh.Tensor] | None = None,
              prepack: bool = False) -> Graph:
        """Open the graph of an .onnx file, or for "ggml" of a file of tmesh.graphs. weights: sealed Tensors that
        replace the file's weights (for "ggml" all weights), used without a copy. prepack: the engine may copy weights
        into an order of its own, for faster runs and more memory."""
        weights = {} if weights is None else weights
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights is a dict of names and sealed Tensors, not {type(weights).__name__}")
        for name, weight in weights.items():
            if not isinstance(weight, _tmesh.Tensor):
                raise TypeError(f"weight {name!r} is a sealed Tensor, not {type(weight).__name__}: tmesh.put() makes one of an array")
        return Graph(self, self._handle.graph(path, tuple(weights.items()), prepack))

    def lifeline(self, pages: Pages) -> None:
        """Call this before graphs write to pages of a pool (Pages.slab()). If this process dies, its pages pass to
        others only after the engine has stopped writing to them. An engine in this process needs nothing. LimitError:
        more than 8 parts in pools. A second call has no effect."""
        if pages not in self._kept:
            self._handle.lifeline(pages._handle)
            self._kept.add(pages)

    def __reduce__(self) -> Any:
        if self._served is None:
            raise TypeError("an engine of this process cannot be pickled: make a Context where it is used, or connect() to "
                            "one that is served")
        return connect, self._served

    def __repr__(self) -> str:
        where = f" in process {self.pid}, served as {self._served[0]!r}" if self._served else ""
        return f"<tmesh.engine.Context {self.backend} {self.version}{where}>"


def _dict_of_names(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a dict by the graph's names, as {{\"x\": ...}}, not {type(given).__name__}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"{what} is a dict by the graph's names, and {name!r} is none")


class Graph:
    """A graph that runs on an engine. Made by Context.graph(). Inputs are Tensors, DeviceTensors or contiguous NumPy
    arrays, in any mixture. An output is a Tensor (which is written), a DeviceTensor or a NumPy array. "host" makes a
    new NumPy array, and "engine" a DeviceTensor on memory that the engine allocates."""

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

    def _check_names(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], in_place: Mapping[str, str] | None) -> None:
        for what, names in ("inputs", inputs), ("outputs", outputs), ("in_place", {} if in_place is None else in_place):
            _dict_of_names(what, names)
        for output, on in (in_place or {}).items():
            if output not in outputs:
                raise errors.NotFoundError(errno.ENOENT, f"in_place names {output!r}, which is no output here")
            if on not in inputs:
                raise errors.NotFoundError(errno.ENOENT, f"in_place puts {output!r} in place of {on!r}, which is no input here")
            if isinstance(outputs[output], str):
                raise errors.InvalidError(errno.EINVAL, f"in_place puts {output!r} in place of {on!r}: give the input's memory as "
                                          f"that output, not {outputs[output]!r}")

    def _values(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any],
                in_place: Mapping[str, str] | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        self._check_names(inputs, outputs, in_place)
        return (tuple(self._value(name, where, False) for name, where in inputs.items()),
                tuple(self._value(name, where, True, (in_place or {}).get(name)) for name, where in outputs.items()))

    def dispatch(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | Iterable[str] | None = None, *,
                 in_place: Mapping[str, str] | None = None, cancellable: Cancellable | None = None) -> dict[str, Any]:
        """Run the graph. outputs: where each goes, or names of the wanted ones, as "host"; by default all. in_place:
        maps an output on an input's memory to that input; the caller asserts that the graph permits it. cancellable:
        its cancel(), in another thread, ends this call with CancelledError. If the engine is in a process of its own,
        an exception of a signal's handler, as for Ctrl-C, ends it too.

        Return a dict: for each output the given object, or the new one of "host" or "engine". All arguments are checked
        before the run. Only "host" copies."""
        if outputs is None:
            outputs = self.outputs
        if not isinstance(outputs, Mapping) or outputs is self.outputs:
            outputs = {name: HOST for name in outputs}
        for name, where in outputs.items():
            if isinstance(where, str) and where == HOST and name in self.outputs:  # before anything runs
                _array(0, self.outputs[name].dtype, f"give a Tensor as output {name!r}, or \"engine\"")
        if self._context._apart:
            return self._dispatch_apart(inputs, outputs, in_place, cancellable)
        results = self._handle.dispatch(*self._values(inputs, outputs, in_place), cancellable)
        out: dict[str, Any] = {}
        for (name, where), handle in zip(outputs.items(), results):
            out[name] = where
            if handle is not None:
                made = DeviceTensor(handle)
                out[name] = made if where == ENGINE else made.read()
        return out

    def _check_array(self, name: str, where: Any, in_place: Mapping[str, str] | None, inputs: Mapping[str, Any],
                     outputs: Mapping[str, Any]) -> None:
        """Check arrays here: the library gets only copies of them."""
        import numpy

        if name in (in_place or {}):
            raise errors.InvalidError(errno.EINVAL, f"output {name!r} is in place of an input, and arrays are copied to the GPU: give "
                                      "one device tensor as both")
        others = [*(("input", other, of) for other, of in inputs.items()),
                  *(("output", other, of) for other, of in outputs.items() if other != name)]
        for kind, other, of in others:
            if isinstance(of, numpy.ndarray) and isinstance(where, numpy.ndarray) and numpy.may_share_memory(of, where):
                raise errors.InvalidError(errno.EINVAL, f"output \"{name}\" overlaps {kind} \"{other}\"")

    def _place(self, name: str, where: Any, sizes: dict[str, int]) -> DeviceTensor:
        """Make a device tensor for an output that goes to an array. Its shape follows from the inputs' dimensions."""
        operand = self.outputs.get(name)
        if operand is None:
            raise errors.NotFoundError(errno.ENOENT, f"the graph has no output {name!r}")
        if isinstance(where, str):
            shape = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in operand.shape)
            if not all(isinstance(dim, int) for dim in shape):
                raise errors.UnsupportedError(errno.EOPNOTSUPP, f"how large {name!r} will be does not follow from the inputs "
                                              f"({operand.shape}), and an engine on a GPU allocates nothing: "
                                              "give a tensor")
        else:
            shape = where.shape
        return self._context.tensor(shape, operand.dtype if isinstance(where, str) else where.dtype, readable=True)

    def _dispatch_apart(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any],
                        in_place: Mapping[str, str] | None, cancellable: Cancellable | None) -> dict[str, Any]:
        """Run on an engine that can use only a GPU's memory: arrays are copied there and back, and the device tensors
        count this."""
        self._check_names(inputs, outputs, in_place)
        given, places, sizes = dict(inputs), dict(outputs), {}
        for name, where in inputs.items():
            for dim, size in zip(self.inputs[name].shape if name in self.inputs else (), getattr(where, "shape", ())):
                if isinstance(dim, str):
                    sizes[dim] = size
            if not isinstance(where, (DeviceTensor, _tmesh.Tensor)):
                self._value(name, where, False)  # refuses an array that is not contiguous
                given[name] = self._context.tensor(where.shape, where.dtype, writable=True)
                given[name].write(where)
        for name, where in outputs.items():
            if not isinstance(where, (DeviceTensor, _tmesh.Tensor)):
                self._value(name, where, True)
                self._check_array(name, where, in_place, inputs, outputs)
                places[name] = self._place(name, where, sizes)
        self._handle.dispatch(*self._values(given, places, in_place), cancellable)
        out: dict[str, Any] = {}
        for name, where in outputs.items():
            host = not isinstance(where, (DeviceTensor, _tmesh.Tensor, str))
            out[name] = where if places[name] is where else places[name]
            if host or where == HOST:
                out[name] = places[name].read(where if host else None)
        return out

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *,
             in_place: Mapping[str, str] | None = None) -> Binding:
        """Check inputs and outputs once, to run often. Outputs need memory: Tensors, DeviceTensors, arrays."""
        return Binding(self, self._handle.bind(*self._values(inputs, outputs, in_place)))

    def __reduce__(self) -> Any:
        raise TypeError("a Graph belongs to its process: send the Context of a served engine (Server.connect()) and the model's path, "
                        "and open it there")

    def __repr__(self) -> str:
        return f"<tmesh.engine.Graph of {', '.join(self.inputs)} to {', '.join(self.outputs)}>"


class Binding:
    """Inputs and outputs of a graph, bound to it. Made by Graph.bind()."""

    def __init__(self, graph: Graph, handle: _tmesh.EngineBinding) -> None:
        self._graph = graph
        self._handle = handle

    def dispatch(self, cancellable: Cancellable | None = None) -> None:
        """Run the graph on the bound inputs and outputs. cancellable: as for Graph.dispatch()."""
        self._handle.dispatch(cancellable)

    def rebind(self, inputs: Mapping[str, Any]) -> None:
        """Replace inputs, all of the given ones or, after an error, none. The next dispatch() reads them. Nothing is
        opened or built again. UnsupportedError: the engine cannot move this input ("ggml": the first input of a
        reshape, transpose, set_rows or attention). BusyError: it runs in another thread."""
        _dict_of_names("inputs", inputs)
        self._handle.rebind(tuple(self._graph._value(name, where, False) for name, where in inputs.items()))

    def __reduce__(self) -> Any:
        raise TypeError("a Binding belongs to its process: send the Context of a served engine, the model's path and Tensors, and "
                        "bind them there")


_numbers = itertools.count(1)


def connect(name: str = "onnx", timeout: float | None = None, sessions: int = 8) -> Context:
    """Return a Context of the engine that a process of this user serves as `name`, by serve() or tmesh-engine(1).

    It is used like an engine of this process. If its process crashes, the running call raises GoneError, and the next
    call goes to the process that replaces it. timeout: seconds for each call, None: the engine's limit. Arrays are
    copied at each run to shared memory and back, which tmesh.stats() counts. A context that was pickled connects again
    in its receiver."""
    context = Context.__new__(Context)
    context._handle = _tmesh.EngineContext.connect(name, timeout, sessions)
    context._kept = weakref.WeakSet()
    context._served = name, timeout, sessions
    context._apart = False  # copy arrays by the library instead, to regions and back
    context._server = None
    return context


def _program() -> str:
    program = os.environ.get("TMESH_ENGINE_PROGRAM") or installed.program("tmesh-engine")
    if not program:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, "there is no program tmesh-engine beside the package or in PATH: install "
                                      "the wheel of libtmesh or Debian's tmesh-tools; TMESH_ENGINE_PROGRAM names another place")
    return program


# The inputs of served engines, which end with them. A forked child closes its copies, so that a server ends with its parent.
_inputs: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def _close_inputs() -> None:
    for each in [*_inputs]:
        each.close()
    _inputs.clear()


os.register_at_fork(after_in_child=_close_inputs)


class Server:
    """An engine in a process of its own. It lives as long as this object or a Context of its connect(). Made by
    serve()."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._process = process
        self._owner = os.getpid()

    def connect(self, timeout: float | None = None, sessions: int = 8) -> Context:
        """Connect as tmesh.engine.connect() does. The Context keeps the server alive."""
        context = connect(self.name, timeout, sessions)
        context._server = self
        return context

    @property
    def pid(self) -> int:
        """The process id of the supervisor; Context.pid is the engine's."""
        return self._process.pid

    def close(self) -> None:
        """End the server. Running calls of its clients raise GoneError. A second call has no effect, nor has one in a
        forked child."""
        if self._owner != os.getpid() or self._process.stdin is None:
            return
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Closing its input ends the process, after any running call has ended.
        if not hasattr(self, "_owner") or self._owner != os.getpid() or self._process.stdin is None:
            return
        self._process.stdin.close()
        # Do not start a thread while the interpreter ends: the start would wait for it forever.
        if self._process.poll() is None and not sys.is_finalizing():
            threading.Thread(target=self._process.wait, name="tmesh.engine server", daemon=True).start()

    def __reduce__(self) -> Any:
        raise TypeError("a Server belongs to the process that started it: send its name, and connect() there")

    def __repr__(self) -> str:
        ended = ", ended" if self._process.returncode is not None else ""
        return f"<tmesh.engine.Server {self.name!r}, process {self.pid}{ended}>"


def serve(backend: str = "onnx", *, models: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
          name: str | None = None, library: str | os.PathLike[str] | None = None, threads: int = 1, clients: int = 64,
          limit: float = 60.0, patience: float = 0.5, confined: bool = True) -> Server:
    """Start tmesh-engine(1), which serves an engine in a process of its own and restarts it after a crash.

    models: folders from which it may read models; it opens no other file of the user. name: its name for connect(), by
    default a unique one. limit: seconds for each call. patience: seconds that a client has to give its memory when asked, for
    each region. confined: False serves the engine with all rights of its user, even on a kernel that cannot confine it. The
    server ends with this process at the latest."""
    folders = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    name = name or f"{backend}-{os.getpid()}-{next(_numbers)}"
    path = installed.library(backend) if library is None else os.fspath(library)
    command = [_program(), "--with-input", f"--engine={backend}", f"--threads={threads}", f"--clients={clients}",
               f"--limit={limit}", f"--patience={patience}", *([] if confined else ["--unconfined"]), *(f"--models={os.fspath(folder)}" for folder in folders)]
    try:
        # Without a buffer, whose lock another thread may have when a child is forked.
        process = subprocess.Popen([*command, *([f"--library={path}"] if path else []), "--", name],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    except OSError as error:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"{command[0]} cannot be started: {error.strerror}; PATH or "
                                      "TMESH_ENGINE_PROGRAM says where tmesh-engine is") from None
    assert process.stdin is not None and process.stdout is not None
    _inputs.add(process.stdin)
    line = process.stdout.readline().decode(errors="replace").strip()
    if line != f"ready {name}":
        process.communicate()
        if process.returncode == 2:
            raise errors.InvalidError(errno.EINVAL, "tmesh-engine refused its arguments, and said why on the standard error")
        raise errors.UnsupportedError(errno.EOPNOTSUPP, line or "tmesh-engine did not start")
    process.stdout.close()
    return Server(name, process)
