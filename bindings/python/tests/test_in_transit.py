# SPDX-License-Identifier: MIT
"""Tensors that a process holds for receivers that will never come."""

import multiprocessing
import multiprocessing.pool
from multiprocessing.reduction import ForkingPickler
import os
import pickle
import warnings

import numpy as np
import pytest

import tmesh
from conftest import EMULATED, assert_refused, eventually
from tmesh import in_transit

PATIENCE = 600

# A slot is free again once all have been checked.
MANY = 10_000 if EMULATED else 100_000


@pytest.fixture(autouse=True)
def nothing_before(monkeypatch):
    """Each test has entries of its own."""
    monkeypatch.setattr(in_transit, "here", tmesh._tmesh.InTransit())


def fails(call):
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError, tmesh.LimitError)) as raised:
        call()
    assert raised.type is not tmesh.LimitError, "untaken tensors are still held"


no_pickle = lambda: 0  # noqa: E731


def test_pickles_that_fail_hold_nothing():
    t, b = tmesh.put(b"x" * 100), tmesh.bundle({"a": np.arange(3)})
    for _ in range(MANY):
        fails(lambda: ForkingPickler.dumps((t, no_pickle)))
    for _ in range(MANY // 10):
        fails(lambda: ForkingPickler.dumps((b, [t], no_pickle)))
    assert in_transit.here.under_way() == 0


def test_items_that_cannot_be_put_hold_nothing():
    t, queue = tmesh.zeros(100, "uint8"), tmesh.Queue()
    for _ in range(MANY // 4):
        fails(lambda: queue.put((t, no_pickle)))
    assert in_transit.here.under_way() == 0
    # A message that was sent holds its tensor until it is taken.
    queue.put((t, 1))
    assert in_transit.here.under_way() == 1
    assert queue.get()[1] == 1
    assert in_transit.here.under_way() == 0


def test_one_message_that_fails_inside_another():
    class Inner:
        def __reduce__(self):
            fails(lambda: ForkingPickler.dumps((u, no_pickle)))
            return bytes, (bytes(ForkingPickler.dumps(v)),)

    t, u, v = (tmesh.put(b"x") for _ in range(3))
    data = ForkingPickler.dumps((t, Inner()))
    assert in_transit.here.under_way() == 2
    fails(lambda: ForkingPickler.dumps((t, Inner(), no_pickle)))
    assert in_transit.here.under_way() == 2
    opened, inner = ForkingPickler.loads(data)
    assert bytes(opened) == bytes(ForkingPickler.loads(inner)) == b"x"
    assert in_transit.here.under_way() == 0


def test_receivers_that_died_make_room():
    here = tmesh._tmesh.InTransit(entries=8, patience=0.0)
    tensors = [tmesh.put(bytes([i])) for i in range(100)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        parcels = [here.send(t, False) for t in tensors]
    assert here.under_way() == 8
    assert [str(w.message)[:18] for w in told] == ["8 tensors were sen"]
    # The last ones are still held, even if the receiver of an earlier one answers late.
    reader = tmesh._tmesh.InTransit()
    reader.give_up(parcels[0])
    assert here.under_way() == 8
    assert [bytes(reader.open(p)) for p in parcels[-8:]] == [bytes(t) for t in tensors[-8:]]
    for p in parcels[:-8]:
        reader.give_up(p)
    assert here.under_way() == 0


def test_what_was_sent_a_moment_ago_is_held():
    here = tmesh._tmesh.InTransit(entries=8)
    tensors = [tmesh.put(b"x") for _ in range(8)]
    parcels = [here.send(t, False) for t in tensors]
    assert_refused(lambda: here.send(tensors[0], False), tmesh.LimitError, "not yet taken")
    here.give_up(parcels[3])
    assert here.under_way() == 7
    here.send(tensors[0], False)


def test_pipes_that_nobody_reads_any_more(monkeypatch):
    monkeypatch.setattr(in_transit, "here", tmesh._tmesh.InTransit(entries=64, patience=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(40):
            ours, theirs = multiprocessing.Pipe(False)
            for _ in range(20):
                theirs.send(tmesh.put(b"x"))
            ours.close()
            assert_refused(lambda: theirs.send(tmesh.put(b"x")), OSError)
            theirs.close()
    assert in_transit.here.under_way() <= 64


def test_a_pipe_without_a_reader_holds_nothing():
    """The kernel reports the end. Otherwise 4,096 tensors would keep this process from sending for a
    minute."""
    before = in_transit.under_way()
    for duplex in False, True:
        for _ in range(300):
            reader, writer = multiprocessing.Pipe(duplex)
            for _ in range(20):
                writer.send([tmesh.put(b"x")])
            reader.close()
            writer.close()
    assert in_transit.under_way() == before
    # This also works while this process has the reading end open. A message for another process is left
    # to it.
    reader, writer = multiprocessing.Pipe(False)
    writer.send(tmesh.put(b"y"))
    assert in_transit.under_way() == before + 1
    assert bytes(reader.recv()) == b"y" and in_transit.under_way() == before
    writer.send(tmesh.put(b"z"))
    reader.close()
    assert in_transit.under_way() == before
    assert_refused(lambda: writer.send(tmesh.put(b"late")), BrokenPipeError)
    assert in_transit.under_way() == before
    writer.close()


class Ends:
    """An object that is unpickled before the items after it."""

    def __reduce__(self):
        return os._exit, (3,)


def test_a_process_that_dies_over_its_arguments_holds_nothing():
    before = in_transit.under_way()
    process = multiprocessing.get_context("spawn").Process(target=print, args=(Ends(), tmesh.put(b"x")))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 3 and in_transit.under_way() == before
    process = multiprocessing.get_context("spawn").Process(target=print, args=(Ends(), tmesh.put(b"x")))
    process.start()
    eventually(lambda: in_transit.under_way() == before)
    process.join()
    process.close()
    assert not in_transit._receivers.processes


def length(items):
    return len(items[0]) if isinstance(items[0], tmesh.Tensor) else -1


def back(_):
    """Return what cannot be pickled, after a tensor."""
    return tmesh.put(b"x"), no_pickle


def own(_):
    return in_transit.under_way()


def test_a_pool_whose_pickles_fail_holds_nothing():
    """Neither the pool's owner, whose arguments fail, nor a worker, whose results fail."""
    t = tmesh.put(b"x" * 100)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for _ in range(MANY // 100):
            fails(lambda: pool.apply(length, ((t, no_pickle),)))
        assert in_transit.under_way() == 0
        for _ in range(MANY // 100):
            assert_refused(lambda: pool.apply(back, (0,)), multiprocessing.pool.MaybeEncodingError)
        assert pool.apply(own, (0,)) == 0
        # Its worker still opens what is sent.
        assert pool.apply(length, ((t,),)) == 100
        assert in_transit.under_way() == 0


@pytest.fixture
def few(monkeypatch):
    """Few entries, given up at once if they are wanted."""
    monkeypatch.setattr(in_transit, "here", tmesh._tmesh.InTransit(entries=8, patience=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_a_pool_whose_workers_die_keeps_no_slot(few):
    """A worker takes the task, and dies before it opens the tensor. The next worker goes on."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for _ in range(12):
            pool.apply_async(length, ((Ends(), tmesh.put(b"x")),))
        assert pool.apply(length, ((tmesh.put(b"alive"),),)) == 5
        assert in_transit.here.under_way() <= 8


def take_all(queue):
    while True:
        queue.get()


def test_a_queue_whose_receivers_die_keeps_no_slot(few):
    queue = tmesh.Queue()
    for _ in range(12):
        receiver = multiprocessing.get_context("fork").Process(target=take_all, args=(queue,))
        receiver.start()
        queue.put((Ends(), tmesh.put(b"x")))
        receiver.join(PATIENCE)
        assert receiver.exitcode == 3
    assert in_transit.here.under_way() <= 8
    queue.put((tmesh.put(b"alive"), 1))
    assert bytes(queue.get()[0]) == b"alive"
