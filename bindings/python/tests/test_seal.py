# SPDX-License-Identifier: MIT
"""Seal and release: what they refuse while somebody looks at the memory."""

import gc
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

import tmesh

VIEWS = [lambda t: t.numpy(), lambda t: memoryview(t), lambda t: np.asarray(t),
         lambda t: t.__dlpack__(), lambda t: t[1:].numpy(), lambda t: t.view("uint8").numpy()]


def test_seal_returns_the_tensor():
    t = tmesh.empty(4, "uint8")
    assert t.seal() is t and t.sealed and not t.writable
    assert t.seal() is t


def refused_elsewhere(ref):
    """What another process is told that opens it to write, and whether it can be opened to read after that."""
    done = subprocess.run([sys.executable, "-P", "-c", """
import json, sys, tmesh
ref = json.loads(sys.argv[1])
try:
    tmesh.open(ref, writable=True)
except tmesh.AccessError as error:
    print(type(error).__name__, error)
print(tmesh.open(ref).nbytes)
""", json.dumps(ref)], capture_output=True, text=True, timeout=600)
    assert not done.stderr
    return done.stdout


def test_a_ref_for_reading_of_sealed_memory():
    """No other ref could be had, so none is advised."""
    t, b = tmesh.put(np.arange(4.0)), tmesh.bundle({"x": np.arange(4.0)})
    open_one = tmesh.zeros(4, "float64")
    module = tmesh.backend() == "kernel"
    for made in (t, b):
        with pytest.raises(tmesh.AccessError if module else tmesh.SealedError, match="nobody can write to it"):
            tmesh.open(made.ref(), writable=True)
        said = refused_elsewhere(made.ref(hold=600))
        assert said.endswith("\n32\n") and "nobody can write to it" in said
        assert module or said.startswith("SealedError")
    with pytest.raises(tmesh.AccessError, match="ask its producer for another one: if the memory is sealed") as refused:
        tmesh.open(open_one.ref(), writable=True)
    assert not isinstance(refused.value, tmesh.SealedError)
    said = refused_elsewhere(open_one.ref())
    assert said.startswith("AccessError") and said.endswith("\n32\n")


@pytest.mark.parametrize("view", VIEWS)
def test_writable_views_prevent_the_seal(view):
    t = tmesh.put(np.arange(4), seal=False)
    alive = view(t)
    with pytest.raises(tmesh.BusyError, match="1 writable view of"):
        t.seal()
    with pytest.raises(tmesh.BusyError):
        t[2:].seal()
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


@pytest.mark.parametrize("form", [lambda ref: ref, json.dumps, lambda ref: ref["token"]],
                         ids=["ref", "text", "token"])
def test_sealed_memory_cannot_be_opened_for_writing(form):
    """By a ref that was given before the seal. What is open by then is told at use."""
    t = tmesh.empty(1, "uint8")
    ref = form(t.ref(writable=True))
    before = tmesh.open(ref, writable=True)
    t.seal()
    with pytest.raises(tmesh.SealedError, match="open it for reading"):
        tmesh.open(ref, writable=True)
    assert tmesh.open(ref).tolist() == [0]
    with pytest.raises(tmesh.SealedError):
        before.numpy(writable=True)


def test_a_sealed_bundle_cannot_be_opened_for_writing():
    t = tmesh.zeros(1, "uint8")
    bundle = tmesh.bundle({"t": t}, seal=False)
    ref = bundle.ref(writable=True)
    t.seal()
    with pytest.raises(tmesh.SealedError, match=f"{t.id} is sealed"):
        tmesh.open(ref, writable=True)
    assert tmesh.open(ref)["t"].tolist() == [0]
    for hold in (None, 1.0):
        with pytest.raises(tmesh.SealedError, match="could write"):
            bundle.ref(writable=True, hold=hold)


def test_what_is_sealed_on_its_way_arrives_for_reading():
    t = tmesh.zeros(1, "uint8")
    queue = tmesh.Queue()
    queue.put(t)
    t.seal()
    assert queue.get(timeout=60).sealed


@pytest.mark.parametrize("view", VIEWS[:4])
def test_views_prevent_the_release(view):
    t = tmesh.put(np.arange(4), seal=False)
    alive = view(t)
    with pytest.raises(tmesh.BusyError, match="1 view of this tensor"):
        t.release()
    with pytest.raises(BufferError):
        t.release()
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
        with pytest.raises(tmesh.ReleasedError, match="was released"):
            use()
    with pytest.raises(tmesh.NotFoundError):
        tmesh.open(ref)


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
    """Whoever wins, nobody ever has a writable view of sealed memory."""
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
