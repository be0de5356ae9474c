# SPDX-License-Identifier: MIT
"""Python's buffer protocol, both ways."""

import array
import ctypes
import hashlib
import io
import mmap
import struct

import numpy as np
import pytest

import tmesh
from conftest import assert_refused


@pytest.mark.parametrize("source, dtype", [
    (b"abc", "uint8"), (bytearray(b"abc"), "uint8"), (memoryview(b"abcd")[::2], "uint8"),
    (array.array("i", [1, 2]), "int32"), (array.array("q", [1]), "int64"),
    (array.array("L", [1]), "uint64"), (array.array("d", [1.5]), "float64"),
    ((ctypes.c_float * 3)(1, 2, 3), "float32"), ((ctypes.c_uint16 * 2 * 2)(), "uint16"),
    (memoryview(b"abcdefgh").cast("H"), "uint16"), (memoryview(bytes(4)).cast("?"), "bool"),
    (b"", "uint8"),
])
def test_put(source, dtype):
    view = memoryview(source)
    t = tmesh.put(source, seal=False)
    assert (t.dtype, t.shape) == (dtype, view.shape)
    assert bytes(t) == view.tobytes()


@pytest.mark.parametrize("struct_type, dtype", [
    (ctypes.LittleEndianStructure, None), (ctypes.c_long, "int64"), (ctypes.c_int32, "int32"),
    (ctypes.c_uint64, "uint64"), (ctypes.c_bool, "bool"), (ctypes.c_double, "float64"),
])
def test_ctypes(struct_type, dtype):
    """ctypes writes standard formats, in which "<l" has 8 bytes by its buffer's item size."""
    if dtype is None:
        class Pair(struct_type):
            _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_int)]
        assert_refused(lambda: tmesh.put((Pair * 2)(), seal=False), tmesh.UnsupportedError, "format")
    else:
        assert tmesh.put((struct_type * 2)(), seal=False).dtype == dtype


def test_byte_order():
    """A single byte has no byte order."""
    ndarray = pytest.importorskip("_testbuffer", reason="CPython's own tests are not installed").ndarray
    for order in "><!=@":
        assert tmesh.put(ndarray([1, 2], shape=[2], format=f"{order}B"), seal=False).dtype == "uint8"
    for order in ">!":
        with pytest.raises(tmesh.UnsupportedError, match="format"):
            tmesh.put(ndarray([1, 2], shape=[2], format=f"{order}h"), seal=False)


def test_mmap_source():
    with mmap.mmap(-1, 4096) as source:
        source[:3] = b"xyz"
        assert bytes(tmesh.put(source, seal=False))[:3] == b"xyz"


def test_memoryview():
    t = tmesh.put(np.arange(6, dtype="int32").reshape(2, 3), seal=False)
    view = memoryview(t)
    assert (view.format, view.itemsize, view.shape, view.strides) == ("i", 4, (2, 3), (12, 4))
    assert (view.nbytes, view.ndim, view.readonly, view.c_contiguous) == (24, 2, False, True)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    view[1, 2] = 9
    assert t.numpy()[1, 2] == 9
    assert view.obj is t
    view.release()


def test_read_only():
    t = tmesh.put(b"abc", seal=False)
    assert memoryview(tmesh.open(t.ref())).readonly
    with pytest.raises(TypeError):
        memoryview(tmesh.open(t.ref()))[0] = 1
    assert_refused(lambda: io.BytesIO(b"xyz").readinto(tmesh.open(t.ref())), TypeError, "read-write")
    t.seal()
    assert_refused(lambda: io.BytesIO(b"xyz").readinto(t), TypeError, "read-write")
    assert bytes(t) == b"abc"


def test_consumers():
    t = tmesh.put(b"abcd", seal=False)
    assert hashlib.sha256(t).digest() == hashlib.sha256(b"abcd").digest()
    assert io.BytesIO(t).read() == b"abcd"
    io.BytesIO(b"wxyz").readinto(t)
    assert bytes(t) == b"wxyz" and bytearray(t) == b"wxyz"
    assert struct.unpack("4s", t) == (b"wxyz",)
    struct.pack_into("B", t, 0, 1)
    assert t.numpy()[0] == 1


def test_bytes_of_any_dtype():
    """Consumers that request bytes without elements get them for every dtype."""
    t = tmesh.empty((2, 4), "bfloat16")
    assert hashlib.sha256(t).digest() == hashlib.sha256(bytes(16)).digest()
    t = tmesh.empty(4, "uint4")
    assert hashlib.sha256(t).digest() == hashlib.sha256(bytes(2)).digest()


def test_strided():
    t = tmesh.put(np.arange(12, dtype="int16").reshape(3, 4), seal=False)
    view = memoryview(t[::-1, ::2])
    assert view.strides == (-8, 4) and view.tolist() == [[8, 10], [4, 6], [0, 2]]
    assert_refused(lambda: hashlib.sha256(t[::2]), tmesh.UnsupportedError, "C order|strides|contiguous")
    assert bytes(t[::2]) == t.numpy()[::2].tobytes()


class Buffer(ctypes.Structure):
    """Py_buffer."""
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


def asked(exporter, flags):
    """Return the buffer that a consumer in C gets for these flags; None if it is refused."""
    buffer = Buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(exporter), ctypes.byref(buffer), flags)
    except (BufferError, ValueError):
        return None
    # The lengths of a scalar are empty or missing. A stride without another element has no effect.
    shape, strides = (list(values[:buffer.ndim]) if values and buffer.ndim else None
                      for values in (buffer.shape, buffer.strides))
    if strides:
        strides = [stride * (size > 1 and buffer.len > 0) for stride, size in zip(strides, shape)]
    told = buffer.len, buffer.itemsize, bool(buffer.readonly), buffer.format, shape, strides
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return told


# PyBUF_SIMPLE, ND, STRIDES, C_, F_ and ANY_CONTIGUOUS
LAYOUTS = [0x00, 0x08, 0x18, 0x38, 0x58, 0x98]


@pytest.mark.parametrize("more", [0, 1, 4], ids=["", "WRITABLE", "FORMAT"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=hex)
def test_consumers_in_c(layout, more):
    """They get the same as from NumPy, and the same requests are refused."""
    t = tmesh.put(np.arange(24, dtype="int16").reshape(4, 6), seal=False)
    fortran = tmesh.open({**t.ref(writable=True), "shape": [6, 4], "strides": [1, 6]}, writable=True)
    for same in (t, t[1], t[::2], t[:, 1:3], t[:1, 1:3], t[:, :1], t[:, 6:], t[4:], t[::-1], fortran,
                 fortran[:3], fortran[:, 1:], t[0, 0], tmesh.open(t.ref())):
        assert asked(same, layout | more) == asked(same.numpy(), layout | more), same


def test_bytes_alone():
    """A consumer that asks for no shape gets bytes, for every dtype."""
    for t in (tmesh.empty(6, "bfloat16"), tmesh.empty(24, "uint4")):
        assert asked(t, 0) == (12, 1, False, None, None, None)


def test_scalar_and_nothing():
    assert memoryview(tmesh.put(3.5, seal=False)).tolist() == 3.5
    assert memoryview(tmesh.empty((0, 3), "int8")).tolist() == []


def test_dimensions():
    assert tmesh.put(np.zeros((1,) * 8), seal=False).ndim == 8
    assert_refused(lambda: tmesh.put(np.zeros((1,) * 9), seal=False), tmesh.InvalidError, "at most 8")
