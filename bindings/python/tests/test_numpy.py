# SPDX-License-Identifier: MIT
"""NumPy arrays over tensors, and into them."""

import gc
import sys
import weakref

import numpy as np
import pytest

import tmesh
from tmesh.elements import numpy_type
from conftest import assert_refused

NUMPY = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "float16", "float32", "float64", "complex64", "complex128"]
NOT_NUMPY = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "float4_e2m1fn"]


def sample(dtype):
    return (np.arange(24).reshape(2, 3, 4) % 2 if dtype == "bool"
            else np.arange(24).reshape(2, 3, 4) - (0 if dtype[0] == "u" else 12)).astype(dtype)


@pytest.mark.parametrize("dtype", NUMPY)
def test_round_trip(dtype):
    array = sample(dtype)
    t = tmesh.put(array, seal=False)
    out = t.numpy()
    assert (t.dtype, out.dtype, out.shape) == (dtype, np.dtype(dtype), array.shape)
    assert out.dtype.char == np.dtype(dtype).char
    assert np.array_equal(out, array)
    assert out.flags.c_contiguous and out.flags.aligned and not out.flags.owndata
    assert np.array_equal(np.asarray(t), array) and np.asarray(t).dtype == array.dtype


@pytest.mark.parametrize("dtype", NOT_NUMPY)
def test_refused_dtypes_are_named(dtype):
    if numpy_type(dtype) is not None:
        pytest.skip(f"ml_dtypes, which is installed, has {dtype}: test_ml_dtypes.py")
    t = tmesh.empty((2, 4), dtype)
    for look in (t.numpy, lambda: np.asarray(t), lambda: memoryview(t), lambda: t.__array__()):
        assert_refused(look, tmesh.UnsupportedError, dtype)
    assert_refused(t.numpy, tmesh.UnsupportedError, "uint8")
    t.view("uint8").numpy()[:] = 1
    assert bytes(t.view("uint8")) == b"\1" * t.nbytes


def test_bfloat16_bits():
    """The documentation's way to the bits: through a dtype that NumPy has."""
    t = tmesh.empty(2, "bfloat16")
    t.view("uint16").numpy()[:] = [0x3f80, 0xc000]
    assert t.view("uint8").numpy().tolist() == [0x80, 0x3f, 0x00, 0xc0]


@pytest.mark.parametrize("make", [
    lambda a: a[::2], lambda a: a[::-1], lambda a: a.T, lambda a: a[:, 1:2], lambda a: a[1],
    lambda a: np.asfortranarray(a), lambda a: np.broadcast_to(a[0], (5, 3, 4)),
    lambda a: a[::-1, ::2, ::-3], lambda a: a[:0], lambda a: a[0, 0, 0],
])
def test_put_makes_contiguous_with_one_copy(make):
    array = make(np.arange(24, dtype="float64").reshape(2, 3, 4))
    before = tmesh.stats()
    t = tmesh.put(array, seal=False)
    after = tmesh.stats()
    assert np.array_equal(t.numpy(), array) and t.numpy().flags.c_contiguous
    assert after["bytes_copied"] - before["bytes_copied"] == array.nbytes
    assert after["copies"] - before["copies"] == (1 if array.nbytes else 0)


def test_zero_copy():
    t = tmesh.empty(4, "int32")
    a, b = t.numpy(), np.asarray(t)
    copied = tmesh.stats()["bytes_copied"]
    a[2] = 5
    assert b[2] == 5 and a.ctypes.data == b.ctypes.data
    assert a.ctypes.data % 256 == 0
    assert memoryview(a.base).nbytes == 16
    assert tmesh.stats()["bytes_copied"] == copied


@pytest.mark.parametrize("key", [slice(None, None, -1), (slice(None), 1), (0, slice(3, 0, -2)), slice(0, 0)])
def test_strided_views(key):
    array = np.arange(12, dtype="int16").reshape(3, 4)
    out = tmesh.put(array, seal=False)[key].numpy()
    assert np.array_equal(out, array[key]) and out.strides == array[key].strides
    low, high = np.lib.array_utils.byte_bounds(out) if hasattr(np.lib, "array_utils") else \
        np.byte_bounds(out)
    assert not out.size or memoryview(out.base).nbytes == high - low


