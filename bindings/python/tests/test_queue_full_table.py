# SPDX-License-Identifier: MIT
"""A receiver without free descriptors keeps an item that it cannot open for its next get()."""

import multiprocessing
import os
import resource
import time

import numpy as np
import pytest

import tmesh
from tmesh import _tmesh
import tmesh.in_transit
from conftest import ANY_BACKEND, assert_refused

pytestmark = ANY_BACKEND

PATIENCE = 600
ITEMS = 40
fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def nothing_under_way():
    yield
    tmesh.flush(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()


def receive(inbox, outbox):
    """Hold as many items as possible, and drop all when no descriptor is left."""
    inbox.get()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, 4096))
    held, limits, last = [], 0, time.monotonic()
    while True:
        try:
            item = inbox.get(timeout=PATIENCE)
        except tmesh.LimitError:
            limits += 1
            if not held:  # a thread may close some a moment later
                if time.monotonic() > last + PATIENCE:
                    os._exit(1)
                time.sleep(0.001)
            held.clear()
            continue
        if item is None:
            break
        last = time.monotonic()
        tensors = [item] if isinstance(item, tmesh.Tensor) else list(item.values())
        held += tensors
        outbox.put([int(t.numpy()[0]) for t in tensors])
        del item, tensors
    outbox.put(limits)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("kind", ["alone", "nested", "bundle"])
def test_nothing_is_lost(kind, size):
    inbox, outbox = tmesh.Queue(), tmesh.Queue()
    process = fork.Process(target=receive, args=(inbox, outbox))
    process.start()
    inbox.put(0)
    for number in range(ITEMS):
        made = [tmesh.put(np.full(size, number), seal=False) for _ in range(1 if kind == "alone" else 2)]
        named = dict(zip("ab", made))
        inbox.put(made[0] if kind == "alone" else named if kind == "nested" else tmesh.bundle(named, seal=False))
        del made, named
    inbox.put(None)
    got = []
    while isinstance(told := outbox.get(timeout=PATIENCE), list):
        got.append(told)
    assert got == [[number] * (1 if kind == "alone" else 2) for number in range(ITEMS)]
    assert told > 0  # it sometimes had none left
    process.join(PATIENCE)
    assert process.exitcode == 0
    tmesh.flush(PATIENCE)  # and its sender holds nothing more


def test_it_counts_as_in_the_queue(monkeypatch):
    q = tmesh.Queue()
    q.put({"t": tmesh.put(b"x"), "number": 1})
    with monkeypatch.context() as patch:
        def refuse(*_):
            raise tmesh.LimitError(24, "no descriptor")
        patch.setattr(tmesh.in_transit, "opened", refuse)
        for _ in range(2):
            assert_refused(lambda: pickled(q), tmesh.LimitError)
            assert q.qsize() == 1 and not q.empty()
    assert q.get()["number"] == 1 and q.empty()


def pickled(q):
    """pickle finds the function by its name, which now is another one's."""
    return q.get(block=False)


class Broken:
    def __reduce__(self):
        return fail, ()


def fail():
    raise RuntimeError("cannot be unpickled")


def test_what_cannot_be_unpickled_holds_nothing():
    q = tmesh.Queue()
    q.put([tmesh.put(b"x"), Broken()])
    assert_refused(q.get, RuntimeError)
    assert q.empty()
    tmesh.flush(PATIENCE)
