# SPDX-License-Identifier: MIT
"""SharedMemory and ShareableList of multiprocessing.shared_memory, over tmesh.

    from tmesh.shared_memory import SharedMemory

They are used as the standard library's are. What differs:

  - Nothing is left behind. A block is memory without a file, so it ends with its last user
    even when all of them are killed. There is no resource tracker: a process that merely
    attached never takes the block from others when it exits, and track= is accepted and
    means nothing.
  - The name is good until unlink(), or until the process that created the block ends. That
    process keeps the block until then, also after close(). When it was another process that
    unlinked the name, it lets go the next time it creates or closes a block.
  - close() pulls nothing from under an array or a memoryview: whatever was made of buf keeps the
    memory, and is no SIGSEGV and no BufferError.
  - unlink() removes the name of this very block: where the name means another one by now, it
    raises FileNotFoundError.
  - tmeshctl shows blocks and who has them, by their names.

A name is a symbolic link, to a token, in the folder "shm" of $TMESH_RUNTIME_DIR, else of
$XDG_RUNTIME_DIR/tmesh, else of a folder of the user's own in /dev/shm (on a disk, looking a name up
takes longer). No other user may look into it. Links that processes left behind when they were
killed say nothing, and whoever creates a block removes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
from multiprocessing import shared_memory as _standard
from multiprocessing import util
import os
import secrets
import stat
import sys
import types
from typing import TYPE_CHECKING, Any, Iterator

from . import _tmesh
from .errors import AccessError, NotFoundError

__all__ = ["ShareableList", "SharedMemory", "install"]

_USE_POSIX = True
_SHM_NAME_PREFIX = "/psm_"

# So many names are looked at when one is created or a block closed.
_LOOKS = 8
# So many when a process creates its first.
_FIRST_LOOKS = 256


def _make_filename() -> str:
    return _SHM_NAME_PREFIX + secrets.token_hex(8)


class _Names:
    """The folder of names, and the blocks that this process created."""

    def __init__(self) -> None:
        self._folder = -1
        self._pid = 0
        self._mine: dict[str, tuple[str, _tmesh.Tensor]] = {}

    def open(self, name: str) -> tuple[str, memoryview]:
        """The token that a name stands for, and its memory; FileNotFoundError."""
        if self._folder < 0:
            self._open()
        try:
            return _tmesh.open_link(self._folder, name)
        except FileNotFoundError:
            if os.fstat(self._folder).st_nlink:
                raise
        return _tmesh.open_link(self._open(), name)  # somebody removed the folder

    def add(self, entry: str, tensor: _tmesh.Tensor) -> str:
        """Name a block, unless a living one has that name; its token."""
        token = tensor.ref(writable=True)["token"]
        with self._locked() as folder:
            self._begin_process(folder)
            try:
                os.symlink(token, entry, dir_fd=folder)
            except FileExistsError:
                if not _remove_dead(entry, folder):
                    raise
                os.symlink(token, entry, dir_fd=folder)
        self._mine[entry] = token, tensor
        return token

    def remove(self, entry: str, token: str) -> None:
        with self._locked() as folder:
            if os.readlink(entry, dir_fd=folder) != token:
                raise FileNotFoundError(errno.ENOENT, "the name is another block's now", entry)
            os.unlink(entry, dir_fd=folder)
        self._mine.pop(entry, None)

    def look(self) -> None:
        """Let go of blocks of ours whose names others removed; a few, in turn."""
        for entry in [*self._mine][:_LOOKS]:
            mine = self._mine.pop(entry, None)
            if mine:
                with contextlib.suppress(OSError):
                    if os.readlink(entry, dir_fd=self._open()) == mine[0]:
                        self._mine[entry] = mine

    def _begin_process(self, folder: int) -> None:
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._mine = {}  # a parent's, after a fork
        # Worker processes of multiprocessing run these and no atexit functions.
        util.Finalize(None, self._end_process, exitpriority=0)
        for entry in os.listdir(folder)[:_FIRST_LOOKS]:
            _remove_dead(entry, folder)

    def _end_process(self) -> None:
        for entry, (token, _) in [*self._mine.items()]:
            with contextlib.suppress(OSError):
                self.remove(entry, token)

    def _open(self) -> int:
        if self._folder >= 0:
            if os.fstat(self._folder).st_nlink:
                return self._folder
            os.close(self._folder)  # somebody removed it
            self._folder = -1
        path = _folder_path()
        for part in (os.path.dirname(path), path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700)
        _check_private(os.path.dirname(path))
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        return self._folder

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        # Each use has an open folder of its own, for locks do not part those who share one.
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._open())
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)


def _folder_path() -> str:
    environ = os.environ
    runtime = environ.get("TMESH_RUNTIME_DIR")
    if not runtime:
        xdg = environ.get("XDG_RUNTIME_DIR")
        runtime = f"{xdg}/tmesh" if xdg else f"/dev/shm/tmesh-{os.geteuid()}"
    return f"{runtime}/shm"


def _check_private(path: str) -> None:
    """Whoever could write there could hand us memory of his."""
    is_ours = os.lstat(path)
    if not stat.S_ISDIR(is_ours.st_mode) or is_ours.st_uid != os.geteuid() or \
            is_ours.st_mode & 0o077:
        raise AccessError(errno.EACCES, "the runtime directory is not this user's alone; set "
                          "TMESH_RUNTIME_DIR", path)


def _remove_dead(entry: str, folder: int) -> bool:
    """With the lock held: remove a name that opens nothing."""
    try:
        _tmesh.open(os.readlink(entry, dir_fd=folder))
    except NotFoundError:
        os.unlink(entry, dir_fd=folder)
        return True
    except OSError:
        pass  # it lives, but its process is slow, say
    return False


_names = _Names()


def _label(entry: str) -> str | None:
    return entry if entry.isprintable() and len(entry.encode()) <= 63 else None


class SharedMemory:
    """A block of shared memory: created with create=True and a size, or else attached to by
    its name. As multiprocessing.shared_memory.SharedMemory."""

    def __init__(self, name: str | None = None, create: bool = False, size: int = 0,
                 *, track: bool = True) -> None:
        if not size >= 0:
            raise ValueError("'size' must be a positive integer")
        if create:
            if not size:
                raise ValueError("'size' must be a positive number different from zero")
            _names.look()
            memory = self._create(name, size)
        else:
            if name is None:
                raise ValueError("'name' can only be None if create=True")
            self._token, memory = _names.open(name)
            self._name = name
        self._buf: memoryview | None = memory
        self._size = len(memory)

    def _create(self, name: str | None, size: int) -> memoryview:
        while True:
            self._name = _make_filename() if name is None else name
            entry = _tmesh.link_name(self._name)
            tensor = _tmesh.zeros(size, "uint8", label=_label(entry))
            try:
                self._token = _names.add(entry, tensor)
                return memoryview(tensor)
            except FileExistsError:
                if name is not None:
                    raise

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, False, self.size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, size={self.size})"

    @property
    def buf(self) -> memoryview:
        """The memory, all of it; None once closed."""
        return self._buf  # type: ignore[return-value] # as typeshed has it

    @property
    def name(self) -> str:
        """What others attach by."""
        return self._name.removeprefix("/")

    @property
    def size(self) -> int:
        """In bytes."""
        return self._size

    def close(self) -> None:
        """Let go of the memory. Arrays and memoryviews made of it keep it until they go."""
        self._buf = None
        _names.look()

    def unlink(self) -> None:
        """Remove the name. The memory lives on for those who have it open."""
        _names.remove(_tmesh.link_name(self._name), self._token)


def _bound_here(function: types.FunctionType) -> types.FunctionType:
    """The same function with our SharedMemory for the standard library's."""
    return types.FunctionType(function.__code__, function.__globals__ |
                              {"SharedMemory": SharedMemory}, function.__name__,
                              function.__defaults__, function.__closure__)


if TYPE_CHECKING:
    from multiprocessing.shared_memory import ShareableList
else:
    class ShareableList(_standard.ShareableList):
        """The standard library's own, its memory ours."""

        __init__ = _bound_here(_standard.ShareableList.__init__)
        __init__.__kwdefaults__ = _standard.ShareableList.__init__.__kwdefaults__


def install() -> None:
    """Make these the classes of this whole process: what imports multiprocessing.shared_memory
    from now on gets this module, and so does SharedMemoryManager. Processes that are spawned
    import afresh: call it where they come by too, at the top of the main module."""
    module = sys.modules[__name__]
    sys.modules[_standard.__name__] = module
    setattr(multiprocessing, "shared_memory", module)
    managers = sys.modules.get("multiprocessing.managers")
    if managers:
        setattr(managers, "shared_memory", module)
