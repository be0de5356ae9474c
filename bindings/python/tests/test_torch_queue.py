# SPDX-License-Identifier: MIT
"""PyTorch's tensors through multiprocessing's queues, and Tensors too."""

import concurrent.futures
import contextlib
import gc
import multiprocessing
from multiprocessing.reduction import ForkingPickler
import os
import pickle
import threading
import time

import numpy as np
import pytest

import tmesh
from tmesh import _tmesh
from conftest import EMULATED, SLOW_IMPORT, any_backend, assert_refused

any_backend()
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tmesh.in_transit  # noqa: E402
import tmesh.torch  # noqa: E402
from torch.multiprocessing import reductions  # noqa: E402

SLOW = pytest.mark.skipif(EMULATED, reason=SLOW_IMPORT)
PATIENCE = 600

processes = multiprocessing.get_context("fork" if EMULATED else "spawn")


def again(inbox, outbox):
    """Add a number to each item and send it back, or the error."""
    tmesh.torch.register()
    for item in iter(inbox.get, None):
        tensor, number = item
        if number:
            tensor.detach().add_(number)
        outbox.put(tensor)


@pytest.fixture(scope="module")
def worker():
    """Start a process that answers. Memory that both keep for good exists before a test counts."""
    tmesh.torch.register()
    inbox, outbox = processes.Queue(), processes.Queue()
    process = processes.Process(target=again, args=(inbox, outbox))
    process.start()

    def ask(tensor, number=0):
        inbox.put((tensor, number))
        return outbox.get(timeout=PATIENCE)

    ask(torch.ones(1), 1)
    begin_anew()
    yield ask
    inbox.put(None)
    process.join(PATIENCE)
    assert process.exitcode == 0


