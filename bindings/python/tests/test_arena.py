# SPDX-License-Identifier: MIT
"""Arenas: many small tensors in few regions."""

import gc

import numpy as np
import pytest

import tmesh
from conftest import assert_refused


def offset(tensor):
    return tensor.ref()["offset"]


def test_zeros():
    arena = tmesh.Arena()
    tmesh.put(b"x" * 100, arena=arena)
    tensor = tmesh.empty((3, 4), "float32", arena=arena)
    assert offset(tensor) == 256 and not tensor.numpy().any()
    assert tmesh.empty(0, "int8", arena=arena).nbytes == 0


@pytest.mark.parametrize("make", [
    lambda a: a[::2], lambda a: a.T, list, lambda a: tmesh.put(a), lambda a: memoryview(a)])
def test_contents(make):
    array = np.arange(24).reshape(4, 6)
    arena = tmesh.Arena()
    tensor = tmesh.put(make(array), arena=arena)
    assert np.array_equal(tensor.numpy(), np.asarray(make(array)))
    # This room is already taken.
    assert offset(tmesh.empty(1, "int8", arena=arena)) >= tensor.nbytes


def test_gone_with_the_last():
    gc.collect()
    before = tmesh.stats()["regions_live"]
    arena = tmesh.Arena()
    first, second = tmesh.put(b"1", arena=arena), tmesh.put(b"2", arena=arena)
    del arena, first
    assert tmesh.stats()["regions_live"] == before + 1
    assert bytes(second) == b"2"
    del second
    assert tmesh.stats()["regions_live"] == before


def test_refused():
    arena = tmesh.Arena()
    tensor = tmesh.put(b"x", arena=arena)
    for call in (tensor.seal, tensor[:].seal, tmesh.from_dlpack(tensor).seal,
                 lambda: tmesh.put(b"x", seal=True, arena=arena)):
        assert_refused(call, tmesh.InvalidError, "neighbours")
    tensor.numpy()[0] = 1
    assert_refused(lambda: tmesh.empty(1, "int8", arena=arena, pin=False), tmesh.InvalidError, "arena was made with")
    for wrong in (1, tensor, "arena"):
        assert_refused(lambda: tmesh.put(b"x", arena=wrong), TypeError, "Arena")
    assert_refused(lambda: tmesh.Arena(-1), (OverflowError, ValueError, TypeError))
    assert_refused(lambda: type("Mine", (tmesh.Arena,), {}), TypeError)
