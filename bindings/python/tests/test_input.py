# SPDX-License-Identifier: MIT
"""Bad input raises a documented error with its reason, changes nothing and leaks nothing."""

from collections.abc import Iterable
import inspect
import json

import numpy as np
import pytest

import tmesh
from conftest import assert_refused


@pytest.fixture(scope="module")
def good():
    t = tmesh.put(np.arange(12, dtype="float32").reshape(3, 4))
    yield t.ref()


@pytest.mark.parametrize("shape, dtype, error", [
    (2**64, "uint8", tmesh.InvalidError), (-2**70, "uint8", tmesh.InvalidError),
    ((1,) * 9, "uint8", tmesh.InvalidError), (1, "", tmesh.InvalidError), (1, ">f4", tmesh.InvalidError),
    (1, "\ud800", tmesh.InvalidError), (1, None, tmesh.InvalidError), (1, 5, tmesh.InvalidError),
    (1.5, "uint8", TypeError), ("3", "uint8", TypeError), (b"3", "uint8", TypeError),
    (None, "uint8", TypeError), ((1, 2.0), "uint8", TypeError), (True, "uint8", TypeError),
    ((True,), "uint8", TypeError), ([[1]], "uint8", TypeError),
])
def test_empty(shape, dtype, error):
    with pytest.raises(error) as caught:
        tmesh.empty(shape, dtype)
    assert str(caught.value)


def test_too_much():
    """More than any machine has. Which part refuses it depends on the machine."""
    assert_refused(lambda: tmesh.empty(2**55, "uint8", huge=True), tmesh.Error)


@pytest.mark.parametrize("arguments, error", [
    ({"label": "x" * 64}, tmesh.InvalidError), ({"label": "a\nb"}, tmesh.InvalidError),
    ({"label": "a\0b"}, tmesh.InvalidError), ({"label": 5}, TypeError),
    ({"label": "\ud800"}, UnicodeEncodeError), ({"huge": 1}, TypeError), ({"huge": "yes"}, TypeError),
    ({"node": -1}, tmesh.InvalidError), ({"node": 2**40}, tmesh.InvalidError), ({"node": "0"}, TypeError),
    ({"mode": -1}, OverflowError), ({"mode": 2**40}, OverflowError), ({"mode": "rw"}, TypeError),
    ({"gid": -1}, tmesh.InvalidError), ({"gid": 2**70}, tmesh.InvalidError),
    ({"gid": 2**32 - 1}, tmesh.InvalidError),
    ({"hold_ms": 5000}, tmesh.InvalidError), ({"hold_ms": -1}, OverflowError),
    ({"sealed": True}, TypeError),
])
def test_region_options(arguments, error):
    for make in (lambda: tmesh.empty(1, "uint8", **arguments), lambda: tmesh.zeros(1, "uint8", **arguments),
                 lambda: tmesh.put(b"x", **arguments)):
        assert_refused(make, error)


@pytest.mark.parametrize("change, error", [
    ({"offset": 4}, "fit"), ({"offset": 2**70}, "offset"), ({"byte_size": 47}, "byte_size"),
    ({"shape": [1] * 1000}, "shape"), ({"shape": [2**63, 4]}, "shape"), ({"strides": [1] * 1000}, "strides"),
    ({"dtype": "float32\0"}, "dtype"), ({"device": "cuda:0x"}, "device"), ({"v": 2}, "version 2"),
    ({"id": "0" * 16}, "region"), ({"token": "x" * 100}, "token"), ({"token": "\ud800"}, "token"),
])
def test_refs_that_lie(good, change, error):
    """As dicts, which other code reads; the error names the wrong member."""
    assert_refused(lambda: tmesh.open({**good, **change}), tmesh.ProtocolError, error)


@pytest.mark.parametrize("text", [
    "", " ", "x" * 10000, "{", '{"v":1}', '{"v":1,"v":1}', '{"v":1}x', "tm1k-" + "0" * 32 + "\n",
    "a\0b", b"\xff\xfe", b"{\xff}", "{" * 5000, " {}", "\ufeff{}",
])
def test_malformed_text(text):
    with pytest.raises(tmesh.ProtocolError) as caught:
        tmesh.open(text)
    assert str(caught.value)


def test_text_with_a_zero(good):
    for text in (good["token"], json.dumps(good)):
        for more in ("\0", "\0x"):
            for bad in (text + more, (text + more).encode()):
                assert_refused(lambda: tmesh.open(bad), tmesh.ProtocolError)


@pytest.mark.parametrize("thing", [None, 5, 1.5, [], (), object(), bytearray(b"x")])
def test_wrong_types(thing):
    assert_refused(lambda: tmesh.open(thing), TypeError, "ref|token")


