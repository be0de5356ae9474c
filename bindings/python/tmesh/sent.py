# SPDX-License-Identifier: MIT
"""What this process has sent by ref and nobody has taken yet: it is held until then.

So travels a Tensor through whatever pickles as multiprocessing does: queues, pipes, pools and
concurrent.futures. pickle itself knows no receiver, so there a Tensor is a ref that holds for a
minute. What cannot be opened any more arrives as a Tensor that is lost: an exception would break
whatever unpickles."""

from __future__ import annotations

from collections.abc import Callable
import errno
from multiprocessing import parent_process, util
from multiprocessing.reduction import ForkingPickler
import os
import sys
import threading
import time
from typing import Any
import weakref

from . import _tmesh
from .errors import PeerTimeoutError, ReleasedError
from .refs import Ref

def _patience() -> float:
    try:
        return max(float(os.environ.get("TMESH_LINGER", "")), 0.0)
    except ValueError:
        return 5.0


# How long a process that ends waits for what it sent to be opened, in seconds.
PATIENCE = _patience()

# ... and how long what pickle pickled is held.
_HELD = 60.0

here = _tmesh.Sent()


def wait(timeout: float) -> None:
    """Until what this process has sent was taken, but no longer than that: who died with a ref
    takes nothing."""
    deadline = time.monotonic() + timeout
    while here.under_way() and time.monotonic() < deadline:
        time.sleep(0.001)


def flush(timeout: float | None = None) -> None:
    """Wait until others have opened all that this process holds for them: what it sent by pickling,
    and what refs hold (Tensor.ref(hold=)) until their time is over; and until what it sent by
    channels was received, or nobody is left to receive it. PeerTimeoutError, which says how much is
    left, after timeout seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    held, messages = _tmesh.flush_held(timeout)
    wait(float("inf") if deadline is None else deadline - time.monotonic())
    count = held + here.under_way()
    if count or messages:
        raise PeerTimeoutError(errno.ETIMEDOUT, f"nobody has opened {count} of the tensors that this process holds for "
                               f"others, or received {messages} messages of its channels: wait longer, or see who "
                               "should open and receive them")


def _at_exit() -> None:
    """A child of multiprocessing ends by os._exit(), so it waits for what refs hold here too."""
    if parent_process() is None and os.getpid() not in _waiting:
        return
    wait(PATIENCE)
    lost = here.under_way()
    if lost:
        print(f"tmesh: process {os.getpid()} ends, and nobody has opened {lost} of the tensors that it sent within "
              f"{PATIENCE:g} s (TMESH_LINGER): they are lost. Let it end later (tmesh.flush()), or tmesh.keep() what is to stay",
              file=sys.stderr, flush=True)
    _tmesh.linger()


_asked: tuple[int, util.Finalize] | None = None
_waiting: set[int] = set()


def _ask() -> None:
    """multiprocessing forgets in a child what the parent asked for, if it was forked."""
    global _asked
    if not _asked or _asked[0] != os.getpid() or not _asked[1].still_active():
        _asked = os.getpid(), util.Finalize(None, _at_exit, exitpriority=-6)


def wait_at_exit(pid: int) -> None:
    """What was taken by then may not be opened yet."""
    _waiting.add(pid)
    _ask()


# A queue's thread may send while its process ends already, too late to ask for that: so at the start, when a
# process that was spawned does not know its parent yet. One without a parent has seen its children end by the
# time it would wait.
util.register_after_fork(wait, lambda _: _ask())
os.register_at_fork(after_in_child=_ask)
_ask()


class First:
    """To what of a message the others refer that share its memory. Pickled beside that, so that it lives as long as
    the pickler: by that the others know that theirs is the same message."""

    __slots__ = "what", "__weakref__"

    def __init__(self, what: Any) -> None:
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ()


class _Message(threading.local):
    """What this thread has pickled of it, by region."""

    def __init__(self) -> None:
        self.firsts: weakref.WeakValueDictionary[Any, First] = weakref.WeakValueDictionary()


_message = _Message()


def first_of(what: Any, *key: Any) -> Any:
    """What of this message, and with that key, came first; None: nothing did but what itself."""
    first = _message.firsts.get(key)
    return None if first is None or first.what is what else first.what


def is_first(what: Any, *key: Any) -> First:
    """It is what came first. Pickle what is returned with it."""
    first = _message.firsts[key] = First(what)
    return first


def reduce_once(tensor: _tmesh.Tensor, way: str, writable: bool, opened: Callable[..., Any],
                send: Callable[[], Any]) -> tuple[Any, ...]:
    """What opens its region with opened(send()); where the message has a tensor of that already, a part of it."""
    key = way, tensor.id, writable
    first = first_of(tensor, *key)
    if first is not None:
        return part, (first, *_tmesh.layout(tensor))
    sent = send()
    return opened, (sent, is_first(tensor, *key))


def part(first: _tmesh.Tensor, *layout: Any) -> _tmesh.Tensor:
    return first if first.lost else _tmesh.part(first, *layout)


def too_late(by: int | None) -> str | None:
    """What is said where it is used of what was released before it was pickled; None: by this thread, which gets the
    error itself. Another thread that pickles, a queue's feeder or a pool's, does it later than its caller knows of:
    its error is printed at best, and not even that while the process ends, and whoever waits for the item waits for ever.
    Threads tell the two apart: a sender's own Connection.send() of what it has released is an error there."""
    if by is None or by == threading.get_ident():
        return None
    return ("what was sent was released, or its \"with\" ended, before a thread of multiprocessing had pickled it: release "
            "it once it was taken, or send by tmesh.Queue, which pickles at once")


class Writable:
    """A tensor that arrives as one to write to."""

    def __init__(self, tensor: _tmesh.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return received, (here.send(self.tensor, True),)


def _reduce(tensor: _tmesh.Tensor) -> tuple[Any, ...]:
    if tensor.lost:
        return tensor.__reduce__()  # type: ignore[return-value]
    here.look()
    try:
        return reduce_once(tensor, "sent", False, received, lambda: here.send(tensor, False))
    except ReleasedError:
        late = too_late(_tmesh.released_by(tensor))
        if late is None:
            raise
        return _tmesh.unpickle, ((-errno.ENOENT, late),)


def received(parcel: bytes, _: Any = None) -> _tmesh.Tensor:
    return here.unpickle(parcel)


def reduce_held(tensor: _tmesh.Tensor) -> tuple[Any, ...]:
    """For pickle itself, which knows no receiver."""
    return reduce_once(tensor, "held", False, _held, lambda: tensor.ref(hold=_HELD))


def _held(ref: Ref, _: Any = None) -> _tmesh.Tensor:
    return _tmesh.unpickle(ref)


ForkingPickler.register(_tmesh.Tensor, _reduce)