@pytest.mark.parametrize("source", [
    [1, 2, 3], [[1.5], [2.5]], 7, 2.5, True, (1, 2), [1 + 2j], range(4), np.float32(3), [],
])
def test_lists_go_through_numpy(source):
    want = np.asarray(source)
    t = tmesh.put(source, seal=False)
    assert t.dtype == want.dtype.name and np.array_equal(t.numpy(), want)


@pytest.mark.parametrize("array", [
    np.zeros(2, ">f4"), np.zeros(2, ">c8"), np.array(["a"]), np.array([b"ab"]), np.array([None]),
    np.zeros(2, [("a", "i4"), ("b", "f8")]), np.zeros(2, "longdouble"), np.zeros(2, "clongdouble"),
    "text", [object()],
])
def test_refused_arrays(array):
    assert_refused(lambda: tmesh.put(array, seal=False), tmesh.UnsupportedError, "format")


class DLPackAlone(np.ndarray):
    """An array without a buffer, like JAX's bfloat16 arrays; datetimes have none either."""

    def __dlpack__(self, **kwargs):
        return self.view("int64").view(np.ndarray).__dlpack__()


def test_refused_by_numpy_itself():
    dates = np.arange(3).view("datetime64[s]")
    assert_refused(lambda: tmesh.put(dates, seal=False), tmesh.UnsupportedError, "DLPack.*view them as integers")
    copies = tmesh.stats()["copies"]
    assert tmesh.put(dates.view(DLPackAlone), seal=False).numpy().tolist() == [0, 1, 2]
    assert tmesh.stats()["copies"] == copies + 1


def test_field_of_a_structure():
    packed = np.zeros(3, np.dtype([("a", "i1"), ("b", "f4")]))
    assert_refused(lambda: tmesh.put(packed["b"], seal=False), tmesh.UnsupportedError, "contiguous first")
    one = np.lib.stride_tricks.as_strided(np.arange(6, dtype="int32"), (1, 3), (5, 8))
    assert tmesh.put(one, seal=False).numpy().tolist() == [[0, 2, 4]]
    aligned = np.zeros(3, np.dtype([("a", "i4"), ("b", "f4")]))
    aligned["b"] = [1, 2, 3]
    assert tmesh.put(aligned["b"], seal=False).numpy().tolist() == [1, 2, 3]


def test_foreign_byte_order_dtype():
    assert_refused(lambda: tmesh.empty(1, np.dtype(">f4")), tmesh.InvalidError, "byte order")


def test_read_only():
    t = tmesh.put(np.arange(3), seal=False)
    r = tmesh.open(t.ref()).numpy()
    for array in (r, t.numpy(writable=False), np.asarray(tmesh.open(t.ref()))):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True
    assert_refused(lambda: tmesh.open(t.ref()).numpy(writable=True), tmesh.AccessError, "read-only here")
    assert t.numpy(writable=True).flags.writeable
    t.seal()
    assert not t.numpy().flags.writeable
    assert_refused(lambda: t.numpy(writable=True), tmesh.SealedError)


def test_array_keeps_the_memory():
    array = tmesh.put(np.arange(1000), seal=False).numpy()
    part = array[10:20]
    del array
    gc.collect()
    assert part.sum() == sum(range(10, 20))


def test_array_keeps_the_tensor_no_longer_than_needed():
    t = tmesh.put(np.arange(3), seal=False)
    count = sys.getrefcount(t)
    array = t.numpy()
    assert sys.getrefcount(t) == count + 1
    gone = weakref.ref(array)
    del array
    assert gone() is None and sys.getrefcount(t) == count


def test_array_protocol():
    t = tmesh.put(np.arange(3, dtype="int16"), seal=False)
    assert t.__array__().ctypes.data == t.numpy().ctypes.data
    assert t.__array__("float64").tolist() == [0.0, 1.0, 2.0]
    assert t.__array__(None, True).ctypes.data != t.numpy().ctypes.data
    assert np.add(t, 1).tolist() == [1, 2, 3]
    assert np.frombuffer(t, "int16").tolist() == [0, 1, 2]


def test_arguments():
    t = tmesh.empty(1, "uint8")
    assert_refused(lambda: t.numpy(True), TypeError)
    assert_refused(lambda: t.numpy(copy=True), TypeError)


def test_memmap(tmp_path):
    np.arange(100, dtype="float32").tofile(tmp_path / "x")
    t = tmesh.put(np.memmap(tmp_path / "x", dtype="float32", mode="r"), seal=False)
    assert t.numpy()[99] == 99