def test_open_arguments(good):
    for arguments, names in (((), {}), ((good, False, 1), {}), ((good,), {"write": True}),
                             ((good, True), {"writable": True}), ((), {"ref": good})):
        assert_refused(lambda: tmesh.open(*arguments, **names), TypeError)
        assert_refused(lambda: inspect.signature(tmesh.open).bind(*arguments, **names), TypeError)
    assert_refused(lambda: tmesh.open(good, True), tmesh.AccessError)


@pytest.mark.parametrize("key, error", [
    (3, IndexError), (-4, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError),
    (2**70, IndexError), (1.0, TypeError), ("x", TypeError), (True, TypeError),
    ((slice(None),) * 3, IndexError), ((slice(None),) * 1000, IndexError), ((..., 0, 0, 0), IndexError),
    ([0, 1], TypeError), (slice(None, None, 0), ValueError), (slice("a"), TypeError),
])
def test_index(key, error):
    t = tmesh.put(np.zeros((3, 4)))
    assert_refused(lambda: t[key], error)


def test_views():
    t = tmesh.put(np.zeros((3, 5), "uint8"))
    for dtype, error in (("uint16", tmesh.InvalidError), ("nope", tmesh.InvalidError), (3, tmesh.InvalidError)):
        assert_refused(lambda: t.view(dtype), error)
    assert_refused(lambda: t[:, :4].view("uint32"), tmesh.InvalidError, "contiguous")
    assert_refused(lambda: tmesh.empty((), "uint8").view("uint32"), tmesh.InvalidError, "contiguous")
    assert_refused(lambda: tmesh.empty((0, 2**60), "float64").view("uint8"), tmesh.InvalidError, "last dimension")
    assert_refused(lambda: tmesh.empty(4, "uint4")[0], tmesh.UnsupportedError, "4 bits")
    for shape in ((4, 4), (-1, -1), (-1, 4), (-2, 5), (2**62, 2**62), (0, -1), ()):
        assert_refused(lambda: t.reshape(shape), tmesh.InvalidError)
    assert_refused(lambda: t[:, ::2].reshape(-1), tmesh.InvalidError, "contiguous")
    assert_refused(lambda: t.reshape("x"), TypeError)


def test_put_what_cannot_be_read():
    class Bomb:
        def __dlpack__(self):
            raise KeyError("bomb")

    assert_refused(lambda: tmesh.put(Bomb()), KeyError, "bomb")

    class Refuses:
        def __dlpack__(self, max_version=None):
            if max_version:
                raise KeyError("not asked again")
            return np.ones(3).__dlpack__()

    assert_refused(lambda: tmesh.put(Refuses()), KeyError, "not asked again")
    assert_refused(lambda: tmesh.put([[1], [1, 2]]), ValueError)
    released = memoryview(b"x")
    released.release()
    assert_refused(lambda: tmesh.put(released), ValueError)
    assert_refused(tmesh.put, TypeError)


@pytest.mark.parametrize("writable", ["rw", "r", "", 1, 0, None, 0o600, [True]])
def test_rights_are_true_or_false(writable):
    """Both "r" and "rw" would be true."""
    t = tmesh.zeros(3, "uint8")
    ref = t.ref(writable=True)
    for use in (lambda: tmesh.open(ref, writable), lambda: tmesh.open(ref, writable=writable)):
        assert_refused(use, TypeError, "True or False")
    assert tmesh.open(ref, True).writable and not tmesh.open(ref, writable=False).writable


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("where", ["isnative", "name", "__str__"])
def test_what_a_dtype_raises_arrives(where, raised):
    class Dtype:
        def __getattr__(self, name):
            if name == where:
                raise raised
            raise AttributeError(name)

        def __str__(self):
            if where == "__str__":
                raise raised
            return "float32"

    assert_refused(lambda: tmesh.empty(3, Dtype()), raised)


@pytest.mark.parametrize("raised", [AttributeError, TypeError, ValueError])
def test_a_dtype_that_tells_nothing_is_unknown(raised):
    class Dtype:
        def __str__(self):
            raise raised

    assert_refused(lambda: tmesh.empty(3, Dtype), tmesh.InvalidError, "unknown dtype")
    instance = Dtype()
    Dtype.__repr__ = lambda self: "odd"
    assert_refused(lambda: tmesh.empty(3, instance), tmesh.InvalidError, "unknown dtype odd")


def test_what_refuses_read_only_memory_names_what_works(good):
    assert_refused(lambda: tmesh.put([1.0]).__dlpack__(), tmesh.AccessError, r"jax\.device_put\(t\.numpy\(\)\)")


def test_a_tensor_is_iterable():
    t = tmesh.put([[1, 2], [3, 4]])
    assert isinstance(t, Iterable) and [row.tolist() for row in t] == [[1, 2], [3, 4]]
