# SPDX-License-Identifier: MIT
"""Tensors: making them, their properties, other layouts over them."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import tmesh
from conftest import assert_refused, pytorch

def test_version():
    root = Path(__file__).resolve().parents[3]
    assert tmesh.__version__ == (root / "VERSION").read_text().strip()


def test_properties():
    t = tmesh.zeros((3, 4), "bfloat16")
    assert (t.shape, t.strides, t.dtype, t.ndim, t.nbytes) == ((3, 4), (4, 1), "bfloat16", 2, 24)
    assert (t.device, t.sealed, t.writable, t.released) == ("cpu", False, True, False)


def test_old_contents(python):
    """Memory in the pool has its old contents. zeros() clears it, and so does an allocation that another user may open. Only
    empty() leaves memory as it is that no other process has had."""
    assert python("""
import os
import tmesh
def used(**options):
    tmesh.put(b"x" * 5000, seal=False, **options).release()
used()
print(bytes(tmesh.zeros(5000, "uint8")) == bytes(5000), tmesh.stats()["region_pool_hits"])
used()
print(bytes(tmesh.empty(5000, "uint8")) == b"x" * 5000, tmesh.stats()["region_pool_hits"])
used(gid=os.getgid())
print(bytes(tmesh.empty(5000, "uint8", gid=os.getgid())) == bytes(5000), tmesh.stats()["region_pool_hits"])
# Another process may have had it: it is never seen again.
tmesh.put(b"x" * 5000, seal=False).ref()
print(bytes(tmesh.empty(5000, "uint8")) == bytes(5000), tmesh.stats()["region_pool_hits"])
""") == "True 1\nTrue 3\nTrue 4\nTrue 5\n"


def test_trim(python):
    """trim() frees the pool's memory at once; the next tensor gets new memory."""
    assert python("""
import tmesh
tmesh.configure(region_pool_bytes=1 << 24)
assert tmesh.trim() == 0
tmesh.put(b"x" * 5000, seal=False).release()
kept = tmesh.stats()["region_pool_bytes"]
assert kept == tmesh.trim() >= 5000, kept
assert tmesh.stats()["region_pool_bytes"] == 0 and tmesh.trim() == 0
hits = tmesh.stats()["region_pool_hits"]
tmesh.empty(5000, "uint8")
assert tmesh.stats()["region_pool_hits"] == hits
""") == ""


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32"), np.dtype("<f4")])
def test_dtype_spellings(dtype):
    assert tmesh.empty(1, dtype).dtype == "float32"


def test_torch_dtype_spelling():
    torch = pytorch()
    assert tmesh.empty(1, torch.bfloat16).dtype == "bfloat16"
    assert tmesh.empty(1, torch.bool).dtype == "bool"


@pytest.mark.parametrize("shape, want", [
    (5, (5,)), ((), ()), ([2, 3], (2, 3)), ((0, 7), (0, 7)), ((1,) * 8, (1,) * 8),
    (np.int64(4), (4,)),
])
def test_shapes(shape, want):
    t = tmesh.empty(shape, "int16")
    assert t.shape == want
    assert t.numpy().shape == want
    assert t.nbytes == 2 * int(np.prod(want))


def test_region_options():
    t = tmesh.empty(16, "uint8", label="weights of ünit", mode=0o600, huge="try", pin=False)
    assert t.label == "weights of ünit"
    assert tmesh.put(b"x", label="x").label == "x"


def test_repr_len_identity():
    t = tmesh.empty((3, 4), "float32")
    assert repr(t) == "<tmesh.Tensor float32 (3, 4)>"
    assert len(t) == 3
    # Another object over the same memory is not equal.
    assert t == t and t != tmesh.open(t) and {t: 1}[t] == 1
    assert_refused(lambda: len(tmesh.empty((), "float32")), TypeError, "no length")
    t.seal()
    assert repr(t) == "<tmesh.Tensor float32 (3, 4), sealed>"
    t.release()
    assert repr(t) == "<tmesh.Tensor, released>"


