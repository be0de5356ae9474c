# SPDX-License-Identifier: MIT
"""Tensors that this process has sent by ref and no receiver has opened yet. They are held until then.

This is how a Tensor passes through pickles of multiprocessing: queues, pipes, pools and concurrent.futures. pickle
itself may write to a file, so it stores a Tensor's elements. A Tensor that cannot be opened any more arrives as lost,
since an exception would break the receiver's unpickling."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
import contextlib
import errno
from multiprocessing.context import get_spawning_popen
from multiprocessing import connection, parent_process, resource_sharer, util
from multiprocessing.reduction import ForkingPickler
import os
import pickle
import select
import sys
import threading
import time
from typing import Any
import weakref

from . import _tmesh
from .errors import LimitError, NotFoundError, OutOfMemoryError, PeerTimeoutError, ReleasedError
from .refs import Ref

def _asked() -> float | None:
    try:
        return max(float(os.environ.get("TMESH_EXIT_WAIT", "")), 0.0)
    except ValueError:
        return None


_ASKED = _asked()
# How long a process waits at its end until receivers have opened the tensors that it sent, in seconds. A program asks
# for this wait by sending them.
PATIENCE = 5.0 if _ASKED is None else _ASKED

# How long tensors in a pickle of pickle itself are held, in seconds.
_HELD = 60.0

here = _tmesh.InTransit()


# Held for a receiver: a parcel of a Tensor, or a descriptor of PyTorch's own shared memory.
Held = bytes | resource_sharer.DupFd


class _Sending(threading.local):
    """The tensors of the message that this thread pickles."""

    parcels: list[Held] | None = None


_sending = _Sending()


def send(tensor: _tmesh.Tensor, writable: bool) -> bytes:
    """Return a parcel that opens the tensor in the receiver. It is given up together with its message."""
    try:
        parcel = here.send(tensor, writable)
    except LimitError:
        give_up_of_dead()
        parcel = here.send(tensor, writable)
    if _sending.parcels is not None:
        _sending.parcels.append(parcel)
    return parcel


def lent(descriptor: resource_sharer.DupFd) -> None:
    """Add a lent descriptor to the message."""
    if _sending.parcels is not None:
        _sending.parcels.append(descriptor)


def give_up(parcels: list[Held]) -> None:
    """Give up parcels that no receiver will get."""
    for parcel in parcels:
        if isinstance(parcel, bytes):
            here.give_up(parcel)
        else:
            os.close(parcel.detach())


@contextlib.contextmanager
def message() -> Iterator[list[Held]]:
    """Collect the parcels of a message while it is made. If making it fails, they are given up."""
    outer, mine = _sending.parcels, list[Held]()
    _sending.parcels = mine
    try:
        yield mine
    except BaseException:
        give_up(mine)
        raise
    else:
        if outer is not None:
            outer += mine
    finally:
        _sending.parcels = outer


# Functions to call before a process is spawned.
before_spawn: list[Callable[[], None]] = []


def _dump(self: ForkingPickler, obj: Any) -> None:
    """Replace ForkingPickler.dump(). If a message cannot be pickled, no receiver would take its parcels, so give them
    up."""
    if before_spawn and get_spawning_popen() is not None:
        for call in before_spawn:
            call()
    try:
        with message():
            pickle.Pickler.dump(self, obj)
    except BaseException:
        self.clear_memo()  # the exception may keep the pickler, but the message is over
        raise


ForkingPickler.dump = _dump  # type: ignore[assignment,method-assign]


class _Receivers:
    """Parcels with a single receiver whose end the kernel reports: a pipe's other end, or a spawned process.
    Multiprocessing's queues and pools have any number of receivers, so their parcels are given up by age."""

    _MOST = 4096  # the most parcels on their way

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pipes: weakref.WeakKeyDictionary[Any, collections.deque[Held]] = weakref.WeakKeyDictionary()
        self.processes: collections.deque[tuple[Any, list[Held]]] = collections.deque(maxlen=self._MOST)

    def add_pipe(self, pipe: Any, parcels: list[Held]) -> None:
        with self.lock:
            self.pipes.setdefault(pipe, collections.deque(maxlen=self._MOST)).extend(
                parcel for parcel in parcels if isinstance(parcel, bytes))

    def look_at_pipe(self, pipe: Any) -> None:
        """Look at a pipe, also before it is closed: afterwards its state is unknown."""
        with self.lock:
            parcels = self.pipes.get(pipe)
            if parcels and not pipe.closed and _has_no_reader(pipe.fileno()):
                del self.pipes[pipe]
                give_up([*parcels])

    def add_process(self, popen: Any, parcels: list[Held]) -> None:
        self.look_at_processes()
        with self.lock:
            self.processes.append((popen, parcels))

    def look_at_processes(self) -> None:
        """Look at spawned processes: each entry keeps a descriptor of its process until then."""
        with self.lock:
            for each in [each for each in self.processes if _has_ended(each[0])]:
                self.processes.remove(each)
                give_up(each[1])

    def look(self) -> None:
        with self.lock:
            for pipe in [*self.pipes]:
                self.look_at_pipe(pipe)
            self.look_at_processes()


