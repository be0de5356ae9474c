# SPDX-License-Identifier: MIT
"""Operations and their calls."""

import importlib
import functools
import inspect
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import tmesh

from . import _codec

# The most items of a stream that the client has not released yet.
WINDOW = 8

MESSAGE_CHARS = 2_000
TRACEBACK_CHARS = 16_000


class NotAllowedError(Exception):
    """The operation is not on the allow-list."""


class OverError(Exception):
    """The call was cancelled, its time is over, or its client is gone."""


class Operations:
    """The allow-list. Its modules are imported now, and none later."""

    def __init__(self, names: list[str]):
        self.modules = {name: importlib.import_module(name) for name in names}

    def find(self, operation: str) -> Callable[..., Any]:
        """Return the function of this name. Only functions that a module offers: those in its __all__, or else those
        that it defines. Functions that it has imported for its own use are excluded."""
        name, _, attribute = operation.rpartition(".")
        module = self.modules.get(name)
        if module is None:
            above = next((other for other in self.modules if name.startswith(f"{other}.")), None)
            if above is None:
                raise NotAllowedError(f"{operation}: not of a module that this worker allows; it allows {', '.join(self.modules)}")
            raise NotAllowedError(f"{operation}: this worker allows the module {above}, and none within it: allow {name} too")
        function: Any = vars(module).get(attribute)
        if attribute.startswith("_"):
            offered = False
        elif hasattr(module, "__all__"):
            offered = attribute in module.__all__
        else:
            offered = inspect.isroutine(function) and function.__module__ == name
        if not offered or not callable(function):
            raise NotAllowedError(f"{operation}: no operation of its module")
        return cast(Callable[..., Any], function)


@dataclass
class Answer:
    """One of a call's answers, and the tensors to keep until the client has released it."""

    kind: str
    members: dict[str, Any]
    tensors: list[tmesh.Tensor] = field(default_factory=list)


class Client(Protocol):
    """The part of a connection that a call uses."""

    def answer(self, call: "Call", answer: Answer) -> None: ...


class Call:
    """A call from its arrival to its last answer."""

    def __init__(self, client: Client, message: dict[str, Any]):
        self.client = client
        self.id: int = message["id"]
        self.operation: str = message["operation"]
        self.payload = message["payload"]
        self.stream: bool = message.get("stream", False)
        self.inline: bool = message.get("inline", False)
        self.arena: bool = message.get("arena", False)
        self.threshold_bytes: int = message.get("threshold_bytes", 1_000_000)
        timeout_ms = message.get("timeout_ms")
        self.deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        self.changed = threading.Condition()
        self.cancelled = False
        self.noticed = False  # the operation has seen it
        self.unreleased = 0
        self.regions: set[str] = set()  # of its arguments

    def cancel(self) -> None:
        with self.changed:
            self.cancelled = True
            self.changed.notify()

    def released(self) -> None:
        """Note that the client has taken an item of the stream."""
        with self.changed:
            self.unreleased -= 1
            self.changed.notify()

    def over(self) -> bool:
        return self.cancelled or (self.deadline is not None and time.monotonic() >= self.deadline)

    def check(self) -> None:
        if self.over():
            raise OverError

    def run(self, operations: Operations) -> None:
        """Run the operation and answer. The call's arguments are released before the last answer, so that its receiver
        may seal or release them."""
        try:
            answer = self.outcome(operations)
        except (Exception, SystemExit) as error:  # an operation must not end the worker
            answer = self.failure(error)
        try:
            self.client.answer(self, answer)
        except (_codec.MalformedError, _codec.TooLargeError) as error:
            self.client.answer(self, self.failure(error))

    def outcome(self, operations: Operations) -> Answer:
        self.check()
        function = operations.find(self.operation)
        as_tensors = getattr(function, "__tmesh_takes_tensors__", False)
        args, kwargs = _codec.arguments(_codec.load(self.payload, as_tensors, self.regions))
        result = function(*args, **kwargs)
        if self.noticed:  # its result is then not the requested one
            raise OverError
        if self.stream:
            return self.send_items(result if isinstance(result, Iterator) else iter([result]))
        if inspect.isgenerator(result):
            result.close()
            raise _codec.MalformedError(f"{self.operation} gives a stream: call it as one")
        return self.value("result", result)

    def send_items(self, items: Iterator[Any]) -> Answer:
        try:
            for sequence, item in enumerate(items):
                self.wait_for_room()
                self.client.answer(self, self.value("item", item, sequence=sequence))
            self.check()
        finally:
            if inspect.isgenerator(items):
                items.close()
        return Answer("end", {})

    def value(self, kind: str, value: Any, **members: Any) -> Answer:
        dump = _codec.Dump(self.threshold_bytes, self.inline, self.regions, results_arena() if self.arena else None)
        members["value"] = dump.value(value)
        if dump.copied:
            members["copied"] = dump.copied
        return Answer(kind, members, dump.tensors)

    def failure(self, error: BaseException) -> Answer:
        if isinstance(error, OverError):
            kind = "cancelled" if self.cancelled else "timeout"
            return Answer("error", {"error": {
                "type": kind, "message": f"{self.operation} was given up: {kind}"}})
        return Answer("error", {"error": describe(error)})

    def wait_for_room(self) -> None:
        with self.changed:
            while self.unreleased >= WINDOW and not self.over():
                left = None if self.deadline is None else self.deadline - time.monotonic()
                self.changed.wait(left)
            self.check()
            self.unreleased += 1


@functools.cache
def results_arena() -> tmesh.Arena:
    """Return the arena of all results that are to be in one."""
    return tmesh.Arena(label="results")


def describe(error: BaseException) -> dict[str, Any]:
    """Describe an error for clients. One of an operation comes with its traceback. One of tmesh has the name of its
    class, by which the other side recognizes it."""
    if isinstance(error, NotAllowedError):
        return {"type": "not_allowed", "message": _clip(str(error))}
    if isinstance(error, _codec.MalformedError):
        return {"type": "malformed", "message": _clip(str(error))}
    if isinstance(error, _codec.TooLargeError):
        return {"type": "too_large", "message": str(error)}
    return {
        "type": "tensor" if isinstance(error, tmesh.Error) else "exception",
        "exception": type(error).__qualname__[:200],
        "message": _clip(_text(error)),
        "traceback": _printable("".join(traceback.format_exception(error)))[-TRACEBACK_CHARS:],
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "an exception that cannot say what it is"


def _clip(text: str) -> str:
    return _printable(text)[:MESSAGE_CHARS]


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


running: Call | None = None
