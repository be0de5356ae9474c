# SPDX-License-Identifier: MIT
"""Elements as Python's numbers, a tensor's truth, dtypes by other names, assignment."""

import math
import operator

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused, pytorch

pytestmark = ANY_BACKEND

NUMBERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
           "float16", "float32", "float64", "complex64", "complex128"]


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_item_and_tolist_as_numpy_has_them(dtype):
    array = np.arange(-4, 20).astype(dtype).reshape(2, 3, 4)
    t = tmesh.put(array)
    assert t.tolist() == array.tolist() and t.size == array.size
    for key in ((1, 2, 3), (0, 0, 0)):
        assert t[key].item() == array[key].item()
        assert type(t[key].item()) is type(array[key].item())
        assert t[key].tolist() == array[key].item()
    for view in (lambda x: x[::-1, :, ::2], lambda x: x[:, 1], lambda x: x[:0], lambda x: x[..., None]):
        assert view(t).tolist() == view(array).tolist() and view(t).size == view(array).size
    if dtype[0] in "iu":
        limits = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        assert tmesh.put(limits).tolist() == limits.tolist()


def test_half_floats_each():
    """Compare every bit pattern with NumPy."""
    bits = np.arange(1 << 16, dtype="uint16")
    got = tmesh.put(bits).view("float16").tolist()
    assert all(map(same, got, bits.view("float16").tolist()))
    signs = tmesh.put(np.array([-0.0, 0.0], "float16")).tolist()
    assert [math.copysign(1, value) for value in signs] == [-1, 1]
    wide = (bits.astype("uint32") << 16).view("float32").tolist()
    assert all(map(same, tmesh.put(bits).view("bfloat16").tolist(), wide))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_small_floats_each(dtype):
    torch = pytorch()
    kind = getattr(torch, dtype, None)
    if kind is None:
        pytest.skip(f"this PyTorch has no {dtype}")
    bits = torch.arange(256, dtype=torch.uint8)
    got = tmesh.put(bits).view(dtype).tolist()
    assert all(map(same, got, bits.view(kind).double().tolist()))


def test_small_floats():
    def values(dtype, *bits):
        return tmesh.put(bytes(bits)).view(dtype).tolist()

    assert values("float8_e4m3fn", 0, 1, 8, 0x38, 0x7e, 0xfe) == [0, 2**-9, 2**-6, 1, 448, -448]
    assert math.isnan(values("float8_e4m3fn", 0x7f)[0]) and math.isnan(values("float8_e4m3fn", 0xff)[0])
    assert values("float8_e5m2", 0, 1, 4, 0x3c, 0x7b, 0x7c, 0xfc) == [
        0, 2**-16, 2**-14, 1, 57344, math.inf, -math.inf]
    assert math.isnan(values("float8_e5m2", 0x7d)[0])


def test_nibbles():
    t = tmesh.put(bytes(low | high << 4 for low, high in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9),
                                                          (10, 11), (12, 13), (14, 15))))
    assert t.view("uint4").tolist() == [*range(16)]
    assert t.view("int4").tolist() == [*range(8), *range(-8, 0)]
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert t.view("float4_e2m1fn").tolist() == positive + [-value for value in positive]
    assert t.view("uint4").size == 16 and t.view("uint4").reshape(2, 8).tolist()[1][7] == 15


def test_scalars():
    one = tmesh.put(np.array(53, "uint8"))
    assert (int(one), float(one), complex(one), bool(one), operator.index(one), "%d" % one) == (
        53, 53.0, 53, True, 53, "53")
    assert [1, 2, 3][tmesh.put(np.array(1))] == 2
    assert not tmesh.put(np.array(0.0)) and tmesh.put(np.array(0.5))
    assert int(tmesh.put(np.array(2.5))) == 2 and complex(tmesh.put(np.array(1j))) == 1j
    assert tmesh.put(np.ones((1, 1))).item() == 1.0


def test_scalars_are_refused_where_they_are_not_clear():
    for t in (tmesh.put([5]), tmesh.put([1, 2]), tmesh.put(b"")):
        assert_refused(lambda: bool(t), tmesh.InvalidError, "is None")
        for number in (int, float, complex, operator.index):
            assert_refused(lambda: number(t), TypeError, "item")
    for value in (2.5, True, 1j):
        assert_refused(lambda: operator.index(tmesh.put(np.array(value))), TypeError, "integers")
    assert_refused(lambda: float(tmesh.put(np.array(1j))), TypeError)
    for t in (tmesh.put([1, 2]), tmesh.zeros(0, "int8")):
        assert_refused(t.item, tmesh.InvalidError, "one element")
    assert_refused(lambda: 5 in tmesh.put([5]), TypeError, "numpy")
    released = tmesh.put([1])
    released.release()
    for use in (bool, int, tmesh.Tensor.item, tmesh.Tensor.tolist, lambda t: t.size):
        assert_refused(lambda: use(released), tmesh.ReleasedError)


