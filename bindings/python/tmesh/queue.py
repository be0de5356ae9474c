# SPDX-License-Identifier: MIT
"""A queue between processes, used like multiprocessing.Queue, over a Channel.

    queue = tmesh.Queue()
    Process(target=work, args=(queue,)).start()
    queue.put(tensor)            # the same memory over there: queue.get()

Differences to multiprocessing's:

  - put() itself hands the object over, without a thread, a pipe or a descriptor. An object that cannot
    be pickled raises in put(). When put() returns, other processes can take the object.
  - A queue is always bounded, and each process has a room of its own: see Queue.
  - Objects of one process arrive in order. There is no order between those of several processes.
  - A process that is killed blocks no other process, at any point of a call.
  - There is no feeder thread, hence no hook for its errors. There is no JoinableQueue either:
    task_done() and join() are missing.

As with multiprocessing's, arriving objects are unpickled, which may run any code: use a queue only between processes
that trust each other.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import errno
import functools
import importlib
import io
from multiprocessing import resource_sharer, util
from multiprocessing.reduction import ForkingPickler
import os
import pickle
from queue import Empty, Full
import sys
import threading
import time
from typing import Any, Literal
import weakref

from . import _tmesh, in_transit
from .errors import GoneError, InvalidError, NotFoundError, PeerTimeoutError, ProtocolError

__all__ = ["Queue"]

# The default number of messages in a queue from one process.
_CAPACITY = 256
_TABLES = 1024
_PRODUCERS = 31
_PRODUCERS_MOST = 63
_CAPACITY_MOST = 65536
# The bytes of unused regions that stay open, since they may come again.
_KEPT_BYTES = 64 << 20
# Closing a large region takes longer than opening one. So a large tensor goes by ref at first, which does not stay
# open, and as a message when it comes again.
_LARGE = 256 << 10
# Pickles are in regions of this size. One larger than a quarter of it has a region of its own.
_ARENA_BYTES = 256 << 10
_REMEMBERED = 64

# The kind of a message, in a byte before short contents or beside a tensor. A tensor alone has no such byte. The bytes
# after _REF are those that the tensor's own message would have.
_PICKLED, _BYTES, _TORCH, _REF = b"p", b"b", b"t", b"r"
_INLINE = 55

# Flags in another byte for PyTorch's tensors.
_GRAD, _PARAMETER = 1, 2

# A call that does not wait must tell a thread that waits in an end from one that is only passing.
_MOMENT = 0.001

_Message = bytes | _tmesh.Tensor | tuple[_tmesh.Tensor, bytes]


@functools.cache
def _ours() -> Any:
    """Import tmesh.torch, which imports PyTorch."""
    return importlib.import_module("tmesh.torch")


def _is_torch(kind: type) -> bool:
    """Whether it is a type of PyTorch's (which is then imported) that tmesh.torch.register() handles."""
    torch: Any = sys.modules.get("torch")
    return hasattr(torch, "Tensor") and kind in (torch.Tensor, torch.nn.Parameter)


def _is_new(tensor: _tmesh.Tensor, known: dict[str, None]) -> bool:
    """Whether it is large, and of a region that was not sent recently."""
    if tensor.nbytes < _LARGE or (region := tensor.id) in known:
        return False
    known[region] = None
    # Rarely, since checking all of them takes as long as sending.
    if len(known) > 2 * _REMEMBERED:
        for oldest in [*known][:_REMEMBERED]:
            known.pop(oldest, None)
    return True


def _of_torch(tensor: Any) -> tuple[_tmesh.Tensor, bytes] | None:
    """Return the message of a tensor that needs no pickling."""
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


