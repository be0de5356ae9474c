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
    t = tmesh.put(source)
    assert (t.dtype, t.shape) == (dtype, view.shape)
    assert bytes(t) == view.tobytes()


@pytest.mark.parametrize("struct_type, dtype", [
    (ctypes.LittleEndianStructure, None), (ctypes.c_long, "int64"), (ctypes.c_int32, "int32"),
    (ctypes.c_uint64, "uint64"), (ctypes.c_bool, "bool"), (ctypes.c_double, "float64"),
])
def test_ctypes(struct_type, dtype):
    """ctypes writes standard formats, where "<l" is 8 bytes by its buffer's item size."""
    if dtype is None:
        class Pair(struct_type):
            _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_int)]
        with pytest.raises(tmesh.UnsupportedError, match="format"):
            tmesh.put((Pair * 2)())
    else:
        assert tmesh.put((struct_type * 2)()).dtype == dtype


def test_mmap_source():
    with mmap.mmap(-1, 4096) as source:
        source[:3] = b"xyz"
        assert bytes(tmesh.put(source))[:3] == b"xyz"


def test_memoryview():
    t = tmesh.put(np.arange(6, dtype="int32").reshape(2, 3))
    view = memoryview(t)
    assert (view.format, view.itemsize, view.shape, view.strides) == ("i", 4, (2, 3), (12, 4))
    assert (view.nbytes, view.ndim, view.readonly, view.c_contiguous) == (24, 2, False, True)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    view[1, 2] = 9
    assert t.numpy()[1, 2] == 9
    assert view.obj is t
    view.release()


def test_read_only():
    t = tmesh.put(b"abc")
    assert memoryview(tmesh.open(t.ref())).readonly
    with pytest.raises(TypeError):
        memoryview(tmesh.open(t.ref()))[0] = 1
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(b"xyz").readinto(tmesh.open(t.ref()))
    t.seal()
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(b"xyz").readinto(t)
    assert bytes(t) == b"abc"


def test_consumers():
    t = tmesh.put(b"abcd")
    assert hashlib.sha256(t).digest() == hashlib.sha256(b"abcd").digest()
    assert io.BytesIO(t).read() == b"abcd"
    io.BytesIO(b"wxyz").readinto(t)
    assert bytes(t) == b"wxyz" and bytearray(t) == b"wxyz"
    assert struct.unpack("4s", t) == (b"wxyz",)
    struct.pack_into("B", t, 0, 1)
    assert t.numpy()[0] == 1


def test_bytes_of_any_dtype():
    """Consumers that want bytes and no elements get them whatever the dtype."""
    t = tmesh.empty((2, 4), "bfloat16")
    assert hashlib.sha256(t).digest() == hashlib.sha256(bytes(16)).digest()
    t = tmesh.empty(4, "uint4")
    assert hashlib.sha256(t).digest() == hashlib.sha256(bytes(2)).digest()


def test_strided():
    t = tmesh.put(np.arange(12, dtype="int16").reshape(3, 4))
    view = memoryview(t[::-1, ::2])
    assert view.strides == (-8, 4) and view.tolist() == [[8, 10], [4, 6], [0, 2]]
    with pytest.raises(tmesh.UnsupportedError, match="C order|strides|contiguous"):
        hashlib.sha256(t[::2])
    assert bytes(t[::2]) == t.numpy()[::2].tobytes()


def test_scalar_and_nothing():
    assert memoryview(tmesh.put(3.5)).tolist() == 3.5
    assert memoryview(tmesh.empty((0, 3), "int8")).tolist() == []


def test_dimensions():
    assert tmesh.put(np.zeros((1,) * 8)).ndim == 8
    with pytest.raises(tmesh.InvalidError, match="at most 8"):
        tmesh.put(np.zeros((1,) * 9))
