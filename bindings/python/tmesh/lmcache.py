# SPDX-License-Identifier: MIT
"""An L2 adapter of LMCache: chunks of a KV cache as kept regions. Other processes find them, also after a restart.

    --l2-adapter '{"type": "plugin", "module_path": "tmesh.lmcache", "class_name": "Adapter",
                   "adapter_params": {"key_file": "/var/lib/llm/tenant-a.key", "max_bytes": 68719476736}}'

An object is a sealed region, kept under a keyed hash of its key. A process with another key file cannot find it, or
find out whether it exists. docs/howto/integrations.md lists the versions that were tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
import hashlib
import logging
import os
import threading
from typing import Any

from . import _tmesh
from .errors import AccessError, Error, ExistsError, InvalidError, LimitError, NotFoundError
from .keeping import keep, open_kept
from .interop import lacks, load, warn_of_another
from .tenant import read_key

__all__ = ["Adapter"]

VERSION = "0.5.6"

# Imported by name, since mypy would otherwise read all of LMCache if it is installed.
_base: Any
_internal: Any
_native: Any
try:
    _base, _internal, _native = load("lmcache", VERSION, {
        "lmcache.v1.distributed.l2_adapters.base": "L2AdapterInterface", "lmcache.v1.distributed.internal_api": "L2StoreResult",
        "lmcache.lmcache_native": "Bitmap"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.lmcache needs LMCache and PyTorch ({problem}): pip install torch lmcache numpy",
                              name=problem.name) from None
warn_of_another("lmcache", VERSION)

_log = logging.getLogger("tmesh.lmcache")

_PAGE = os.sysconf("SC_PAGE_SIZE")
# The bytes that the keeper counts for a region beside its contents: its description and its name.
_BESIDE = 2 * _PAGE
_PARAMETERS = {"key_file", "max_bytes"}


class _Names:
    """The names of objects. Without the key a name can be neither made nor read."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.prefix = f"lmcache-{self._hash('tenant', ())[:12]}-"

    def of(self, key: Any) -> str:
        """All parts of an ObjectKey count, also its cache_salt, each with its length."""
        parts = [key.chunk_hash, *(str(part).encode("utf-8", "surrogatepass") for part in (
            key.model_name, key.kv_rank, key.object_group_id, key.cache_salt))]
        return self.prefix + self._hash("object", parts)

    def _hash(self, what: str, parts: Iterable[bytes]) -> str:
        told = hashlib.blake2b(key=self._key, digest_size=20, person=what.encode())
        for part in parts:
            told.update(len(part).to_bytes(8, "little") + part)
        return told.hexdigest()


def _bytes_of(memory: Any) -> memoryview:
    return memoryview(memory.byte_array).cast("B")