def _has_no_reader(handle: int) -> bool:
    poller = select.poll()
    poller.register(handle, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))


def _has_ended(popen: Any) -> bool:
    """Whether a process has ended, by its sentinel, a pipe. There is none before the start or after Process.close()."""
    sentinel, finalizer = getattr(popen, "sentinel", None), getattr(popen, "finalizer", None)
    if popen.returncode is not None or sentinel is None or finalizer is None:
        return popen.returncode is not None
    return not finalizer.still_active() or bool(connection.wait([sentinel], 0))


_receivers = _Receivers()
os.register_at_fork(after_in_child=_receivers.__init__)  # type: ignore[misc]


def give_up_of_dead() -> None:
    """Drop parcels whose receivers have ended."""
    _receivers.look()


_plain_send, _plain_close = connection._ConnectionBase.send, connection._ConnectionBase.close


def _send_by_pipe(self: Any, obj: Any) -> None:
    with message() as parcels:
        _plain_send(self, obj)
    if parcels:
        _receivers.add_pipe(self, parcels)


def _close_pipe(self: Any) -> None:
    if self in _receivers.pipes:
        _receivers.look_at_pipe(self)
    _plain_close(self)


connection._ConnectionBase.send = _send_by_pipe  # type: ignore[method-assign]
connection._ConnectionBase.close = _close_pipe  # type: ignore[method-assign]


# Descriptors of PyTorch's own shared memory, which multiprocessing serves to receivers of tmesh's queues.
_lent: list[resource_sharer.DupFd] = []
_LENT_LOOKED_AT = 64


def _still_lent() -> int:
    """Return how many of them no receiver has fetched."""
    served = resource_sharer._resource_sharer._cache  # type: ignore[attr-defined]
    _lent[:] = [each for each in _lent if each._id[1] in served]  # type: ignore[attr-defined]
    return len(_lent)


def lend(descriptors: list[resource_sharer.DupFd], wait_at_exit: bool) -> None:
    """Count them as in transit, and let this process wait for their receivers at its end."""
    _lent.extend(descriptors)
    if len(_lent) > _LENT_LOOKED_AT:
        _still_lent()
    if descriptors and wait_at_exit:
        # multiprocessing stops serving at priority 0.
        _lent_at_exit.ask(_wait_for_lent, 1)


def _wait_for_lent() -> None:
    deadline = time.monotonic() + PATIENCE
    while _still_lent() and time.monotonic() < deadline:
        time.sleep(0.001)
    if _lent:
        _report(len(_lent))
        _lent.clear()


def under_way() -> int:
    """Return how many of the sent tensors no receiver has opened yet."""
    give_up_of_dead()
    return here.under_way() + (_still_lent() if _lent else 0)


def wait(timeout: float) -> None:
    """Wait until receivers have taken all sent tensors, but not longer than the timeout: a receiver that died takes
    none."""
    deadline = time.monotonic() + timeout
    while under_way() and time.monotonic() < deadline:
        time.sleep(0.001)


def flush(timeout: float | None = None) -> None:
    """Wait until other processes have opened all memory that this process holds for them. It holds tensors sent by
    pickling, and refs with a hold (Tensor.ref(hold=)) whose time is not over. It also waits until messages in channels
    were received, or no receiver is left. PeerTimeoutError after timeout seconds; its message says how much is left."""
    deadline = None if timeout is None else time.monotonic() + timeout
    held, messages = _tmesh.flush_held(timeout)
    wait(float("inf") if deadline is None else deadline - time.monotonic())
    count = held + under_way()
    if count or messages:
        raise PeerTimeoutError(errno.ETIMEDOUT, f"{count} tensors that this process holds for others were not opened; "
                               f"{messages} messages of its channels were not received: wait longer, or look for the "
                               "process that should open and receive them")


def _at_exit() -> None:
    """A child of multiprocessing ends by os._exit(), so it waits here for refs with a hold too, if the program asked
    for that."""
    if parent_process() is None and os.getpid() not in _waiting:
        return
    wait(PATIENCE)
    lost = under_way()
    if lost:
        _report(lost)
    _tmesh.exit_wait(_ASKED or 0.0)


