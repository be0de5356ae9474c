# SPDX-License-Identifier: MIT
"""Tensors and bundles of other machines, by this machine's Tmesh.Net.

    weights = tmesh.net.open_name("llama")          # what Tmesh.Net.publish/2 was given, on any node
    tensor = tmesh.net.open(offer)                  # what Tmesh.Net.offer/1 gave, as JSON or decoded

An Elixir node of this user and runtime directory fetches them, once for all processes of the machine. If the memory is
already here, it is opened in place. docs/reference/net.md lists the promises. Bytes travel without encryption."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from typing import Any

from . import _tmesh
from .bundles import Bundle
from .errors import AccessError, Error, GoneError, InvalidError, NotFoundError, PeerTimeoutError, ProtocolError

__all__ = ["open", "open_name"]

_SOCKET = "net.sock"
_MAX_ANSWER = 1 << 20
# The node sends a sign of life each second.
_SILENCE = 30.0


def open(offer: dict[str, Any] | str | bytes, *, timeout: float = 10.0) -> _tmesh.Tensor | Bundle:
    """Open the memory of an offer. `timeout`: the longest time without an answer or a byte, in seconds."""
    if not isinstance(offer, dict):
        offer = _decoded(offer)
    # Fetched memory is kept, each region under the name of its bytes. If it is here, do not ask the node.
    try:
        found = _tmesh.open_fetched(offer)
    except Error:
        # It is no offer, or one of other memory. The node reports the error.
        found = None
    if found is None:
        return _opened("ref", offer, timeout, offer.get("home"))
    return Bundle(found) if isinstance(found, _tmesh.Held) else found


def open_name(name: str, *, timeout: float = 10.0) -> _tmesh.Tensor | Bundle:
    """Open what a node has published under this name."""
    if not isinstance(name, str):
        raise InvalidError(errno.EINVAL, "a name is text")
    return _opened("name", name, timeout, None)


def _decoded(text: object) -> dict[str, Any]:
    try:
        offer = json.loads(text) if isinstance(text, (str, bytes)) else None
    except ValueError as error:
        raise ProtocolError(errno.EPROTO, f"not an offer: {error}") from None
    if not isinstance(offer, dict):
        raise ProtocolError(errno.EPROTO, "an offer is a JSON object")
    return offer


def _opened(member: str, what: object, timeout: float, home: object) -> _tmesh.Tensor | Bundle:
    if not 0 < timeout <= 0x7fffffff / 1000:
        raise InvalidError(errno.EINVAL, "timeout is seconds, more than 0")
    try:
        request = json.dumps({"v": 1, "type": "open", "timeout_ms": max(1, int(timeout * 1000)), member: what},
                             allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ProtocolError(errno.EPROTO, f"not an offer: {error}") from None
    try:
        with _connected(home) as connection:
            connection.sendall(struct.pack(">I", len(request)) + request)
            ref = _answer(connection)
            # The node holds it for us until the connection ends.
            opened: _tmesh.Tensor | Bundle = _tmesh.open(ref)
            return opened
    except TimeoutError as error:
        if isinstance(error, Error):
            raise
        raise PeerTimeoutError(errno.ETIMEDOUT, "Tmesh.Net does not answer") from None
    except (BrokenPipeError, ConnectionResetError) as error:
        if isinstance(error, Error):
            raise
        raise GoneError(errno.EPIPE, "Tmesh.Net ended meanwhile") from None


def _connected(home: object) -> socket.socket:
    folder = None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_SILENCE)
        folder = _tmesh.runtime_dir()
        path = os.readlink(f"/proc/self/fd/{folder}")
        try:
            # Use the descriptor, since the directory's path may be too long for a socket address.
            connection.connect(f"/proc/self/fd/{folder}/{_SOCKET}")
        except (FileNotFoundError, ConnectionRefusedError):
            where = f"; the ref's home is {home[:200]}" if isinstance(home, str) else \
                ": an Elixir node of this user that runs it does"
            raise NotFoundError(errno.ENOENT, f"no Tmesh.Net serves this runtime directory{where}", path) from None
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (os.geteuid(), 0):
            raise AccessError(errno.EACCES, f"user {uid} serves {_SOCKET}, and not this one", path)
    except BaseException:
        connection.close()
        raise
    finally:
        if folder is not None:
            os.close(folder)
    return connection


def _received(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise GoneError(errno.EPIPE, "Tmesh.Net ended meanwhile")
        data += more
    return bytes(data)


def _answer(connection: socket.socket) -> dict[str, Any]:
    while True:
        length = struct.unpack(">I", _received(connection, 4))[0]
        if not 0 < length <= _MAX_ANSWER:
            raise ProtocolError(errno.EPROTO, f"an answer of {length} bytes")
        try:
            answer = json.loads(_received(connection, length))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(errno.EPROTO, f"Tmesh.Net answers what is no JSON: {error}") from None
        what = answer.get("type") if isinstance(answer, dict) else None
        if what == "error":
            _tmesh.raise_word(str(answer.get("errno")), answer.get("sealed") is True, str(answer.get("message")))
        if what == "opened" and isinstance(answer.get("ref"), dict):
            ref: dict[str, Any] = answer["ref"]
            return ref
        if what != "waiting":
            raise ProtocolError(errno.EPROTO, "Tmesh.Net is of another version")