class Adapter(_base.L2AdapterInterface):  # type: ignore[misc]
    """The adapter that LMCache makes by the configuration above. LMCache calls it from several threads; one thread does
    the work.

    adapter_params has two members. key_file: the tenant's key of 32 bytes, which is made if there is no such file. max_bytes:
    the limit of this tenant's kept memory, of all processes together; by default the keeper's limit alone."""

    def __init__(self, adapter_params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        unknown = set(adapter_params) - _PARAMETERS
        if unknown:
            raise InvalidError(22, f"adapter_params: unknown: {', '.join(sorted(map(repr, unknown)))}; known are key_file, max_bytes")
        path, limit = adapter_params.get("key_file"), adapter_params.get("max_bytes")
        if not isinstance(path, str) or not path:
            raise InvalidError(22, "adapter_params: key_file is missing: where the tenant's key lies, or is to be made")
        if limit is not None and (type(limit) is not int or limit <= 0):
            raise InvalidError(22, f"adapter_params: max_bytes is {limit!r}: a number of bytes, or left away")
        self._names = _Names(read_key(path))
        # LMCache's own eviction only knows keys that this process stored, so the limit is kept here.
        super().__init__(max_capacity_bytes=0)
        self._limit = limit
        self._events = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(3)]
        self._lock = threading.Lock()
        self._done: list[dict[int, Any]] = [{}, {}, {}]
        self._tasks = 0
        self._closed = False
        # A forked child has neither the thread nor event descriptors of its own.
        self._owner = os.getpid()
        # Objects that look-ups found, until they are unlocked as often. They stay even if their names are dropped.
        self._locked: dict[Any, tuple[int, _tmesh.Tensor]] = {}
        # Objects that were reported to LMCache as present, by name.
        self._told: dict[str, tuple[Any, int]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tmesh-lmcache")

    def _check_fork(self) -> None:
        if self._owner != os.getpid():
            raise AccessError(13, "this adapter is the parent's: a forked child makes one of its own")

    def get_store_event_fd(self) -> int:
        return self._events[0]

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._events[1]

    def get_load_event_fd(self) -> int:
        return self._events[2]

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._submit(0, lambda: self._store(keys, objects), _internal.L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        self._check_fork()
        with self._lock:
            done, self._done[0] = self._done[0], {}
        return done

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        return self._submit(1, lambda: self._each(keys, self._look_up), _native.Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        self._check_fork()
        with self._lock:
            return self._done[1].pop(task_id, None)

    def submit_unlock(self, keys: list[Any]) -> None:
        self._check_fork()
        with self._lock:
            for key in keys:
                if key in self._locked:
                    count, tensor = self._locked.pop(key)
                    if count > 1:
                        self._locked[key] = count - 1, tensor

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        into = dict(zip(keys, objects, strict=True))
        return self._submit(2, lambda: self._each(keys, lambda key: self._load(key, into[key])), _native.Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        self._check_fork()
        with self._lock:
            return self._done[2].pop(task_id, None)

    def delete(self, keys: list[Any]) -> None:
        """Drop an object for all processes of the tenant. A process that has it open keeps it."""
        self._check_fork()
        for key in keys:
            self._drop(self._names.of(key))

    def report_status(self) -> dict[str, Any]:
        mine = self._kept()
        return {"is_healthy": not self._closed, "type": "tmesh", "stored_object_count": len(mine),
                "used_bytes": sum(one["bytes"] for one in mine), "max_bytes": self._limit}

    def close(self) -> None:
        """Close. Stored objects stay, for other processes and the next start. In a forked child it has no effect."""
        if self._closed or self._owner != os.getpid():
            return
        self._closed = True
        self._worker.shutdown(wait=True)
        with self._lock:
            self._locked.clear()
        for event in self._events:
            os.close(event)

    def _submit(self, kind: int, work: Callable[[], Any], failed: Any) -> int:
        self._check_fork()
        with self._lock:
            self._tasks += 1
            task = self._tasks

        def run() -> None:
            result = failed
            try:
                result = work()
            except Exception:  # LMCache waits for each task, so report this one as failed
                _log.exception("a task failed")
            with self._lock:
                self._done[kind][task] = result
            os.eventfd_write(self._events[kind], 1)

        self._worker.submit(run)
        return task

    def _each(self, keys: list[Any], work: Callable[[Any], bool]) -> Any:
        bits = _native.Bitmap(len(keys))
        found = []
        for number, key in enumerate(keys):
            try:
                succeeded = work(key)
            except Exception:  # LMCache unlocks the objects that the answer names, so name those before this one
                _log.exception("a task ended at object %d of %d", number + 1, len(keys))
                break
            if succeeded:
                bits.set(number)
                found.append(key)
        if found:
            self._notify_keys_accessed(found)
        return bits

    def _open(self, key: Any) -> _tmesh.Tensor | None:
        try:
            tensor = open_kept(self._names.of(key))
        except NotFoundError:
            return None
        return tensor if isinstance(tensor, _tmesh.Tensor) else None

    def _look_up(self, key: Any) -> bool:
        tensor = self._open(key)
        if tensor is None:
            return False
        with self._lock:
            count, before = self._locked.get(key, (0, tensor))
            self._locked[key] = count + 1, before
        return True

    def _load(self, key: Any, memory: Any) -> bool:
        with self._lock:
            _, tensor = self._locked.get(key, (0, None))
        if tensor is None:
            tensor = self._open(key)
        into = _bytes_of(memory)
        if tensor is None or tensor.nbytes != len(into):
            return False
        into[:] = memoryview(tensor)
        return True

    def _store(self, keys: list[Any], objects: list[Any]) -> Any:
        pairs = [(key, self._names.of(key), _bytes_of(memory)) for key, memory in zip(keys, objects, strict=True)]
        there = {one["name"]: one["bytes"] for one in self._kept()}
        new = {name: (key, data) for key, name, data in pairs if name not in there}
        self._make_room(sum(-(-len(data) // _PAGE) * _PAGE + _BESIDE for _, data in new.values()), {name for _, name, _ in pairs})
        for name, (key, data) in new.items():
            try:
                keep(_tmesh.put(data, label="lmcache"), name)
            except ExistsError:  # another process was faster
                continue
            except Error as error:
                raise type(error)(error.errno, f"{error.strerror}: this object is not stored") from error
        first = [(key, name, len(data)) for key, name, data in pairs if name not in self._told]
        with self._lock:
            self._told.update({name: (key, nbytes) for key, name, nbytes in first})
        self._notify_keys_stored([key for key, _, _ in first], [nbytes for _, _, nbytes in first])
        return _internal.L2StoreResult(True, sum(len(data) for _, data in new.values()))

    def _kept(self) -> list[_tmesh.Kept]:
        return [one for one in _tmesh.kept() if one["name"].startswith(self._names.prefix)]

    def _make_room(self, wanted: int, spared: set[str]) -> None:
        """Drop the tenant's least recently used objects until that many more bytes fit. Objects in use here stay."""
        mine = self._kept()
        names = {one["name"] for one in mine}
        self._forget([name for name in self._told if name not in names])  # other processes dropped them
        if self._limit is None:
            return
        if wanted > self._limit:
            raise LimitError(122, f"{wanted} bytes at once, and max_bytes is {self._limit}: nothing of it is stored")
        with self._lock:
            spared = spared | {self._names.of(key) for key in self._locked}
        used = sum(one["bytes"] for one in mine)
        for one in sorted(mine, key=lambda one: one["used_ns"] or one["kept_ns"] or 0):
            if used + wanted <= self._limit:
                return
            if one["name"] not in spared:
                self._drop(one["name"])
                used -= one["bytes"]
        if used + wanted > self._limit:
            raise LimitError(122, f"{wanted} bytes more, and of max_bytes, {self._limit}, {used} are in use: nothing of it is stored")

    def _drop(self, name: str) -> None:
        try:
            _tmesh.drop(name)
        except NotFoundError:
            pass
        self._forget([name])

    def _forget(self, names: list[str]) -> None:
        with self._lock:
            gone = [self._told.pop(name) for name in names if name in self._told]
        if gone:
            self._notify_keys_deleted([key for key, _ in gone], [nbytes for _, nbytes in gone])


# LMCache constructs the adapter deep inside. So check here that this class has all methods that LMCache requires, and
# that its base has all that this class uses.
_wanted = [f"wants of an adapter what tmesh.lmcache has not: {name}" for name in sorted(getattr(Adapter, "__abstractmethods__", ()))]
_wanted += [f"its L2AdapterInterface has no {name}" for name in (
    "_notify_keys_stored", "_notify_keys_accessed", "_notify_keys_deleted") if not hasattr(Adapter, name)]
if _wanted:
    raise ImportError(lacks("lmcache", VERSION, "; ".join(_wanted)))
