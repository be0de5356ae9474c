# SPDX-License-Identifier: MIT
"""A queue between processes, used like multiprocessing.Queue, over a Channel.

    queue = tmesh.Queue()
    Process(target=work, args=(queue,)).start()
    queue.put(tensor)            # the same memory over there: queue.get()

What differs from multiprocessing's:

  - put() hands over by itself: no thread, pipe or descriptor does. What cannot be pickled is told
    to whoever puts it, and what was put is there for others when put() returns.
  - It is never without bounds, and each process has a room of its own: see Queue.
  - What one process puts comes in that order; between those of several there is none.
  - A process that is killed blocks nobody, whatever it was doing.
  - There is no feeder thread to report to, and no JoinableQueue: task_done() and join() are missing.

As with multiprocessing's, what arrives is unpickled, which may run anything: a queue is for
processes that trust each other.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import functools
import importlib
import io
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
import os
import pickle
from queue import Empty, Full
import sys
import threading
import time
from typing import Any, Literal
import weakref

from . import _tmesh, sent
from .errors import GoneError, NotFoundError, PeerTimeoutError, ProtocolError

__all__ = ["Queue"]

# Messages that a process may have under way where nobody says how many.
_SLOTS = 256
_TABLES = 1024
_PRODUCERS = 31
# Of regions that nobody here uses any more; they are kept open, for they may come again.
_KEPT_BYTES = 64 << 20
# To give back one that is large takes longer than to open one. Therefore these go by ref at first,
# which is not kept open, and as messages when they come again.
_LARGE = 256 << 10
# What is pickled lies in regions of so many bytes, or beyond a quarter of that in one of its own.
_ARENA_BYTES = 256 << 10
_REMEMBERED = 64

# What a message says that it is, in a byte before what fits into it or beside a tensor. A tensor
# alone is itself. Behind _REF is what a message of the tensor itself would say.
_PICKLED, _BYTES, _TORCH, _REF = b"p", b"b", b"t", b"r"
_INLINE = 55

# ... and another byte about PyTorch's.
_GRAD, _PARAMETER = 1, 2

# A call that does not wait has to tell who waits in an end from who is just passing.
_MOMENT = 0.001

_Message = bytes | _tmesh.Tensor | tuple[_tmesh.Tensor, bytes]


@functools.cache
def _ours() -> Any:
    """tmesh.torch, which imports PyTorch."""
    return importlib.import_module("tmesh.torch")


def _is_torch(kind: type) -> bool:
    """Whether it is PyTorch's, which is imported then, and as tmesh.torch.register() has it."""
    torch: Any = sys.modules.get("torch")
    return hasattr(torch, "Tensor") and kind in (torch.Tensor, torch.nn.Parameter)


def _is_new(tensor: _tmesh.Tensor, known: dict[str, None]) -> bool:
    """Whether it is large, and of a region that was not sent lately."""
    if tensor.nbytes < _LARGE or (region := tensor.id) in known:
        return False
    known[region] = None
    # Seldom: to look at all of them takes as long as to send.
    if len(known) > 2 * _REMEMBERED:
        for oldest in [*known][:_REMEMBERED]:
            known.pop(oldest, None)
    return True


def _of_torch(tensor: Any) -> tuple[_tmesh.Tensor, bytes] | None:
    """The message of a tensor that needs no pickling."""
    way = _ours()
    placed = way._placed(tensor)
    if not placed or not placed[1]:
        return None
    flags = _GRAD * tensor.requires_grad | _PARAMETER * (type(tensor) is way._Parameter)
    return placed[0], _TORCH + bytes([flags])


def _to_torch(tensor: _tmesh.Tensor, flags: int) -> Any:
    way = _ours()
    has_grad = tensor.dtype.startswith(("float", "bfloat", "complex"))
    known = _GRAD | _PARAMETER if has_grad else _PARAMETER
    if flags & ~known or tensor.dtype not in way._DTYPES:
        raise _unknown()
    made = way._over(tensor)
    if flags & _PARAMETER:
        return way._Parameter(made, bool(flags & _GRAD))
    return made.requires_grad_() if flags & _GRAD else made


def _reopen(parcel: bytes, _: Any = None) -> _tmesh.Tensor:
    return sent.here.open(parcel)


