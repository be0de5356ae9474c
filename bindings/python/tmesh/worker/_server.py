# SPDX-License-Identifier: MIT
"""The socket: connections, messages and the queue of calls. The main thread runs one call after the
other, since many libraries want that thread or no other. While it has none it reads itself, so that
a call needs no second thread to be woken; while it runs one, another thread reads what comes."""

import array
import collections
import contextlib
import fcntl
import os
import select
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import tmesh

from . import _calls, _codec

CONNECTIONS = 64
BACKLOG = 16
WAITING_CALLS = 256  # of each
HELD_RESULTS = 256
SEND_TIMEOUT_S = 10
ACCEPT_AGAIN_S = 0.1

# A message that is longer than a packet comes in a file that can neither change nor shrink.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_UCRED = struct.Struct("iII")
_TIMEVAL = struct.Struct("ll")
_FILE_ROOM = socket.CMSG_SPACE(array.array("i").itemsize)


class _Foreign:
    """Lets go of files that others gave. Who serves one (FUSE) is asked when it is closed, and may not answer: a thread
    waits for that. While many wait no more are taken: of one process a few, so that others go on."""
    OF_PROCESS = 8
    MOST = 64

    def __init__(self) -> None:
        self._waiting: collections.Counter[int] = collections.Counter()  # by the process that gave them
        self._left: list[tuple[int, int]] = []  # of these, those that no thread has yet
        self._lock = threading.Lock()

    def room(self, pid: int) -> bool:
        with self._lock:
            return self._waiting[pid] < self.OF_PROCESS and self._waiting.total() < self.MOST

    def close(self, files: "array.array[int]", pid: int) -> None:
        served = []
        for file in files:
            try:
                fcntl.fcntl(file, fcntl.F_GET_SEALS)
            except OSError:
                served.append(file)
            else:
                os.close(file)  # memory
        if served:
            with self._lock:
                self._waiting[pid] += len(served)
                self._left += [(file, pid) for file in served]
            # Where no thread can be had, the next one has them: to wait here is what must not be.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                file, pid = self._left.pop()
            with contextlib.suppress(OSError):
                os.close(file)
            with self._lock:
                self._waiting -= collections.Counter([pid])


_foreign = _Foreign()


Check = Callable[[Any], bool]


