# SPDX-License-Identifier: MIT
"""Bad input: a documented error that says what is wrong, nothing changed, nothing leaked."""

import inspect
import json
import secrets

import numpy as np
import pytest

import tmesh


@pytest.fixture(scope="module")
def good():
    t = tmesh.put(np.arange(12, dtype="float32").reshape(3, 4))
    yield t.ref()


@pytest.mark.parametrize("shape, dtype, error", [
    (-1, "uint8", tmesh.InvalidError), ((2, -3), "uint8", tmesh.InvalidError),
    (2**62, "float64", tmesh.InvalidError), ((2**40, 2**40), "uint8", tmesh.InvalidError),
    (2**64, "uint8", tmesh.InvalidError), (-2**70, "uint8", tmesh.InvalidError),
    ((1,) * 9, "uint8", tmesh.InvalidError), (3, "int4", tmesh.InvalidError),
    (1, "float33", tmesh.InvalidError), (1, "", tmesh.InvalidError), (1, ">f4", tmesh.InvalidError),
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
    """More than any machine has; what refuses it depends on the machine."""
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
    ({"linger_ms": 5000}, tmesh.InvalidError), ({"linger_ms": -1}, OverflowError),
    ({"sealed": True}, TypeError),
])
def test_region_options(arguments, error):
    for make in (lambda: tmesh.empty(1, "uint8", **arguments), lambda: tmesh.zeros(1, "uint8", **arguments),
                 lambda: tmesh.put(b"x", **arguments)):
        with pytest.raises(error):
            make()


def test_mode_without_the_module():
    if tmesh.backend() == "kernel":
        assert tmesh.regions() is not None and tmesh.empty(1, "uint8", mode=0o640)
    else:
        with pytest.raises(tmesh.UnsupportedError):
            tmesh.empty(1, "uint8", mode=0o640)


@pytest.mark.parametrize("change, error", [
    ({"offset": 4}, "fit"), ({"offset": 2**62}, ""), ({"offset": -1}, "offset"),
    ({"offset": 2**70}, "offset"), ({"offset": 1.0}, "offset"), ({"offset": True}, "offset"),
    ({"byte_size": 47}, "byte_size"), ({"byte_size": None}, "byte_size"),
    ({"shape": [3, 5]}, ""), ({"shape": [3]}, "strides"), ({"shape": 12}, "shape"),
    ({"shape": ["3", 4]}, "shape"), ({"shape": [-3, 4]}, ""), ({"shape": [2**63, 4]}, "shape"),
    ({"shape": [1] * 9}, "shape"), ({"shape": [1] * 1000}, "shape"), ({"strides": [1] * 1000}, "strides"),
    ({"shape": [2**62, 2**62]}, ""),
    ({"strides": [400, 1]}, "fit"), ({"strides": [-4, 1]}, "fit"), ({"strides": [2**62, 2**62]}, ""),
    ({"strides": [4]}, "strides"), ({"strides": [4, True]}, "strides"),
    ({"dtype": "float31"}, "dtype"), ({"dtype": 5}, "dtype"), ({"dtype": "float32\0"}, "dtype"),
    ({"device": "cpu0"}, "device"), ({"device": "cuda:"}, "device"), ({"device": "cuda:-1"}, "device"),
    ({"device": "cuda:99999999999999999999"}, "device"), ({"device": "cuda:99999999999"}, "device"),
    ({"device": "cuda:0x"}, "device"), ({"device": None}, "device"),
    ({"v": 2}, '"v"'), ({"v": "1"}, '"v"'), ({"id": "12"}, "id"), ({"id": 5}, "id"),
    ({"id": "0123456789abcdeg"}, "id"), ({"id": "0" * 16}, "region"),
    ({"token": 5}, "token"), ({"token": "x" * 100}, "token"), ({"token": "\ud800"}, "token"),
])
def test_refs_that_lie(good, change, error):
    bad = {**good, **change}
    with pytest.raises(tmesh.ProtocolError, match=error):
        tmesh.open(bad)
    if "\ud800" not in str(change):
        with pytest.raises(tmesh.ProtocolError):
            tmesh.open(json.dumps(bad))
    assert tmesh.open(good).shape == (3, 4)


@pytest.mark.parametrize("member", ["v", "id", "token", "offset", "byte_size", "shape", "dtype",
                                    "strides", "device"])
def test_refs_with_a_member_missing(good, member):
    bad = {key: value for key, value in good.items() if key != member}
    with pytest.raises(tmesh.ProtocolError, match="" if member == "token" else member):
        tmesh.open(bad)
    with pytest.raises(tmesh.ProtocolError):
        tmesh.open(json.dumps(bad))


def test_refs_with_more_are_fine(good):
    assert tmesh.open({**good, "more": object()}).shape == (3, 4)
    assert tmesh.open(json.dumps({**good, "more": 5})).shape == (3, 4)


def test_refs_with_a_gap_or_a_repeat_are_fine(good):
    """Strides may be zero or negative as long as all elements lie in the region."""
    repeat = tmesh.open({**good, "strides": [0, 1]}).numpy()
    assert repeat[2].tolist() == [0, 1, 2, 3]
    back = tmesh.open({**good, "offset": 44, "strides": [-4, -1]}).numpy()
    assert back[0].tolist() == [11, 10, 9, 8]


@pytest.mark.parametrize("text", [
    "", " ", "hello", "tm1k", "tm1m-", "tm2k-" + "0" * 32, "tm1k-" + "g" * 32, "tm1k-" + "0" * 31,
    "tm1m-" + "0" * 32, "../../etc/passwd", "tm1m-" + "/" * 32 + "-" + "0" * 32, "x" * 10000,
    "{", "[]", "{}", '{"v":1}', '{"v":1,"v":1}', "null", '{"v":1}x', "tm1k-" + "0" * 32 + "\n",
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


def test_guessed_tokens(good):
    """Well-formed, but nobody's; also with the right socket and a wrong secret."""
    own = good["token"]
    guesses = [own[:-32] + secrets.token_hex(16)]
    if tmesh.backend() == "memfd":
        guesses += [f"tm1m-{secrets.token_hex(16)}-{secrets.token_hex(16)}", own[:-1] +
                    ("0" if own[-1] != "0" else "1")]
    for token in guesses:
        for ref in (token, {**good, "token": token}):
            with pytest.raises(tmesh.NotFoundError):
                tmesh.open(ref)


def test_token_of_the_other_backend():
    foreign = {"kernel": f"tm1m-{'0' * 32}-{'0' * 32}", "memfd": f"tm1k-{'0' * 32}"}[tmesh.backend()]
    with pytest.raises(tmesh.UnsupportedError):
        tmesh.open(foreign)


def test_stale_token():
    t = tmesh.put(b"abc")
    ref = t.ref()
    t.release()
    with pytest.raises(tmesh.NotFoundError):
        tmesh.open(ref)


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


def test_limit(python):
    assert python("""
import numpy, tmesh
tmesh.configure(max_bytes=1 << 20)
keep = tmesh.empty(1 << 19, "uint8")
for make in (lambda: tmesh.empty(1 << 20, "uint8"), lambda: tmesh.put(bytes(1 << 20))):
    try:
        make()
    except tmesh.LimitError as error:
        print(error.errno)
assert tmesh.stats()["regions_live"] == 1
keep.release()
tmesh.empty(1 << 20, "uint8")
""").split() == [str(__import__("errno").EDQUOT)] * 2
