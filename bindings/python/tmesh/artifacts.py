# SPDX-License-Identifier: MIT
"""Finished weights of an engine, kept under a fingerprint of everything that shaped them.

    artifact = artifacts.find(fingerprint)            # None: a miss
    if artifact is None:
        artifact = artifacts.keep(fingerprint, net.state_dict())
    net.load_state_dict(artifact.tensors(), assign=True)

An artifact is a kept group: one region with the tensors' storages, and one with the manifest, which is JSON. Limits, order of
eviction and rights are those of kept memory. obtain() lets one process load while the others wait.

Tensors on a GPU are kept in GPU memory, under a second name that begins with "g." in place of "a.". No limit counts that memory, and it
stays until that name is dropped. Its end repeats a number of the manifest, so an artifact never has the memory of another one. A process
that is killed before it has kept the manifest leaves the memory, which the next artifact of that fingerprint replaces."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
import contextlib
import fcntl
import hashlib
import importlib
import json
import logging
import math
import os
import time
from typing import Any, NamedTuple, Protocol

from . import _tmesh
from .bundles import Bundle
from .errors import Error, InvalidError, NotFoundError, PeerTimeoutError, ProtocolError
from .keeping import keep as _keep
from .keeping import open_kept

__all__ = ["Artifact", "Obtained", "find", "keep", "name_of", "obtain", "wait"]

_log = logging.getLogger("tmesh.artifacts")

_FORMAT = 1
_ALIGNMENT = 64
_GPU_ALIGNMENT = 512  # as allocations of CUDA and of PyTorch
_MARK = 32  # bytes at the end of a GPU's memory
_WAIT = .02  # seconds between two looks at the process that loads
_DATA = "data"

Progress = Callable[[int, int, bool], object]


def _canonical(fingerprint: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise InvalidError(22, f"a fingerprint is a dict of plain JSON values: {problem}") from None
    return text


def name_of(fingerprint: Mapping[str, Any]) -> str:
    """Return the kept name of a fingerprint's artifact. InvalidError: the fingerprint is no JSON."""
    digest = hashlib.sha256(_canonical(fingerprint).encode()).digest()
    return "a." + base64.b32encode(digest).decode().rstrip("=").lower()


class _Part(NamedTuple):
    """A tensor's place in the data."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # bytes
    gpu: bool


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 60:
        raise ProtocolError(71, f"{value!r} is not a size")
    return value


def _parsed(entry: Any, totals: tuple[int, int], torch: Any) -> _Part:
    """Check a tensor's description against the bytes that the host's and the GPU's memory have."""
    if not isinstance(entry, list) or len(entry) not in (4, 5) or entry[4:] not in ([], ["gpu"]) or \
            not isinstance(entry[1], list) or not isinstance(entry[2], list):
        raise ProtocolError(71, "an entry is not [dtype, shape, strides, offset] with or without \"gpu\"")
    gpu = len(entry) == 5
    total = totals[gpu]
    dtype, shape, strides, offset = entry[0], tuple(map(_size, entry[1])), tuple(map(_size, entry[2])), _size(entry[3])
    # getattr() would import modules that PyTorch loads at their first use.
    kind = vars(torch).get(dtype) if isinstance(dtype, str) else None
    if not isinstance(kind, torch.dtype):
        raise ProtocolError(71, f"PyTorch has no type {dtype!r}")
    if len(shape) != len(strides):
        raise ProtocolError(71, f"the shape {shape} and the strides {strides} differ in length")
    item = torch.empty(0, dtype=kind).element_size()
    if math.prod(max(length, 1) for length in shape) * item >= 1 << 62:
        raise ProtocolError(71, f"the shape {shape} has more elements than a tensor can have")
    last = 0 if 0 in shape else 1 + sum((length - 1) * step for length, step in zip(shape, strides))
    if offset % item or offset + last * item > total:
        raise ProtocolError(71, f"the tensor at {offset} of shape {shape} and strides {strides} does not fit into {total} bytes")
    return _Part(dtype, shape, strides, offset, gpu)


