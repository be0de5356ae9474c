# SPDX-License-Identifier: MIT
"""SharedMemory and ShareableList of multiprocessing.shared_memory, over tmesh.

    from tmesh.shared_memory import SharedMemory

Use them like the standard library's. The differences:

  - Nothing is left behind. A block is memory without a file, so it ends with its last user even if
    all of them are killed. There is no resource tracker: a process that merely attached never
    removes the block for others when it exits. track= is accepted and has no effect.
  - The name is valid until unlink(), or until the process that created the block ends. That
    process keeps the block until then, also after close(). If another process unlinked the name,
    the creator drops the block the next time it creates or closes one.
  - A process of multiprocessing leaves its blocks to its parent at its end, if the parent had called
    install() before it started the process. The parent's next use of the module takes them. They
    end with the parent or with unlink(). A process that is killed leaves none.
  - close() is safe while arrays or memoryviews of buf exist: they keep the memory. It causes
    neither a SIGSEGV nor a BufferError.
  - unlink() removes the name of this very block. If another block has the name by now, it raises
    FileNotFoundError.
  - tmeshctl shows blocks and their holders, by name.

A name is a symbolic link, to a token, in the folder "shm" of the runtime directory. That directory is the one of
tmesh.configure(), else $TMESH_RUNTIME_DIR, else $XDG_RUNTIME_DIR/tmesh, else tmesh-UID in $TMPDIR or /tmp. No other
user can read it. Links of killed processes have no effect, and the next process that creates a block removes them.
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
import select
import socket
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, Iterator

from . import _tmesh, in_transit
from .errors import NotFoundError

__all__ = ["ShareableList", "SharedMemory", "install"]

_USE_POSIX = True
_SHM_NAME_PREFIX = "/psm_"

# The number of names that creating or closing a block checks.
_LOOKS = 8
# The number that a process checks when it creates its first block.
_FIRST_LOOKS = 256


# The socket at which a process receives blocks that its children leave.
_INBOX = ".inbox-"
# Beside a name: the process to which the name's owner leaves the block. Until that one takes it the name opens nothing.
_LEFT = ".left-"


def _inbox_name(pid: int) -> str:
    return f"{_INBOX}{pid}"


def _make_filename() -> str:
    return _SHM_NAME_PREFIX + secrets.token_hex(8)


class _Names:
    """The folder of names, and the blocks that this process created."""

    def __init__(self) -> None:
        self._folder = -1
        self._which: os.stat_result | None = None  # of the folder when it was opened
        self._exclusive = -1  # the same folder, opened for its lock alone
        self._lock = threading.RLock()
        self._depth = 0  # of the uses of the lock by the thread that has it
        self._pid = 0
        self._mine: dict[str, tuple[str, _tmesh.Tensor]] = {}
        self._before: dict[str, str] = {}  # the token of a block in the process that left it
        self._inbox: socket.socket | None = None
        self.wanted = False  # install() was called

    def open(self, name: str) -> tuple[str, memoryview]:
        """Return a name's token and its memory. FileNotFoundError: there is none."""
        if self._folder < 0:
            self._open()
        try:
            return _tmesh.open_link(self._folder, name)
        except OSError as error:
            found = self._about(self._folder)
            if found and found.st_nlink and not (isinstance(error, FileNotFoundError) and self._inherit()):
                raise
        # The program closed the folder, another process removed it, or a child left the block.
        return _tmesh.open_link(self._open(), name)

    def add(self, entry: str, tensor: _tmesh.Tensor) -> str:
        """Name a block, unless the name already opens another. Return its token."""
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
        self._inherit()
        with self._locked() as folder:
            now = os.readlink(entry, dir_fd=folder)
            if token not in (now, self._before.get(now)):
                raise FileNotFoundError(errno.ENOENT, "the name is another block's now", entry)
            os.unlink(entry, dir_fd=folder)
        self._mine.pop(entry, None)
        self._before.pop(now, None)

    def listen(self) -> None:
        """Accept blocks that children of multiprocessing leave."""
        if self._inbox:
            return
        with contextlib.suppress(OSError):
            inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_inbox_name(os.getpid()), dir_fd=self._open())  # of an earlier process
            inbox.bind(self._inbox_path(os.getpid()))
            self._inbox = inbox
            util.Finalize(None, self._shut, exitpriority=-10)

    def _shut(self) -> None:
        if self._inbox:
            self._inbox.close()
            self._inbox = None
            with contextlib.suppress(OSError):
                os.unlink(_inbox_name(os.getpid()), dir_fd=self._open())

    def _inbox_path(self, pid: int) -> str:
        return f"/proc/self/fd/{self._open()}/{_inbox_name(pid)}"

    def _leave(self, tensor: _tmesh.Tensor) -> bool:
        """Leave a block to the parent. Return false if the parent does not listen, or cannot take it now."""
        parent = multiprocessing.parent_process()
        if parent is None or not tensor.label:
            return False
        left = _LEFT + tensor.label
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.connect(self._inbox_path(parent.pid))  # type: ignore[arg-type]
                with self._locked() as folder:
                    _unlink(left, folder)  # of an earlier process
                    os.symlink(str(parent.pid), left, dir_fd=folder)
                tensor.send(out, writable=True, timeout=0)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(left, dir_fd=self._open())
            return False
        return True

    def _inherit(self) -> bool:
        """Take the blocks that children left, under their names. Return whether there was one."""
        any_left = False
        while self._inbox and select.select([self._inbox], [], [], 0)[0]:
            any_left = True
            with contextlib.suppress(OSError):
                self._take(_tmesh.recv(self._inbox, timeout=0))
        return any_left

    def _take(self, tensor: _tmesh.Tensor) -> None:
        entry, token = tensor.label, tensor.ref(writable=True)["token"]
        if not entry:
            return
        with self._locked() as folder:
            try:
                before = os.readlink(entry, dir_fd=folder)
            except FileNotFoundError:
                return  # its name was removed, so the block ends
            with contextlib.suppress(NotFoundError):
                if _tmesh.open(before).id != tensor.id:
                    return
            self._begin_process(folder)
            unfinished = f"{entry}.{secrets.token_hex(4)}"
            os.symlink(token, unfinished, dir_fd=folder)
            os.rename(unfinished, entry, src_dir_fd=folder, dst_dir_fd=folder)
            _unlink(_LEFT + entry, folder)
        self._mine[entry] = token, tensor
        self._before[token] = before

    def look(self) -> None:
        """Let go of own blocks whose names other processes removed; check a few at a time."""
        self._inherit()
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
        self._mine, self._before = {}, {}  # after a fork they are the parent's
        # Worker processes of multiprocessing run finalizers but not atexit functions.
        util.Finalize(None, self._end_process, exitpriority=0)
        for entry in os.listdir(folder)[:_FIRST_LOOKS]:
            if entry.startswith(_INBOX):
                if not _hears(entry, folder):
                    _unlink(entry, folder)  # its process may be doing so
            elif entry.startswith(_LEFT):
                if not os.path.lexists(f"/proc/self/fd/{folder}/{entry.removeprefix(_LEFT)}"):
                    _unlink(entry, folder)
            else:
                _remove_dead(entry, folder)

    def _end_process(self) -> None:
        ended = []
        self._inherit()
        for entry, (token, tensor) in [*self._mine.items()]:
            with contextlib.suppress(OSError):
                if os.readlink(entry, dir_fd=self._open()) == token and self._leave(tensor):
                    continue
                self.remove(entry, token)
                ended.append(entry)
        if ended and multiprocessing.parent_process() is not None:
            print(f"tmesh: process {os.getpid()} ends, and with it {'the block' if len(ended) == 1 else f'{len(ended)} blocks'} of "
                  f"shared memory that it created and that was not unlinked ({ended[0]}): only processes that have it attached keep it. "
                  "Create it in the process that lives longest, or call tmesh.shared_memory.install() in the parent before it starts this one", file=sys.stderr, flush=True)

    def _about(self, fd: int) -> os.stat_result | None:
        """Return what the folder is now. None: the program has closed this descriptor, as daemons do, and its number may be
        another file's."""
        with contextlib.suppress(OSError):
            found = os.fstat(fd)
            if self._which and os.path.samestat(found, self._which):
                return found
        return None

    def _open(self) -> int:
        if self._folder >= 0:
            found = self._about(self._folder)
            if found and found.st_nlink and found.st_uid == os.geteuid():
                return self._folder
            if found:
                os.close(self._folder)  # it was removed, or this process has another user now
            self._folder = -1
        runtime = _tmesh.runtime_dir()
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir("shm", 0o700, dir_fd=runtime)
            self._forget_exclusive()
            self._folder = os.open("shm", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=runtime)
            self._which = os.fstat(self._folder)
        finally:
            os.close(runtime)
        return self._folder

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the folder. A signal's handler or a finalizer may use the lock that its own thread has."""
        with self._lock:
            depth = self._depth
            try:
                self._depth = depth + 1
                folder = self._exclusive if depth and self._exclusive >= 0 else self._open_exclusive()
                fcntl.flock(folder, fcntl.LOCK_EX)  # no effect if this thread has it already
                yield folder
            finally:
                self._depth = depth
                if not depth and self._exclusive >= 0:
                    fcntl.flock(self._exclusive, fcntl.LOCK_UN)

    def _open_exclusive(self) -> int:
        folder = self._open()
        if not self._about(self._exclusive):
            self._exclusive = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        return self._exclusive

    def _forget_exclusive(self) -> None:
        if self._about(self._exclusive):
            os.close(self._exclusive)
        self._exclusive = -1

    def forked(self) -> None:
        """Forget the parent's lock, whose open file a child shares, and its inbox."""
        self._forget_exclusive()
        self._depth, self._lock = 0, threading.RLock()
        if self._inbox:
            self._inbox.close()
            self._inbox = None


