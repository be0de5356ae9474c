# SPDX-License-Identifier: MIT
"""Private views: sealed memory that a program may write to without harm to others."""

import gc
import pickle

import numpy as np
import pytest

import tmesh
from conftest import EMULATED, SLOW_IMPORT, assert_refused


def put():
    return tmesh.put(np.arange(6, dtype="float32").reshape(2, 3))


def own_kib(array):
    """Return the pages of this process's own at the array. Elsewhere the kernel may merge small ones into large ones
    meanwhile."""
    with open("/proc/self/smaps") as file:
        for line in file:
            word, *more = line.split()
            if "-" in word:
                start, end = (int(number, 16) for number in word.split("-"))
            elif word == "Anonymous:" and start <= array.ctypes.data < end:
                return int(more[0])
    raise AssertionError("nothing is mapped there")


def test_it_is_for_this_process_alone():
    sealed = put()
    mine = sealed.private()
    assert mine.writable and not mine.sealed and mine.id == sealed.id
    assert_refused(lambda: mine.token, tmesh.UnsupportedError, "put its contents into a new region")
    assert pickle.loads(pickle.dumps(mine)).tolist() == mine.tolist()
    with tmesh.Channel("send") as channel, pytest.raises(tmesh.UnsupportedError):
        channel.send(mine)
    shared = tmesh.put(mine.numpy())
    assert tmesh.open(shared.ref()).numpy().tolist() == sealed.numpy().tolist()


def test_only_pages_that_are_written_are_copied():
    big = tmesh.put(np.ones(16 << 20, "uint8"))
    mine = big.private()
    array = mine.numpy()
    assert array.sum() == 16 << 20
    before = own_kib(array)
    for page in range(8):
        array[page << 16] = 7
    assert 0 < own_kib(array) - before < 1024
    assert big.numpy().sum() == 16 << 20


def test_slices_and_what_outlives_it():
    sealed = put()
    row = sealed[1:].private().numpy()
    del sealed
    gc.collect()
    row += 1
    assert row.tolist() == [[4, 5, 6]]


@pytest.mark.skipif(EMULATED, reason=SLOW_IMPORT)
def test_pytorch():
    sealed = put()
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert_refused(sealed.torch, tmesh.AccessError, "private=True")
    shared = tmesh.put([1.0, 2.0], seal=False)
    assert_refused(lambda: tmesh.open(shared.ref()).torch(), tmesh.AccessError, "private=True")
    weights = sealed.torch(private=True)
    weights.mul_(2)
    assert weights.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert sealed.numpy()[1, 2] == 5
    shared.torch().fill_(4)
    assert shared.numpy().tolist() == [4, 4]
    parameter = torch.nn.Parameter(sealed.torch(private=True))
    (parameter * 3).sum().backward()
    assert parameter.grad.tolist() == [[3, 3, 3], [3, 3, 3]]
