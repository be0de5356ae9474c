# SPDX-License-Identifier: MIT
"""Seal and release: the refusals while another object shows the memory."""

import gc
import threading

import numpy as np
import pytest

import tmesh
from conftest import assert_refused

VIEWS = [lambda t: t.numpy(), lambda t: memoryview(t), lambda t: np.asarray(t),
         lambda t: t.__dlpack__(), lambda t: t[1:].numpy(), lambda t: t.view("uint8").numpy()]


def test_seal_returns_the_tensor():
    t = tmesh.empty(4, "uint8")
    assert t.seal() is t and t.sealed and not t.writable
    assert t.seal() is t


@pytest.mark.parametrize("view", VIEWS)
def test_writable_views_prevent_the_seal(view):
    t = tmesh.put(np.arange(4), seal=False)
    alive = view(t)
    assert_refused(t.seal, tmesh.BusyError, "1 writable view of")
    assert_refused(lambda: t[2:].seal(), tmesh.BusyError)
    assert not t.sealed and t.writable
    t.numpy()[0] = 5
    del alive
    t.seal()
    assert t.numpy()[0] == 5


def test_read_only_views_do_not():
    t = tmesh.put(np.arange(4), seal=False)
    array = t.numpy(writable=False)
    t.seal()
    assert array.tolist() == [0, 1, 2, 3]


def test_what_is_sealed_on_its_way_arrives_for_reading():
    t = tmesh.zeros(1, "uint8")
    queue = tmesh.Queue()
    queue.put(t)
    t.seal()
    assert queue.get(timeout=600).sealed


@pytest.mark.parametrize("view", VIEWS[:4])
def test_views_prevent_the_release(view):
    t = tmesh.put(np.arange(4), seal=False)
    alive = view(t)
    assert_refused(t.release, tmesh.BusyError, "1 view of this tensor")
    assert_refused(t.release, BufferError)
    assert t.numpy().sum() == 6
    del alive
    t.release()


def test_released():
    t = tmesh.put(np.arange(4), seal=False)
    ref = t.ref()
    t.release()
    t.release()
    assert t.released
    uses = [t.numpy, t.seal, t.ref, t.dlpack, t.__dlpack__, t.__dlpack_device__, t.__reduce__,
            t.__array__, t.__enter__, lambda: t[0], lambda: len(t), lambda: memoryview(t),
            lambda: t.reshape(4), lambda: t.view("uint8"), lambda: tmesh.put(t, seal=False),
            lambda: tmesh.from_dlpack(t), lambda: np.asarray(t)]
    uses += [lambda name=name: getattr(t, name) for name in (
        "shape", "strides", "dtype", "ndim", "size", "nbytes", "device", "id", "label", "token", "sealed",
        "writable")]
    for use in uses:
        assert_refused(use, tmesh.ReleasedError, "was released")
    assert_refused(lambda: tmesh.open(ref), tmesh.NotFoundError)


def test_context_manager():
    with tmesh.put(b"abc", seal=False) as t:
        assert bytes(t) == b"abc"
    assert t.released
    with pytest.raises(KeyError):
        with tmesh.put(b"abc", seal=False) as t:
            raise KeyError
    assert t.released


def test_cycles_are_collected():
    class Holder:
        pass

    live = tmesh.stats()["regions_live"]
    holder = Holder()
    holder.me, holder.tensor = holder, tmesh.put(b"x", seal=False)
    holder.array = holder.tensor.numpy()
    del holder
    gc.collect()
    assert tmesh.stats()["regions_live"] == live


def test_seal_races_with_writers():
    """Whichever thread wins, no thread ever has a writable view of sealed memory."""
    for _ in range(200):
        t = tmesh.empty(4096, "uint8")
        start = threading.Barrier(2)
        outcome = []

        def write():
            start.wait()
            try:
                array = t.numpy(writable=True)
                array[:] = 1
            except (tmesh.BusyError, tmesh.SealedError) as refusal:
                outcome.append(refusal)

        thread = threading.Thread(target=write)
        thread.start()
        start.wait()
        try:
            t.seal()
        except tmesh.BusyError as refusal:
            outcome.append(refusal)
        thread.join()
        assert bytes(t) in (bytes(4096), b"\1" * 4096)
