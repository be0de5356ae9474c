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
    """An object that "with" closes. Send its token rather than the object."""

    _handle: Any
    _travels = "send slot.token, and open it there by tmesh.Slot.open(token)"

    @property
    def closed(self) -> bool:
        """Whether it was closed in this process."""
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
    """A slot's value, with its generation. Its memory stays as long as this object, or a tensor of it, exists, or until
    release(). In a pickle it becomes a Bundle, without its generation."""

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
        """Release it. Other objects of this process with the same generation keep it."""
        self._released_by = self._released_by or threading.get_ident()
        self.__dict__.pop("_held", None)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, generation {self.generation}>"


class SlotReader(_Closing):
    """Reads a slot; made by Slot.open(). For one thread at a time: each opens its own. Values may be passed between
    threads."""

    _handle: _tmesh.SlotReaderHandle

    def __init__(self, handle: _tmesh.SlotReaderHandle) -> None:
        self._handle = handle
        self._newest: SlotValue | None = None

    def read(self) -> SlotValue:
        """Return the newest value. If nothing new was published, this only reads memory, else it opens the new bundle.
        NotFoundError: the slot is empty. GoneError: the publisher is gone, and its newest value with it."""
        generation, held = self._handle.read()
        newest = self._newest
        if newest is None or newest.generation != generation:
            self._newest = newest = SlotValue(held, generation)
        return SlotValue(held, generation, newest._numbers)

    def changed(self) -> bool:
        """Whether there is a newer value than the one read last. GoneError: there is none, and never will be."""
        return self._handle.changed()

    def fileno(self) -> int:
        """Return a descriptor for select and asyncio. When it is readable, call changed(), which also arms it again.
        ReleasedError: the reader was closed."""
        return self._handle.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until changed(); return false after timeout seconds. GoneError as changed(). ReleasedError: it was
        closed; another thread that closes it ends the wait."""
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
        """Stop reading. Values that were read stay valid. A wait() in another thread ends."""
        self._newest = None
        self._handle.close()

    def __exit__(self, exc_type: type[BaseException] | None = None, exc: BaseException | None = None,
                 traceback: TracebackType | None = None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tmesh.SlotReader{', closed' * self.closed}>"


class Slot(_Closing):
    """A new, empty slot, with this process as its publisher. label: a name for people. max_ref: the most bytes of a
    bundle's ref; 0: 16 KiB, for about 130 regions. name: for open_named(), at most 63 bytes. It is free again after the
    slot was closed or its process has died. LimitError, OutOfMemoryError: no free descriptor or memory. ExistsError: a
    running process publishes a slot under that name. AccessError: another kind of file has the name."""

    _handle: _tmesh.SlotHandle

    def __init__(self, *, label: str | None = None, max_ref: int = 0, name: str | None = None) -> None:
        self._handle = _tmesh.make_slot(label, max_ref, name)

    @staticmethod
    def open(token: str) -> SlotReader:
        """Open a reader for the slot of this token. ProtocolError: it is no slot's token. NotFoundError: the slot is
        gone."""
        return SlotReader(_tmesh.open_slot(token))

    @staticmethod
    def open_named(name: str) -> SlotReader:
        """Open a reader for the slot that has this name now. It stays with that slot if another one gets the name
        later. NotFoundError: no slot has it, or its publisher is gone."""
        return SlotReader(_tmesh.open_named_slot(name))

    @property
    def token(self) -> str:
        """The token with which processes of the same user can read."""
        return self._handle.token

    @property
    def generation(self) -> int:
        """The generation of the newest value, from 1; 0: nothing was published yet."""
        return self._handle.generation

    def publish(self, value: Mapping[str, object] | None) -> int:
        """Make this the slot's value, and return its generation. It is a Bundle, a Model, or a dict, which becomes a
        bundle; None empties the slot. Readers see either the whole old value or the whole new one. ReleasedError: the
        slot was closed. InvalidError: the bundle's ref is too long. TypeError: it is no value."""
        if isinstance(value, Model):
            value = value.bundle
        elif value is not None and not isinstance(value, Bundle):
            value = bundle(value)
        return self._handle.publish(None if value is None else value._held)

    def close(self) -> None:
        """End the slot. Readers keep their values, and cannot read newer ones."""
        self._handle.close()

    def __repr__(self) -> str:
        return f"<tmesh.Slot, {'closed' if self.closed else f'generation {self.generation}'}>"
