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

import ctypes
import errno
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from . import errors

_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
           "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
_ITEM = (1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 1, 1, 8, 16)
_TYPESTR = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_DIMS = 8
_REF_BYTES = 768
_READ, _WRITE = 1, 2
_DL_CUDA = 2
_LEGACY_STREAM = 1  # the default one, where 0 stands for none
_NO_STREAM = -1
# Tensors are handed over in microseconds: what is the same each time is made once.
_RefText = ctypes.c_char * _REF_BYTES
_encode = json.JSONEncoder(separators=(",", ":")).encode

_ERRORS = {
    errno.EINVAL: errors.InvalidError, errno.EOVERFLOW: errors.InvalidError, errno.ENOENT: errors.NotFoundError,
    errno.EACCES: errors.AccessError, errno.EPERM: errors.AccessError, errno.EBUSY: errors.BusyError,
    errno.ESTALE: errors.StaleError, errno.EDQUOT: errors.LimitError, errno.EMFILE: errors.LimitError,
    errno.ENOMEM: errors.OutOfMemoryError, errno.EPROTO: errors.ProtocolError,
    errno.EOPNOTSUPP: errors.UnsupportedError, errno.ETIMEDOUT: errors.PeerTimeoutError,
    errno.EPIPE: errors.GoneError,
}


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 252)]


class _Layout(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("ndim", ctypes.c_int32), ("shape", ctypes.c_int64 * _DIMS),
                ("strides", ctypes.c_int64 * _DIMS), ("offset", ctypes.c_uint64), ("device_type", ctypes.c_int),
                ("device_id", ctypes.c_int32)]


class _ImportOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("rights", ctypes.c_uint32), ("device", ctypes.c_int),
                ("lease_ns", ctypes.c_uint64)]


_OPTS_BYTES = ctypes.sizeof(_ImportOpts)