def _report(lost: int) -> None:
    print(f"tmesh: process {os.getpid()} ends, and {lost} of the tensors that it sent were not opened within "
          f"{PATIENCE:g} s (TMESH_EXIT_WAIT): they are lost. Let it end later (tmesh.flush()), or tmesh.keep() what is to stay",
          file=sys.stderr, flush=True)


class _AtExit:
    """A function that multiprocessing calls at the end of this process. A forked child has to ask again."""

    def __init__(self) -> None:
        self.pid = 0
        self.asked: util.Finalize | None = None

    def ask(self, call: Callable[[], None], priority: int) -> None:
        if self.pid != os.getpid() or not self.asked or not self.asked.still_active():
            self.pid = os.getpid()
            self.asked = util.Finalize(None, call, exitpriority=priority)


_sent_at_exit, _lent_at_exit = _AtExit(), _AtExit()
_waiting: set[int] = set()


def _ask() -> None:
    _sent_at_exit.ask(_at_exit, -6)


def wait_at_exit(pid: int) -> None:
    """Wait at exit for tensors that were taken but may not be open yet."""
    _waiting.add(pid)
    _ask()


# Ask at the start, since a queue's thread may send while its process already ends, which is too late to ask. A spawned
# process does not know its parent at that time. A process without a parent has seen its children end by the time it
# would wait.
util.register_after_fork(wait, lambda _: _ask())
os.register_at_fork(after_in_child=_ask)
os.register_at_fork(after_in_child=_lent.clear)
_ask()


class First:
    """The first object of a message with some memory, to which later ones with the same memory refer. It is pickled
    beside them, so that it lives as long as the pickler. That shows later ones that they are in the same message."""

    __slots__ = "what", "__weakref__"

    def __init__(self, what: Any) -> None:
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ()


class _Message(threading.local):
    """The tensors of one message that this thread has pickled, by region."""

    def __init__(self) -> None:
        self.firsts: weakref.WeakValueDictionary[Any, First] = weakref.WeakValueDictionary()


_message = _Message()


def first_of(what: Any, *key: Any) -> Any:
    """Return the first object of this message with that key; None if there is none but the given one."""
    first = _message.firsts.get(key)
    return None if first is None or first.what is what else first.what


def is_first(what: Any, *key: Any) -> First:
    """Record the first object. Pickle the returned value with it."""
    first = _message.firsts[key] = First(what)
    return first


def reduce_once(tensor: _tmesh.Tensor, way: str, writable: bool, opened: Callable[..., Any],
                send: Callable[[], Any]) -> tuple[Any, ...]:
    """Reduce a tensor to opened(send()); if the message already has its region, to a part of that one."""
    key = way, tensor.id, writable
    first = first_of(tensor, *key)
    if first is not None:
        return part, (first, *_tmesh.layout(tensor))
    sent = send()
    return opened, (sent, is_first(tensor, *key))


def part(first: _tmesh.Tensor, *layout: Any) -> _tmesh.Tensor:
    return first if first.lost else _tmesh.part(first, *layout)


def too_late(by: int | None) -> str | None:
    """Return the error of a tensor that was released before it was pickled, to be raised where it is used. None: this
    thread released it and gets the error now. A queue's feeder or a pool's thread pickles later than its caller knows.
    Its error is at best printed, and not even that while the process ends, so a receiver that waits for the item would
    wait forever. Comparing threads tells the cases apart: a Connection.send() in the thread that released the tensor
    raises."""
    if by is None or by == threading.get_ident():
        return None
    return ("this tensor was released, or its \"with\" ended, before a thread of multiprocessing pickled it. Release "
            "it after the receiver took it, or send it by tmesh.Queue, which pickles at once")