class _Pickler(ForkingPickler):
    """Pickles tensors by ref at any depth of nesting, held until they are opened."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is _tmesh.Tensor:
            writable = obj.writable
            return in_transit.reduce_once(obj, "queue", writable, in_transit.opened, lambda: in_transit.send(obj, writable))
        if kind is resource_sharer.DupFd:
            in_transit.lent(obj)
            return NotImplemented
        return _ours()._reduce(obj) if _is_torch(kind) else NotImplemented


def _message_of(kind: bytes, data: bytes | memoryview, arena: _tmesh.Arena) -> _Message:
    if len(data) <= _INLINE:
        return kind + bytes(data)
    return _tmesh.put(data, arena=arena), kind


def _by_ref(tensor: _tmesh.Tensor, kind: bytes, *, writable: bool,
            arena: _tmesh.Arena) -> tuple[_Message, list[in_transit.Held]]:
    with in_transit.message() as parcels:
        return (_tmesh.put(in_transit.send(tensor, writable), arena=arena), _REF + kind), parcels


def _pack(obj: Any, known: dict[str, None],
          arena: _tmesh.Arena) -> tuple[_Message, list[in_transit.Held]]:
    """Return a message, and the parcels held for its receiver."""
    kind = type(obj)
    if kind is bytes:
        return _message_of(_BYTES, obj, arena), []
    message = (obj, b"") if kind is _tmesh.Tensor else _of_torch(obj) if _is_torch(kind) else None
    if message:
        # The channel grants the right to write. Tensors without that right must go by ref. PyTorch's have it, or were
        # refused.
        writable = message[0] is not obj or message[0].writable
        if not writable or _is_new(message[0], known):
            return _by_ref(*message, writable=writable, arena=arena)
        return message, []
    file = io.BytesIO()
    with in_transit.message() as parcels:
        _Pickler(file).dump(obj)
        return _message_of(_PICKLED, file.getbuffer(), arena), parcels


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
            opened = in_transit.opened(tensor)
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
    """One of the two ends of a queue in a process, for one thread at a time."""

    def __init__(self, role: Literal["send", "recv"], channel: _tmesh.Channel | None) -> None:
        self.role: Literal["send", "recv"] = role
        self.channel = channel
        self.lock = threading.Lock()
        self.waits = False  # a thread waits for the other side
        self.owes = False  # other processes may not have taken all that it sent
        self.joins = True  # the process waits for them at its end
        self.at_exit: util.Finalize | None = None

    def acquire(self, block: bool, timeout: float | None, error: type[Exception]) -> None:
        """Take its lock, or raise error: while another thread waits, nothing is available."""
        if block:
            if not self.lock.acquire(timeout=-1 if timeout is None else timeout):
                raise error
            return
        while not self.lock.acquire(timeout=_MOMENT):
            if self.waits:
                raise error

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until others have taken all that was sent. Return whether they have, or never will."""
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
        """Close the channel, unless a thread waits in it, or other processes have not taken all that it sent."""
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


# Ends of queues that were closed or collected, which could not be closed yet.
_staying: dict[_End, None] = {}


def _look_after_ends(*leaving: _End) -> None:
    for end in [*leaving, *_staying]:
        if end.try_leave():
            _staying.pop(end, None)
        else:
            _staying[end] = None


def _at_exit(end: _End) -> None:
    """Wait at exit: objects that this process has put end with it if no process has taken them."""
    if end.joins and end.lock.acquire(timeout=in_transit.PATIENCE):
        try:
            end.settle()
        finally:
            end.lock.release()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0)


