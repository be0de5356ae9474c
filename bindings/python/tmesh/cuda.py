# SPDX-License-Identifier: MIT
"""GPU memory between processes, by libtmesh-cuda, which is loaded at the first call.

    a = tmesh.cuda.empty((1024, 1024), "float32")   # on GPU 0, in memory that can be shared
    queue.put(tmesh.cuda.share(a))                  # a small dict; send it by any means
    b = tmesh.cuda.open(ref)                        # elsewhere: the same memory
    torch.from_dlpack(b)                            # also CuPy, JAX; or __cuda_array_interface__

``share`` takes arrays of ``empty`` and ``open``, PyTorch tensors, and objects with ``__cuda_array_interface__`` or
DLPack. An array outside tmesh's memory is handed over by CUDA IPC, and ``ref["cuda"]["kind"]`` is "ipc". (PyTorch
allocates in tmesh's memory by a torch.cuda.MemPool with ``libtmesh-cuda-torch.so``.) The producer keeps such an array
until all processes that opened it are done. Open its ref before the producer has shared 256 others.

An array lives while any process has it. A framework's tensor is in a segment of its allocator, which may give a freed
tensor's place to another one. The producer therefore keeps a tensor shared by ``share`` until its consumers are done.
``lend`` keeps it without the producer, as long as a process has it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from . import _tmesh, errors

_TYPESTR = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_DL_CUDA = 2
_LEGACY_STREAM = 1  # the default stream, for which 0 stands for none
_NO_STREAM = -1
# Made once, because a hand-over takes only microseconds.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def available() -> bool:
    """Whether libtmesh-cuda, a driver and a GPU are available. If not, other calls raise the reason. The driver begins with
    this process, so a process that is forked later has no GPU: ask in a process that starts no others by fork()."""
    try:
        _tmesh.cuda_load()
    except errors.Error:
        return False
    return True


class Array:
    """An array in GPU memory, or in host memory that a GPU uses; made by `empty` and `open`."""

    def __init__(self, memory: _tmesh.CudaHandle, stream: int | None = None) -> None:
        self._memory = memory
        # This stream's later work is ordered after the work that made the array; None: no stream's is.
        self._stream = None if stream == _NO_STREAM else stream
        self._ordered = stream == _NO_STREAM  # the caller of open() sees to the order

    @property
    def shape(self) -> tuple[int, ...]:
        return self._memory.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return self._memory.strides

    @property
    def dtype(self) -> str:
        return self._memory.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self._memory.itemsize

    @property
    def device(self) -> str:
        """"cuda:N" of the GPU that has the memory, or that uses it if it is host memory."""
        return f"cuda:{self._memory.info()[1]}"

    @property
    def kind(self) -> str:
        """host, staged, own, imported, ipc or external; unknown: a kind of a newer libtmesh-cuda."""
        return self._memory.info()[0]

    @property
    def writable(self) -> bool:
        return self._memory.info()[2]

    @property
    def taken(self) -> bool:
        """Whether its owner took the memory back, or its lease has lapsed. The pointer is then invalid."""
        return self._memory.info()[3]

    @property
    def pointer(self) -> int:
        """Return the device pointer of the first element. StaleError: the memory was taken back."""
        *_, taken, pointer = self._memory.info()
        if taken:
            raise errors.StaleError(errno.ESTALE, "the memory was taken back")
        return pointer

    def ref(self, stream: int | None = None) -> dict[str, Any]:
        """Share the array, as `share` does."""
        ref: dict[str, Any] = json.loads(self._memory.share((self._stream or 0) if stream is None else stream))
        return ref

    def reclaim(self, timeout: float | None = None) -> None:
        """Take the memory back from all other processes. PeerTimeoutError names the holders that remain. timeout: in
        seconds, None: no limit."""
        self._memory.reclaim(timeout)

    def touch(self) -> None:
        """Renew the lease. StaleError: the memory was taken back."""
        self._memory.touch()

    def stage(self, *, back: bool = False) -> None:
        """Update an array of kind "staged", which open(or_copy=True) made: copy the host memory to the GPU, or with
        `back` the other way. It waits for the GPU."""
        self._memory.stage(back)

    def release(self) -> None:
        """Release the array now. Consumers of it keep the memory."""
        self._memory.release()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        code = {"bool": "b", "bfloat16": None}.get(self.dtype, self.dtype[0])
        if code is None or self.dtype.startswith("float8"):
            raise AttributeError(f"{self.dtype} has no array interface; use DLPack")
        item = self._memory.itemsize
        return {"shape": self.shape, "typestr": f"{'|' if item == 1 else '<'}{code}{item}",
                "data": (self.pointer, not self.writable), "strides": tuple(s * item for s in self.strides),
                "version": 3, "stream": None if self._stream is None else self._stream or _LEGACY_STREAM}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DL_CUDA, self._memory.info()[1])

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("tmesh makes no copy, and no other device's memory")
        if stream != _NO_STREAM and not self._ordered:
            self._memory.wait(0 if stream is None or stream == _LEGACY_STREAM else stream)
        return self._memory.dlpack(max_version is not None and max_version[0] >= 1)

    def __repr__(self) -> str:
        return "<tmesh.cuda.Array, released>" if self._memory.released else \
            f"<tmesh.cuda.Array {self.dtype}{list(self.shape)} on {self.device}, {self.kind}>"


def empty(shape: int | Sequence[int], dtype: str = "float32", device: int = 0, *, alone: bool = False,
          or_host: bool = False) -> Array:
    """Make a new array on a GPU, writable, with unspecified contents: the memory is not cleared after its last use.
    `alone`: in a block of its own, so that a process with its ref can reach no other array. `or_host`: in host memory
    if the GPU has none left; `kind` says so."""
    return Array(_tmesh.cuda_alloc(shape, dtype, device, alone, or_host))


def zeros(shape: int | Sequence[int], dtype: str = "float32", device: int = 0, *, alone: bool = False,
          or_host: bool = False) -> Array:
    """Make a new array of zeros, as `empty`. The zeros are written when this returns."""
    array = empty(shape, dtype, device, alone=alone, or_host=or_host)
    array._memory.zero(_LEGACY_STREAM)
    return array


def open(ref: str | dict[str, Any], *, writable: bool = False, device: int | None = None, stream: int = 0,
         lease: float | None = None, or_copy: bool = False) -> Array:
    """Open the array of a ref, for kernels on GPU `device` (default: the GPU that has it). Later work of `stream` waits
    for the producer's work before it shared. -1: no wait, the caller sees to the order. The stream must live as long as
    the array, which names it to consumers (`__cuda_array_interface__`) and is shared on after it. A ref to host memory
    is registered with the driver; if the driver refuses, `or_copy` makes a copy on the GPU, which is counted. Newer
    GPUs refuse sealed memory. `lease`: the array is released if touch() was not called for so many seconds."""
    text = ref if isinstance(ref, str) else _encode(ref)
    return Array(_tmesh.cuda_open(text, writable, -1 if device is None else device, stream, int((lease or 0) * 1e9), or_copy),
                 stream)


# (pointer, shape, dtype, strides in elements or None), as the extension wants them.
_Place = tuple[int, tuple[int, ...], str, Sequence[int] | None]


def _describe_dlpack(array: Any, stream: int) -> _Place:
    """Describe an array by DLPack. The capsule is read and dropped, so the caller keeps the array. `stream` waits for
    its producer."""
    if not hasattr(array, "__dlpack__") or array.__dlpack_device__()[0] != _DL_CUDA:
        raise errors.InvalidError(errno.EINVAL, f"{type(array).__name__} has no __cuda_array_interface__, and no "
                                  "DLPack with memory on a GPU")
    return _tmesh.cuda_look(array.__dlpack__(stream=stream or _LEGACY_STREAM))


def _check_tensor(tensor: Any) -> None:
    if not tensor.is_cuda:
        raise errors.InvalidError(errno.EINVAL, f"share: the tensor is on {tensor.device}: tmesh.put() shares host memory")
    if tensor.is_conj() or tensor.is_neg():
        raise errors.UnsupportedError(errno.EOPNOTSUPP, "share: the memory of a conjugated or negated view does not have its "
                                      "elements: pass tensor.resolve_conj().resolve_neg()")


def _check_face(face: dict[str, Any], item: int) -> None:
    what = None
    if face["typestr"][0] == ">" or face["typestr"][1] not in _TYPESTR:
        what = f"elements of type {face['typestr']!r}"
    elif any(step % item for step in face.get("strides") or ()):
        what = "strides that are no multiples of its elements"
    elif face.get("mask") is not None:
        what = "a mask"
    if what:
        raise errors.UnsupportedError(errno.EOPNOTSUPP, f"share: the array has {what}: pass a contiguous copy of numbers")


def _describe(array: Any, stream: int = 0) -> tuple[_Place, int]:
    """Return a framework's array's place and stream. If the array does not name its stream, make `stream` wait for its
    producer."""
    if hasattr(array, "data_ptr"):
        import torch

        _check_tensor(array)
        place = array.data_ptr(), tuple(array.shape), str(array.dtype).partition(".")[2], tuple(array.stride())
        return place, torch.cuda.current_stream(array.device).cuda_stream
    face = getattr(array, "__cuda_array_interface__", None)
    if face is None:
        return _describe_dlpack(array, stream), stream
    item = int(face["typestr"][2:])
    _check_face(face, item)
    dtype = "bool" if face["typestr"][1] == "b" else f"{_TYPESTR[face['typestr'][1]]}{8 * item}"
    strides = face.get("strides")
    stream = face.get("stream")
    return (face["data"][0], tuple(face["shape"]), dtype, strides and [s // item for s in strides]), \
        0 if stream in (None, _LEGACY_STREAM) else stream


def lend(array: Any) -> Array:
    """Return an Array for a framework's array in tmesh's memory. After its release the memory stays until no other
    process has it, and `array` is kept so long. Its ref waits for the stream that is current now."""
    place, stream = _describe(array)
    return Array(_tmesh.cuda_lend(array, *place), stream)


def keep(array: Any, name: str, *, replace: bool = False, lifetime: float | None = None, mode: int = 0o600,
         gid: int | None = None, stream: int | None = None) -> Array:
    """Keep an array under a name: it stays when all processes that had it are gone. It must be in tmesh's memory and
    allocated by this process. `tmesh.keep` is for host memory, and explains the arguments. `open_kept` opens it,
    `tmesh.kept` lists it, and `tmesh.drop` drops it. Returns the array, or for a framework's array the Array that
    `lend` returns; release it. The call waits for the work so far of the array's current stream, or of `stream`; with
    -1 for none.

    GPU memory cannot be sealed: a process that opens the name for writing changes it for all. The whole block of the
    array is kept: make it with `alone=True`, or keep few large arrays. It does not count towards the limit of kept
    memory, and stays until it is dropped."""
    kept = array if isinstance(array, Array) else lend(array)
    kept._memory.keep(name, replace, lifetime, mode, gid, (kept._stream or 0) if stream is None else stream)
    return kept


def open_kept(name: str, *, writable: bool = False, device: int | None = None, lease: float | None = None,
              uid: int | None = None) -> Array:
    """Open the array kept under a name: as `open`, without a wait for a producer. NotFoundError: nothing is kept under
    the name. AccessError or ProtocolError: it is no GPU memory. uid: another user who admits this one (not on
    memfd)."""
    return Array(_tmesh.cuda_open_kept(name, uid, writable, -1 if device is None else device, int((lease or 0) * 1e9)))


@contextlib.contextmanager
def capturing(device: int = 0) -> Iterator[None]:
    """Put this around each capture of a graph, such as torch.cuda.graph(), whose stream is not passed to this module.
    The library then does not wait for the GPU, which would break the capture. Memory that is released meanwhile is
    given back after the capture (`bytes_waiting` of stats())."""
    _tmesh.cuda_capture(device, True)
    try:
        yield
    finally:
        _tmesh.cuda_capture(device, False)


def trim() -> None:
    """Give the driver the blocks of GPU memory without arrays. `tmesh.trim` does so with host memory."""
    _tmesh.cuda_trim()


def stats(device: int | None = None) -> dict[str, int]:
    """Return libtmesh-cuda's counts in this process, for a device or for all. Bytes now: bytes_used (of arrays made here),
    bytes_reserved (blocks of the driver's memory), bytes_pending_free (released here, still held by others). Also
    imported_bytes, registered_bytes and bytes_waiting (released here, waiting for a GPU). Numbers: blocks, allocs, reused
    (allocs without a new block), taken (arrays that were taken back). Fallbacks: staged_copies, staged_bytes, host_fallbacks,
    host_waits, writable_instead."""
    return _tmesh.cuda_stats(-1 if device is None else device)


_lock = threading.Lock()
_foreign: dict[int, object] = {}
_FOREIGN_KEPT = 256


def _forked() -> None:
    """Make a new lock: another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _keep(pointer: int, token: object) -> None:
    """Keep one token for each place outside tmesh's memory. It is valid until the place is shared again, or 256 others
    were. A process that has opened the array by then no longer needs it."""
    with _lock:
        gone = [_foreign.pop(pointer, None)]  # freed without the lock
        _foreign[pointer] = token
        if len(_foreign) > _FOREIGN_KEPT:
            gone.append(_foreign.pop(next(iter(_foreign))))
    gone.clear()


def share(array: Any, *, stream: int | None = None) -> dict[str, Any]:
    """Return a ref to an array, a dict. The receiver's work waits for the work so far of the array's current stream, or
    of `stream`; with -1 for none."""
    if isinstance(array, Array):
        return array.ref(stream)
    place, current = _describe(array, stream or 0)
    text, token = _tmesh.cuda_share(*place, current if stream is None else stream)
    if token is not None:
        _keep(place[0], token)
    ref: dict[str, Any] = json.loads(text)
    return ref
