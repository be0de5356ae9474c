# SPDX-License-Identifier: MIT
"""A place whose value, a bundle, is replaced in one step.

    slot = tmesh.Slot()                               # one process publishes
    slot.publish({"a": array, "b": other})

    reader = tmesh.Slot.open(slot.token)              # any number read, elsewhere usually
    value = reader.read()                             # a Mapping, all of one generation, as long as it is held
    value["a"].numpy(), value.generation

    slot = tmesh.Slot(name="adapter")                 # or by a name, one for all processes of the user
    reader = tmesh.Slot.open_named("adapter")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from . import _tmesh
from .bundles import Bundle, bundle
from .errors import InvalidError, ReleasedError
from .model import Model

_T = TypeVar("_T", bound="_Closing")


class _Closing:
    """What is closed at the end of a with, and whose token is what travels."""

    _handle: Any
    _travels = "send slot.token, and open it there by tmesh.Slot.open(token)"

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return bool(self._handle.closed)

    def __enter__(self: _T) -> _T:
        if self.closed:
            raise ReleasedError(9, f"this {type(self).__name__} was closed")
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self._handle.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: {self._travels}")


class SlotValue(Bundle):
    """A slot's value, and which one. Its memory stays as long as this, or a tensor of it, is held; release() lets it go
    before. Sent to another process it arrives as a Bundle, without its generation."""

    def __init__(self, held: _tmesh.Held, generation: int, numbers: dict[str, int] | None = None) -> None:
        if numbers is None:
            super().__init__(held)
        else:
            self._held, self._numbers = held, numbers
        self.generation = generation

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_held":
            raise ReleasedError(9, "this value was released")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def release(self) -> None:
        """Let go; others of this process may have the same generation, and keep it."""
        self._released_by = self._released_by or threading.get_ident()
        self.__dict__.pop("_held", None)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, generation {self.generation}>"


class SlotReader(_Closing):
    """Reads a slot; made by Slot.open(). For one thread at a time: each takes its own. Values may go anywhere."""

    _handle: _tmesh.SlotReaderHandle

    def __init__(self, handle: _tmesh.SlotReaderHandle) -> None:
        self._handle = handle
        self._newest: SlotValue | None = None

    def read(self) -> SlotValue:
        """The newest value. While nothing new was published this is a look at memory, else it opens the new bundle.
        NotFoundError: the slot is empty. GoneError: the publisher is gone, and its newest value with it."""
        generation, held = self._handle.read()
        newest = self._newest
        if newest is None or newest.generation != generation:
            self._newest = newest = SlotValue(held, generation)
        return SlotValue(held, generation, newest._numbers)

    def changed(self) -> bool:
        """Whether there is a value newer than the one read last. GoneError: there is none, and never will be."""
        return self._handle.changed()

    def fileno(self) -> int:
        """A descriptor for select and asyncio, readable when there is something to look at: then call changed(),
        which arms it again. ReleasedError: the reader was closed."""
        return self._handle.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Until changed(), or the timeout in seconds: False then. GoneError as changed(). ReleasedError: it was closed,
        also by another thread meanwhile, which ends the wait."""
        if timeout is not None and not timeout >= 0:
            raise InvalidError(22, "timeout is None or at least 0 seconds")
        end = None if timeout is None else time.monotonic() + timeout
        while not self.changed():
            left = None if end is None else min((end - time.monotonic()) * 1000, 1e9)
            if left is not None and left <= 0:
                return False
            self._handle.poll(left)
        return True

    def close(self) -> None:
        """Stop reading. Values that were read stay. A wait() of another thread ends."""
        self._newest = None
        self._handle.close()

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tmesh.SlotReader{', closed' * self.closed}>"


class Slot(_Closing):
    """A new, empty slot, this process its publisher. label: a name for people. max_ref: bytes of the longest bundle's
    ref; 0: 16 KiB, for about 130 regions. name: by which open_named() finds it, at most 63 bytes; free again when the
    slot is closed or its process has died. LimitError, OutOfMemoryError: there is no descriptor, or no memory.
    ExistsError: a living process publishes a slot under that name. AccessError: what lies in the name's place is none."""

    _handle: _tmesh.SlotHandle

    def __init__(self, *, label: str | None = None, max_ref: int = 0, name: str | None = None) -> None:
        self._handle = _tmesh.make_slot(label, max_ref, name)

    @staticmethod
    def open(token: str) -> SlotReader:
        """Read the slot that has this token. ProtocolError: that is no slot's token; NotFoundError: the slot is gone."""
        return SlotReader(_tmesh.open_slot(token))

    @staticmethod
    def open_named(name: str) -> SlotReader:
        """Read the slot that has this name now; the reader stays with it when the name becomes another's.
        NotFoundError: no slot has it, or its publisher is gone."""
        return SlotReader(_tmesh.open_named_slot(name))

    @property
    def token(self) -> str:
        """Who has it may read, as the same user."""
        return self._handle.token

    @property
    def generation(self) -> int:
        """Of the newest value, from 1; 0: nothing was published yet."""
        return self._handle.generation

    def publish(self, value: Mapping[str, object] | None) -> int:
        """From now on this is the value: a Bundle, a Model, or a dict, of which a bundle is made; None empties the slot.
        Readers see the value before or this one, whole. Its generation. ReleasedError: the slot was closed;
        InvalidError: the bundle's ref is too long; TypeError: that is no value."""
        if isinstance(value, Model):
            value = value.bundle
        elif value is not None and not isinstance(value, Bundle):
            value = bundle(value)
        return self._handle.publish(None if value is None else value._held)

    def close(self) -> None:
        """End the slot: readers keep what they hold, and are told."""
        self._handle.close()

    def __repr__(self) -> str:
        return f"<tmesh.Slot, {'closed' if self.closed else f'generation {self.generation}'}>"
