# SPDX-License-Identifier: MIT
"""Slots: a place whose bundle is replaced in one step."""

import gc
import os
import pickle
import select
import threading
import time
from pathlib import Path
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from conftest import EMULATED, assert_refused, collide

import tmesh
import tmesh.in_transit
from tmesh import _tmesh

PATIENCE = 600


@pytest.fixture(autouse=True)
def begin_anew():
    yield
    gc.collect()
    tmesh.in_transit.here = _tmesh.InTransit()


def weights(number):
    return {"a": np.full((3, 4), float(number)), "b": np.arange(number, number + 5)}


def test_publish_and_read():
    with tmesh.Slot(label="adapter") as slot, tmesh.Slot.open(slot.token) as reader:
        assert slot.generation == 0 and slot.token.startswith("tm1") and repr(slot) == "<tmesh.Slot, generation 0>"
        assert slot.publish(weights(1)) == 1 == slot.generation
        first = reader.read()
        assert isinstance(first, tmesh.SlotValue) and isinstance(first, tmesh.Bundle) and first.generation == 1
        assert first["a"].numpy()[2, 3] == 1 and "generation 1" in repr(first)


def test_a_generation_goes_with_its_last_holder():
    slot = tmesh.Slot()
    reader = tmesh.Slot.open(slot.token)
    slot.publish(weights(0))
    reader.read()
    live = tmesh.stats()["regions_live"]
    for number in range(1, 50):
        slot.publish(weights(number))
        assert reader.read()["b"][0].item() == number
        assert tmesh.stats()["regions_live"] == live
    value = reader.read()
    tensor = value["a"]
    slot.publish(weights(50))
    reader.read()
    assert tmesh.stats()["regions_live"] > live
    value.release()
    assert_refused(lambda: value["a"], tmesh.ReleasedError)
    assert_refused(value.ref, tmesh.ReleasedError)
    assert f"released, generation {value.generation}>" in repr(value)
    assert tensor.tolist()[0][0] == 49.0  # a tensor of it keeps it too
    del tensor
    assert tmesh.stats()["regions_live"] == live


def test_releasing_is_ones_own():
    """Two reads of one process may have the same generation."""
    slot = tmesh.Slot()
    slot.publish(weights(1))
    reader = tmesh.Slot.open(slot.token)
    with reader.read() as one:
        other = reader.read()
        assert one is not other and one["a"].id == other["a"].id
    assert_refused(lambda: one["a"], tmesh.ReleasedError)
    assert other["b"].tolist() == [1, 2, 3, 4, 5] and reader.read()["b"][0].item() == 1
    assert_refused(lambda: other.nothing, AttributeError)


def test_the_same_bundle_is_not_opened_again():
    slot = tmesh.Slot()
    a, b = tmesh.bundle(weights(1)), tmesh.bundle(weights(2))
    reader = tmesh.Slot.open(slot.token)
    held = []
    for value in (a, b):
        slot.publish(value)
        held.append(reader.read())
    opened = tmesh.stats()["regions_opened"]
    for number in range(20):
        slot.publish((a, b)[number % 2])
        assert reader.read()["b"][0].item() == number % 2 + 1
    assert tmesh.stats()["regions_opened"] == opened


def test_watching():
    slot = tmesh.Slot()
    reader = tmesh.Slot.open(slot.token)
    assert reader.fileno() >= 0 and reader.changed() is False and reader.wait(0) is False and reader.wait(0.01) is False
    slot.publish(weights(1))
    assert select.select([reader], [], [], PATIENCE)[0] == [reader]
    assert reader.changed() and reader.wait() and reader.changed()
    assert reader.read().generation == 1 and not reader.changed()
    timer = threading.Timer(0.05, slot.publish, [weights(2)])
    timer.start()
    assert reader.wait(PATIENCE) and reader.read().generation == 2
    timer.join()
    slot.close()
    assert slot.closed
    assert_refused(lambda: reader.wait(PATIENCE), tmesh.GoneError)
    assert reader.read().generation == 2


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_closing_ends_the_wait_of_another_thread(timeout):
    slot = tmesh.Slot()
    reader = tmesh.Slot.open(slot.token)
    ended = []

    def watch():
        try:
            reader.wait(timeout)
        except tmesh.ReleasedError as error:
            ended.append(str(error))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    asleep, until = f"/proc/self/task/{watcher.native_id}/wchan", time.monotonic() + 10
    while time.monotonic() < until and "poll" not in Path(asleep).read_text():  # some kernels do not show it
        time.sleep(0.01)
    fds = len(os.listdir("/proc/self/fd"))
    reader.close()
    watcher.join(PATIENCE)
    assert not watcher.is_alive() and ended == ["[Errno 9] this slot's reader was closed"] and reader.closed
    assert len(os.listdir("/proc/self/fd")) < fds
    assert slot.publish(weights(1)) == 1