def test_lists_do_not_keep_the_tensor():
    t = tmesh.put(np.arange(6.0).reshape(2, 3), seal=False)
    t.tolist(), t[0, 0].item()
    t.seal()
    t.release()


@pytest.mark.parametrize("key", [
    None, (None, 1), (1, None), (None, slice(1), None), (..., None), (None, ...), (None, ..., None),
    (0, None, 1, None, 2), (None, None, 0, ..., None, 0),
])
def test_new_dimensions(key):
    array = np.arange(24).reshape(2, 3, 4)
    t = tmesh.put(array)[key]
    assert t.shape == array[key].shape and t.tolist() == array[key].tolist()
    assert np.array_equal(tmesh.open(t.ref()).numpy(), array[key])


def test_too_many_new_dimensions():
    t = tmesh.zeros((2,) * 8, "uint8")
    for key in (None, (..., None), (None,) * 1000):
        assert_refused(lambda: t[key], IndexError, "8 dimensions")
    assert t[0, None].shape == (1,) + (2,) * 7
    assert t[(0,) * 8 + (None,) * 8].shape == (1,) * 8


@pytest.mark.parametrize("spelled, dtype", [
    (float, "float64"), (int, "int64"), (bool, "bool"), (complex, "complex128"),
    ("f4", "float32"), ("<f8", "float64"), ("=i2", "int16"), ("|u1", "uint8"), ("?", "bool"), ("b1", "bool"),
    ("c8", "complex64"), ("float", "float64"), ("int", "int64"), ("half", "float16"), ("single", "float32"),
    (np.float16, "float16"), (np.bool_, "bool"), (np.longlong, "int64"), (np.ulonglong, "uint64"),
    (np.double, "float64"), (np.dtype("c16"), "complex128"),
])
def test_dtypes_by_other_names(spelled, dtype):
    for t in (tmesh.zeros(8, spelled), tmesh.empty(8, spelled), tmesh.zeros(128, "uint8").view(spelled)):
        assert t.dtype == dtype
    if not isinstance(spelled, str) or spelled not in ("?",):
        assert tmesh.zeros(1, np.dtype(spelled)).dtype == dtype


@pytest.mark.parametrize("bad", ["f3", "f", "<", "", "==f4", ">i4", "O", "S4", "u16", object, str, "M8[s]",
                                 np.dtype("datetime64[s]"), np.dtype(">f8"), [("a", int)]])
def test_dtypes_that_are_none(bad):
    assert_refused(lambda: tmesh.zeros(1, bad), tmesh.InvalidError)


def test_assignment():
    t = tmesh.zeros((2, 3), "float32")
    t[0] = 5
    t[1, 1:] = [1, 2]
    assert tmesh.open(t).tolist() == [[5, 5, 5], [0, 1, 2]]
    with pytest.raises(ValueError):
        t[0] = [1, 2]
    with pytest.raises(TypeError):
        del t[0]
    with pytest.raises(tmesh.AccessError):
        tmesh.open(t)[0] = 5
    t.seal()
    with pytest.raises(tmesh.SealedError, match=r"tmesh.put\(tensor, seal=False\) is a copy"):
        t[0] = 5
    other = tmesh.put(t, seal=False)
    other[0, 0] = 7
    assert (other[0, 0].item(), t[0, 0].item()) == (7, 5)


def test_open_a_tensor():
    t = tmesh.zeros((2, 3), "int16")
    reader, writer = tmesh.open(t), tmesh.open(t[1:], writable=True)
    assert (reader.id, reader.writable, writer.writable, writer.shape) == (t.id, False, True, (1, 3))
    writer[0, 0] = 9
    t.release()
    assert reader.tolist() == [[0, 0, 0], [9, 0, 0]]
    assert_refused(lambda: tmesh.open(reader, writable=True), tmesh.AccessError)
    assert_refused(lambda: tmesh.open(t), tmesh.ReleasedError)