class _Pickler(ForkingPickler):
    """Tensors by ref, wherever they are nested, held until they are opened."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.parcels: list[bytes] = []

    def _send(self, tensor: _tmesh.Tensor, writable: bool) -> bytes:
        self.parcels.append(sent.here.send(tensor, writable))
        return self.parcels[-1]

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is _tmesh.Tensor:
            writable = obj.writable
            return sent.reduce_once(obj, "queue", writable, _reopen, lambda: self._send(obj, writable))
        if kind is sent.Writable:
            return sent.received, (self._send(obj.tensor, True),)
        return _ours()._reduce(obj) if _is_torch(kind) else NotImplemented


def _message_of(kind: bytes, data: bytes | memoryview, arena: _tmesh.Arena) -> _Message:
    if len(data) <= _INLINE:
        return kind + bytes(data)
    return _tmesh.put(data, arena=arena), kind


def _give_up(parcels: list[bytes]) -> None:
    for parcel in parcels:
        sent.here.give_up(parcel)


def _by_ref(tensor: _tmesh.Tensor, kind: bytes, *, writable: bool,
            arena: _tmesh.Arena) -> tuple[_Message, list[bytes]]:
    parcels = [sent.here.send(tensor, writable)]
    try:
        return (_tmesh.put(parcels[0], arena=arena), _REF + kind), parcels
    except BaseException:
        _give_up(parcels)
        raise


def _pack(obj: Any, known: dict[str, None],
          arena: _tmesh.Arena) -> tuple[_Message, list[bytes]]:
    """A message, and what is held for whoever gets it."""
    kind = type(obj)
    if kind is bytes:
        return _message_of(_BYTES, obj, arena), []
    message = (obj, b"") if kind is _tmesh.Tensor else _of_torch(obj) if _is_torch(kind) else None
    if message:
        # The channel gives the right to write, without which others have to go. PyTorch's have it,
        # or were refused.
        writable = message[0] is not obj or message[0].writable
        if not writable or _is_new(message[0], known):
            return _by_ref(*message, writable=writable, arena=arena)
        return message, []
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(obj)
        return _message_of(_PICKLED, file.getbuffer(), arena), pickler.parcels
    except BaseException:
        pickler.clear_memo()  # the exception may keep the pickler, but the message is over
        _give_up(pickler.parcels)
        raise


def _unknown() -> ProtocolError:
    return ProtocolError(errno.EPROTO, "what came through the queue is nothing that a queue sends")


def _unpack(message: _Message) -> Any:
    data: bytes | memoryview
    if isinstance(message, _tmesh.Tensor):
        return message
    if isinstance(message, tuple):
        tensor, kind = message
        if len(kind) == 2 and kind[:1] == _TORCH:
            return _to_torch(tensor, kind[1])
        if tensor.dtype != "uint8" or tensor.strides != (1,):
            raise _unknown()
        if kind[:1] == _REF:
            opened = sent.here.open(tensor)
            return _unpack((opened, kind[1:])) if kind[1:] else opened
        data = memoryview(tensor)
    else:
        kind, data = message[:1], message[1:]
    if kind == _BYTES:
        return bytes(data)
    if kind == _PICKLED:
        return pickle.loads(data)
    raise _unknown()


class _End:
    """One of the two ends that a process has of a queue, for one thread at a time."""

    def __init__(self, role: Literal["send", "recv"], channel: _tmesh.Channel | None) -> None:
        self.role: Literal["send", "recv"] = role
        self.channel = channel
        self.lock = threading.Lock()
        self.waits = False  # a thread, for the other side
        self.owes = False  # it may hold what others have not taken yet
        self.joins = True  # the process does not end before they have
        self.at_exit: util.Finalize | None = None

    def acquire(self, block: bool, timeout: float | None, error: type[Exception]) -> None:
        """Its lock, or error: where somebody waits already, there is nothing to be had."""
        if block:
            if not self.lock.acquire(timeout=-1 if timeout is None else timeout):
                raise error
            return
        while not self.lock.acquire(timeout=_MOMENT):
            if self.waits:
                raise error

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until others have taken what was sent; whether they have, or never will."""
        if self.channel and self.owes:
            try:
                self.channel.flush(timeout)
            except PeerTimeoutError:
                return False
            except GoneError:
                pass
            self.owes = False
        return True

    def try_leave(self) -> bool:
        """Let go of the channel, unless a thread waits in it, or it holds something."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if not self.settle(0):
                return False
            if self.at_exit:
                self.at_exit.cancel()
                self.at_exit = None
            if self.channel:
                self.channel.close()
                self.channel = None
            return True
        finally:
            self.lock.release()


# Ends whose queue was closed or is gone, and that could not leave yet.
_staying: dict[_End, None] = {}


def _look_after_ends(*leaving: _End) -> None:
    for end in [*leaving, *_staying]:
        if end.try_leave():
            _staying.pop(end, None)
        else:
            _staying[end] = None


def _at_exit(end: _End) -> None:
    """What this process has put goes with it, if nobody has taken it."""
    if end.joins and end.lock.acquire(timeout=sent.PATIENCE):
        try:
            end.settle()
        finally:
            end.lock.release()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0)


class Queue:
    """A queue between processes, used like multiprocessing.Queue.

    Whoever makes it is its maker: it can put and get as others can, and when the object is gone
    there, or the process, the queue has ended. Hand it to other processes as an argument of a
    Process, by any start method, or pickle it; each joins at its first put or get.

    maxsize: what each process can have under way, at most 65,536; 0 means 256. Of tensors and of anything that pickles into more than 55 bytes 1,024 at most.
    producers: processes beside the maker that put at the same time, at most 63. At most 63 beside
    it get. One more raises BusyError at its first call, and may try again.
    spin: seconds of busy waiting before sleeping.

    All methods may be called from several threads, of which one at a time waits at either end.
    After a fork the child joins by itself.
    """

    def __init__(self, maxsize: int = 0, *, producers: int = _PRODUCERS, spin: float = 0.0) -> None:
        slots = 1 << (maxsize - 1).bit_length() if maxsize > 0 else _SLOTS
        tables = min(slots, _TABLES)
        # Both ends stay open, so that others may come and go.
        limit = max(maxsize, 0)
        out = _tmesh.Channel("send", slots=slots, producers=producers + 1, regions=tables,
                             layouts=tables, writable=True, spin=spin, limit=limit)
        into = _tmesh.Channel.open(out.token, "recv", max_bytes=_KEPT_BYTES, spin=spin)
        self._begin(out.token, spin, limit, out, into)

    def _begin(self, token: str, spin: float, limit: int, out: _tmesh.Channel | None = None,
               into: _tmesh.Channel | None = None) -> None:
        self._token = token
        self._spin = spin
        self._limit = limit
        self._is_maker = out is not None
        self._closed = False
        self._known: dict[str, None] = {}
        self._arena: _tmesh.Arena | None = None
        self._out = _End("send", out)
        self._into = _End("recv", into)
        _queues.add(self)
        _look_after_ends()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check()
        return _joined, (self._token, self._spin, self._limit)

    def __repr__(self) -> str:
        return f"<tmesh.Queue{', made here' * self._is_maker}{', closed' * self._closed}>"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # What was not made is not there. An interpreter that ends has waited before, and takes
        # everything apart.
        if not getattr(self, "_is_maker", True) and not is_finalizing():
            _look_after_ends(self._out, self._into)

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"{self!r} is closed")

    def _opened(self, end: _End) -> _tmesh.Channel:
        """Its channel; the lock is held."""
        self._check()
        if not end.channel:
            try:
                end.channel = _tmesh.Channel.open(
                    self._token, end.role, writable=end.role == "send", max_bytes=_KEPT_BYTES,
                    spin=self._spin, limit=self._limit if end.role == "send" else 0)
            except NotFoundError:
                raise GoneError(errno.EPIPE, "the queue has ended with its maker") from None
            if end.role == "send":
                end.at_exit = util.Finalize(None, _at_exit, (end,), exitpriority=-5)
        return end.channel

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put obj in. Others get the same memory of a tmesh.Tensor, writable where it is so here,
        and of a PyTorch tensor on the CPU, which moves into shared memory when it is first put;
        both may write. Anything else is pickled, with such tensors by reference wherever they are.
        What was put is held until it is taken out.

        queue.Full: there is no room, or not before timeout seconds are over. ValueError: close()
        was called. GoneError: the queue has ended."""
        self._check()
        timeout = timeout if timeout is None else max(timeout, 0)
        deadline = time.monotonic() + timeout if timeout is not None else None
        # Tensors of one arena can be reached by all who get one, so each queue has its own.
        if self._arena is None:
            self._arena = _tmesh.Arena(_ARENA_BYTES, label="tmesh.Queue")
        message, parcels = _pack(obj, self._known, self._arena)
        if parcels and not self._is_maker:
            sent.wait_at_exit(os.getpid())
        try:
            self._send(message, block, deadline)
        except BaseException:
            _give_up(parcels)
            raise
        if parcels:
            sent.here.look()  # behind it: nobody waits for what that gives back

    def _send(self, message: _Message, block: bool, deadline: float | None) -> None:
        end = self._out
        end.acquire(block, _left(deadline), Full)
        try:
            channel = self._opened(end)
            # Before it is sent: a signal's handler may raise behind it.
            end.owes = end.owes or not isinstance(message, bytes)
            if channel.try_send(message):
                return
            if not block:
                raise Full
            end.waits = True
            try:
                channel.send(message, _left(deadline))
            except PeerTimeoutError:
                raise Full from None
        finally:
            end.waits = False
            end.lock.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next thing out.

        queue.Empty: there is none, or not before timeout seconds are over. ValueError: close()
        was called. GoneError: the queue has ended, and nothing is left. NotFoundError: this thing
        is gone with the process that put it; the next call goes on behind it. ProtocolError: what
        came is nothing that a queue sends."""
        self._check()
        timeout = timeout if timeout is None else max(timeout, 0)
        deadline = time.monotonic() + timeout if timeout is not None else None
        return _unpack(self._recv(block, deadline))

    def _recv(self, block: bool, deadline: float | None) -> _Message:
        end = self._into
        end.acquire(block, _left(deadline), Empty)
        try:
            channel = self._opened(end)
            message = channel.try_recv()
            if message is not None:
                return message
            if not block:
                raise Empty
            end.waits = True
            try:
                return channel.recv(_left(deadline))
            except PeerTimeoutError:
                # Else it was a message's owner who took too long.
                if deadline is not None and time.monotonic() > deadline - _MOMENT:
                    raise Empty from None
                raise
        finally:
            end.waits = False
            end.lock.release()

    def put_nowait(self, obj: Any) -> None:
        """put(obj, False). Errors as of put()."""
        self.put(obj, False)

    def get_nowait(self) -> Any:
        """get(False). Errors as of get()."""
        return self.get(False)

    def _level(self, end: _End) -> tuple[int, int]:
        self._check()
        channel = end.channel
        if channel is None:
            with end.lock:
                channel = self._opened(end)
        return channel._level()

    def qsize(self) -> int:
        """How many things are in the queue at this moment, of all processes; others go on putting
        and getting meanwhile. ValueError: close() was called. GoneError: the queue has ended, and
        this process has never put or got."""
        return self._level(self._into if self._into.channel or not self._out.channel else self._out)[0]

    def empty(self) -> bool:
        """Whether nothing is in the queue at this moment; errors as of qsize()."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether this process has no room in the queue at this moment: put_nowait() would raise
        queue.Full. Errors as of qsize(), and BusyError where as many processes put already as may."""
        return not self._level(self._out)[1]

    def close(self) -> None:
        """This process will put and get no more: ValueError. It does not wait; what was put can
        be taken as before. The maker's queue goes on for others as long as the object lives."""
        self._closed = True
        if not self._is_maker:
            _look_after_ends(self._out, self._into)

    def join_thread(self) -> None:
        """After close(): wait until others have taken what was put here. A process that ends does
        so by itself, but for the maker: what nobody has taken by then is gone. ValueError: close() was not called."""
        if not self._closed:
            raise ValueError(f"{self!r} is not closed yet")
        with self._out.lock:
            self._out.settle()
        if not self._is_maker:
            _look_after_ends()

    def cancel_join_thread(self) -> None:
        """Let this process end without waiting, and what nobody has taken by then be lost."""
        self._out.joins = False

    def _forked(self) -> None:
        """In the child: the ends are the parent's, and so is the queue."""
        closed = self._closed
        self._begin(self._token, self._spin, self._limit)
        self._closed = closed


def _joined(token: str, spin: float, limit: int) -> Queue:
    queue = Queue.__new__(Queue)
    queue._begin(token, spin, limit)
    return queue


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _after_fork() -> None:
    _staying.clear()
    for queue in [*_queues]:
        queue._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