class Releases:
    """An argument whose code releases the tensor of the same call."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __index__(self):
        self.tensor.release()
        return 8

    def __bool__(self):
        self.tensor.release()
        return True

    @property
    def name(self):
        self.tensor.release()
        return "uint16"


@pytest.mark.parametrize("use", [
    lambda t, arg: t[arg],
    lambda t, arg: t[arg:],
    lambda t, arg: t.view(arg),
    lambda t, arg: t.reshape(arg),
    lambda t, arg: t.reshape([8, arg]),
    lambda t, arg: t.numpy(writable=arg),
    lambda t, arg: t.__dlpack__(max_version=(arg, 0)),
])
def test_released_by_an_argument(use):
    t = tmesh.empty(64, "uint8")
    assert_refused(lambda: use(t, Releases(t)), tmesh.ReleasedError)


def test_cannot_be_made_directly():
    assert_refused(tmesh.Tensor, TypeError)
    with pytest.raises(TypeError):
        tmesh.Tensor.shape = 1


def test_open_every_way():
    t = tmesh.put(np.arange(6, dtype="float32").reshape(2, 3), seal=False)
    import json
    for ref in (t.ref(), json.dumps(t.ref()), json.dumps(t.ref()).encode(), pickle.loads(pickle.dumps(t.ref()))):
        o = tmesh.open(ref)
        assert (o.dtype, o.shape, o.id) == ("float32", (2, 3), t.id)
        assert np.array_equal(o.numpy(), t.numpy())
        assert not o.writable and repr(o).endswith(", read-only>")
    raw = tmesh.open(t.token)
    assert (raw.dtype, raw.shape) == ("uint8", (24,))
    assert bytes(raw) == bytes(t)
    assert tmesh.open(t.token.encode()).shape == (24,)


def test_copy_opens_the_same_memory():
    t = tmesh.put(b"abc")
    o = copy.copy(t)
    assert bytes(o) == b"abc" and not o.writable and o.id == t.id


def test_view():
    t = tmesh.put(np.arange(8, dtype="float32").reshape(2, 4))
    assert t.view("int32").shape == (2, 4)
    assert t.view("uint8").shape == (2, 16)
    assert t.view(np.complex64).shape == (2, 2)
    assert t.view("uint8").view("float32").numpy().tolist() == t.numpy().tolist()
    assert t.view("uint4").shape == (2, 32)
    assert t[:, 1:2].view("uint32").strides == (4, 1)
    assert t[1:].view("uint8").view("float32").numpy().tolist() == [[4, 5, 6, 7]]


def test_reshape():
    t = tmesh.put(np.arange(24, dtype="int16"))
    want = t.numpy()
    for shape in ((2, 12), (2, 3, 4), (1, 24), (24,)):
        assert np.array_equal(t.reshape(shape).numpy(), want.reshape(shape))
        assert np.array_equal(t.reshape(*shape).numpy(), want.reshape(shape))
    assert t.reshape(-1, 6).shape == (4, 6)
    assert t[12:].reshape(3, 4).numpy().tolist() == want[12:].reshape(3, 4).tolist()
    assert t.reshape(2, -1).shape == (2, 12)
    assert tmesh.put(5.0).reshape(1).shape == (1,)
    assert tmesh.put(np.zeros((0, 3))).reshape(3, 0).shape == (3, 0)


@pytest.mark.parametrize("key", [
    0, -1, (1, 2), (1, -2, 3), slice(None), slice(1, None), slice(None, None, 2),
    slice(None, None, -1), slice(5, 1), (slice(1), 0), (..., 1), (0, ...), (..., slice(1, 3)),
    (slice(None, None, -2), slice(1, 3), slice(None, None, 3)), ..., (), (1, ..., 2),
    (slice(100, 200),), (slice(None), slice(3, 0, -2)), (slice(0, 1, 2**62),), (0, 1, 2, ...),
    (slice(3, None), slice(4, None)),
])
def test_index_as_numpy_does(key):
    array = np.arange(60, dtype="int32").reshape(3, 4, 5)
    got = tmesh.put(array)[key]
    want = array[key]
    assert got.shape == want.shape
    assert np.array_equal(got.numpy(), want)
    assert np.array_equal(tmesh.open(got.ref()).numpy(), want)


def test_views_keep_the_memory():
    t = tmesh.put(np.arange(6).reshape(2, 3))
    row = t[1]
    t.release()
    assert row.numpy().tolist() == [3, 4, 5]
    assert [r.numpy().tolist() for r in tmesh.put(np.arange(4).reshape(2, 2))] == [[0, 1], [2, 3]]


def test_views_share_rights_and_seal():
    t = tmesh.put(np.arange(6), seal=False)
    assert t[1:].writable
    t[1:].numpy()[0] = 9
    assert t.numpy()[1] == 9
    row = t[2:]
    row.seal()
    assert t.sealed and row.sealed and not t.writable


@pytest.mark.parametrize("view", [lambda t: t[1:], lambda t: t.view("uint64"),
                                  lambda t: t.reshape(2, 3), lambda t: next(iter(t)),
                                  lambda t: tmesh.from_dlpack(t)])
def test_views_of_a_reader_only_read(view):
    t = tmesh.put(np.arange(6), seal=False)
    seen = view(tmesh.open(t.ref()))
    assert t.writable and not seen.writable and not seen.numpy().flags.writeable
    assert_refused(lambda: seen.numpy(writable=True), tmesh.AccessError)
    assert_refused(lambda: seen.ref(writable=True), tmesh.AccessError)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 4)])
def test_the_dimensions_in_reverse_order(shape):
    array = np.arange(np.prod(shape, dtype=int), dtype="int16").reshape(shape)
    t = tmesh.put(array, seal=False)
    assert t.T.shape == array.T.shape and t.T.dtype == "int16"
    np.testing.assert_array_equal(t.T.numpy(), array.T)
    np.testing.assert_array_equal(t.T.T.numpy(), array)
    # No copy.
    t.T[...] = 7
    assert (t.numpy() == 7).all()
    ref = t.T
    t.release()
    assert_refused(lambda: t.T, tmesh.ReleasedError)
    assert ref.shape == array.T.shape


def test_what_arrays_have_is_at_the_arrays():
    t = tmesh.put(np.arange(3))
    for name in ("astype", "copy", "sum", "transpose", "to"):
        with pytest.raises(AttributeError, match=rf"a tmesh.Tensor has no {name}: .* numpy\(\) and PyTorch's by torch\(\)"):
            getattr(t, name)
    assert_refused(lambda: t.colour, AttributeError, "no attribute 'colour'")
    assert not hasattr(t, "copy") and not hasattr(t, "__cuda_array_interface__")
    assert_refused(lambda: getattr(t, "\ud800"), AttributeError)
