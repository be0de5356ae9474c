# SPDX-License-Identifier: MIT
"""Bad input raises a documented error with its reason, changes nothing and leaks nothing."""

from collections.abc import Iterable
import inspect
import json

import numpy as np
import pytest

import tmesh


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
    with pytest.raises(tmesh.Error):
        tmesh.empty(2**55, "uint8", huge=True)


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
        with pytest.raises(error):
            make()


@pytest.mark.parametrize("change, error", [
    ({"offset": 4}, "fit"), ({"offset": 2**70}, "offset"), ({"byte_size": 47}, "byte_size"),
    ({"shape": [1] * 1000}, "shape"), ({"shape": [2**63, 4]}, "shape"), ({"strides": [1] * 1000}, "strides"),
    ({"dtype": "float32\0"}, "dtype"), ({"device": "cuda:0x"}, "device"), ({"v": 2}, "version 2"),
    ({"id": "0" * 16}, "region"), ({"token": "x" * 100}, "token"), ({"token": "\ud800"}, "token"),
])
def test_refs_that_lie(good, change, error):
    """As dicts, which other code reads; the error names the wrong member."""
    with pytest.raises(tmesh.ProtocolError, match=error):
        tmesh.open({**good, **change})


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
                with pytest.raises(tmesh.ProtocolError):
                    tmesh.open(bad)


@pytest.mark.parametrize("thing", [None, 5, 1.5, [], (), object(), bytearray(b"x")])
def test_wrong_types(thing):
    with pytest.raises(TypeError, match="ref|token"):
        tmesh.open(thing)


def test_open_arguments(good):
    for arguments, names in (((), {}), ((good, False, 1), {}), ((good,), {"write": True}),
                             ((good, True), {"writable": True}), ((), {"ref": good})):
        with pytest.raises(TypeError):
            tmesh.open(*arguments, **names)
        with pytest.raises(TypeError):
            inspect.signature(tmesh.open).bind(*arguments, **names)
    with pytest.raises(tmesh.AccessError):
        tmesh.open(good, True)


@pytest.mark.parametrize("key, error", [
    (3, IndexError), (-4, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError),
    (2**70, IndexError), (1.0, TypeError), ("x", TypeError), (True, TypeError),
    ((slice(None),) * 3, IndexError), ((slice(None),) * 1000, IndexError), ((..., 0, 0, 0), IndexError),
    ([0, 1], TypeError), (slice(None, None, 0), ValueError), (slice("a"), TypeError),
])
def test_index(key, error):
    t = tmesh.put(np.zeros((3, 4)))
    with pytest.raises(error):
        t[key]


def test_views():
    t = tmesh.put(np.zeros((3, 5), "uint8"))
    for dtype, error in (("uint16", tmesh.InvalidError), ("nope", tmesh.InvalidError), (3, tmesh.InvalidError)):
        with pytest.raises(error):
            t.view(dtype)
    with pytest.raises(tmesh.InvalidError, match="contiguous"):
        t[:, :4].view("uint32")
    with pytest.raises(tmesh.InvalidError, match="contiguous"):
        tmesh.empty((), "uint8").view("uint32")
    with pytest.raises(tmesh.InvalidError, match="last dimension"):
        tmesh.empty((0, 2**60), "float64").view("uint8")
    with pytest.raises(tmesh.UnsupportedError, match="4 bits"):
        tmesh.empty(4, "uint4")[0]
    for shape in ((4, 4), (-1, -1), (-1, 4), (-2, 5), (2**62, 2**62), (0, -1), ()):
        with pytest.raises(tmesh.InvalidError):
            t.reshape(shape)
    with pytest.raises(tmesh.InvalidError, match="contiguous"):
        t[:, ::2].reshape(-1)
    with pytest.raises(TypeError):
        t.reshape("x")


def test_put_what_cannot_be_read():
    class Bomb:
        def __dlpack__(self):
            raise KeyError("bomb")

    with pytest.raises(KeyError, match="bomb"):
        tmesh.put(Bomb())

    class Refuses:
        def __dlpack__(self, max_version=None):
            if max_version:
                raise KeyError("not asked again")
            return np.ones(3).__dlpack__()

    with pytest.raises(KeyError, match="not asked again"):
        tmesh.put(Refuses())
    with pytest.raises(ValueError):
        tmesh.put([[1], [1, 2]])
    released = memoryview(b"x")
    released.release()
    with pytest.raises(ValueError):
        tmesh.put(released)
    with pytest.raises(TypeError):
        tmesh.put()


@pytest.mark.parametrize("writable", ["rw", "r", "", 1, 0, None, 0o600, [True]])
def test_rights_are_true_or_false(writable):
    """Both "r" and "rw" would be true."""
    t = tmesh.zeros(3, "uint8")
    ref = t.ref(writable=True)
    for use in (lambda: tmesh.open(ref, writable), lambda: tmesh.open(ref, writable=writable)):
        with pytest.raises(TypeError, match="True or False"):
            use()
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

    with pytest.raises(raised):
        tmesh.empty(3, Dtype())


@pytest.mark.parametrize("raised", [AttributeError, TypeError, ValueError])
def test_a_dtype_that_tells_nothing_is_unknown(raised):
    class Dtype:
        def __str__(self):
            raise raised

    with pytest.raises(tmesh.InvalidError, match="unknown dtype"):
        tmesh.empty(3, Dtype)
    instance = Dtype()
    Dtype.__repr__ = lambda self: "odd"
    with pytest.raises(tmesh.InvalidError, match="unknown dtype odd"):
        tmesh.empty(3, instance)


def test_what_refuses_read_only_memory_names_what_works(good):
    with pytest.raises(tmesh.AccessError, match=r"jax\.device_put\(t\.numpy\(\)\)"):
        tmesh.put([1.0]).__dlpack__()


def test_a_tensor_is_iterable():
    t = tmesh.put([[1, 2], [3, 4]])
    assert isinstance(t, Iterable) and [row.tolist() for row in t] == [[1, 2], [3, 4]]
