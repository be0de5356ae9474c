# SPDX-License-Identifier: MIT
"""Blocks of a KV cache that all engines of a user share: sealed regions, kept under keyed hashes.

    pool = Pool(read_key("tenant.key"), b"this model", max_bytes=8 << 30)
    pool.put(pool.name(block_hash), [tensor])          # copies; a thread keeps it

    found = pool.find([pool.name(block_hash)])         # a thread opens the run
    if found.done(): found.tensors                     # held until release()

A block appears whole or not at all, and stays when its engine dies. No call waits for the keeper: threads of the pool do. An
error that they meet is logged once, and the pool then pauses: blocks are not found, and not stored. A forked child has none of
these threads: its parent's pool raises AccessError there, and the child makes a pool of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import hashlib
import importlib
import logging
import os
import threading
import time
from typing import Any

from . import _tmesh
from .errors import AccessError, BusyError, ExistsError, InvalidError, LimitError, NotFoundError
from .keeping import keep, open_kept

__all__ = ["Found", "Pool", "identity_of"]

_log = logging.getLogger("tmesh.kv_pool")

_PAGE = os.sysconf("SC_PAGE_SIZE")
# The bytes that the keeper counts for a region beside its contents: its description and its name.
_BESIDE = 2 * _PAGE
_PAUSE = 10.0  # seconds after an error
_WAITING = 64  # blocks that were copied and are not kept yet
_TOGETHER = 32  # blocks that are copied from a GPU at once


def identity_of(folder: str) -> list[list[object]]:
    """Return what differs if a model's files were changed or replaced: names, places, sizes and times of a folder's entries."""
    identity: list[list[object]] = []
    for name in sorted(os.listdir(folder)):
        with contextlib.suppress(FileNotFoundError):  # a link to a file that was not downloaded
            about = os.stat(os.path.join(folder, name))
            identity.append([name, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns])
    return identity


class _Owned:
    """An object with threads, which a forked child does not have."""

    _WHAT = ""

    def __init__(self) -> None:
        self._owner = os.getpid()

    def _check_fork(self) -> None:
        if self._owner != os.getpid():
            raise AccessError(13, f"this {self._WHAT} is the parent's: a forked child makes a pool of its own")


class Found(_Owned):
    """The result of Pool.find(), when done(). tensors: the run of blocks that are there, which this object holds. In a forked
    child a search that its parent has not ended raises AccessError."""

    _WHAT = "search"

    def __init__(self) -> None:
        super().__init__()
        self._ready = threading.Event()
        self._released = False
        self._lock = threading.Lock()
        self.tensors: list[_tmesh.Tensor] = []

    def done(self) -> bool:
        ready = self._ready.is_set()
        if not ready:
            self._check_fork()
        return ready

    def wait(self, timeout: float | None = None) -> bool:
        return self.done() or self._ready.wait(timeout)

    def _add(self, parts: list[_tmesh.Tensor]) -> bool:
        with self._lock:
            if not self._released:
                self.tensors += parts
            return not self._released

    def release(self) -> None:
        """Hold the blocks no longer. A search that still runs ends early."""
        # A forked child has no thread of the pool, and its copy of the lock may be taken for good.
        with self._lock if self._owner == os.getpid() else contextlib.nullcontext():
            self._released = True
            self.tensors = []


class Pool(_Owned):
    """A tenant's pool in one process. counts has the number of events, by name.

    key: the tenant's. space: bytes that differ if the same tokens give other contents, such as another model. max_bytes: a limit
    for all processes of the tenant together. Each process may pass it by a sixteenth. None: the keeper's limit alone.
    InvalidError: max_bytes is no number above zero."""

    _WHAT = "pool"

    def __init__(self, key: bytes, space: bytes, *, max_bytes: int | None = None) -> None:
        super().__init__()
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise InvalidError(22, f"max_bytes is {max_bytes!r}: a number of bytes, or left away")
        self._key = key
        self._space = space
        self.prefix = f"k.{self._hash(b'tenant')[:12]}-"
        self._limit = max_bytes
        self._lock = threading.Lock()
        self._waiting = 0
        # Names that this process has stored or found.
        self._known: set[str] = set()
        # The bytes of all blocks in the last list, and of those that this process has stored since.
        self._used: int | None = None
        self._since = 0
        self._paused = 0.0
        self._told: set[str] = set()
        self._closed = False
        self.counts: Counter[str] = Counter()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tmesh-kv-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tmesh-kv-write")

    def _hash(self, *parts: bytes) -> str:
        told = hashlib.blake2b(key=self._key, digest_size=20, person=b"kv")
        for part in parts:
            told.update(len(part).to_bytes(8, "little") + part)
        return told.hexdigest()

    def name(self, block_hash: bytes, part: int = 0) -> str:
        """Return the name of a block, or of one rank's part of it. It can only be made with the key."""
        return self.prefix + self._hash(b"block", self._space, block_hash, str(part).encode())

    def change_space(self, space: bytes) -> None:
        """Use another space from now on: the same tokens give other contents, as after an update of weights."""
        self._check_fork()
        with self._lock:
            self._space = space
            self._known.clear()

    def _fails(self, doing: str, problem: BaseException) -> None:
        words = f"{doing}: {getattr(problem, 'strerror', None) or problem}"
        with self._lock:
            first = doing not in self._told
            self._told.add(doing)
            if not isinstance(problem, LimitError):
                self._paused = time.monotonic() + _PAUSE
        self.counts["errors"] += 1
        if first:
            _log.warning("%s; the engine goes on without shared blocks, and tries again after %g s (this is logged once)", words, _PAUSE)

    def paused(self) -> bool:
        """Whether the pool does nothing for a while, because of an error."""
        return self._closed or time.monotonic() < self._paused

    def find(self, names: Sequence[str | Sequence[str]]) -> Found:
        """Search the longest run of blocks from the first one on. A block in parts is a list of their names. The result has
        all parts, one behind the other; a block counts if all of its parts are there."""
        self._check_fork()
        found = Found()
        if self.paused():
            self.counts["skipped"] += 1
            found._ready.set()
            return found
        self._reader.submit(self._find, names, found)
        return found

    def _find(self, names: Sequence[str | Sequence[str]], found: Found) -> None:
        try:
            for block in names:
                parts = [block] if isinstance(block, str) else block
                opened = {part: one for part in parts if (one := self._open(part)) is not None}
                if len(opened) < len(parts):
                    with self._lock:
                        self._known.difference_update(part for part in parts if part not in opened)
                    break
                if not found._add([opened[part] for part in parts]):
                    break
                self.counts["found"] += 1
                with self._lock:
                    self._known.update(parts)
        except Exception as problem:  # a search that does not end would keep a request waiting
            self._fails("searching blocks of a KV cache", problem)
        finally:
            found._ready.set()

    def _open(self, name: str) -> _tmesh.Tensor | None:
        try:
            tensor = open_kept(name)
        except NotFoundError:
            return None
        return tensor if isinstance(tensor, _tmesh.Tensor) and tensor.sealed else None

    def read(self, jobs: Sequence[tuple[str, Sequence[Any]]], done: Callable[[int], object]) -> None:
        """Copy blocks into PyTorch's tensors: each name's bytes into its list, one behind the other. A thread calls done with the
        number of names, from the first on, that were copied whole."""
        self._each(self._reader, "reading blocks of a KV cache", self._read, jobs, done)

    def _read(self, name: str, tensors: Sequence[Any]) -> bool:
        block = self._open(name)
        whole = block is not None and _copy_out(block, tensors)
        self.counts["read" if whole else "lost"] += 1
        return whole

    def _each(self, thread: ThreadPoolExecutor, doing: str, work: Callable[[str, Sequence[Any]], bool], jobs: Sequence[tuple[str, Sequence[Any]]],
              done: Callable[[int], object]) -> None:
        """Let a thread work on each job, and then call done with the number of those that succeeded. A reader ends at the first that did not."""
        self._check_fork()
        streams = _Streams(tensor for _, tensors in jobs for tensor in tensors)

        def run() -> None:
            count = 0
            try:
                streams.wait()
                for name, tensors in jobs:
                    succeeded = work(name, tensors)
                    count += succeeded
                    if not succeeded and thread is self._reader:
                        break
                streams.synchronize()
            except Exception as problem:  # an engine waits for this
                count = 0 if streams.devices else count
                self._fails(doing, problem)
            finally:
                done(count)

        try:
            thread.submit(run)
        except RuntimeError:  # it was closed
            done(0)

    def put(self, name: str, tensors: Sequence[Any]) -> bool:
        """Copy PyTorch's tensors into a new block, which a thread keeps under the name. False: it is known to be there, or the
        thread is too far behind, or the pool is paused; nothing is copied then."""
        return self._begin(name) and self._copy(name, tensors)

    def put_rows(self, jobs: Sequence[tuple[str, int]], layers: Sequence[Any]) -> int:
        """Do as put() for rows of layers: a block is that row of each layer, one behind the other. Return the number of blocks that are copied.
        Rows of a GPU are copied many at once: each copy by itself would wait for the GPU."""
        if all(map(_on_host, layers)):
            return sum(self.put(name, [layer[row] for layer in layers]) for name, row in jobs)
        count = 0
        for first in range(0, len(jobs), _TOGETHER):
            mine = [(name, row) for name, row in jobs[first:first + _TOGETHER] if self._begin(name)]
            try:
                rows = _rows(layers, [row for _, row in mine]) if mine else []
            except Exception as problem:
                for name, _ in mine:
                    self._done(name, False)
                self._fails("storing a block of a KV cache", problem)
                break
            count += sum(self._copy(name, [layer[place] for layer in rows]) for place, (name, _) in enumerate(mine))
        return count

    def _begin(self, name: str) -> bool:
        """Count a block as one that waits for the thread. False: it is not to be copied."""
        self._check_fork()
        with self._lock:
            if name in self._known:
                return False
            if self._waiting >= _WAITING or self.paused():
                self.counts["dropped"] += 1
                return False
            self._waiting += 1
            self._known.add(name)
            return True

    def _copy(self, name: str, tensors: Sequence[Any]) -> bool:
        """Copy a block that waits, and let a thread keep it."""
        try:
            block = _copy_in(tensors)
            self._writer.submit(self._put, name, lambda: block)
            return True
        except Exception as problem:  # a block that counts as waiting for ever would end up as a full queue
            self._done(name, False)
            self._fails("storing a block of a KV cache", problem)
            return False

    def store(self, jobs: Sequence[tuple[str, Sequence[Any]]], done: Callable[[int], object]) -> None:
        """Do as put(), but let a thread copy: the tensors must not change before it calls done. Its argument is the number of
        blocks that are kept now, or were before."""
        self._each(self._writer, "storing a block of a KV cache", self._store, jobs, done)

    def _store(self, name: str, tensors: Sequence[Any]) -> bool:
        with self._lock:
            known = name in self._known
            self._known.add(name)
            self._waiting += not known
        if not known:
            self._put(name, lambda: _copy_in(tensors))
        return name in self._known

    def _done(self, name: str, stored: bool) -> None:
        with self._lock:
            self._waiting -= 1
            if not stored:
                self._known.discard(name)

    def _put(self, name: str, copied: Callable[[], _tmesh.Tensor]) -> None:
        stored = False
        try:
            if self.paused():
                raise BusyError(16, "the pool is paused")
            block = copied()
            nbytes = -(-block.nbytes // _PAGE) * _PAGE + _BESIDE
            self._make_room(nbytes)
            block.seal()
            keep(block, name)
            self.counts["stored"] += 1
            self._since += nbytes
            self._used = (self._used or 0) + nbytes
            stored = True
        except ExistsError:
            stored = True  # another engine was faster
        except Exception as problem:
            if not self.paused():
                self._fails("storing a block of a KV cache", problem)
        finally:
            self._done(name, stored)

    def blocks(self) -> list[_tmesh.Kept]:
        """List the tenant's blocks, by asking the keeper."""
        return [one for one in _tmesh.kept() if one["name"].startswith(self.prefix)]

    def _make_room(self, wanted: int) -> None:
        """Drop the tenant's longest unused blocks, if the limit is reached as far as this process knows. The list of all blocks
        is asked for when this process has stored a sixteenth of the limit."""
        if self._limit is None:
            return
        if wanted > self._limit:
            raise LimitError(122, f"a block has {wanted} bytes, and max_bytes is {self._limit}")
        if self._used is not None and self._used + wanted <= self._limit and self._since <= self._limit // 16:
            return
        mine = self.blocks()
        used = sum(one["bytes"] for one in mine)
        if used + wanted > self._limit:
            for one in sorted(mine, key=lambda one: one["used_ns"] or one["kept_ns"] or 0):
                if used + wanted <= self._limit - self._limit // 16:
                    break
                if one["held"]:
                    continue
                try:
                    _tmesh.drop(one["name"])
                except NotFoundError:
                    pass
                used -= one["bytes"]
                self.counts["evicted"] += 1
            with self._lock:
                self._known &= {one["name"] for one in self.blocks()}
        self._used, self._since = used, 0
        if used + wanted > self._limit:
            raise LimitError(122, f"blocks with {used} of {self._limit} bytes (max_bytes) are in use")

    def flush(self) -> None:
        """Wait until all that was begun before is done, or has failed."""
        self._check_fork()
        self._writer.submit(int).result()
        self._reader.submit(int).result()

    def close(self) -> None:
        """Keep no more. Blocks stay, for other engines and the next start. In a forked child it has no effect."""
        if self._owner != os.getpid():
            return
        self._closed = True
        self._reader.shutdown(wait=True, cancel_futures=False)
        self._writer.shutdown(wait=True, cancel_futures=False)


def _on_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


class _Streams:
    """The streams of tensors' GPUs, for copies in another thread. It is made in the thread whose work comes before the copies."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        self.devices = [*{device: None for tensor in tensors if (device := getattr(tensor, "device", None)) and not _on_host(tensor)}]
        self._events = [self._stream(device).record_event() for device in self.devices]

    @staticmethod
    def _stream(device: Any) -> Any:
        return getattr(importlib.import_module("torch"), device.type).current_stream(device)

    def wait(self) -> None:
        """Let copies of this thread begin after the work of the other thread's streams."""
        for device, event in zip(self.devices, self._events):
            self._stream(device).wait_event(event)

    def synchronize(self) -> None:
        """Wait for the copies of this thread: the last step of one may still run on the GPU when copy_() returns."""
        for device in self.devices:
            self._stream(device).synchronize()


def _plain(torch: Any, block: _tmesh.Tensor) -> Any:
    return torch.from_dlpack(block.reshape(-1).view("uint8").dlpack(allow_readonly=True))


def _cut(torch: Any, flat: Any, tensors: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """Cut bytes into tensors of these shapes and types."""
    at = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        yield flat[at:at + size].view(tensor.dtype).view(tensor.shape), tensor
        at += size


def _rows(layers: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """Return the bytes of rows of each layer in the host's memory: two copies for each layer, and one wait for all."""
    torch = importlib.import_module("torch")
    found = []
    for layer in layers:
        # Not each type has a kernel that takes rows.
        raw = layer.view(torch.uint8) if layer.stride(-1) == 1 else layer
        rows = raw.index_select(0, torch.tensor(numbers, device=layer.device))
        there = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
        there.copy_(rows, non_blocking=True)
        found.append(there)
    _Streams(layers).synchronize()
    return found


def _copy_in(tensors: Sequence[Any]) -> _tmesh.Tensor:
    torch = importlib.import_module("torch")
    block = _tmesh.empty((sum(tensor.numel() * tensor.element_size() for tensor in tensors),), "uint8", label="kv")
    for part, tensor in _cut(torch, torch.from_dlpack(block.dlpack()), tensors):
        part.copy_(tensor)
    return block


def _copy_out(block: _tmesh.Tensor, tensors: Sequence[Any]) -> bool:
    """Copy a block's bytes into tensors. False: it has another length."""
    torch = importlib.import_module("torch")
    if block.nbytes != sum(tensor.numel() * tensor.element_size() for tensor in tensors):
        return False
    for part, tensor in _cut(torch, _plain(torch, block), tensors):
        tensor.copy_(part)
    return True
