# SPDX-License-Identifier: MIT
"""The socket: connections, messages and the queue of calls. The main thread runs one call after the other, since many
libraries require that thread. While it has no call, it reads messages itself, so that a call wakes no second thread.
While it runs one, another thread reads."""

import array
import collections
import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
import weakref

import tmesh

from .. import listening
from . import _calls, _codec

CONNECTIONS = 64
BACKLOG = 16
WAITING_CALLS = 256  # of each client
HELD_RESULTS = 256
SEND_TIMEOUT_S = 10
ACCEPT_AGAIN_S = 0.1

# A message that is longer than a packet arrives in a file that can neither change nor shrink.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_UCRED = struct.Struct("iII")
_TIMEVAL = struct.Struct("ll")
_FILE_ROOM = socket.CMSG_SPACE(array.array("i").itemsize)


class _Foreign:
    """Closes files of other processes. Closing one on FUSE asks its server, which may not answer, so a thread waits for
    it. While many wait, no more files are accepted: a few from each process, so that other clients are not blocked."""
    OF_PROCESS = 8
    MOST = 64

    def __init__(self) -> None:
        self._waiting: collections.Counter[int] = collections.Counter()  # by the process that sent them
        self._left: list[tuple[int, int]] = []  # those of them without a thread
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
            # If no thread can be started, the next one takes them over: this thread must not wait.
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


# The members of each message: required and optional, with their types.
MESSAGES = {
    "call": _members(
        {"id": _ID, "operation": lambda value: type(value) is str and 0 < len(value) < 256,
         "payload": lambda value: type(value) in (list, dict)},
        {"stream": _boolean, "inline": _boolean, "arena": _boolean, "threshold_bytes": _integer(0, 1 << 62),
         "timeout_ms": lambda value: value is None or _MILLISECONDS(value)}),
    "cancel": _members({"id": _ID}, {}),
    "release": _members({"id": _ID}, {"sequence": _ID}),
}


def check(message: dict[str, Any]) -> None:
    """Check that a client's message has the right members of the right types."""
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
    """A connection to a client."""

    def __init__(self, server: "Server", sock: socket.socket, pid: int):
        self.server = server
        self.sock = sock
        self.pid = pid  # 0: it is in a PID namespace that is not visible here
        self.sending = threading.Lock()
        self.lock = threading.Lock()  # guards the two below
        self.calls: dict[int, _calls.Call] = {}
        self.held: dict[tuple[int, int | None], list[tmesh.Tensor]] = {}

    def begin(self) -> None:
        """Greet the client, and read its messages from now on."""
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
        """Process the next message, until the client ends or breaks the protocol."""
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
        """Send an error that belongs to no running call by a thread of its own. The client may not read, which must not
        affect others. The client is read again only after that."""
        self.server.unwatch(self)
        try:
            threading.Thread(target=self.say, args=(id, error), daemon=True).start()
        except RuntimeError:  # no thread can be started
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
        # The next client may get the number of a closed socket at once.
        self.server.left(self)
        # Wake the threads that wait for the client to read.
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
        # A call that has just ended is fine: its answer crossed the message.
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
        """Send an answer and keep its tensors until the client has released it. The main thread calls this. After the
        last answer it reads again, since the next call may already be here."""
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
            # The reading thread notices it too, and closes.
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
        """Return the text of the next message; None at the end."""
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
    """Read the message in a file that came with a packet."""
    head = _codec.parse(packet)
    size = head.get("body")
    if head.keys() != {"v", "body"} or head["v"] != 1 or type(size) is not int or \
            not 0 < size <= _codec.MESSAGE_BYTES:
        raise _codec.MalformedError("a packet with a descriptor names no body of an allowed size")
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    # Do not ask a file without seals for its size: it may be on a server that does not answer.
    if seals & SEALS != SEALS or os.fstat(file).st_size != size:
        raise _codec.MalformedError("a body is no sealed memfd of the size it should have")
    text = os.pread(file, size, 0)
    if len(text) != size:
        raise _codec.MalformedError("a body could not be read")
    return text


# Servers of this process, for a forked child.
_servers: "weakref.WeakSet[Server]" = weakref.WeakSet()


def _close_in_child() -> None:
    for server in [*_servers]:
        server.forked()
    _servers.clear()


os.register_at_fork(after_in_child=_close_in_child)


class Server:
    """All connections and their calls."""

    def __init__(self, address: str, operations: _calls.Operations, spin_s: float = 0.0):
        self.operations = operations
        self.spin_s = spin_s
        self.calls: collections.deque[_calls.Call | None] = collections.deque()
        self.lock = threading.Lock()  # guards the connections, by their sockets' numbers
        self.connections: dict[int, Connection] = {}
        self.reading = threading.Lock()
        # Readable when a connection is; the second one also requires that reading is lent to the other thread.
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
                listening.listen(self.socket, address, BACKLOG)
        except OSError as error:
            os.close(self.stopping)
            raise OSError(f"cannot listen at {address}: {error}") from error
        finally:
            os.umask(before)
        _servers.add(self)

    def forked(self) -> None:
        """Close a forked child's copies. An operation's process may outlive this one, whose end clients have to see."""
        for sock in self.socket, *(connection.sock for connection in self.connections.values()):
            sock.close()
        self.ready.close()
        self.meanwhile.close()
        self.connections.clear()

    def accept(self) -> None:
        """Accept clients of this user only."""
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:  # no descriptor is free, so clients wait until one is
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
            # Only sending has a time limit: a client that does not read must not block the others.
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
                pass  # the client is gone
            except Exception as error:
                print(f"tmesh.worker: {call.operation}: {error!r}", file=sys.stderr, flush=True)
            finally:
                _calls.running = None
            # Release the call's memory now, not when the next call comes.
            del call

    def lend(self) -> None:
        """Let the other thread read while the main thread, which calls this, is busy."""
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
            # If the main thread has just taken it back, it reads itself.
            if self.reading.acquire(blocking=False):
                try:
                    self.read(self.ready.poll(0))
                finally:
                    self.reading.release()

    def wait(self) -> list[tuple[int, int]]:
        """Return the events of readable connections. Wait busily first if this was requested, since waking up takes
        longer than a short call. Each check releases the interpreter's lock."""
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