class Writable:
    """A tensor that arrives writable."""

    def __init__(self, tensor: _tmesh.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return received, (send(self.tensor, True),)


def _send_to(popen: Any, tensor: _tmesh.Tensor, writable: bool) -> bytes:
    parcel = send(tensor, writable)
    if popen is not None:
        _receivers.add_process(popen, [parcel])
    return parcel


def _reduce(tensor: _tmesh.Tensor) -> tuple[Any, ...]:
    if tensor.lost:
        return tensor.__reduce__()  # type: ignore[return-value]
    here.look()
    try:
        # An argument of a Process has its sender's rights; tensors from queues and pools are read-only.
        popen = get_spawning_popen()
        writable = popen is not None and tensor.writable
        return reduce_once(tensor, "sent", writable, received, lambda: _send_to(popen, tensor, writable))
    except ReleasedError:
        late = too_late(_tmesh.released_by(tensor))
        if late is None:
            raise
        return _tmesh.unpickle, ((-errno.ENOENT, late),)


class _Receiving(threading.local):
    """Parcels of the message that this thread unpickles. Their tensors are open here, but their senders still hold
    them."""

    parcels: list[bytes] | None = None


_receiving = _Receiving()

# Errors that may pass a moment later. The message is kept until then.
PASSING = LimitError, OutOfMemoryError, PeerTimeoutError, KeyboardInterrupt


@contextlib.contextmanager
def receiving() -> Iterator[None]:
    """Unpickle a message, perhaps more than once: senders hold its tensors until all of it is unpickled. Any error but
    a PASSING one ends the message."""
    outer, mine = _receiving.parcels, list[bytes]()
    _receiving.parcels = mine
    try:
        yield
    except PASSING:
        raise
    except BaseException:
        give_up([*mine])
        raise
    else:
        give_up([*mine])
    finally:
        _receiving.parcels = outer


def let_go(parcel: bytes) -> None:
    """Let the sender stop holding it, once the message is whole."""
    if _receiving.parcels is None:
        here.give_up(parcel)
    else:
        _receiving.parcels.append(parcel)


def opened(parcel: Any, _: Any = None) -> _tmesh.Tensor:
    if _receiving.parcels is None:
        return here.open(parcel)
    tensor = here.open_held(parcel)
    let_go(bytes(parcel))
    return tensor


def received(parcel: bytes, _: Any = None) -> _tmesh.Tensor:
    if _receiving.parcels is not None:
        try:
            return opened(parcel)
        except NotFoundError:
            pass
    return here.unpickle(parcel)


def is_passing(error: BaseException) -> bool:
    """Whether the message will be unpickled once more."""
    return _receiving.parcels is not None and isinstance(error, PASSING)


def reduce_stored(tensor: _tmesh.Tensor) -> tuple[Any, ...]:
    """Reduce for pickle itself, which may write to a file: store the elements, as a ref is lost with its process."""
    _register_with_loky()
    return stored, (*elements_of(tensor), tensor.sealed, tensor.label)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for count, stride in zip(reversed(shape), reversed(strides)):
        if count != 1 and stride != step:
            return False
        step *= count
    return True


def elements_of(tensor: _tmesh.Tensor) -> tuple[bytes, str, tuple[int, ...], tuple[int, ...]]:
    """Return its elements in C order, and their layout."""
    if not tensor.nbytes:
        return b"", *_tmesh.layout(tensor)[:3]
    whole = tensor if _is_contiguous(*_tmesh.layout(tensor)[1:3]) else _tmesh.put(tensor, seal=False)
    dtype, shape, strides, offset = _tmesh.layout(whole)
    return bytes(_tmesh.part(whole, "uint8", (whole.nbytes,), (1,), offset)), dtype, shape, strides


def stored(data: bytes, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], sealed: bool,
           label: str | None) -> _tmesh.Tensor:
    """Make a new tensor of the elements that pickle stored."""
    if not data:
        made = _tmesh.zeros(shape, dtype, label=label)
        if sealed:
            made.seal()
        return made
    return _tmesh.part(_tmesh.put(data, seal=sealed, label=label), dtype, shape, strides, 0)


def copied(tensor: _tmesh.Tensor) -> _tmesh.Tensor:
    """Implement __copy__()."""
    return tensor if tensor.lost else _tmesh.open(tensor.ref())


def reduce_held(tensor: _tmesh.Tensor) -> tuple[Any, ...]:
    """Reduce for loky, which sends to processes of this machine and does not name the receiver."""
    if tensor.lost:
        return tensor.__reduce__()  # type: ignore[return-value]
    return reduce_once(tensor, "held", False, _held, lambda: tensor.ref(hold=_HELD))


def _held(ref: Ref, _: Any = None) -> _tmesh.Tensor:
    return _tmesh.unpickle(ref)


ForkingPickler.register(_tmesh.Tensor, _reduce)

_LOKY = "loky.backend.reduction", "joblib.externals.loky.backend.reduction"
_of_processes: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def register_held(kind: type, reduce: Callable[[Any], tuple[Any, ...]]) -> None:
    """Register how loky, if it is loaded, pickles a type."""
    _of_processes[kind] = reduce
    _register_with_loky()


def _register_with_loky() -> None:
    for name in _LOKY:
        loky = sys.modules.get(name)
        if loky is not None and hasattr(loky, "register"):
            for kind, reduce in _of_processes.items():
                loky.register(kind, reduce)


register_held(_tmesh.Tensor, reduce_held)