class Queue:
    """A queue between processes, used like multiprocessing.Queue.

    The process that makes it is its maker. It can put and get like others. The queue ends when the object is gone
    there, or the process ends. Pass it to other processes as an argument of a Process, by any start method, or pickle
    it. Each joins at its first put or get.

    maxsize: the limit of messages from each process that were not taken yet, at most 65,536; 0 means 256. At most 1,024
    of them may be tensors, or objects that pickle into more than 55 bytes. producers: other processes beside the maker
    that put at the same time, at most 63. At most 63 others get. One more gets BusyError at its first call, and may try
    again. spin: seconds of busy waiting before sleeping.

    All methods may be called from several threads; one at a time waits at each end. After a fork the child joins by
    itself.
    """

    def __init__(self, maxsize: int = 0, *, producers: int = _PRODUCERS, spin: float = 0.0) -> None:
        if maxsize > _CAPACITY_MOST:
            raise InvalidError(errno.EINVAL, f"making a queue: maxsize is {maxsize}; {_CAPACITY_MOST} is the most")
        if not 1 <= producers <= _PRODUCERS_MOST:
            raise InvalidError(errno.EINVAL, f"making a queue: producers is {producers}; 1 is the least and {_PRODUCERS_MOST} the most")
        capacity = 1 << (maxsize - 1).bit_length() if maxsize > 0 else _CAPACITY
        tables = min(capacity, _TABLES)
        # The maker keeps both ends open, so that other processes may come and go.
        limit = max(maxsize, 0)
        out = _tmesh.Channel("send", capacity=capacity, producers=producers + 1, regions=tables,
                             layouts=tables, writable=True, spin=spin, limit=limit, poll=False)
        into = _tmesh.Channel.open(out.token, "recv", max_bytes=_KEPT_BYTES, spin=spin)
        self._begin(out.token, spin, limit, out, into)

    def _begin(self, token: str, spin: float, limit: int, out: _tmesh.Channel | None = None,
               into: _tmesh.Channel | None = None) -> None:
        self._token = token
        self._spin = spin
        self._limit = limit
        self._is_maker = out is not None
        self._closed = False
        # Messages that this process has taken and could not open yet.
        self._again: collections.deque[_Message] = collections.deque()
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
        # If the constructor failed, the attributes are missing. An interpreter that ends has waited before, and is
        # shutting down.
        if not getattr(self, "_is_maker", True) and not is_finalizing():
            _look_after_ends(self._out, self._into)

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"{self!r} is closed")

    def _opened(self, end: _End) -> _tmesh.Channel:
        """Return its channel, opened if needed. The caller has the lock."""
        self._check()
        if not end.channel:
            try:
                end.channel = _tmesh.Channel.open(
                    self._token, end.role, writable=end.role == "send", max_bytes=_KEPT_BYTES,
                    spin=self._spin, limit=self._limit if end.role == "send" else 0)
            except NotFoundError:
                raise GoneError(errno.EPIPE, "the queue has ended with its maker, or its maker runs as another "
                                "user") from None
            if end.role == "send":
                end.at_exit = util.Finalize(None, _at_exit, (end,), exitpriority=-5)
        return end.channel

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put obj into the queue. Receivers get the same memory of a tmesh.Tensor, writable if it is writable here. A PyTorch
        tensor on the CPU is shared too, and both sides may write. The first put moves its storage into shared memory, for all
        tensors over it. Other objects are pickled, with such tensors by reference at any depth. Tensors are held until they are
        taken out.

        queue.Full: there is no room, or none within timeout seconds. ValueError: close() was called. GoneError: the
        queue has ended."""
        self._check()
        timeout = timeout if timeout is None else max(timeout, 0)
        deadline = time.monotonic() + timeout if timeout is not None else None
        # A process that gets one tensor of an arena can reach all others in it, so each queue has an arena of its own.
        if self._arena is None:
            self._arena = _tmesh.Arena(_ARENA_BYTES, label="tmesh.Queue")
        message, parcels = _pack(obj, self._known, self._arena)
        if parcels and not self._is_maker:
            in_transit.wait_at_exit(os.getpid())
        try:
            self._send(message, block, deadline)
        except BaseException:
            in_transit.give_up(parcels)
            raise
        if parcels:
            in_transit.lend([parcel for parcel in parcels if not isinstance(parcel, bytes)], not self._is_maker)
            in_transit.here.look()  # after the message, so that no receiver waits while memory is given back

    def _send(self, message: _Message, block: bool, deadline: float | None) -> None:
        end = self._out
        end.acquire(block, _left(deadline), Full)
        try:
            channel = self._opened(end)
            # Set it before the send: a signal's handler may raise after it.
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
        """Take the next object out.

        queue.Empty: there is none, or none within timeout seconds. ValueError: close() was called. GoneError: the queue
        has ended and is empty. NotFoundError: this object is gone with the process that put it; the next call continues
        after it. ProtocolError: the message is not a queue's. LimitError, OutOfMemoryError, PeerTimeoutError: this
        process cannot open it now, for example without a free descriptor; the next call tries again."""
        self._check()
        timeout = timeout if timeout is None else max(timeout, 0)
        deadline = time.monotonic() + timeout if timeout is not None else None
        try:
            message = self._again.popleft()
        except IndexError:
            message = self._recv(block, deadline)
        try:
            with in_transit.receiving():
                return _unpack(message)
        except in_transit.PASSING:
            self._again.appendleft(message)
            raise

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
                # Otherwise a message's owner took too long.
                if deadline is not None and time.monotonic() > deadline - _MOMENT:
                    raise Empty from None
                raise
        finally:
            end.waits = False
            end.lock.release()

    def put_nowait(self, obj: Any) -> None:
        """Call put(obj, False). Errors as of put()."""
        self.put(obj, False)

    def get_nowait(self) -> Any:
        """Call get(False). Errors as of get()."""
        return self.get(False)

    def _level(self, end: _End) -> tuple[int, int]:
        self._check()
        channel = end.channel
        if channel is None:
            with end.lock:
                channel = self._opened(end)
        return channel._level()

    def qsize(self) -> int:
        """Return the number of objects in the queue at this moment, of all processes. Others may put and get meanwhile.
        ValueError: close() was called. GoneError: the queue has ended, and this process has never put or got."""
        level = self._level(self._into if self._into.channel or not self._out.channel else self._out)[0]
        return level + len(self._again)

    def empty(self) -> bool:
        """Whether the queue is empty at this moment. Errors as of qsize()."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether this process has no room in the queue at this moment, so that put_nowait() would raise queue.Full.
        Errors as of qsize(), and BusyError: the maximum number of processes already put."""
        return not self._level(self._out)[1]

    def close(self) -> None:
        """End puts and gets of this process: later calls raise ValueError. It does not wait; objects can still be
        taken. If this is the maker, the queue continues for others as long as the object exists."""
        self._closed = True
        if not self._is_maker:
            _look_after_ends(self._out, self._into)

    def join_thread(self) -> None:
        """Wait, after close(), until others have taken all that was put here. A process does so by itself when it ends.
        The maker does not: objects that no process has taken by then are lost. ValueError: close() was not called."""
        if not self._closed:
            raise ValueError(f"{self!r} is not closed yet")
        with self._out.lock:
            self._out.settle()
        if not self._is_maker:
            _look_after_ends()

    def cancel_join_thread(self) -> None:
        """Let this process end without waiting. Objects that no process has taken by then are lost."""
        self._out.joins = False

    def _forked(self) -> None:
        """Reset in a forked child: the ends and the queue are the parent's."""
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
