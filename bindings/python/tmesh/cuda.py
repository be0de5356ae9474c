# SPDX-License-Identifier: MIT
"""GPU memory between processes, by libtmesh-cuda, which is loaded at the first call.

    a = tmesh.cuda.empty((1024, 1024), "float32")   # on GPU 0, in memory that can be shared
    queue.put(tmesh.cuda.share(a))                  # a small dict, through whatever carries messages
    b = tmesh.cuda.open(ref)                        # elsewhere: the same memory
    torch.from_dlpack(b)                            # also CuPy, JAX; or __cuda_array_interface__

``share`` takes what ``empty`` and ``open`` gave, PyTorch tensors, and whatever has
``__cuda_array_interface__`` or DLPack. What does not lie in memory of tmesh's (torch.cuda.MemPool with
``libtmesh-cuda-torch.so``) is handed over by CUDA IPC, and the ref says so: ``ref["cuda"]["kind"]``
is "ipc"; its producer keeps it until all who opened it are done. Such a ref is to be opened before its
producer has shared 256 others.

An array lives as long as somebody holds it, in any process. A tensor of a framework lies in a
segment of its allocator, which may use a freed tensor's place in it again: what is shared by
``share`` its producer keeps until its consumers are done; what is shared by ``lend`` is kept by
itself as long as somebody holds it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from collections.abc import Sequence
from typing import Any

from . import _tmesh, errors

_TYPESTR = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_DL_CUDA = 2
_LEGACY_STREAM = 1  # the default one, where 0 stands for none
_NO_STREAM = -1
# Tensors are handed over in microseconds: what is the same each time is made once.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def available() -> bool:
    """Whether there are libtmesh-cuda, a driver and a GPU; why not is what other calls raise."""
    try:
        _tmesh.cuda_load()
    except errors.Error:
        return False
    return True


class Array:
    """An array in GPU memory, or in host memory that a GPU uses; made by `empty` and `open`."""

    def __init__(self, memory: _tmesh.CudaHandle, stream: int | None = None) -> None:
        self._memory = memory
        # What made the array is ordered before this stream's work from then on; None: nothing did.
        self._stream = None if stream == _NO_STREAM else stream
        self._ordered = stream == _NO_STREAM  # by who opened it

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
        """"cuda:N" of the GPU that has the memory, or for host memory uses it."""
        return f"cuda:{self._memory.info()[1]}"

    @property
    def kind(self) -> str:
        """host, staged, own, imported, ipc or external; unknown: of a libtmesh-cuda that has more."""
        return self._memory.info()[0]

    @property
    def writable(self) -> bool:
        return self._memory.info()[2]

    @property
    def taken(self) -> bool:
        """Its owner took the memory back, or its lease has lapsed: the pointer leads to nothing."""
        return self._memory.info()[3]

    @property
    def pointer(self) -> int:
        """Device pointer of the first element. The memory must be there: StaleError."""
        *_, taken, pointer = self._memory.info()
        if taken:
            raise errors.StaleError(errno.ESTALE, "the memory was taken back")
        return pointer

    def ref(self, stream: int | None = None) -> dict[str, Any]:
        """As `share`."""
        ref: dict[str, Any] = json.loads(self._memory.share((self._stream or 0) if stream is None else stream))
        return ref

    def reclaim(self, timeout: float | None = None) -> None:
        """Take the memory back from all other processes; PeerTimeoutError names who still has it. timeout: in seconds,
        None: no limit."""
        self._memory.reclaim(timeout)

    def touch(self) -> None:
        """Keep the lease; StaleError when the memory was taken back."""
        self._memory.touch()

    def release(self) -> None:
        """Let go now. What consumers made of the array keeps the memory."""
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
    """A new array on a GPU, writable, whose contents are not specified: what was in the memory before is
    not overwritten, as the driver gives it. `alone`: in a block of its own, so that who opens its ref can
    reach nothing else. `or_host`: in host memory when the GPU has none left (`kind` says so)."""
    return Array(_tmesh.cuda_alloc(shape, dtype, device, alone, or_host))


def zeros(shape: int | Sequence[int], dtype: str = "float32", device: int = 0, *, alone: bool = False,
          or_host: bool = False) -> Array:
    """A new array of zeros; as `empty`. They are there when it returns."""
    array = empty(shape, dtype, device, alone=alone, or_host=or_host)
    array._memory.zero(_LEGACY_STREAM)
    return array


def open(ref: str | dict[str, Any], *, writable: bool = False, device: int | None = None, stream: int = 0,
         lease: float | None = None) -> Array:
    """The array of a ref, for kernels on GPU `device` (default: the one that has it). What `stream`
    does from now on waits for what the producer's did before it shared; -1: nothing waits, the caller
    has seen to the order. The stream is to live as long as the array, which names it to consumers
    (`__cuda_array_interface__`) and is shared on after it. A ref to host memory is registered with the
    driver. With a `lease` in seconds, it is let go of when it was not touched for so long."""
    text = ref if isinstance(ref, str) else _encode(ref)
    return Array(_tmesh.cuda_open(text, writable, -1 if device is None else device, stream, int((lease or 0) * 1e9)), stream)


# (pointer, shape, dtype, strides in elements or None), as the extension wants them.
_Place = tuple[int, tuple[int, ...], str, Sequence[int] | None]


def _describe_dlpack(array: Any, stream: int) -> _Place:
    """Whoever has the array keeps it: its capsule is read and dropped. `stream` waits for its producer."""
    if not hasattr(array, "__dlpack__") or array.__dlpack_device__()[0] != _DL_CUDA:
        raise errors.InvalidError(errno.EINVAL, f"{type(array).__name__} has no __cuda_array_interface__, and no "
                                  "DLPack with memory on a GPU")
    return _tmesh.cuda_look(array.__dlpack__(stream=stream or _LEGACY_STREAM))


def _describe(array: Any, stream: int = 0) -> tuple[_Place, int]:
    """Where a framework's array lies, and its stream. What it does not say of a stream is made so that
    `stream` is right."""
    if hasattr(array, "data_ptr"):
        import torch

        place = array.data_ptr(), tuple(array.shape), str(array.dtype).partition(".")[2], tuple(array.stride())
        return place, torch.cuda.current_stream(array.device).cuda_stream
    face = getattr(array, "__cuda_array_interface__", None)
    if face is None:
        return _describe_dlpack(array, stream), stream
    item = int(face["typestr"][2:])
    dtype = "bool" if face["typestr"][1] == "b" else f"{_TYPESTR.get(face['typestr'][1])}{8 * item}"
    strides = face.get("strides")
    stream = face.get("stream")
    return (face["data"][0], tuple(face["shape"]), dtype, strides and [s // item for s in strides]), \
        0 if stream in (None, _LEGACY_STREAM) else stream


def lend(array: Any) -> Array:
    """A framework's array that lies in memory of tmesh's, as an array like those of `empty`: released
    here, it stays until no other process holds it, and keeps `array` so long. Its ref waits for the
    stream that is current now."""
    place, stream = _describe(array)
    return Array(_tmesh.cuda_lend(array, *place), stream)


def keep(array: Any, name: str, *, replace: bool = False, lifetime: float | None = None, mode: int = 0o600,
         gid: int | None = None, stream: int | None = None) -> Array:
    """Keep an array that lies in memory of tmesh's, allocated in this process, under a name (`tmesh.keep` is for host
    memory, and says what the arguments mean): it stays when all processes that had it are gone. `open_kept` opens
    it, `tmesh.kept` lists it, `tmesh.drop` gives it up. Gives the array, or of a framework's what `lend` gives, to be
    released. What the array's current stream, or `stream`, does up to now is waited for; with -1 nothing is.

    GPU memory cannot be sealed: who opens the name for writing writes to everybody's. The block that the array lies in is
    kept as a whole: make it with `alone=True`, or keep few that are large. It counts for nothing in the limit of what
    is kept and stays until it is dropped."""
    kept = array if isinstance(array, Array) else lend(array)
    kept._memory.keep(name, replace, lifetime, mode, gid, (kept._stream or 0) if stream is None else stream)
    return kept


def open_kept(name: str, *, writable: bool = False, device: int | None = None, lease: float | None = None,
              uid: int | None = None) -> Array:
    """The array that is kept under a name: as `open`, with nothing to wait for. NotFoundError when nothing is kept there;
    AccessError or ProtocolError when it is no GPU memory. uid: of another user who admits this one (not on
    memfd)."""
    return Array(_tmesh.cuda_open_kept(name, uid, writable, -1 if device is None else device, int((lease or 0) * 1e9)))


def trim() -> None:
    """Give the driver the blocks of GPU memory in which no array lies any more. `tmesh.trim` does so with host memory."""
    _tmesh.cuda_trim()


def stats(device: int | None = None) -> dict[str, int]:
    """What libtmesh-cuda counted in this process, on a device or on all of them. Bytes now: bytes_used (of arrays made here),
    bytes_reserved (in blocks of the driver's memory), bytes_lingering (given back here, still held by others),
    imported_bytes, registered_bytes. Numbers: blocks, allocs and reused (of them without a new block), taken (arrays that
    were taken back), and of fallbacks staged_copies, staged_bytes, host_fallbacks, host_waits."""
    return _tmesh.cuda_stats(-1 if device is None else device)


_lock = threading.Lock()
_foreign: dict[int, object] = {}
_FOREIGN_KEPT = 256


def _forked() -> None:
    """Another thread of the parent's may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _keep(pointer: int, token: object) -> None:
    """One token for each place in memory that is not tmesh's. It is good until the place is shared
    anew, or so many others were; who has opened it by then needs it no more."""
    with _lock:
        gone = [_foreign.pop(pointer, None)]  # given back without the lock
        _foreign[pointer] = token
        if len(_foreign) > _FOREIGN_KEPT:
            gone.append(_foreign.pop(next(iter(_foreign))))
    gone.clear()


def share(array: Any, *, stream: int | None = None) -> dict[str, Any]:
    """A ref to it, a dict. Who opens it waits for what the array's current stream, or `stream`, does
    up to now; with -1 for nothing."""
    if isinstance(array, Array):
        return array.ref(stream)
    place, current = _describe(array, stream or 0)
    text, token = _tmesh.cuda_share(*place, current if stream is None else stream)
    if token is not None:
        _keep(place[0], token)
    ref: dict[str, Any] = json.loads(text)
    return ref