def _integer(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _boolean(value: Any) -> bool:
    return type(value) is bool


_ID = _integer(0, (1 << 53) - 1)
_MILLISECONDS = _integer(1, 1 << 40)

_COMMON: dict[str, Check] = {"v": lambda value: type(value) is int and value == 1,
                             "type": lambda value: True}


def _members(needed: dict[str, Check], optional: dict[str, Check]) -> \
        tuple[frozenset[str], dict[str, Check]]:
    return frozenset(_COMMON | needed), _COMMON | needed | optional


# The members that a message must have, and what each that it may have must be.
MESSAGES = {
    "call": _members(
        {"id": _ID, "operation": lambda value: type(value) is str and 0 < len(value) < 256,
         "payload": lambda value: type(value) in (list, dict)},
        {"stream": _boolean, "inline": _boolean, "threshold_bytes": _integer(0, 1 << 62),
         "timeout_ms": lambda value: value is None or _MILLISECONDS(value)}),
    "cancel": _members({"id": _ID}, {}),
    "release": _members({"id": _ID}, {"sequence": _ID}),
}


def check(message: dict[str, Any]) -> None:
    """That a client's message has the members it should, of the types they should be of."""
    if not _COMMON["v"](message.get("v")):
        raise _codec.MalformedError("a message has another version than 1")
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise _codec.MalformedError(f"a message is none of {', '.join(MESSAGES)}")
    needed, checks = MESSAGES[kind]
    if not needed <= message.keys() <= checks.keys():
        raise _codec.MalformedError(f"a {kind} has other members than it should")
    for name, value in message.items():
        if not checks[name](value):
            raise _codec.MalformedError(f"a {kind} has a {name} of another type or range")


class Connection:
    """A client."""

    def __init__(self, server: "Server", sock: socket.socket, pid: int):
        self.server = server
        self.sock = sock
        self.pid = pid  # 0: in a PID namespace that is not seen from here
        self.sending = threading.Lock()
        self.lock = threading.Lock()  # of the two below
        self.calls: dict[int, _calls.Call] = {}
        self.held: dict[tuple[int, int | None], list[tmesh.Tensor]] = {}

    def begin(self) -> None:
        """Greet the client, and read what it sends from now on."""
        try:
            self.send(_codec.text({
                "v": 1, "type": "hello", "pid": os.getpid(), "version": tmesh.__version__,
                "backend": tmesh.backend(), "packet_bytes": _codec.PACKET_BYTES,
                "message_bytes": _codec.MESSAGE_BYTES,
                "modules": sorted(self.server.operations.modules)}))
            self.server.watch(self)
        except OSError:
            self.close()

    def read(self) -> None:
        """Do what the next message says, until the client ends or breaks the protocol."""
        try:
            text = self.receive()
            if text is None:
                self.close()
                return
            message = _codec.parse(text)
            check(message)
            getattr(self, "on_" + message["type"])(message)
        except _codec.MalformedError as error:
            self.say_apart(None, _calls.describe(error))
        except OSError:
            self.close()  # the client is gone
        except Exception as error:
            print(f"tmesh.worker: a message: {error!r}", file=sys.stderr, flush=True)
            self.close()

    def say_apart(self, id: int | None, error: dict[str, Any]) -> None:
        """Have a thread of its own say an error of no call that runs: the client may not read, which
        the others must not notice. It is read from only after that."""
        self.server.unwatch(self)
        try:
            threading.Thread(target=self.say, args=(id, error), daemon=True).start()
        except RuntimeError:  # no thread is to be had
            self.close()

    def say(self, id: int | None, error: dict[str, Any]) -> None:
        last = id is None
        try:
            self.send(_codec.text({"v": 1, "type": "error", "id": id, "error": error}))
        except OSError:
            last = True
        if last:
            self.close()
        else:
            self.server.watch(self)

    def close(self) -> None:
        # The number of a socket that is closed may be the next client's at once.
        self.server.left(self)
        # Whoever waits for the client to read is let go.
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        with self.sending:
            self.sock.close()
        with self.lock:
            calls, self.calls, self.held = self.calls, {}, {}
        for call in calls.values():
            call.cancel()

    def on_call(self, message: dict[str, Any]) -> None:
        call = _calls.Call(self, message)
        with self.lock:
            if call.id in self.calls or any(id == call.id for id, _ in self.held):
                raise _codec.MalformedError(f"id {call.id} is in use")
            why = ("results wait for their release" if len(self.held) >= HELD_RESULTS else
                   "calls wait already" if len(self.calls) >= WAITING_CALLS else None)
            if not why:
                self.calls[call.id] = call
        if why:
            self.say_apart(call.id, {"type": "busy", "message": f"too many {why}"})
        else:
            self.server.calls.append(call)

    def on_cancel(self, message: dict[str, Any]) -> None:
        # One that has just ended is fine: its answer crossed this on its way.
        with self.lock:
            call = self.calls.get(message["id"])
        if call:
            call.cancel()

    def on_release(self, message: dict[str, Any]) -> None:
        sequence = message.get("sequence")
        with self.lock:
            tensors = self.held.pop((message["id"], sequence), None)
            call = self.calls.get(message["id"])
        if tensors is None:
            raise _codec.MalformedError("a release of nothing that is held")
        if call and sequence is not None:
            call.released()

    def answer(self, call: _calls.Call, answer: _calls.Answer) -> None:
        """Send an answer and keep its tensors until the client has released it. For the main thread,
        which reads again once the last answer is out: the next call may be here at once."""
        last = answer.kind != "item"
        held = bool(answer.tensors) or not last
        key = (call.id, answer.members.get("sequence"))
        message = {"v": 1, "type": answer.kind, "id": call.id, **answer.members}
        if "value" in answer.members:
            message["held"] = held
        data = _codec.text(message)
        with self.lock:
            if self.calls.get(call.id) is not call:
                raise _calls.OverError  # the connection was closed
            if held:
                self.held[key] = answer.tensors
            if last:
                del self.calls[call.id]
        try:
            if last:
                self.server.take_back()
            try:
                self.send(data, wait=False)
            except BlockingIOError:
                self.server.lend()
                self.send(data)
        except OSError:
            # The reader sees it too, and closes.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            call.cancel()

    def send(self, data: bytes, wait: bool = True) -> None:
        flags = 0 if wait else socket.MSG_DONTWAIT
        if not self.sending.acquire(blocking=wait):
            raise BlockingIOError
        try:
            if len(data) <= _codec.PACKET_BYTES:
                self.sock.send(data, flags)
                return
            file = os.memfd_create("worker-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(file, "wb", buffering=0) as body:
                view = memoryview(data)
                while view:
                    view = view[body.write(view):]
                fcntl.fcntl(body, fcntl.F_ADD_SEALS, SEALS)
                socket.send_fds(self.sock, [_codec.text({"v": 1, "body": len(data)})],
                                [body.fileno()], flags)
        finally:
            self.sending.release()

    def receive(self) -> bytes | None:
        """The text of the next message; None at the end."""
        data, ancillary, flags, _ = self.sock.recvmsg(_codec.PACKET_BYTES, _FILE_ROOM if _foreign.room(self.pid) else 0,
                                                      socket.MSG_CMSG_CLOEXEC)
        files = array.array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(content[:len(content) - len(content) % files.itemsize])
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(files) > 1:
                raise _codec.MalformedError("a packet is too long or has too many descriptors")
            if files:
                return _body(data, files[0])
            return data or None
        finally:
            _foreign.close(files, self.pid)


def _body(packet: bytes, file: int) -> bytes:
    """The message in a file that came with a packet."""
    head = _codec.parse(packet)
    size = head.get("body")
    if head.keys() != {"v", "body"} or head["v"] != 1 or type(size) is not int or \
            not 0 < size <= _codec.MESSAGE_BYTES:
        raise _codec.MalformedError("a packet with a descriptor names no body of an allowed size")
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    # What has no seals is not asked for its size: it may be of a server that does not answer.
    if seals & SEALS != SEALS or os.fstat(file).st_size != size:
        raise _codec.MalformedError("a body is no sealed memfd of the size it should have")
    text = os.pread(file, size, 0)
    if len(text) != size:
        raise _codec.MalformedError("a body could not be read")
    return text


def _is_left(path: str) -> bool:
    """A socket of this user's that nobody listens at any more: its worker was killed."""
    try:
        there = os.lstat(path)
        if not stat.S_ISSOCK(there.st_mode) or there.st_uid != os.geteuid():
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as caller:
            caller.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def _listen(listener: socket.socket, path: str) -> None:
    """At a path, in the place of a socket that a killed worker has left. One worker after the other, by a lock of the
    folder: what is bound and does not listen yet looks as if it was left."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _is_left(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    finally:
        os.close(folder)


class Server:
    """All connections and the calls they have made."""

    def __init__(self, address: str, operations: _calls.Operations, spin_s: float = 0.0):
        self.operations = operations
        self.spin_s = spin_s
        self.calls: collections.deque[_calls.Call | None] = collections.deque()
        self.lock = threading.Lock()  # of the connections, by their sockets' numbers
        self.connections: dict[int, Connection] = {}
        self.reading = threading.Lock()
        # Ready when a connection is; and when that is and reading is lent to the other thread.
        self.ready = select.epoll()
        self.meanwhile = select.epoll()
        self.meanwhile.register(self.ready, 0)
        self.lent = False
        self.stopping = os.eventfd(0, os.EFD_CLOEXEC)
        self.ready.register(self.stopping, select.EPOLLIN | select.EPOLLET)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.umask(0o177)
        try:
            if address.startswith("@"):
                self.socket.bind(b"\0" + address[1:].encode())
                self.socket.listen(BACKLOG)
            else:
                _listen(self.socket, address)
        except OSError as error:
            raise OSError(f"cannot listen at {address}: {error}") from error
        finally:
            os.umask(before)

    def accept(self) -> None:
        """Take clients of this user, and nobody else."""
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:  # no descriptor is free: clients wait until one is
                time.sleep(ACCEPT_AGAIN_S)
                continue
            pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                      _UCRED.size))
            connection = Connection(self, sock, pid)
            with self.lock:
                if uid != os.geteuid() or len(self.connections) >= CONNECTIONS:
                    sock.close()
                    continue
                self.connections[sock.fileno()] = connection
            # Only sending has a limit: a client that does not read must not stop the others.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(SEND_TIMEOUT_S, 0))
            connection.begin()

    def watch(self, connection: Connection) -> None:
        self.ready.register(connection.sock, select.EPOLLIN)

    def unwatch(self, connection: Connection) -> None:
        with contextlib.suppress(FileNotFoundError):  # it is not watched
            self.ready.unregister(connection.sock)

    def left(self, connection: Connection) -> None:
        self.unwatch(connection)
        with self.lock:
            del self.connections[connection.sock.fileno()]

    def run(self) -> None:
        """Run calls in this thread until stop()."""
        for work in (self.accept, self.read_meanwhile):
            threading.Thread(target=work, daemon=True).start()
        while (call := self.next_call()) is not None:
            _calls.running = call
            self.lend()
            try:
                call.run(self.operations)
            except _calls.OverError:
                pass  # nobody is there for the answer
            except Exception as error:
                print(f"tmesh.worker: {call.operation}: {error!r}", file=sys.stderr, flush=True)
            finally:
                _calls.running = None
            # What the call used is given back now, not when the next one comes.
            del call

    def lend(self) -> None:
        """Let the other thread read while the main thread, which calls this, may be long."""
        if not self.lent:
            self.lent = True
            self.meanwhile.modify(self.ready, select.EPOLLIN)

    def take_back(self) -> None:
        if self.lent:
            self.lent = False
            self.meanwhile.modify(self.ready, 0)

    def next_call(self) -> _calls.Call | None:
        self.take_back()
        while not self.calls:
            with self.reading:
                if not self.calls:
                    self.read(self.wait())
        return self.calls.popleft()

    def read_meanwhile(self) -> None:
        while True:
            self.meanwhile.poll()
            # Where that was taken back just now, the main thread reads.
            if self.reading.acquire(blocking=False):
                try:
                    self.read(self.ready.poll(0))
                finally:
                    self.reading.release()

    def wait(self) -> list[tuple[int, int]]:
        """What can be read. Looks busily first where that was asked for: being woken takes longer
        than a short call. Each look lets go of the interpreter's lock."""
        if self.spin_s:
            until = time.monotonic() + self.spin_s
            while time.monotonic() < until:
                if events := self.ready.poll(0):
                    return events
        return self.ready.poll()

    def read(self, events: list[tuple[int, int]]) -> None:
        for number, _ in events:
            connection = self.connections.get(number)
            if connection:
                connection.read()

    def stop(self) -> None:
        self.calls.append(None)
        os.eventfd_write(self.stopping, 1)
