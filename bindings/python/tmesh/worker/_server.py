# SPDX-License-Identifier: MIT
"""The socket: connections, messages and the queue of calls. One thread reads each connection; the
main thread runs one call after the other, since many libraries want that thread or no other."""

import array
import contextlib
import fcntl
import os
import queue
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
WAITING_CALLS = 256  # of each
HELD_RESULTS = 256
SEND_TIMEOUT_S = 10
ACCEPT_AGAIN_S = 0.1

# A message that is longer than a packet comes in a file that can neither change nor shrink.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_UCRED = struct.Struct("iII")
_TIMEVAL = struct.Struct("ll")


Check = Callable[[Any], bool]


def _integer(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _boolean(value: Any) -> bool:
    return type(value) is bool


_ID = _integer(0, (1 << 53) - 1)
_MILLISECONDS = _integer(1, 1 << 40)

# Members that a message must and may have, beside "v" and "type".
MESSAGES: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    "call": ({"id": _ID, "operation": lambda value: type(value) is str and 0 < len(value) < 256,
              "payload": lambda value: type(value) in (list, dict)},
             {"stream": _boolean, "inline": _boolean, "threshold_bytes": _integer(0, 1 << 62),
              "timeout_ms": lambda value: value is None or _MILLISECONDS(value)}),
    "cancel": ({"id": _ID}, {}),
    "release": ({"id": _ID}, {"sequence": _ID}),
}


def check(message: dict[str, Any]) -> None:
    """That a client's message has the members it should, of the types they should be of."""
    if type(message.get("v")) is not int or message["v"] != 1:
        raise _codec.MalformedError("a message has another version than 1")
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise _codec.MalformedError(f"a message is none of {', '.join(MESSAGES)}")
    needed, allowed = MESSAGES[kind]
    members = message.keys() - {"v", "type"}
    if not needed.keys() <= members <= needed.keys() | allowed.keys():
        raise _codec.MalformedError(f"a {kind} has other members than it should")
    for name in members:
        if not (needed.get(name) or allowed[name])(message[name]):
            raise _codec.MalformedError(f"a {kind} has a {name} of another type or range")


class Connection:
    """A client."""

    def __init__(self, server: "Server", sock: socket.socket):
        self.server = server
        self.sock = sock
        self.sending = threading.Lock()
        self.lock = threading.Lock()  # of the two below
        self.calls: dict[int, _calls.Call] = {}
        self.held: dict[tuple[int, int | None], list[tmesh.Tensor]] = {}

    def serve(self) -> None:
        """Read until the client ends or breaks the protocol."""
        try:
            self.send(_codec.text({
                "v": 1, "type": "hello", "pid": os.getpid(), "version": tmesh.__version__,
                "backend": tmesh.backend(), "packet_bytes": _codec.PACKET_BYTES,
                "message_bytes": _codec.MESSAGE_BYTES,
                "modules": sorted(self.server.operations.modules)}))
            while (text := self.receive()) is not None:
                message = _codec.parse(text)
                check(message)
                getattr(self, "on_" + message["type"])(message)
        except _codec.MalformedError as error:
            with contextlib.suppress(OSError):
                self.send(_codec.text({"v": 1, "type": "error", "id": None,
                                       "error": _calls.describe(error)}))
        except OSError:
            pass  # the client is gone, or does not read
        finally:
            self.close()

    def close(self) -> None:
        with self.sending:
            self.sock.close()
        with self.lock:
            calls, self.calls, self.held = self.calls, {}, {}
        for call in calls.values():
            call.cancel()
        self.server.left(self)

    def on_call(self, message: dict[str, Any]) -> None:
        call = _calls.Call(self, message)
        with self.lock:
            if call.id in self.calls or any(id == call.id for id, _ in self.held):
                raise _codec.MalformedError(f"id {call.id} is in use")
            why = ("results wait for their release" if len(self.held) >= HELD_RESULTS else
                   "calls wait already" if len(self.calls) >= WAITING_CALLS else None)
            self.calls[call.id] = call
        if why:
            self.answer(call, _calls.Answer("error", {"error": {
                "type": "busy", "message": f"too many {why}"}}))
        else:
            self.server.calls.put(call)

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
        """Send an answer and keep its tensors until the client has released it."""
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
            self.send(data)
        except OSError:
            # The reader sees it too, and closes.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            call.cancel()

    def send(self, data: bytes) -> None:
        with self.sending:
            if len(data) <= _codec.PACKET_BYTES:
                self.sock.sendall(data)
                return
            file = os.memfd_create("worker-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(file, "wb", buffering=0) as body:
                view = memoryview(data)
                while view:
                    view = view[body.write(view):]
                fcntl.fcntl(body, fcntl.F_ADD_SEALS, SEALS)
                socket.send_fds(self.sock, [_codec.text({"v": 1, "body": len(data)})],
                                [body.fileno()])

    def receive(self) -> bytes | None:
        """The text of the next message; None at the end."""
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        data, ancillary, flags, _ = self.sock.recvmsg(_codec.PACKET_BYTES, room,
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
            for file in files:
                os.close(file)


def _body(packet: bytes, file: int) -> bytes:
    """The message in a file that came with a packet."""
    head = _codec.parse(packet)
    size = head.get("body")
    if head.keys() != {"v", "body"} or head["v"] != 1 or type(size) is not int or \
            not 0 < size <= _codec.MESSAGE_BYTES:
        raise _codec.MalformedError("a packet with a descriptor names no body of an allowed size")
    status = os.fstat(file)
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not stat.S_ISREG(status.st_mode) or seals & SEALS != SEALS or status.st_size != size:
        raise _codec.MalformedError("a body is no sealed memfd of the size it should have")
    text = os.pread(file, size, 0)
    if len(text) != size:
        raise _codec.MalformedError("a body could not be read")
    return text


class Server:
    """All connections and the calls they have made."""

    def __init__(self, address: str, operations: _calls.Operations):
        self.operations = operations
        self.calls: queue.SimpleQueue[_calls.Call | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.connections: set[Connection] = set()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if address.startswith("@"):
            self.socket.bind(b"\0" + address[1:].encode())
        else:
            before = os.umask(0o177)
            try:
                self.socket.bind(address)
            finally:
                os.umask(before)
        self.socket.listen(16)

    def accept(self) -> None:
        """Take clients of this user, and nobody else."""
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:  # no descriptor is free: clients wait until one is
                time.sleep(ACCEPT_AGAIN_S)
                continue
            _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                      _UCRED.size))
            connection = Connection(self, sock)
            with self.lock:
                if uid != os.geteuid() or len(self.connections) >= CONNECTIONS:
                    sock.close()
                    continue
                self.connections.add(connection)
            # Only sending has a limit: a client that does not read must not stop the others.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(SEND_TIMEOUT_S, 0))
            try:
                threading.Thread(target=connection.serve, daemon=True).start()
            except RuntimeError:  # no thread is to be had: later clients may get one
                connection.close()

    def left(self, connection: Connection) -> None:
        with self.lock:
            self.connections.discard(connection)

    def run(self) -> None:
        """Run calls in this thread until stop()."""
        threading.Thread(target=self.accept, daemon=True).start()
        while (call := self.calls.get()) is not None:
            _calls.running = call
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

    def stop(self) -> None:
        self.calls.put(None)
