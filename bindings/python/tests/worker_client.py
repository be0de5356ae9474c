# SPDX-License-Identifier: MIT
"""A client of the worker that uses only docs/reference/worker.md: a socket and JSON."""

import fcntl
import json
import os
import socket

import tmesh

# The limit of a wait for a message, for slow machines.
PATIENCE = 300


class Client:
    """One connection; `receive` returns messages as they arrive."""

    def __init__(self, address, timeout=PATIENCE):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)
        self.sock.connect("\0" + address[1:] if address.startswith("@") else address)
        self.hello = self.receive()
        self.last_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send_text(self, text, files=()):
        socket.send_fds(self.sock, [text if isinstance(text, bytes) else text.encode()], files)

    def send(self, **members):
        text = json.dumps({"v": 1, **members}).encode()
        if len(text) <= 65536:
            self.send_text(text)
        else:
            self.send_body(text)

    def send_body(self, text, size=None, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
                  | fcntl.F_SEAL_WRITE):
        file = os.memfd_create("body", os.MFD_ALLOW_SEALING)
        try:
            os.write(file, text)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            self.send_text(json.dumps({"v": 1, "body": len(text) if size is None else size}), [file])
        finally:
            os.close(file)

    def receive(self):
        """Return the next message; None at the end of the connection."""
        try:
            data, files, flags, _ = socket.recv_fds(self.sock, 65536, 4)
        except ConnectionResetError:
            return None
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if not data:
            return None
        message = json.loads(data)
        if files:
            with open(files[0], "rb") as body:
                message = json.loads(os.pread(files[0], message["body"], 0))
                assert body
        return message

    def start(self, operation, payload=(), **members):
        self.last_id += 1
        self.send(type="call", id=self.last_id, operation=operation,
                  payload=payload if isinstance(payload, dict) else list(payload), **members)
        return self.last_id

    def answer(self, operation, payload=(), **members):
        """Return the message that ends a call, and check that it is the only one."""
        id = self.start(operation, payload, **members)
        message = self.receive()
        assert message["id"] == id
        return message

    def call(self, operation, payload=(), **members):
        """Return the value of a call, with its tensors opened, and release them in the worker."""
        message = self.answer(operation, payload, **members)
        assert message["type"] == "result", message
        value = rebuild(message["value"])
        if message["held"]:
            self.send(type="release", id=message["id"])
        return value

    def error(self, operation, payload=(), **members):
        message = self.answer(operation, payload, **members)
        assert message["type"] == "error", message
        return message["error"]


def tensor(t, **members):
    """Return a tensor for a payload."""
    return {"__tmesh__": "tensor", "ref": t.ref(writable=members.get("writable", False)), **members}


def rebuild(value):
    if isinstance(value, list):
        return [rebuild(item) for item in value]
    if isinstance(value, dict):
        if value.get("__tmesh__") == "tensor":
            return tmesh.open(value["ref"])
        return {key: rebuild(item) for key, item in value.items()}
    return value
