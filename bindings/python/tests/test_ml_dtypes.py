# SPDX-License-Identifier: MIT
"""Types that NumPy gets from the package ml_dtypes."""

import sys

import numpy as np
import pytest

import tmesh
from tmesh.elements import numpy_type
import tmesh.safetensors
from conftest import ANY_BACKEND, assert_refused

pytestmark = ANY_BACKEND
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

WHOLE = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
HALVES = [name for name in ("int4", "uint4", "float4_e2m1fn") if hasattr(ml_dtypes, name)]


def made(name, shape=(2, 4)):
    return np.arange(np.prod(shape)).reshape(shape).astype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[:, ::2], lambda a: a.T, lambda a: a[1, 2:3], lambda a: a[:0]])
def test_put_and_numpy(name, view):
    array = view(made(name))
    t = tmesh.put(array)
    assert (t.dtype, t.shape) == (name, array.shape)
    for back in t.numpy(), np.asarray(t):
        assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()
        assert not back.flags.writeable
    mine = tmesh.put(array, seal=False)
    mine.numpy()[...] = 1
    assert (mine.numpy() == 1).all()
    assert not mine.nbytes or np.shares_memory(mine.numpy().view("uint8"), mine.view("uint8").numpy()) or not array.ndim


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("shape", [(2, 4), (6,), (2, 2, 2)])
def test_halves_are_packed(name, shape):
    """numpy() would have to copy, so its error names the way to the elements."""
    array = made(name, shape)
    t = tmesh.put(array)
    assert (t.dtype, t.shape, t.nbytes) == (name, shape, array.size // 2)
    raw = t.reshape(-1).view("uint8").numpy()
    assert (np.stack([raw & 15, raw >> 4], -1).reshape(shape) == array.view("uint8") & 15).all()
    for take in t.numpy, lambda: np.asarray(t):
        assert_refused(take, tmesh.UnsupportedError, "two elements in each byte")


@pytest.mark.parametrize("name", WHOLE + HALVES)
def test_put_into_an_arena(name):
    """It lies behind its neighbour, not in the neighbour's place."""
    arena = tmesh.Arena()
    before = tmesh.put(b"\xff" * 100, arena=arena)
    t, alone = tmesh.put(made(name), arena=arena), tmesh.put(made(name))
    assert (t.dtype, t.shape, t.id) == (name, alone.shape, before.id)
    assert t.reshape(-1).view("uint8").tolist() == alone.reshape(-1).view("uint8").tolist()
    assert bytes(before) == b"\xff" * 100


def test_bundle():
    array = made("bfloat16")
    bundle = tmesh.bundle({"w": array, "tied": array, "other": np.ones(3)})
    assert (bundle["w"].numpy() == array).all() and bundle["w"].id == bundle["other"].id
    assert np.shares_memory(bundle["w"].view("uint16").numpy(), bundle["tied"].view("uint16").numpy())


def test_safetensors(tmp_path):
    pytest.importorskip("tmesh.safetensors.numpy")
    from tmesh.safetensors.numpy import load, load_file, save, save_file
    names = [name for name in (*WHOLE, "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu") if hasattr(ml_dtypes, name)]
    arrays = {name: made(name) for name in names} | {"plain": np.ones(3, "float32")}
    try:
        save_file(arrays, tmp_path / "model.safetensors")
    except tmesh.UnsupportedError as error:
        pytest.skip(str(error))
    for back in load_file(tmp_path / "model.safetensors"), load(save(arrays)):
        assert back.keys() == arrays.keys()
        for name, array in arrays.items():
            assert back[name].dtype == array.dtype and (back[name].view("uint8") == array.view("uint8")).all()
    with tmesh.safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        assert (file.get_slice("bfloat16")[1] == arrays["bfloat16"][1]).all()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert numpy_type("bfloat16") is None and numpy_type("float32") == np.float32


def test_without_the_package_it_is_named(python):
    assert "install it" in python("""
import sys
sys.modules["ml_dtypes"] = None
import tmesh
try:
    tmesh.zeros(2, "bfloat16").numpy()
except tmesh.UnsupportedError as error:
    assert "ml_dtypes" in str(error)
    print(error)
""")
