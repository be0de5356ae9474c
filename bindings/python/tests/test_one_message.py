# SPDX-License-Identifier: MIT
"""Tensors that share memory within one message still share it at the receiver, in each kind of message."""

import gc
import importlib.util
import multiprocessing
from multiprocessing.reduction import ForkingPickler
import pickle

import numpy as np
import pytest

import tmesh
from tmesh import _tmesh
import tmesh.in_transit
from conftest import assert_refused, eventually

PATIENCE = 600

fork = multiprocessing.get_context("fork")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def nothing_under_way():
    yield
    gc.collect()
    tmesh.flush(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()


@pytest.fixture
def torch():
    """The same for PyTorch's tensors, which go by tmesh here."""
    # This runs in guests too, where it takes a minute: one file tests PyTorch on the module.
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tmesh.torch
    tmesh.torch.register()
    return torch


def by_queue(item):
    q = tmesh.Queue()
    q.put(item)
    return q.get(timeout=PATIENCE)


def by_multiprocessing(item):
    return ForkingPickler.loads(ForkingPickler.dumps(item))


WAYS = [by_queue, by_multiprocessing]
OF_TORCH = [by_queue, by_multiprocessing]


def same_memory(*tensors):
    return all(np.shares_memory(tensors[0].numpy(), t.numpy()) for t in tensors)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turned", [False, True], ids=["whole first", "slice first"])
def test_tensors(way, turned):
    t = tmesh.put(np.arange(12.0).reshape(3, 4), seal=False)
    item = [t, t[1:3, ::2], t.view("uint8"), t[2, 3]]
    opened = tmesh.stats()["regions_opened"]
    back = way(item[::-1] if turned else item)
    if way is not by_queue:  # which also opens it itself
        assert tmesh.stats()["regions_opened"] - opened <= 2  # the region, and the sender's entries
    whole, part, raw, last = back[::-1] if turned else back
    assert whole.numpy().tolist() == t.numpy().tolist() and part.numpy().tolist() == [[4, 6], [8, 10]]
    assert raw.shape == (3, 32) and raw.dtype == "uint8" and last.item() == 11
    assert same_memory(whole, part) and same_memory(whole, raw) and same_memory(raw, last)
    assert [t.writable for t in back] == [way is by_queue] * 4
    if way is by_queue:
        part.numpy()[0, 0] = 50
        assert whole[1, 0].item() == t[1, 0].item() == 50


@pytest.mark.parametrize("way", WAYS)
def test_each_is_let_go_by_itself(way):
    t = tmesh.put(np.arange(4.0))
    first, second = way([t, t[1:]])
    first.release()
    assert first.released and second.numpy().tolist() == [1, 2, 3]
    second.release()
    assert_refused(second.numpy, tmesh.ReleasedError)


def test_rights_stay_apart():
    t = tmesh.put(np.zeros(4), seal=False)
    reader = tmesh.open(t.ref())
    back = by_queue([reader, t, reader[1:], t[1:]])
    assert [each.writable for each in back] == [False, True, False, True]
    back[3].numpy()[0] = 7
    assert [back[0][1].item(), back[1][1].item(), back[2][0].item()] == [7, 7, 7]


@pytest.mark.parametrize("way", WAYS)
def test_the_next_message_is_another(way):
    """Its tensors can be opened without the first message."""
    t = tmesh.put(np.arange(4.0))
    for item in ([t, t[1:]], [t[1:], t], [t[1:]]):
        assert [float(each.numpy().sum()) for each in way(item)] == [6] * len(item)


class Inner:
    """An object whose pickling makes a message of its own, while the outer message is being made."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __reduce__(self):
        return by_bytes, (bytes(ForkingPickler.dumps(self.tensors)),)


def by_bytes(data):
    return ForkingPickler.loads(data)


@pytest.mark.parametrize("way", WAYS)
def test_a_message_in_a_message(way):
    t = tmesh.put(np.arange(4.0))
    first, inner, last = way([t, Inner([t[1:], t]), t[2:]])
    assert first.tolist() == [0, 1, 2, 3] and last.tolist() == [2, 3]
    assert [each.tolist() for each in inner] == [[1, 2, 3], [0, 1, 2, 3]] and same_memory(*inner)


def test_what_was_not_sent():
    """Tensors held for a message are released if making it fails."""
    t = tmesh.put(np.zeros(4), seal=False)
    assert_refused(lambda: by_queue([t, t[1:], (each for each in [])]), TypeError, "pickle")
    assert tmesh.in_transit.here.under_way() == 0
    assert same_memory(*by_queue([t[1:], t]))


def test_lost_ones():
    if tmesh.backend() == "kernel":
        pytest.skip("memory of the module may outlive its maker")
    before = tmesh.stats()["regions_live"]
    t = tmesh.put(np.zeros(4), seal=False)
    tmesh.in_transit.here = _tmesh.InTransit()
    data = bytes(ForkingPickler.dumps([t, t[1:]]))
    pickle.loads(data)
    tmesh.flush(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()
    t.release()
    eventually(lambda: tmesh.stats()["regions_live"] <= before)  # a thread lets go of the held tensors
    for lost in pickle.loads(data):
        assert lost.lost
        assert_refused(lost.numpy, tmesh.NotFoundError)


@pytest.mark.parametrize("bad", [
    ("float32", (1 << 40,), (1,), 0), ("float32", (2,), (1 << 62,), 0), ("float32", (2,), (-1,), 0),
    ("float32", (1,), (1,), 1 << 40), ("float32", (1,), (1,), (1 << 64) - 4), ("float32", (1,), (1, 1), 0),
    ("float32", (-1,), (1,), 0), ("nonsense", (1,), (1,), 0),
])
def test_parts_lie_in_the_region(bad):
    t = tmesh.put(np.zeros(4, dtype="float32"))
    assert_refused(lambda: _tmesh.part(t, *bad), tmesh.Error)
    assert _tmesh.part(t, *_tmesh.layout(t[1:])).shape == (3,)


def test_parts_of_nothing():
    t = tmesh.put(b"x")
    layout = _tmesh.layout(t)
    for bad in ((), (b"x", *layout), (t,), (t, *layout[:3], "0"), (t, *layout[:3], None)):
        assert_refused(lambda: _tmesh.part(*bad), TypeError)
    assert_refused(lambda: _tmesh.part(t, *layout[:3], -1), OverflowError)
    assert_refused(lambda: _tmesh.layout(b"x"), TypeError)
    t.release()
    for call in (lambda: _tmesh.layout(t), lambda: _tmesh.part(t, *layout)):
        assert_refused(call, tmesh.ReleasedError)


def storage(tensor):
    """Return its address, which is the same for tensors of one storage."""
    import tmesh.torch
    return tmesh.torch._storage(tensor)._cdata


@needs_torch
@pytest.mark.parametrize("way", OF_TORCH)
@pytest.mark.parametrize("turned", [False, True], ids=["whole first", "slice first"])
def test_torch(torch, way, turned):
    """Both ends share the storage, and it is copied once."""
    a = torch.arange(12.0).reshape(3, 4)
    item = [a, a[1:], a.T, a[0].view(torch.uint8)]
    want = [t.clone() for t in item]
    if turned:
        item, want = item[::-1], want[::-1]
    tmesh.zeros(1, "uint8")  # the context exists
    copied = tmesh.stats()["bytes_copied"]
    back = way(item)
    assert tmesh.stats()["bytes_copied"] - copied < 2 * 48 + 4096 * (way is by_queue)
    for side in (item, back):
        assert len({storage(t) for t in side}) == 1
        assert all(torch.equal(t, w) for t, w in zip(side, want))
    back[0].view(-1)[0] = 100 if not turned else 0
    back[1].add_(1)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(item, back))


@needs_torch
@pytest.mark.parametrize("way", OF_TORCH)
def test_tied_weights(torch, way):
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    back = way(model.state_dict())
    assert len({storage(t) for t in back.values()}) == 1 and len({t.data_ptr() for t in back.values()}) == 1
    # The same storage, but another object.
    second.weight = torch.nn.Parameter(first.weight.detach())
    tied = way([first.weight, second.weight])
    assert type(tied[1]) is torch.nn.Parameter and storage(tied[0]) == storage(tied[1])
    with torch.no_grad():
        tied[0].add_(1)
    assert torch.equal(first.weight, tied[1]) and torch.equal(second.weight, tied[0])


@needs_torch
@pytest.mark.parametrize("way", OF_TORCH)
def test_views_of_ours(torch, way):
    """PyTorch has a storage for each, in one region."""
    t = tmesh.put(np.arange(8.0), seal=False)
    opened = tmesh.stats()["regions_opened"]
    item = [torch.from_dlpack(t), torch.from_dlpack(t[4:]), torch.from_dlpack(t)[2:]]
    back = way(item)
    assert [each.tolist() for each in back] == [each.tolist() for each in item]
    assert back[1].data_ptr() == back[0].data_ptr() + 32 == back[2].data_ptr() + 16
    if way is by_multiprocessing:
        assert tmesh.stats()["regions_opened"] - opened <= 2


@needs_torch
@pytest.mark.parametrize("way", OF_TORCH)
def test_a_storage_that_ends_within_an_element(torch, way):
    for of in (lambda raw: [raw, raw[:8].view(torch.float32)], lambda raw: [raw[:8].view(torch.float32), raw],
               lambda raw: [raw[:8].view(torch.float64)]):
        item = of(torch.arange(10, dtype=torch.uint8))
        back = way(item)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(item, back))
        assert len({storage(t) for t in back}) == 1


@needs_torch
@pytest.mark.parametrize("way", OF_TORCH)
def test_messages_apart(torch, way):
    """Tensors of other messages have the same memory too."""
    a = torch.zeros(4)
    view = a[1:]
    way([a])
    a += 1
    assert view.tolist() == [1, 1, 1]
    assert way([a, view])[1].tolist() == [1, 1, 1]


def add(inbox, outbox):
    for item in iter(inbox.get, None):
        item[0].detach().view(-1)[2:].add_(1)
        outbox.put((item[1].tolist(), item))
        del item


@needs_torch
@pytest.mark.parametrize("make", [tmesh.Queue, fork.Queue], ids=["tmesh", "multiprocessing"])
def test_another_process(torch, make):
    inbox, outbox = make(), make()
    process = fork.Process(target=add, args=(inbox, outbox))
    process.start()
    a = torch.arange(6.0)
    for turn in (1, 2):
        inbox.put([a, a[2:5]])
        theirs, back = outbox.get(timeout=PATIENCE)
        assert theirs == back[1].tolist() == a[2:5].tolist() == [2 + turn, 3 + turn, 4 + turn]
        assert storage(back[0]) == storage(back[1])
    del back
    inbox.put(None)
    process.join(PATIENCE)
    assert process.exitcode == 0