class _Info(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("device", ctypes.c_int),
                ("resident", ctypes.c_int), ("rights", ctypes.c_uint32), ("taken", ctypes.c_bool),
                ("pointer", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("region", ctypes.c_uint64)]


_KINDS = {1: "host", 2: "staged", 3: "own", 4: "imported", 5: "ipc", 6: "external"}
_lock = threading.Lock()
# Its functions have no types that Python knows.
_library: Any = None
_handle: ctypes.c_void_p | None = None


def _call(name: str, *args: Any) -> None:
    error = _Error()
    function = getattr(_library, name)
    code = function(*args, ctypes.byref(error))
    if code:
        kind = _ERRORS.get(-code, errors.Error)
        raise kind(-code, error.message.decode("utf-8", "replace"))


def _open() -> ctypes.c_void_p:
    """This process's libtmesh-cuda object."""
    global _library, _handle
    with _lock:
        if _handle is None:
            name = os.environ.get("TMESH_CUDA_LIBRARY", "libtmesh-cuda.so.0")
            try:
                _library = ctypes.CDLL(name)
            except OSError as problem:
                raise errors.UnsupportedError(errno.EOPNOTSUPP, f"{name} is not installed: {problem}") from None
            for function in ("tmesh_cuda_memory_unref", "tmesh_region_unref", "tmesh_cuda_trim"):
                getattr(_library, function).restype = None
            handle = ctypes.c_void_p()
            _call("tmesh_cuda_default", ctypes.byref(handle))
            _handle = handle
    return _handle


def _forked() -> None:
    """The parent's driver is of no use to a child, which opens its own; the parent's arrays refuse there."""
    global _handle, _lock
    _handle, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


def available() -> bool:
    """Whether there are libtmesh-cuda, a driver and a GPU; why not is what other calls raise."""
    try:
        _open()
    except errors.Error:
        return False
    return True


def _layout(shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None, offset: int = 0) -> _Layout:
    layout = _Layout(ndim=len(shape), offset=offset)
    if dtype not in _DTYPES or len(shape) > _DIMS:
        raise errors.InvalidError(errno.EINVAL, f"{dtype} with {len(shape)} dimensions is no tensor of tmesh's")
    layout.dtype = _DTYPES.index(dtype) + 1
    step = 1
    for i in reversed(range(len(shape))):
        layout.shape[i] = shape[i]
        layout.strides[i] = step if strides is None else strides[i]
        step *= max(shape[i], 1)
    return layout


class Array:
    """An array in GPU memory, or in host memory that a GPU uses; made by `empty` and `open`."""

    def __init__(self, memory: ctypes.c_void_p, layout: _Layout, stream: int | None = None) -> None:
        self._memory: ctypes.c_void_p | None = memory
        self._layout = layout
        # What made the array is ordered before this stream's work from then on; None: nothing did.
        self._stream = None if stream == _NO_STREAM else stream
        self._ordered = stream == _NO_STREAM  # by who opened it

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._layout.shape[:self._layout.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(self._layout.strides[:self._layout.ndim])

    @property
    def dtype(self) -> str:
        return _DTYPES[self._layout.dtype - 1]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM[self._layout.dtype - 1]

    def _need(self) -> None:
        if self._memory is None:
            raise errors.ReleasedError(errno.EBADF, "the array was released")

    def _info(self) -> _Info:
        self._need()
        info = _Info(size=ctypes.sizeof(_Info))
        _call("tmesh_cuda_info", self._memory, ctypes.byref(info))
        return info

    @property
    def device(self) -> str:
        """"cuda:N" of the GPU that has the memory, or for host memory uses it."""
        info = self._info()
        return f"cuda:{info.device if info.resident < 0 else info.resident}"

    @property
    def kind(self) -> str:
        """host, own, imported or ipc."""
        return _KINDS[self._info().kind]

    @property
    def writable(self) -> bool:
        return bool(self._info().rights & _WRITE)

    @property
    def taken(self) -> bool:
        """Its owner took the memory back, or its lease has lapsed: the pointer leads to nothing."""
        return bool(self._info().taken)

    @property
    def pointer(self) -> int:
        """Device pointer of the first element. The memory must be there: StaleError."""
        info = self._info()
        if info.taken:
            raise errors.StaleError(errno.ESTALE, "the memory was taken back")
        return int(info.pointer + self._layout.offset)

    def ref(self, stream: int | None = None) -> dict[str, Any]:
        """As `share`."""
        self._need()
        text = _RefText()
        _call("tmesh_cuda_share", self._memory, ctypes.byref(self._layout),
              ctypes.c_void_p((self._stream or 0) if stream is None else stream), text, ctypes.c_size_t(_REF_BYTES))
        ref: dict[str, Any] = json.loads(text.value)
        return ref

    def reclaim(self, timeout: float | None = None) -> None:
        """Take the memory back from all other processes; PeerTimeoutError names who still has it. timeout: in seconds,
        None: no limit."""
        if timeout is not None and not timeout >= 0:
            raise errors.InvalidError(errno.EINVAL, "timeout is None or at least 0 seconds")
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._need()
            left = max(end - time.monotonic(), 0)
            try:
                # A little at a time, so that Ctrl-C is heard.
                _call("tmesh_cuda_reclaim", self._memory, ctypes.c_uint64(int(min(left, 0.1) * 1e9)))
                return
            except errors.PeerTimeoutError:
                if left <= 0.1:
                    raise

    def touch(self) -> None:
        """Keep the lease; StaleError when the memory was taken back."""
        self._info()
        if _library.tmesh_cuda_touch(self._memory):
            raise errors.StaleError(errno.ESTALE, "the memory was taken back")

    def release(self) -> None:
        """Let go now. What consumers made of the array keeps the memory."""
        memory, self._memory = self._memory, None
        if memory is not None:
            _library.tmesh_cuda_memory_unref(memory)

    def __del__(self) -> None:
        if getattr(self, "_memory", None) is not None:
            self.release()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        code = {"bool": "b", "bfloat16": None}.get(self.dtype, self.dtype[0])
        if code is None or self.dtype.startswith("float8"):
            raise AttributeError(f"{self.dtype} has no array interface; use DLPack")
        item = _ITEM[self._layout.dtype - 1]
        return {"shape": self.shape, "typestr": f"{'|' if item == 1 else '<'}{code}{item}",
                "data": (self.pointer, not self.writable), "strides": tuple(s * item for s in self.strides),
                "version": 3, "stream": None if self._stream is None else self._stream or _LEGACY_STREAM}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DL_CUDA, int(self.device.partition(":")[2]))

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("tmesh makes no copy, and no other device's memory")
        if stream != _NO_STREAM and not self._ordered:
            _call("tmesh_cuda_wait", self._memory, ctypes.c_void_p(0 if stream in (None, _LEGACY_STREAM) else stream))
        managed = ctypes.c_void_p()
        if max_version is not None and max_version[0] >= 1:
            _call("tmesh_cuda_to_dlpack_versioned", self._memory, ctypes.byref(self._layout), ctypes.c_uint32(1),
                  ctypes.byref(managed))
            return _capsule(managed.value, _VERSIONED)
        _call("tmesh_cuda_to_dlpack", self._memory, ctypes.byref(self._layout), ctypes.byref(managed))
        return _capsule(managed.value, _UNVERSIONED)

    def __repr__(self) -> str:
        return "<tmesh.cuda.Array, released>" if self._memory is None else \
            f"<tmesh.cuda.Array {self.dtype}{list(self.shape)} on {self.device}, {self.kind}>"


# A capsule that nobody took runs its tensor's deleter: the second or third pointer of the struct.
_UNVERSIONED, _VERSIONED = b"dltensor", b"dltensor_versioned"
_api = ctypes.pythonapi
_new: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_deleter: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _drop(capsule: int) -> None:
    for name, at in ((_UNVERSIONED, 56), (_VERSIONED, 16)):
        if _is_valid(capsule, name):
            managed = _pointer(capsule, name)
            _deleter(ctypes.c_void_p.from_address(managed + at).value)(managed)


_drop_pointer = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


def _capsule(managed: int | None, name: bytes) -> object:
    return _new(managed, name, ctypes.cast(_drop_pointer, ctypes.c_void_p))


def empty(shape: int | Sequence[int], dtype: str = "float32", device: int = 0, *, alone: bool = False,
          or_host: bool = False) -> Array:
    """A new array on a GPU, writable, whose contents are not specified: what was in the memory before is
    not overwritten, as the driver gives it. `alone`: in a block of its own, so that who opens its ref can
    reach nothing else. `or_host`: in host memory when the GPU has none left (`kind` says so)."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    layout = _layout(shape, dtype)
    size = max(math.prod(shape) * _ITEM[layout.dtype - 1], 1)
    memory = ctypes.c_void_p()
    _call("tmesh_cuda_alloc", _open(), ctypes.c_int(device), ctypes.c_uint64(size),
          ctypes.c_uint32(2 * or_host + 4 * alone), ctypes.byref(memory))
    return Array(memory, layout)


def zeros(shape: int | Sequence[int], dtype: str = "float32", device: int = 0, *, alone: bool = False,
          or_host: bool = False) -> Array:
    """A new array of zeros; as `empty`. They are there when it returns."""
    array = empty(shape, dtype, device, alone=alone, or_host=or_host)
    stream = ctypes.c_void_p(_LEGACY_STREAM)
    _call("tmesh_cuda_zero", array._memory, stream)
    _call("tmesh_cuda_record", array._memory, stream)  # new memory has no event: the host waits
    return array


def open(ref: str | dict[str, Any], *, writable: bool = False, device: int | None = None, stream: int = 0,
         lease: float | None = None) -> Array:
    """The array of a ref, for kernels on GPU `device` (default: the one that has it). What `stream`
    does from now on waits for what the producer's did before it shared; -1: nothing waits, the caller
    has seen to the order. The stream is to live as long as the array, which names it to consumers
    (`__cuda_array_interface__`) and is shared on after it. A ref to host memory is registered with the
    driver. With a `lease` in seconds, it is let go of when it was not touched for so long."""
    text = (ref if isinstance(ref, str) else _encode(ref)).encode()
    opts = _ImportOpts(_OPTS_BYTES, _READ | _WRITE if writable else _READ, -1 if device is None else device,
                       int((lease or 0) * 1e9))
    memory, layout = ctypes.c_void_p(), _Layout()
    _call("tmesh_cuda_open_ref", _open(), text, ctypes.c_size_t(len(text)), ctypes.byref(opts),
          ctypes.c_void_p(stream), ctypes.byref(memory), ctypes.byref(layout))
    return Array(memory, layout, stream)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


_DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
_DL_OTHERS = {6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}


def _describe_dlpack(array: Any, stream: int) -> tuple[int, _Layout, int]:
    """Whoever has the array keeps it: its capsule is read and dropped. `stream` waits for its producer."""
    if not hasattr(array, "__dlpack__") or array.__dlpack_device__()[0] != _DL_CUDA:
        raise errors.InvalidError(errno.EINVAL, f"{type(array).__name__} has no __cuda_array_interface__, and no "
                                  "DLPack with memory on a GPU")
    capsule = array.__dlpack__(stream=stream or _LEGACY_STREAM)
    dl = _DLTensor.from_address(_pointer(id(capsule), _UNVERSIONED))
    dtype = _DL_OTHERS.get(dl.code, f"{_DL_CODES.get(dl.code)}{dl.bits}") if dl.lanes == 1 else "a vector"
    strides = tuple(dl.strides[:dl.ndim]) if dl.strides else None
    return (dl.data or 0) + dl.offset, _layout(tuple(dl.shape[:dl.ndim]), dtype, strides), stream


def _describe(array: Any, stream: int = 0) -> tuple[int, _Layout, int]:
    """(pointer, layout, stream) of a framework's array. What it does not say of a stream is made so that
    `stream` is right."""
    if hasattr(array, "data_ptr"):
        import torch

        layout = _layout(tuple(array.shape), str(array.dtype).partition(".")[2], tuple(array.stride()))
        return array.data_ptr(), layout, torch.cuda.current_stream(array.device).cuda_stream
    face = getattr(array, "__cuda_array_interface__", None)
    if face is None:
        return _describe_dlpack(array, stream)
    item = int(face["typestr"][2:])
    dtype = "bool" if face["typestr"][1] == "b" else f"{_TYPESTR.get(face['typestr'][1])}{8 * item}"
    strides = face.get("strides")
    layout = _layout(tuple(face["shape"]), dtype, strides and [s // item for s in strides])
    stream = face.get("stream")
    return face["data"][0], layout, 0 if stream in (None, _LEGACY_STREAM) else stream


_lent: dict[int, Any] = {}
_numbers = itertools.count(1)


def _return(number: int) -> None:
    """Called by the library, on any thread, when nobody holds a lent array any more."""
    _lent.pop(number, None)


_return_pointer = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(_return)


def lend(array: Any) -> Array:
    """A framework's array that lies in memory of tmesh's, as an array like those of `empty`: released
    here, it stays until no other process holds it, and keeps `array` so long. Its ref waits for the
    stream that is current now."""
    pointer, layout, stream = _describe(array)
    item = _ITEM[layout.dtype - 1]
    steps = [(layout.shape[i] - 1) * layout.strides[i] for i in range(layout.ndim) if layout.shape[i]]
    low = sum(min(step, 0) for step in steps)
    size = (sum(max(step, 0) for step in steps) - low + 1) * item
    whole, part, offset = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    _call("tmesh_cuda_find", _open(), ctypes.c_uint64(pointer), ctypes.byref(whole), ctypes.byref(offset))
    number = next(_numbers)
    _lent[number] = array
    try:
        _call("tmesh_cuda_part", whole, ctypes.c_uint64(offset.value + low * item), ctypes.c_uint64(size),
              _return_pointer, ctypes.c_size_t(number), ctypes.byref(part))
    except errors.Error:
        _return(number)
        raise
    finally:
        _library.tmesh_cuda_memory_unref(whole)
    layout.offset = -low * item
    return Array(part, layout, stream)


_foreign: dict[int, ctypes.c_void_p] = {}
_FOREIGN_KEPT = 256


def _keep(pointer: int, region: ctypes.c_void_p) -> None:
    """One region for each place in memory that is not tmesh's. Its tokens are good until the place is
    shared anew, or so many others were; who has opened one by then needs it no more."""
    with _lock:
        gone = [_foreign.pop(pointer)] if pointer in _foreign else []
        _foreign[pointer] = region
        if len(_foreign) > _FOREIGN_KEPT:
            gone.append(_foreign.pop(next(iter(_foreign))))
    for old in gone:
        _library.tmesh_region_unref(old)


def share(array: Any, *, stream: int | None = None) -> dict[str, Any]:
    """A ref to it, a dict. Who opens it waits for what the array's current stream, or `stream`, does
    up to now; with -1 for nothing."""
    if isinstance(array, Array):
        return array.ref(stream)
    pointer, layout, current = _describe(array, stream or 0)
    stream = current if stream is None else stream
    memory, offset = ctypes.c_void_p(), ctypes.c_uint64()
    text = _RefText()
    try:
        _call("tmesh_cuda_find", _open(), ctypes.c_uint64(pointer), ctypes.byref(memory), ctypes.byref(offset))
    except errors.NotFoundError:
        region = ctypes.c_void_p()
        _call("tmesh_cuda_share_ipc", _open(), ctypes.c_uint64(pointer), ctypes.byref(layout),
              ctypes.c_void_p(stream), text, ctypes.c_size_t(_REF_BYTES), ctypes.byref(region))
        _keep(pointer, region)
        ref: dict[str, Any] = json.loads(text.value)
        return ref
    layout.offset = offset.value
    try:
        _call("tmesh_cuda_share", memory, ctypes.byref(layout), ctypes.c_void_p(stream), text,
              ctypes.c_size_t(_REF_BYTES))
    finally:
        _library.tmesh_cuda_memory_unref(memory)
    ref = json.loads(text.value)
    return ref