def begin_anew():
    """Wait until sent tensors were taken; reset this process's own entries and those of others."""
    gc.collect()
    tmesh.in_transit.wait(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()


@pytest.fixture(autouse=True)
def nothing_under_way(worker):
    yield
    begin_anew()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16",
                                   "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_every_dtype(worker, dtype):
    source = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    back = worker(source)
    assert back.dtype == source.dtype and torch.equal(back, source)


def test_both_have_the_same_memory(worker):
    tensor = torch.zeros(1000)
    back = worker(tensor, 3)
    assert tensor[999] == 3 and back[999] == 3
    back[0] = 7
    assert tensor[0] == 7


def test_only_the_first_send_copies(worker):
    tensor = torch.ones(1000)
    copies = tmesh.stats()["copies"]
    worker(tensor)
    assert tmesh.stats()["copies"] == copies + 1
    worker(tensor)
    worker(tensor[10:20])
    assert tmesh.stats()["copies"] == copies + 1
    shared = torch.from_dlpack(tmesh.empty((10, 10), "float32"))
    worker(shared, 1)
    assert shared.sum() == 100 and tmesh.stats()["copies"] == copies + 1


@pytest.mark.parametrize("view", [lambda t: t[1:3], lambda t: t.T, lambda t: t[:, 1],
                                  lambda t: t[:1].expand(4, 6), lambda t: t[2, 3],
                                  lambda t: t[::2, ::3]])
def test_layouts(worker, view):
    tensor = view(torch.arange(24.0).reshape(4, 6))
    want = tensor.clone()
    back = worker(tensor)
    assert torch.equal(back, want) and back.stride() == tensor.stride()
    assert torch.equal(tensor, want)


def test_without_elements_pytorch_has_its_own_way(worker):
    assert worker(torch.empty(0, 3)).shape == (0, 3)


def test_gradients(worker):
    assert worker(torch.ones(2, requires_grad=True)).requires_grad
    parameter = worker(torch.nn.Parameter(torch.ones(2)))
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad
    assert_refused(lambda: ForkingPickler.dumps(torch.ones(2, requires_grad=True) * 2), RuntimeError, "grad")


def test_of_inference_mode(worker):
    """Inside and outside of inference mode the tensor stays the same."""
    with torch.inference_mode():
        result = torch.ones(3)
    # A queue's thread is not in that mode, and would only print errors.
    ForkingPickler.loads(ForkingPickler.dumps(result))
    with torch.inference_mode():
        inside = worker(torch.zeros(3), 2)
    back = worker(result, 2)
    assert result.tolist() == back.tolist() == [3, 3, 3] and inside.tolist() == [2, 2, 2]
    assert result.is_inference() and not back.is_inference()
    leaf = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        worker(leaf)
    (leaf * 3).sum().backward()
    assert leaf.grad.tolist() == [3, 3]


def test_nested_ones_go_pytorchs_own_way(worker):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    try:
        reductions.reduce_tensor(nested)
    except RuntimeError as error:
        pytest.skip(f"this PyTorch cannot send nested tensors: {error}")
    back = ForkingPickler.loads(ForkingPickler.dumps(nested))
    assert [len(part) for part in back.unbind()] == [2, 3]


def test_the_sender_may_forget(worker):
    back = worker(torch.full((1000,), 5.0), 1)
    gc.collect()
    assert back.sum() == 6000


def test_many_under_way():
    queue = processes.Queue()
    for i in range(200):
        queue.put(torch.full((10,), float(i)))
    got = [queue.get(timeout=PATIENCE) for _ in range(200)]
    assert [t[0].item() for t in got] == list(range(200))


def test_a_message_that_cannot_be_pickled():
    """No receiver will take its parcels."""
    t = torch.ones(10)
    for _ in range(100):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            reductions.ForkingPickler.dumps((t, t[2:], lambda: 0))
    assert tmesh.in_transit.here.under_way() == 0


def test_too_many_under_way(monkeypatch):
    monkeypatch.setattr(tmesh.in_transit, "here", _tmesh.InTransit(3))
    parcels = [ForkingPickler.dumps(torch.ones(2)) for _ in range(3)]
    assert_refused(lambda: ForkingPickler.dumps(torch.ones(2)), tmesh.LimitError, "not yet taken")
    assert ForkingPickler.loads(parcels[1]).sum() == 2
    ForkingPickler.loads(ForkingPickler.dumps(torch.ones(2)))
    assert tmesh.in_transit.here.under_way() == 2


def test_many_are_looked_at_in_turn(monkeypatch):
    """Untaken parcels do not block the others."""
    here = _tmesh.InTransit()
    monkeypatch.setattr(tmesh.in_transit, "here", here)
    never = [tmesh.put(b"x", seal=False) for _ in range(20)]
    kept = [here.send(t, False) for t in never]
    before = tmesh.stats()["regions_live"]
    for _ in range(1000):  # at most 9 of 4096 entries each
        here.open(here.send(tmesh.put(b"y", seal=False), True))
        here.look()
    assert tmesh.stats()["regions_live"] - before < 20
    assert here.under_way() == 20
    for parcel in kept:
        here.give_up(parcel)
    assert here.under_way() == 0


def test_two_threads_that_send_first(monkeypatch):
    """The memory that either keeps is available to the receiver."""
    monkeypatch.setattr(tmesh.in_transit, "here", _tmesh.InTransit())
    both = threading.Barrier(2)

    def dumps(tensor):
        both.wait(PATIENCE)
        return ForkingPickler.dumps(tensor)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        parcels = list(pool.map(dumps, [torch.ones(2), torch.ones(2)]))
    for data in parcels:
        assert ForkingPickler.loads(data).sum() == 2


def test_read_only_memory_is_refused():
    sealed = tmesh.put(torch.ones(3), seal=True)
    reader = torch.from_dlpack(sealed.dlpack(allow_readonly=True))
    assert_refused(lambda: ForkingPickler.dumps(reader), tmesh.AccessError, "tmesh.Tensor")


def test_what_nobody_keeps_is_not_found(monkeypatch):
    monkeypatch.setattr(tmesh.in_transit, "here", _tmesh.InTransit())
    data = bytes(ForkingPickler.dumps(torch.ones(2)))
    ForkingPickler.loads(data)
    ForkingPickler.dumps(torch.ones(2))  # lets go of tensors that were taken
    lost = ForkingPickler.loads(data)  # an exception here would break the unpickling of the message
    assert_refused(lost.sum, tmesh.NotFoundError)


def total(tensor):
    return float(np.asarray(tensor).sum()), type(tensor).__name__


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=SLOW),
                                    pytest.param("forkserver", marks=SLOW)])
