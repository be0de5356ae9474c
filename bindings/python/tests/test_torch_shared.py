# SPDX-License-Identifier: MIT
"""PyTorch's storages that several tensors, or several processes, have: sending one of these tensors separates it from
none of the others."""

import multiprocessing
from multiprocessing.reduction import ForkingPickler
import os
import queue

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually

any_backend()
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tmesh import _tmesh  # noqa: E402
import tmesh.in_transit  # noqa: E402
import tmesh.torch  # noqa: E402

PATIENCE = 600
fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def nothing_under_way():
    yield
    tmesh.flush(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()


def by_queue(item):
    q = tmesh.Queue()
    q.put(item)
    return q.get(timeout=PATIENCE)


def by_multiprocessing(item):
    tmesh.torch.register()
    return ForkingPickler.loads(ForkingPickler.dumps(item))


WAYS = pytest.mark.parametrize("way", [by_queue, by_multiprocessing])


@WAYS
def test_forked_workers_see_what_is_written(way):
    shared = torch.zeros(4)
    shared.share_memory_()
    go, said = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(go[0], 1)
        os.write(said[1], bytes([int(shared[0])]))
        os._exit(0)
    way(shared)[0] = 42
    os.write(go[1], b"x")
    assert os.read(said[0], 1) == bytes([42]) and shared[0] == 42
    assert os.waitpid(child, 0)[1] == 0
    for end in *go, *said:
        os.close(end)


@WAYS
@pytest.mark.parametrize("nest", [lambda x: x, lambda x: {"weight": x}], ids=["alone", "nested"])
def test_holders_of_a_state_dict_see_what_is_written(way, nest):
    model = torch.nn.Linear(2, 2)
    state, view = model.state_dict(), model.weight.detach()[1:]
    back = way(nest(state["weight"]))
    back = back["weight"] if isinstance(back, dict) else back
    back.fill_(42)
    again = way(nest(model.weight))
    again = again["weight"] if isinstance(again, dict) else again
    again.detach()[1] = 43
    for each in (model.weight.detach(), state["weight"], back):
        assert each.tolist() == [[42, 42], [43, 43]]
    assert view.tolist() == [[43, 43]]


@WAYS
def test_rows_are_copied_once(way):
    """Other rows may have been sent before; if so, it takes a try."""
    big = torch.arange(40.0).reshape(20, 2).repeat(1, 1000)
    size = big.numel() * 4
    for rows in ([big[i] for i in range(20)], (big[i] for i in range(20)), [big.clone()[3:5]]):
        copied = tmesh.stats()["bytes_copied"]
        back = [way(row) for row in rows]
        assert tmesh.stats()["bytes_copied"] - copied < 2 * size
        back[3 if len(back) > 1 else 0][0] = 99
        assert len(back) == 1 or big[3, 0] == 99
    big = torch.zeros(20, 2000)
    copied = tmesh.stats()["bytes_copied"]
    back = [way(big[i]) for i in range(20)]
    assert tmesh.stats()["bytes_copied"] - copied < size + 20 * 4096
    back[5][:] = 1
    assert big.sum() == 2000 and tmesh.from_address(big.data_ptr()) is not None


@WAYS
def test_a_view_whose_base_nobody_else_has(way):
    view = torch.arange(6.0).reshape(2, 3).T
    back = way(view)
    back[2, 1] = 50
    assert view[2, 1] == 50 and back.stride() == (1, 3)
    assert tmesh.from_address(view.data_ptr()) is not None


@WAYS
def test_arrays_over_our_memory(way):
    t = tmesh.zeros((2, 3), "float32")
    whole, part = torch.from_numpy(t.numpy()), torch.from_numpy(t.numpy()[1])
    for tensor, place in ((whole, (0, 1)), (part, (1, 1))):
        copies = tmesh.stats()["bytes_copied"]
        way(tensor).view(-1)[1] = 7
        assert t[place].item() == 7 and tmesh.stats()["bytes_copied"] - copies < 4096
    array = t.numpy()
    address = array.ctypes.data
    assert tmesh.from_address(address).id == t.id
    del array, whole, part, tensor
    assert tmesh.from_address(address) is None
    assert tmesh.from_dlpack(t.numpy()).id == t.id


UNREGISTERED = """
import torch, tmesh
from multiprocessing.reduction import ForkingPickler
q = tmesh.Queue()
a = torch.zeros(4)
q.put(a)
there = q.get()
again = ForkingPickler.loads(ForkingPickler.dumps(a))        # torch.multiprocessing.Queue
onward = ForkingPickler.loads(ForkingPickler.dumps(there))   # a receiver's
again[0], onward[1] = 42, 43
assert a[:2].tolist() == there[:2].tolist() == [42, 43], (a, there)
other = ForkingPickler.loads(ForkingPickler.dumps(torch.ones(3)))
assert other.is_shared()                                     # PyTorch's own way, as ever
"""


def test_without_register_what_was_sent_stays_shared(python):
    python(UNREGISTERED)


def test_what_did_not_fit_leaves_no_descriptor():
    shared = torch.zeros(4)
    shared.share_memory_()
    q = tmesh.Queue(1)
    q.put(shared)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert_refused(lambda: q.put([shared, shared[1:]], block=False), queue.Full)
    # The thread that serves descriptors closes its own a moment later.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert q.get().tolist() == [0] * 4


def put_and_end(q):
    for row in list(torch.arange(8.0).reshape(2, 4)):
        q.put({"row": row})


def test_a_sender_ends_when_its_rows_were_opened():
    q = tmesh.Queue()
    process = fork.Process(target=put_and_end, args=(q,))
    process.start()
    process.join(0.3)  # it waits for this process
    assert [q.get(timeout=PATIENCE)["row"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    process.join(PATIENCE)
    assert process.exitcode == 0


def test_in_a_forked_child_unregistered_ones_go_pytorchs_own_way(python):
    python("""
import os, torch, tmesh, tmesh.torch
from multiprocessing.reduction import ForkingPickler
t = tmesh.zeros(4, "f4")
a = torch.from_dlpack(t)
child = os.fork()
if not child:
    back = ForkingPickler.loads(ForkingPickler.dumps(a))
    os._exit(0 if back.is_shared() and back.tolist() == [0] * 4 else 1)
assert os.waitpid(child, 0)[1] == 0
sealed = tmesh.put(torch.ones(3))
reader = torch.from_dlpack(sealed.dlpack(allow_readonly=True))
assert ForkingPickler.loads(ForkingPickler.dumps(reader)).tolist() == [1, 1, 1]
""")