def _placed(data: Any, part: _Part, total: int, torch: Any) -> Any:
    """Return a part of the data's first bytes as a tensor."""
    kind = getattr(torch, part.dtype)
    if 0 in part.shape:
        return torch.empty(part.shape, dtype=kind, device=data.device)
    item = torch.empty(0, dtype=kind).element_size()
    whole = data[part.offset:part.offset + (total - part.offset) // item * item].view(kind)
    return whole.as_strided(part.shape, part.strides)


class Gpu(Protocol):
    """The memory of one GPU, for PyTorch's tensors."""

    def has(self, tensor: Any) -> bool:
        """Return whether a tensor is on this GPU."""

    def make(self, nbytes: int) -> tuple[Any, Any]:
        """Return new memory, and a tensor of its bytes."""

    def keep(self, memory: Any, name: str) -> None:
        """Keep memory of make() under a name, when all that was written is there."""

    def open(self, name: str) -> Any:
        """Return a tensor of the bytes kept under a name, for reading. NotFoundError: nothing is kept."""


def _gpu_name(name: str) -> str:
    return "g." + name[2:]


def _opened(gpu: Gpu, name: str, nbytes: int, mark: Any) -> Any:
    """Open a GPU's memory. ProtocolError: it is gone, or that of another artifact."""
    try:
        raw = gpu.open(name)
    except NotFoundError:
        raise ProtocolError(71, f"its GPU memory, {name}, was dropped") from None
    if len(raw) != nbytes + _MARK or bytes(raw[nbytes:].cpu().tolist()).hex() != mark:
        raise ProtocolError(71, f"the memory kept as {name} is that of another artifact")
    return raw


class Artifact:
    """An artifact that is open in this process, which holds its memory. extra is the JSON value that keep() was given."""

    def __init__(self, name: str, bundle: Bundle, fingerprint: Mapping[str, Any], gpu: Gpu | None = None) -> None:
        torch = importlib.import_module("torch")
        try:
            manifest = json.loads(bundle.metadata)
        except ValueError:
            raise ProtocolError(71, "its manifest is no JSON") from None
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise ProtocolError(71, f"its manifest does not have format {_FORMAT}")
        if manifest.get("fingerprint") != json.loads(_canonical(fingerprint)):
            raise ProtocolError(71, "its manifest has another fingerprint")
        if [*bundle] != [_DATA] or bundle[_DATA].dtype != "uint8" or not bundle[_DATA].sealed:
            raise ProtocolError(71, "it is not one sealed region of bytes")
        parts, aliases = manifest.get("tensors"), manifest.get("aliases")
        if not isinstance(parts, dict) or not isinstance(aliases, dict):
            raise ProtocolError(71, "its manifest lists no tensors")
        self.nbytes = bundle.nbytes
        self.gpu_bytes = _size(manifest.get("gpu_bytes", 0))
        self._raw = _opened(gpu, _gpu_name(name), self.gpu_bytes, manifest.get("gpu_mark")) if gpu and self.gpu_bytes else None
        self._parts = {name: _parsed(entry, (self.nbytes, self.gpu_bytes), torch) for name, entry in parts.items()}
        for alias, canonical in aliases.items():
            if not isinstance(canonical, str) or canonical not in self._parts or alias in self._parts:
                raise ProtocolError(71, f"the alias {alias!r} of {canonical!r} does not fit")
        self.name = name
        self.aliases: dict[str, str] = aliases
        self.extra: Any = manifest.get("extra")
        self._bundle = bundle

    def __len__(self) -> int:
        return len(self._parts) + len(self.aliases)

    def tensors(self, *, private: bool = True) -> dict[str, Any]:
        """Return all as PyTorch's tensors, without a copy, in one copy-on-write view that is new at each call. An alias
        is the same object as its tensor. private=False promises not to write: a write would end the process.

        Tensors on a GPU are for reading: a write ends the process's work on it. InvalidError: there are some, and the artifact was opened
        without gpu."""
        torch = importlib.import_module("torch")
        if self.gpu_bytes and self._raw is None:
            raise InvalidError(22, f"the artifact {self.name} has tensors on a GPU: open it with gpu")
        data = {False: self._bundle.state_dict(private=private)[_DATA], True: self._raw}
        totals = self.nbytes, self.gpu_bytes
        found = {name: _placed(data[part.gpu], part, totals[part.gpu], torch) for name, part in self._parts.items()}
        for alias, canonical in self.aliases.items():
            found[alias] = found[canonical]
        return found

    def release(self) -> None:
        """Release the artifact. Tensors that were taken from it stay valid."""
        self._bundle.release()

    def __repr__(self) -> str:
        return f"<tmesh.artifacts.Artifact {self.name} of {len(self)} tensors, {self.nbytes} bytes>"


def find(fingerprint: Mapping[str, Any], *, gpu: Gpu | None = None) -> Artifact | None:
    """Open the artifact of a fingerprint. gpu: the GPU that has its tensors. None: nothing is kept, or another program kept something that
    is no artifact of this fingerprint, or its GPU memory is gone, which is logged. InvalidError: the fingerprint is no JSON."""
    name = name_of(fingerprint)
    found = None
    try:
        found = open_kept(name)
        if not isinstance(found, Bundle):
            raise ProtocolError(71, "it is no bundle")
        return Artifact(name, found, fingerprint, gpu)
    except NotFoundError:
        return None
    except (Error, TypeError, ValueError, RuntimeError) as problem:  # a manifest that nests too deep is a RecursionError
        if isinstance(found, Bundle):
            found.release()
        remedy = "" if isinstance(problem, PeerTimeoutError) else f" (tmeshctl drop {name} removes it)"
        _log.warning("opening artifact %s: %s; it counts as a miss%s", name, getattr(problem, "strerror", None) or problem, remedy)
        return None


def _storage(tensor: Any) -> Any:
    """Return a tensor's storage, also with PyTorch 1.13."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage


class _Layout:
    """Where storages lie in memory that is to be made: each once."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.storages: dict[int, tuple[Any, int]] = {}
        self.total = 0

    def place(self, tensor: Any) -> int:
        """Return the offset of a tensor."""
        storage = _storage(tensor)
        if storage.nbytes() and storage.data_ptr() not in self.storages:
            self.storages[storage.data_ptr()] = storage, self.total
            self.total += -(-storage.nbytes() // self.alignment) * self.alignment
        start = self.storages[storage.data_ptr()][1] if storage.nbytes() else 0
        return int(start + tensor.storage_offset() * tensor.element_size()) if tensor.numel() else 0

    def pieces(self, torch: Any) -> Iterator[tuple[int, Any]]:
        """Yield the storages' bytes, at most 64 MiB at once, with their offsets."""
        for storage, start in self.storages.values():
            raw = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            for at in range(0, len(raw), 64 << 20):
                yield start + at, raw[at:at + (64 << 20)]


def keep(fingerprint: Mapping[str, Any], tensors: Mapping[str, Any], *, extra: Any = None,
         progress: Callable[[int, int], object] | None = None, gpu: Gpu | None = None) -> Artifact:
    """Copy PyTorch's tensors into one region, seal it, keep it as the fingerprint's artifact, and return it. Storages are
    copied once, so tensors that share memory still share it. An older artifact of that name is replaced. extra: a JSON value
    for Artifact.extra. progress: called with the bytes copied and all bytes. gpu: for tensors on a GPU, which are copied into memory there.

    InvalidError: a tensor is neither in the machine's memory nor on gpu, or a fingerprint or extra is no JSON. Other errors are those of
    tmesh.put() and tmesh.keep(), and of gpu; no artifact is kept then."""
    torch = importlib.import_module("torch")
    name = name_of(fingerprint)
    host, device = _Layout(_ALIGNMENT), _Layout(_GPU_ALIGNMENT)
    parts: dict[str, list[Any]] = {}
    aliases: dict[str, str] = {}
    places: dict[Any, str] = {}
    for key, tensor in tensors.items():
        there = gpu is not None and gpu.has(tensor)
        if not there and tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise InvalidError(22, f"keeping an artifact: the tensor {key!r} is {tensor.dtype}, {tensor.layout} on {tensor.device}; "
                               "copy it to a plain tensor of the CPU")
        tensor = tensor.resolve_conj().resolve_neg()
        part = [str(tensor.dtype).removeprefix("torch."), [*tensor.shape], [*tensor.stride()],
                (device if there else host).place(tensor), *(["gpu"] if there else [])]
        place = places.setdefault(json.dumps(part), key) if tensor.numel() else key
        if place != key:
            aliases[key] = place
        else:
            parts[key] = part
    region = _tmesh.empty((max(host.total, 1),), "uint8", label="artifact", huge="try")
    total = host.total + device.total
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    for start, piece in host.pieces(torch):
        _tmesh.write(region[start:start + len(piece)], piece.numpy())
        told(len(piece))
    manifest = {"format": _FORMAT, "fingerprint": fingerprint, "tensors": parts, "aliases": aliases, "extra": extra}
    if gpu and device.total:
        mark = os.urandom(_MARK)
        manifest |= {"gpu_bytes": device.total, "gpu_mark": mark.hex()}
        memory, raw = gpu.make(device.total + _MARK)
        for start, piece in device.pieces(torch):
            raw[start:start + len(piece)].copy_(piece)
            told(len(piece))
        raw[device.total:].copy_(torch.tensor(list(mark), dtype=torch.uint8))
    try:
        text = json.dumps(manifest)
    except (TypeError, ValueError) as problem:
        raise InvalidError(22, f"keeping an artifact: extra is no plain JSON value: {problem}") from None
    bundle = Bundle(_tmesh.make_bundle(((_DATA, region),), text, True, "artifact"))
    if not gpu or not device.total:
        _keep(bundle, name, replace=True)
        return Artifact(name, bundle, fingerprint)
    gpu.keep(memory, _gpu_name(name))
    try:
        _keep(bundle, name, replace=True)
    except BaseException:
        _tmesh.drop(_gpu_name(name))
        raise
    return Artifact(name, bundle, fingerprint, gpu)


class Obtained(NamedTuple):
    """The result of obtain(). artifact: None if nothing could be shared. made: this process called make. waited: seconds
    that it waited for another process. reason: why nothing is shared, "" otherwise."""

    artifact: Artifact | None
    made: bool
    waited: float
    reason: str


# Descriptors with the lock of a process that loads. A forked child closes its copies, so that the lock ends with its parent.
_locked: set[int] = set()


def _close_in_child() -> None:
    for fd in _locked:
        os.close(fd)
    _locked.clear()


os.register_at_fork(after_in_child=_close_in_child)


class _Turn:
    """The right to load one artifact: a lock of a file in the runtime directory, which has the progress as JSON."""

    def __init__(self, name: str) -> None:
        self._folder = _tmesh.runtime_dir()
        self._path = f"artifact-{name[2:]}"
        self._fd = -1

    def take(self) -> bool:
        """Take the lock. False: another process has it."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self._folder)
            _locked.add(fd)
            self._fd = fd
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._close()
                return False
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(self._path, dir_fd=self._folder, follow_symlinks=False)
                if (there.st_dev, there.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino):
                    self.tell(0, 0)
                    return True
            self._close()  # the process that had it has removed it

    def wait(self, timeout: float, progress: Progress | None) -> str:
        """Wait until this process has the lock. Return "", or why it has not: the other process showed no progress for timeout seconds."""
        changed = time.monotonic()
        last = (0, 0, 0)
        while not self.take():
            now = self.progress()
            if now != last:
                last, changed = now, time.monotonic()
            if progress:
                progress(now[1], now[2], True)
            if time.monotonic() - changed > timeout:
                return f"process {now[0]} loads the same weights and showed no progress for {timeout:g} s: let it go on, or end it"
            time.sleep(_WAIT)
        return ""

    def tell(self, done: int, total: int) -> None:
        """Store the progress, for the processes that wait."""
        text = json.dumps({"pid": os.getpid(), "done": done, "total": total}).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, text.ljust(128), 0)

    def progress(self) -> tuple[int, int, int]:
        """Return the loading process, the bytes that it has done, and all; zeros if they are not known."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._folder)
        except OSError:
            return 0, 0, 0
        try:
            record = json.loads(os.pread(fd, 128, 0))
            return _size(record["pid"]), _size(record["done"]), _size(record["total"])
        except (OSError, ValueError, TypeError, KeyError, ProtocolError):
            return 0, 0, 0
        finally:
            os.close(fd)

    def _close(self) -> None:
        if self._fd in _locked:
            _locked.discard(self._fd)
            os.close(self._fd)
        self._fd = -1

    def end(self) -> None:
        if self._fd in _locked:
            with contextlib.suppress(OSError):
                os.unlink(self._path, dir_fd=self._folder)
        self._close()
        os.close(self._folder)


def obtain(fingerprint: Mapping[str, Any], make: Callable[[Callable[[int, int], None]], Artifact | None], *, timeout: float = 60.0,
           progress: Progress | None = None, gpu: Gpu | None = None) -> Obtained:
    """Find the artifact of a fingerprint, or let one process make it while the others wait.

    make(tell) loads the weights and returns keep(...), or None if they cannot be shared. It reports its progress by tell(done,
    total). If the process that makes it dies, one of the others takes its place. The wait for a process ends if it shows no
    progress for timeout seconds. The result then has no artifact, and a reason.

    progress: called with the bytes done, all bytes and whether another process loads. Its exception ends the call. gpu: as for find()."""
    artifact = find(fingerprint, gpu=gpu)
    if artifact:
        return Obtained(artifact, False, 0.0, "")
    turn = _Turn(name_of(fingerprint))
    began = time.monotonic()
    try:
        why = turn.wait(timeout, progress)
        waited = time.monotonic() - began
        if why:
            return Obtained(None, False, waited, why)
        artifact = find(fingerprint, gpu=gpu)
        if artifact:
            return Obtained(artifact, False, waited, "")

        def tell(done: int, total: int) -> None:
            turn.tell(done, total)
            if progress:
                progress(done, total, False)

        artifact = make(tell)
        return Obtained(artifact, True, waited, "" if artifact else "the weights cannot be shared")
    finally:
        turn.end()


def wait(fingerprint: Mapping[str, Any], *, timeout: float = 60.0, progress: Progress | None = None, gpu: Gpu | None = None) -> Artifact | None:
    """Find the artifact of a fingerprint. If another process makes it, wait for that, as obtain() does. None: there is none then."""
    artifact = find(fingerprint, gpu=gpu)
    if artifact:
        return artifact
    turn = _Turn(name_of(fingerprint))
    try:
        turn.wait(timeout, progress)
    finally:
        turn.end()
    return find(fingerprint, gpu=gpu)