def _unlink(entry: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(entry, dir_fd=folder)


def _remove_dead(entry: str, folder: int) -> bool:
    """Remove a name that opens nothing, unless its block is left to a process that has yet to take it. The caller has the
    lock."""
    try:
        _tmesh.open(os.readlink(entry, dir_fd=folder))
    except NotFoundError:
        if _is_left(entry, folder):
            return False
        os.unlink(entry, dir_fd=folder)
        _unlink(_LEFT + entry, folder)
        return True
    except OSError:
        pass  # it exists, but for example its process is slow
    return False


def _is_left(entry: str, folder: int) -> bool:
    """Return whether a block is left to a process that lives."""
    try:
        heir = int(os.readlink(_LEFT + entry, dir_fd=folder))
    except (OSError, ValueError):
        return False
    return _hears(_inbox_name(heir), folder)


def _hears(inbox: str, folder: int) -> bool:
    """Return whether a process receives from this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        try:
            out.connect(f"/proc/self/fd/{folder}/{inbox}")
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass
    return True


_names = _Names()


def _starts() -> None:
    """Prepare for the start of a child."""
    if _names.wanted:
        _names.listen()


os.register_at_fork(before=_starts, after_in_child=_names.forked)
in_transit.before_spawn.append(_starts)


def _label(entry: str) -> str | None:
    return entry if entry.isprintable() and len(entry.encode()) <= 63 else None


class SharedMemory:
    """A block of shared memory: create it with create=True and a size, or attach to it by its name. It is used like
    multiprocessing.shared_memory.SharedMemory."""

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
        """All of the memory; None once closed."""
        return self._buf  # type: ignore[return-value] # as typeshed has it

    @property
    def name(self) -> str:
        """The name for attaching."""
        return self._name.removeprefix("/")

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._size

    def close(self) -> None:
        """Release the memory. Arrays and memoryviews of it keep it."""
        self._buf = None
        _names.look()

    def unlink(self) -> None:
        """Remove the name. The memory stays for processes that have it open."""
        _names.remove(_tmesh.link_name(self._name), self._token)


def _bound_here(function: types.FunctionType) -> types.FunctionType:
    """Return the same function with our SharedMemory in place of the standard library's."""
    return types.FunctionType(function.__code__, function.__globals__ |
                              {"SharedMemory": SharedMemory}, function.__name__,
                              function.__defaults__, function.__closure__)


if TYPE_CHECKING:
    from multiprocessing.shared_memory import ShareableList
else:
    class ShareableList(_standard.ShareableList):
        """The standard library's own class, over our memory."""

        __init__ = _bound_here(_standard.ShareableList.__init__)
        __init__.__kwdefaults__ = _standard.ShareableList.__init__.__kwdefaults__


def install() -> None:
    """Replace the standard library's classes in this process: later imports of multiprocessing.shared_memory get this
    module, and SharedMemoryManager uses it. A spawned process imports again, so call this at the top of the main
    module, which it runs too. Processes started from now on leave their blocks to this one."""
    _names.wanted = True
    module = sys.modules[__name__]
    sys.modules[_standard.__name__] = module
    setattr(multiprocessing, "shared_memory", module)
    managers = sys.modules.get("multiprocessing.managers")
    if managers:
        setattr(managers, "shared_memory", module)