def test_concurrent_futures(method):
    """For tmesh's Tensors and PyTorch's."""
    context = multiprocessing.get_context(method)
    t = tmesh.put(np.ones(1000), seal=False)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(total, t).result(PATIENCE) == (1000, "Tensor")
        assert list(pool.map(total, [t[:10], t[10:30]])) == [(10, "Tensor"), (20, "Tensor")]
        assert pool.submit(total, torch.ones(50)).result(PATIENCE) == (50, "Tensor")


def test_pool():
    t = tmesh.put(np.ones(1000), seal=False)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.apply(total, (t,)) == (1000, "Tensor")
        assert pool.map(total, [t[:10], torch.ones(20)]) == [(10, "Tensor"), (20, "Tensor")]


def test_from_address():
    t = tmesh.put([1.0, 2.0], seal=False)
    a, b = torch.from_dlpack(t), torch.from_dlpack(t[1:])
    assert tmesh.from_address(a.data_ptr()).shape == (2,)
    assert tmesh.from_address(b.data_ptr()).numpy().tolist() == [2.0]
    assert tmesh.from_address(a.data_ptr() + 7).shape == (2,)
    assert tmesh.from_address(a.data_ptr() + t.nbytes - 1).shape == (2,)
    assert tmesh.from_address(a.data_ptr() + t.nbytes) is None
    assert tmesh.from_address(a.data_ptr() - 1) is None
    assert tmesh.from_address(0) is None
    address = a.data_ptr()
    del a
    assert tmesh.from_address(address) is None
    for bad in (None, "x", 1.5):
        assert_refused(lambda: tmesh.from_address(bad), TypeError)
    assert_refused(lambda: tmesh.from_address(1 << 80), OverflowError)


def test_from_address_inside():
    """Return the largest tensor around an address. Callers that want the tensor at an address do not get those
    around it."""
    t = tmesh.put(np.arange(10.0), seal=False)
    view = torch.from_dlpack(t)[4:]
    part = torch.from_dlpack(t[3:6])
    assert tmesh.from_address(view.data_ptr()).id == t.id
    assert tmesh.from_address(view.data_ptr()).shape == (10,)
    assert tmesh.from_address(part.data_ptr()).shape == (3,)
    around, before = _tmesh.containing(part.data_ptr())
    assert (around.shape, before) == ((10,), 24)
    assert _tmesh.containing(view.data_ptr() + 5)[1] == 37
    assert _tmesh.begins_at(view.data_ptr()) is None
    gaps = tmesh.put(np.arange(10.0), seal=False)
    every = torch.from_dlpack(gaps[::2])
    assert tmesh.from_address(every.data_ptr()).shape == (5,)
    assert tmesh.from_address(every[1].data_ptr()) is None is _tmesh.containing(every.data_ptr())
    # A storage of its own inside our memory is moved into memory of its own, as before.
    inside = torch.from_numpy(torch.from_dlpack(t).numpy()[2:])
    received = ForkingPickler.loads(ForkingPickler.dumps(inside))
    assert received.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]


def test_find():
    t = tmesh.put(np.zeros((2, 3), dtype="float32"), seal=False)
    a, row = torch.from_dlpack(t), torch.from_dlpack(t[0])
    assert a.data_ptr() == row.data_ptr()
    assert _tmesh.find(a.data_ptr(), "float32", (2, 3), (3, 1)).shape == (2, 3)
    assert _tmesh.find(a.data_ptr(), "float32", (3,), (1,)).shape == (3,)
    for other in (("int32", (2, 3), (3, 1)), ("float32", (2,), (3,)), ("float32", (2, 3), (1, 2)),
                  ("float32", (2, 2), (3, 1)), ("float32", (2, 3, 1), (3, 1, 1))):
        assert _tmesh.find(a.data_ptr(), *other) is None
    assert _tmesh.find(a.data_ptr() + 4, "float32", (2, 3), (3, 1)) is None
    assert _tmesh.find(0, "float32", (2, 3), (3, 1)) is None

    class Other:
        def __index__(self):
            raise AssertionError("no code of others runs while shells are looked through")

    for strange in ("x", Other()):
        assert _tmesh.find(a.data_ptr(), "float32", (strange, 3), (3, 1)) is None
    for bad in ((), (1, "float32", (1,)), (1, "float32", [1], (1,)), (1, 2, (1,), (1,))):
        assert_refused(lambda: _tmesh.find(*bad), TypeError)
    assert_refused(lambda: _tmesh.find(a.data_ptr(), "float32", (1 << 70, 3), (3, 1)), OverflowError)
    empty = tmesh.empty((0, 3), "float32")
    consumer = torch.from_dlpack(empty)
    for address in (consumer.data_ptr(), empty.numpy().ctypes.data):
        assert _tmesh.find(address, "float32", (0, 3), (3, 1)) is None


