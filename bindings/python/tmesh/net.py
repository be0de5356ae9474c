# SPDX-License-Identifier: MIT
"""Tensors and bundles of other machines, by the Tmesh.Net of this one.

    weights = tmesh.net.open_name("llama")          # what Tmesh.Net.publish/2 was given, on any node
    tensor = tmesh.net.open(offer)                  # what Tmesh.Net.offer/1 gave, as JSON or decoded

An Elixir node of this user and runtime directory does it, and fetches once for all processes of the machine; what is here
already is opened in place. docs/net.md says what is promised. Bytes travel without encryption."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from typing import Any

from . import _tmesh
from .bundles import Bundle
from .errors import (AccessError, BusyError, Error, ExistsError, GoneError, InvalidError, LimitError, NotFoundError,
                     OutOfMemoryError, PeerTimeoutError, ProtocolError, SealedError, StaleError, UnsupportedError)
from .shared_memory import _check_private, _folder_path

__all__ = ["open", "open_name"]

_SOCKET = "net.sock"
_MAX_ANSWER = 1 << 20
# It says each second that it lives.
_SILENCE = 30.0

_ERRORS: dict[str, type[Error]] = {
    "EACCES": AccessError, "EPERM": SealedError, "EBUSY": BusyError, "EEXIST": ExistsError, "ESTALE": StaleError,
    "EDQUOT": LimitError, "ENOMEM": OutOfMemoryError, "ENOENT": NotFoundError, "EPROTO": ProtocolError,
    "EINVAL": InvalidError, "ETIMEDOUT": PeerTimeoutError, "EOPNOTSUPP": UnsupportedError, "EPIPE": GoneError,
}


def open(offer: dict[str, Any] | str | bytes, *, timeout: float = 10.0) -> _tmesh.Tensor | Bundle:
    """Open what an offer describes. `timeout`: the longest time without an answer or a byte, in seconds."""
    if not isinstance(offer, dict):
        offer = _decoded(offer)
    # What this machine has fetched is kept, each region under the name of its bytes: then nobody is asked.
    try:
        found = _tmesh.open_fetched(offer)
    except Error:
        # Not an offer, or not one of this memory: the net says what is wrong.
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
            # Held for us until the connection ends.
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
    path = os.path.dirname(_folder_path())
    folder = None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_SILENCE)
        try:
            _check_private(path)
            folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
            # However long the directory's path is.
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
            name, message = str(answer.get("errno")), str(answer.get("message"))
            raise _ERRORS.get(name, Error)(getattr(errno, name, errno.EIO) if name in _ERRORS else errno.EIO, message)
        if what == "opened" and isinstance(answer.get("ref"), dict):
            ref: dict[str, Any] = answer["ref"]
            return ref
        if what != "waiting":
            raise ProtocolError(errno.EPROTO, "Tmesh.Net is of another version")