def test_names():
    with tmesh.Slot(name="python/adapter"), pytest.raises(tmesh.ExistsError, match="take another name"):
        tmesh.Slot(name="python/adapter")
    for bad in ("a\nb", "a\0b"):
        for use in (lambda: tmesh.Slot(name=bad), lambda: tmesh.Slot.open_named(bad)):
            assert_refused(use, (tmesh.InvalidError, ValueError))
    for bad in (5, None):
        assert_refused(lambda: tmesh.Slot.open_named(bad), TypeError)


def test_use_after_close():
    slot = tmesh.Slot()
    slot.publish(weights(1))
    reader = tmesh.Slot.open(slot.token)
    value = reader.read()
    reader.close()
    for use in (reader.changed, reader.fileno, reader.wait, reader.__enter__):
        assert_refused(use, tmesh.ReleasedError)
    slot.close()
    for use in (lambda: slot.token, lambda: slot.generation, slot.__enter__):
        assert_refused(use, tmesh.ReleasedError)
    assert value["b"][0].item() == 1 and repr(slot) == "<tmesh.Slot, closed>" and "closed" in repr(reader)


def test_a_slot_is_named_by_its_token():
    slot = tmesh.Slot()
    slot.publish(weights(3))
    reader = tmesh.Slot.open(slot.token)
    for what in (slot, reader):
        assert_refused(lambda: pickle.dumps(what), TypeError, "token")
    # A value is a bundle, and is sent as one.
    there = pickle.loads(ForkingPickler.dumps(reader.read()))
    assert isinstance(there, tmesh.Bundle) and there["b"][0].item() == 3


@pytest.mark.parametrize("token, error", [
    ("a\0b", tmesh.ProtocolError), (5, TypeError), (None, TypeError),
])
def test_bad_tokens(token, error):
    assert_refused(lambda: tmesh.Slot.open(token), error)


def test_bad_input():
    slot = tmesh.Slot()
    for bad in ([1], "text", 5, {5: [1]}):
        assert_refused(lambda: slot.publish(bad), TypeError)
    gone = tmesh.bundle(weights(1))
    gone.release()
    assert_refused(lambda: slot.publish(gone), tmesh.ReleasedError)
    assert slot.generation == 0
    assert_refused(lambda: tmesh.Slot(max_ref=1 << 30), tmesh.InvalidError)
    assert_refused(lambda: tmesh.Slot(max_ref=8).publish(weights(1)), tmesh.InvalidError, "max_ref")
    assert_refused(lambda: tmesh.Slot.open(slot.token).wait(-1), tmesh.InvalidError)
    assert_refused(lambda: tmesh.Slot(label=5), TypeError)


def test_a_child_has_its_own():
    """Values that were read stay valid; the slot and its readers are the parent's."""
    slot = tmesh.Slot()
    slot.publish(weights(1))
    reader = tmesh.Slot.open(slot.token)
    value = reader.read()
    token = slot.token
    child = os.fork()
    if not child:
        code = 1
        try:
            assert value["b"].tolist() == [1, 2, 3, 4, 5]
            for use in (lambda: slot.publish(None), reader.changed, reader.fileno):
                assert_refused(use, tmesh.AccessError)
            with tmesh.Slot.open(token) as own:
                assert own.read()["b"][0].item() == 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert slot.publish(weights(2)) == 2 and reader.read().generation == 2


def test_two_threads_on_one_reader():
    slot, values = tmesh.Slot(), [tmesh.bundle(weights(number)) for number in range(2)]
    with tmesh.Slot.open(slot.token) as reader:
        def change_and_read():
            slot.publish(values[0])
            slot.publish(values[1])
            reader.read()
        assert "one of its own" in collide(change_and_read)
        assert reader.read().generation == slot.generation


def test_one_thread_at_a_time():
    """Many threads with a reader each, while the value changes: each sees whole generations that never go back."""
    slot = tmesh.Slot()
    slot.publish(weights(1))
    # Readers spin, and share an emulated processor with the publisher.
    wrong, end = [], 50 if EMULATED else 200

    def read():
        last = 0
        with tmesh.Slot.open(slot.token) as reader:
            while last < end:
                value = reader.read()
                number = int(value["b"][0])
                if value.generation < last or not np.all(value["a"].numpy() == number) or number != value.generation:
                    wrong.append((value.generation, number))
                last = value.generation

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(2, end + 1):
        slot.publish(weights(number))
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong and not any(thread.is_alive() for thread in threads)