def test_other_than_what_lies_there(worker):
    """A tensor over the same memory, from the same address on."""
    base = torch.from_dlpack(tmesh.put(np.arange(12, dtype="complex64"), seal=False))
    for view in (base.conj(), base.view(torch.float32)[:6], base[:5], base.reshape(3, 4).T):
        want = view.resolve_conj().clone()
        assert torch.equal(worker(view), want)


def parcel():
    here, t = _tmesh.InTransit(), tmesh.put(b"x", seal=False)
    return here, t, bytearray(here.send(t, True))


def test_parcels():
    here, t, sent = parcel()
    opened = here.open(sent)
    opened.numpy()[0] = 7
    assert t.numpy()[0] == 7 and opened.writable and here.under_way() == 0
    reader = here.open(here.send(t, False))
    assert not reader.writable and reader.numpy()[0] == 7
    here.give_up(here.send(t, False))
    assert here.under_way() == 0
    gone = _tmesh.InTransit()
    left = gone.send(t, False)
    del gone
    assert here.open(left).nbytes == 1
    few = _tmesh.InTransit(1)
    for _ in range(2):
        few.open(few.send(t, False))
    assert_refused(lambda: here.send(tmesh.open(t.ref()), True), tmesh.AccessError)
    t.release()
    assert_refused(lambda: here.send(t, True), tmesh.ReleasedError)
    for bad in ((), (t,), (b"x", True), (t, True, 1)):
        assert_refused(lambda: here.send(*bad), TypeError)
    for entries in (0, 4097):
        assert_refused(lambda: _tmesh.InTransit(entries), tmesh.InvalidError, "entries")


def test_a_forked_child_begins_anew():
    """A child does not hold its parent's tensors, and does not write into its entries."""
    here, t, sent = parcel()
    child = os.fork()
    if not child:
        try:
            assert here.under_way() == 0
            assert bytes(here.open(here.send(tmesh.put(b"y", seal=False), True))) == b"y"
            assert here.under_way() == 0
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert here.under_way() == 1
    here.give_up(sent)
    assert here.under_way() == 0


def test_bad_parcels():
    """Parcels with any content open nothing, and write only into the entries."""
    here, t, sent = parcel()
    for size in (0, 1, len(sent) - 1, len(sent) + 1):
        for call in (here.open, here.give_up):
            assert_refused(lambda: call(bytes(sent.ljust(len(sent) + 1)[:size])), tmesh.ProtocolError, "version")
    assert_refused(lambda: here.open(bytes(8) + sent[8:]), tmesh.ProtocolError, "version")
    few = _tmesh.InTransit(2)
    first, second = few.send(t, True), bytearray(few.send(t, True))
    slot = [a == b for a, b in zip(first, second)].index(False)
    second[slot] = 2
    assert_refused(lambda: here.give_up(second), tmesh.ProtocolError, "no entry 2")
    for position in range(0, len(sent), 7 if EMULATED else 1):
        for value in (0x00, 0xff, sent[position] ^ 1):
            bad = bytearray(sent)
            bad[position] = value
            with contextlib.suppress(tmesh.Error):
                here.open(bad)
    assert_refused(lambda: here.open("x"), TypeError)
    assert_refused(lambda: here.open(memoryview(bytes(2 * len(sent)))[::2]), BufferError)
    assert here.open(sent).nbytes == 1
