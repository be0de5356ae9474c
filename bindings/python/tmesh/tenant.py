# SPDX-License-Identifier: MIT
"""A tenant's key: processes with the same key file share what they keep, others cannot find it."""

from __future__ import annotations

import errno
import os
import stat
import tempfile

from .errors import AccessError, InvalidError, NotFoundError

__all__ = ["read_key"]

_KEY_BYTES = 32


def read_key(path: str) -> bytes:
    """Read a tenant's key; make it if there is none."""
    try:
        # Do not open a descriptor first: it would leak if the path is a folder's.
        file = open(path, "rb", opener=_open_key)
    except OSError as error:
        kind = NotFoundError if error.errno == errno.ENOENT else AccessError
        raise kind(error.errno, f"key_file: {path}: the tenant's key can be neither read nor made there: {error.strerror}. Its folder has to be there, "
                   "for this user to write to, and the key is a file and no link") from None
    with file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise AccessError(13, f"{path}: a tenant's key must be a file that this user alone can read: chmod 600")
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise InvalidError(22, f"{path}: a tenant's key has {_KEY_BYTES} bytes; remove the file to have a new one made")
    return key


def _open_key(path: str, _flags: int) -> int:
    if not os.path.lexists(path):
        # Write the file whole or not at all. If several processes try, one makes it.
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or ".", prefix=".tmesh-key-") as file:
            file.write(os.urandom(_KEY_BYTES))
            file.flush()
            try:
                os.link(file.name, path)
            except FileExistsError:
                pass
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
