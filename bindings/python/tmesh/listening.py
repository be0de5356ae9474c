# SPDX-License-Identifier: MIT
"""Sockets at a path, for one server at a time. The socket of a killed server is replaced; that of a running one is
not."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator

from . import errors

__all__: list[str] = []

_PATIENCE = 10.0  # seconds: a server needs the lock only for a few calls


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Let one server at a time in, by a lock of the folder: a socket that is bound and does not listen yet looks
    abandoned."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    end = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise errors.BusyError(errno.EBUSY, f"cannot serve {path}: another process holds a lock (flock) of its folder; "
                                           "end that one, or use a folder of one's own") from None
                time.sleep(.01)
        yield
    finally:
        os.close(folder)


def _is_left(path: str, kind: int) -> bool:
    """Whether a socket of this user has no listener any more."""
    try:
        there = os.lstat(path)
        if not stat.S_ISSOCK(there.st_mode) or there.st_uid != os.geteuid():
            return False
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as caller:
            caller.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def listen(listener: socket.socket, path: str, backlog: int) -> tuple[int, int]:
    """Bind and listen, replacing the socket of a killed server. Return the argument for forget(). OSError as for
    bind(): another server uses it (EADDRINUSE)."""
    with _alone(path):
        if _is_left(path, listener.type & ~(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)):
            os.unlink(path)
        listener.bind(path)
        listener.listen(backlog)
        there = os.lstat(path)
    return there.st_dev, there.st_ino


def forget(path: str, which: tuple[int, int]) -> None:
    """Remove the socket while it still listens, unless there is another one by now."""
    with contextlib.suppress(FileNotFoundError), _alone(path):
        there = os.lstat(path)
        if (there.st_dev, there.st_ino) == which:
            os.unlink(path)
