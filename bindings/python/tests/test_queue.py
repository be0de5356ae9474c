# SPDX-License-Identifier: MIT
"""tmesh.Queue: items arrive with the same memory; ends, deaths and invalid messages."""

import gc
import importlib.util
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time

import numpy as np
import pytest

import tmesh
from tmesh import _tmesh
import tmesh.queue
import tmesh.in_transit
from conftest import ANY_BACKEND, EMULATED, SLOW_IMPORT, assert_refused, check_cpython, cpython_names, eventually, pytorch

# The limit of a wait for an item, for slow machines: a spawned child may have to import PyTorch first.
PATIENCE = 600
METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.skipif(EMULATED, reason=SLOW_IMPORT))]
fork = multiprocessing.get_context("fork")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                                 reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def nothing_under_way():
    """Each send lets go of earlier tensors that were taken."""
    yield
    gc.collect()
    tmesh.in_transit.wait(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()


@pytest.fixture
def start():
    """Start a process, which is ended at the end of the test."""
    started = []

    def run(target, *args, method="fork"):
        process = multiprocessing.get_context(method).Process(target=target, args=args)
        process.start()
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.join()


def pairs(count=2, **options):
    return [tmesh.Queue(**options) for _ in range(count)]


def echo(inbox, outbox):
    """Send each item back, with its type, until None arrives."""
    for item in iter(inbox.get, None):
        outbox.put((type(item).__name__, item))


ITEMS = [1, "text", b"", b"raw", bytes(55), bytes(56), b"x" * 100000, [1, {"a": (2, 3.5)}],
         list(range(10000)), ValueError("x").args, False, 0]


@pytest.mark.parametrize("method", METHODS)
def test_plain_things(start, method):
    inbox, outbox = pairs()
    process = start(echo, inbox, outbox, method=method)
    for item in ITEMS:
        inbox.put(item)
        assert outbox.get(timeout=PATIENCE) == (type(item).__name__, item)
    inbox.put(None)
    process.join(PATIENCE)
    assert process.exitcode == 0


def add(inbox, outbox):
    """Add to the memory of each item, at any depth of nesting."""
    for item in iter(inbox.get, None):
        tensor = item
        while not hasattr(tensor, "shape"):
            tensor = tensor["t"] if isinstance(tensor, dict) else tensor[0]
        np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor)[...] += 1
        outbox.put(item)
        del item, tensor


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nest", [lambda t: t, lambda t: {"t": t}, lambda t: ([t, 1], "x")],
                         ids=["alone", "dict", "tuple"])
def test_tensors(start, method, nest):
    inbox, outbox = pairs()
    start(add, inbox, outbox, method=method)
    t = tmesh.put(np.arange(6.0).reshape(2, 3), seal=False)
    for turn in range(1, 4):
        inbox.put(nest(t))
        back = outbox.get(timeout=PATIENCE)
        assert type(back) is type(nest(t))
        assert t.numpy().tolist() == [[turn + i + 3 * j for i in range(3)] for j in range(2)]
    del back


def test_tensors_that_nobody_else_holds():
    q = tmesh.Queue()
    for sealed in (False, True):
        q.put(tmesh.put(np.arange(3), seal=sealed))
        q.put([tmesh.put(np.arange(3), seal=sealed)])
        gc.collect()
        got = [q.get(), q.get()[0]]
        assert [t.writable for t in got] == [not sealed] * 2
        assert [t.numpy().tolist() for t in got] == [[0, 1, 2]] * 2
    t = tmesh.put(b"x", seal=False)
    q.put(tmesh.open(t.ref()))
    assert not q.get().writable


@pytest.fixture
def torch():
    return pytorch()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nest", [lambda t: t, lambda t: {"t": t}], ids=["alone", "dict"])
def test_torch(start, torch, method, nest):
    """Both sides have the same memory, in either direction."""
    inbox, outbox = pairs()
    start(add, inbox, outbox, method=method)
    own, born = torch.zeros(3, 4), torch.from_dlpack(tmesh.empty((3, 4), "float32")).zero_()
    for tensor in (own, born, own[1:], born[1], own.T, born[:, 1], own[2, 3], own.view(2, 6)):
        before = tensor.clone()
        inbox.put(nest(tensor))
        back = outbox.get(timeout=PATIENCE)
        back = back["t"] if nest(1) != 1 else back
        assert torch.equal(tensor, before + 1) and torch.equal(back, tensor)
        assert type(back) is torch.Tensor and back.stride() == tensor.stride()
        back += 1
        assert torch.equal(tensor, before + 2)
        del back


@pytest.mark.parametrize("dtype", [
    "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "bool", "qint8"])
def test_torch_dtypes(torch, dtype):
    if dtype == "qint8":
        source = torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8)
        assert tmesh.queue._of_torch(source) is None
        return
    source = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    q = tmesh.Queue()
    q.put(source)
    back = q.get()
    assert back.dtype == source.dtype and torch.equal(back, source)


def test_torch_gradients(torch):
    q = tmesh.Queue()
    for nest in (lambda t: t, lambda t: t.view(2, 3).T.detach().requires_grad_()):
        q.put(nest(torch.ones(6, requires_grad=True)))
        assert q.get().requires_grad
        q.put(torch.nn.Parameter(nest(torch.ones(6)).detach()))
        back = q.get()
        assert type(back) is torch.nn.Parameter and back.requires_grad
    q.put(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    back = q.get()
    assert type(back) is torch.nn.Parameter and not back.requires_grad
    q.put(torch.ones(2))
    assert not q.get().requires_grad
    assert_refused(lambda: q.put(torch.ones(2, requires_grad=True) * 2), RuntimeError, "grad")


def test_torch_is_copied_once(torch):
    q = tmesh.Queue()
    copies = tmesh.stats()["copies"]
    own = torch.ones(1000)
    born = torch.from_dlpack(tmesh.empty(1000, "float32"))
    for part in (born, own, own, born):
        q.put(part)
        q.get()
        q.put(part[10:])
        q.get()
    assert tmesh.stats()["copies"] == copies + 1


def test_torch_read_only_is_refused(torch):
    sealed = tmesh.put(torch.ones(3), seal=True)
    reader = torch.from_dlpack(sealed.dlpack(allow_readonly=True))
    q = tmesh.Queue()
    assert_refused(lambda: q.put(reader), tmesh.AccessError, "tmesh.Tensor")
    assert_refused(q.get_nowait, queue.Empty)


def test_large_ones():
    """Memory that was sent once does not stay open at the receiver; memory that comes again does."""
    q = tmesh.Queue()
    before = tmesh.stats()["bytes_live"]
    for turn in range(3):
        t = tmesh.put(np.zeros(1 << 20, dtype="uint8"), seal=False)
        for _ in range(turn):
            q.put(t)
            q.get().numpy()[0] += 1
        assert t.numpy()[0] == turn
    for number in range(4 * tmesh.queue._REMEMBERED):
        q.put(tmesh.empty(tmesh.queue._LARGE, "uint8"))
        q.get()
    assert 1 <= len(q._known) / tmesh.queue._REMEMBERED <= 2
    tmesh.in_transit.wait(PATIENCE)
    del t
    # A thread gives back memory that the channel has dropped.
    eventually(lambda: tmesh.stats()["bytes_live"] - before < 12 * tmesh.queue._LARGE)


@needs_torch
def test_torch_is_imported_for_torch_alone(python):
    python("""
import sys, numpy, tmesh
q = tmesh.Queue()
for item in (tmesh.put(b"x"), [tmesh.put(b"x")], numpy.ones(100), {"x": 1}):
    q.put(item)
    q.get()
assert "torch" not in sys.modules
""")


def test_full_and_empty():
    q = tmesh.Queue(3)
    assert_refused(q.get_nowait, queue.Empty)
    start = time.monotonic()
    assert_refused(lambda: q.get(timeout=0.05), queue.Empty)
    for i in range(3):
        assert not q.full()
        q.put_nowait(i)
    assert q.full() and q.qsize() == 3 and not q.empty()
    assert_refused(lambda: q.put_nowait(4), queue.Full)
    assert_refused(lambda: q.put(4, timeout=0.05), queue.Full)
    assert time.monotonic() - start >= 0.1
    assert [q.get() for _ in range(3)] == [0, 1, 2]
    assert not q.full() and q.empty()
    for i in range(10):
        q.put([i])
        assert q.get(True, PATIENCE) == [i]
    one = tmesh.Queue(maxsize=1)
    one.put(1)
    assert_refused(lambda: one.put(2, False), queue.Full)
    assert one.get() == 1


def test_what_did_not_fit_is_let_go():
    q = tmesh.Queue(1)
    q.put(0)
    for _ in range(20):
        assert_refused(lambda: q.put([tmesh.put(b"x", seal=False)], False), queue.Full)
    assert_refused(lambda: q.put([tmesh.put(b"x", seal=False), lambda: 0]), (AttributeError, pickle.PicklingError))
    tmesh.in_transit.wait(PATIENCE)
    assert not tmesh.in_transit.here.under_way()
    assert q.get() == 0


def count(number, q, times):
    for i in range(times):
        q.put((number, i, bytes(10 * (i % 20))))


def collect(q, results):
    results.put([item[:2] for item in iter(q.get, None)])


@pytest.mark.parametrize("method", METHODS)
def test_several_of_each(start, method):
    """Everything arrives once, and in each producer's order. Producers end before all is taken."""
    q, results = tmesh.Queue(8), tmesh.Queue()
    producers = [start(count, n, q, 300, method=method) for n in range(3)]
    consumers = [start(collect, q, results, method=method) for _ in range(3)]
    for process in producers:
        process.join(PATIENCE)
        assert process.exitcode == 0
    for _ in consumers:
        q.put(None)
    got = [results.get(timeout=PATIENCE) for _ in consumers]
    assert sorted(sum(got, [])) == [(n, i) for n in range(3) for i in range(300)]
    for part in got:
        for n in range(3):
            assert (mine := [i for m, i in part if m == n]) == sorted(mine)


@ANY_BACKEND
@pytest.mark.parametrize("name", cpython_names("_TestQueue"))
@pytest.mark.parametrize("method", METHODS)
def test_cpython(method, name):
    check_cpython("cpython_queue.py", method, name)


def fill(q, sizes):
    while not q.full():
        q.put(tmesh.put(b"x"))
    sizes.put(q.qsize())


@pytest.mark.parametrize("method", METHODS)
def test_sizes_are_everybodys(start, method):
    """Each process has its own room, and counts the items of all, also of killed ones."""
    q, sizes = tmesh.Queue(3), tmesh.Queue()
    seen = []
    for _ in range(2):
        process = start(fill, q, sizes, method=method)
        seen.append(sizes.get(timeout=PATIENCE))
        process.kill()
        process.join()
    assert seen == [3, 6] and q.qsize() == 6 and not q.full()
    for left in range(6, 0, -1):
        assert q.qsize() == left
        try:
            q.get(timeout=PATIENCE)
        except tmesh.NotFoundError:  # it is gone with the process that put it
            pass
    assert q.empty()
    assert_refused(q.get_nowait, queue.Empty)


def test_sizes_without_an_end():
    """A process that has not put or got joins to count. A thread that waits in an end does not block counting."""
    q = tmesh.Queue()
    q.put(1)
    asks, puts = pickle.loads(pickle.dumps(q)), pickle.loads(pickle.dumps(q))
    assert asks.qsize() == 1 and asks._out.channel is None
    puts.put(2)
    assert puts.qsize() == 2 and puts._into.channel is None
    assert [q.get(), q.get()] in ([1, 2], [2, 1])
    waiting = threading.Thread(target=q.get)
    waiting.start()
    while not q._into.waits:
        time.sleep(0.001)
    assert q.empty() and q.qsize() == 0 and not q.full()
    q.put(3)
    waiting.join()
    del q
    gc.collect()
    assert puts.empty()
    unopened = pickle.loads(pickle.dumps(puts))
    assert_refused(unopened.qsize, tmesh.GoneError)


def put_and_end(q, how):
    if how == "nested":
        q.put({"t": tmesh.put(np.arange(100), seal=False), "x": bytes(100)})
    else:
        q.put(tmesh.put(np.arange(100), seal=False))
    if how == "closed":
        q.close()
        q.join_thread()
    if how == "cancelled":
        q.cancel_join_thread()


@pytest.mark.parametrize("how", ["", "nested", "closed"])
def test_a_process_ends_after_what_it_put_was_taken(start, how):
    q = tmesh.Queue()
    process = start(put_and_end, q, how)
    process.join(0.5)
    assert process.is_alive()
    item = q.get(timeout=PATIENCE)
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert (item["t"] if how == "nested" else item).numpy().sum() == 4950


def test_a_process_that_does_not_wait(start):
    q = tmesh.Queue()
    start(put_and_end, q, "cancelled").join(PATIENCE)
    assert q.get(timeout=PATIENCE).numpy().sum() == 4950  # it is in the queue, independent of its process


def put_for_ever(q):
    while True:
        try:
            q.put(b"x" * 200)
        except tmesh.BusyError:  # the maker notices a moment later that the last one has gone
            time.sleep(0.001)


def get_for_ever(q, results):
    while True:
        results.put(q.get()[:1])


def drain(q):
    while True:
        try:
            q.get(timeout=0.05)
        except tmesh.NotFoundError:  # it is gone with the process that put it
            continue
        except queue.Empty:
            return


def test_killed(start):
    """Neither a killed producer nor a killed consumer blocks the others, and both can come again."""
    q, results = tmesh.Queue(4, producers=1), tmesh.Queue()
    for _ in range(3):
        producer = start(put_for_ever, q)
        consumer = start(get_for_ever, q, results)
        for _ in range(50):
            assert results.get(timeout=PATIENCE) == b"x"
        consumer.kill()
        consumer.join()
        for _ in range(50):
            assert q.get(timeout=PATIENCE) == b"x" * 200
        producer.kill()
        producer.join()
        drain(q)
        q.put(1)
        assert q.get(timeout=PATIENCE) == 1
        drain(results)


def wait_for_the_end(q, results):
    seen = []
    try:
        while True:
            seen.append(q.get())
            results.put(seen[-1])
    except tmesh.GoneError:
        pass
    try:
        q.put(1)
    except tmesh.GoneError:
        results.put("gone")


def test_the_maker_ends_it(start):
    q, results = pairs()
    q.put(1)
    process = start(wait_for_the_end, q, results)
    assert results.get(timeout=PATIENCE) == 1
    left = pickle.loads(pickle.dumps(q))
    unopened = pickle.loads(pickle.dumps(q))
    q.put(2)
    left.put(3)
    assert {results.get(timeout=PATIENCE), results.get(timeout=PATIENCE)} == {2, 3}
    del q
    assert results.get(timeout=PATIENCE) == "gone"
    process.join(PATIENCE)
    for call in (left.get, unopened.get_nowait, lambda: unopened.put(1)):
        assert_refused(call, tmesh.GoneError)
    # A thread tells a producer of the end, which takes a moment.
    end = time.monotonic() + PATIENCE
    with pytest.raises(tmesh.GoneError):
        while time.monotonic() < end:
            left.put(1, timeout=PATIENCE)


def test_closed():
    q = tmesh.Queue()
    other = pickle.loads(pickle.dumps(q))
    other.put(bytes(100))
    assert_refused(other.join_thread, ValueError, "not closed")
    other.close()
    other.close()
    for call in (other.get, lambda: other.put(1), other.qsize, other.empty, other.full, lambda: pickle.dumps(other)):
        assert_refused(call, ValueError, "closed")
    assert q.get(timeout=PATIENCE) == bytes(100)
    other.join_thread()
    assert other._out.channel is None
    third = pickle.loads(pickle.dumps(q))
    q.put(1)
    q.close()
    assert third.get(timeout=PATIENCE) == 1
    q.join_thread()
    assert_refused(lambda: q.put(1), ValueError, "closed")


def test_places():
    q = tmesh.Queue(producers=1)
    a, b = [pickle.loads(pickle.dumps(q)) for _ in range(2)]
    a.put(1)
    assert_refused(lambda: b.put(2), tmesh.BusyError)
    a.close()
    deadline = time.monotonic() + PATIENCE
    while True:  # the maker notices a moment later that one has left
        try:
            b.put(2)
            break
        except tmesh.BusyError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert [q.get(), q.get()] == [1, 2]
    for producers in (64, 0, -1):
        with pytest.raises(tmesh.InvalidError, match=f"producers is {producers}; .* 63 the most"):
            tmesh.Queue(producers=producers)
    assert_refused(lambda: tmesh.Queue(65537), tmesh.InvalidError, "maxsize is 65537; 65536 is the most")


def test_threads():
    """Several threads may put and get at once. While one waits, others still get all available items."""
    q, got = tmesh.Queue(4), []
    getters = [threading.Thread(target=lambda: got.extend(iter(q.get, None))) for _ in range(3)]
    putters = [threading.Thread(target=count, args=(n, q, 100)) for n in range(3)]
    for thread in getters + putters:
        thread.start()
    for thread in putters:
        thread.join()
    for _ in getters:
        q.put(None)
    for thread in getters:
        thread.join()
    assert sorted(item[:2] for item in got) == [(n, i) for n in range(3) for i in range(100)]
    waiting = threading.Thread(target=q.get)
    waiting.start()
    while not q._into.waits:
        time.sleep(0.001)
    for call in (q.get_nowait, lambda: q.get(timeout=0.01)):
        assert_refused(call, queue.Empty)
    q.put(1)
    waiting.join()


def test_fork_of_one_that_is_open(start):
    """A child has ends of its own, even if a thread of its parent waited."""
    q, back = pairs()
    waiting = threading.Thread(target=q.get)
    waiting.start()
    while not q._into.waits:
        time.sleep(0.001)
    process = start(count, 7, back, 3)
    assert [back.get(timeout=PATIENCE)[:2] for _ in range(3)] == [(7, 0), (7, 1), (7, 2)]
    process.join(PATIENCE)
    q.put(1)
    waiting.join()
    child = start(echo, q, back)
    q.put("for the child")
    assert back.get(timeout=PATIENCE) == ("str", "for the child")
    q.put(None)
    child.join(PATIENCE)
    assert child.exitcode == 0


def test_signal():
    """An exception of a signal's handler leaves the queue unchanged."""
    class Stop(Exception):
        pass

    def stop(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stop

    q, old = tmesh.Queue(), signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Stop):
            # A signal just before the call waits does not end the wait.
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            q.get(timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGALRM, old)
    q.put(1)
    assert q.get() == 1


def by_ref(data):
    """Return the message for a large new tensor."""
    return tmesh.put(tmesh.in_transit.here.send(tmesh.put(data, seal=False), True), seal=False)


@pytest.mark.parametrize("message", [
    b"", b"?", b"t", b"t\0", b"\0p",
    lambda: (tmesh.put(b"x", seal=False), b"?"), lambda: (tmesh.put(b"x", seal=False), b"t"),
    lambda: (tmesh.put([1.0, 2.0], seal=False), b"p"), lambda: (tmesh.put(b"abcd", seal=False)[::2], b"b"),
    lambda: (tmesh.put(b"x", seal=False), b"bb"), lambda: (tmesh.put([1.0], seal=False), b"t\4"),
    lambda: (tmesh.put([1.0], seal=False), b"t\xff"), lambda: (tmesh.put([1], seal=False), b"t\1"),
    lambda: (tmesh.put([1.0], seal=False), b"t\0\0"), lambda: (tmesh.empty(2, "float8_e5m2"), b"t\0"),
    lambda: (tmesh.put(b"x", seal=False), b"r"), lambda: (tmesh.put(bytes(1000), seal=False), b"r"),
    lambda: (tmesh.put(b"abcd", seal=False)[::2], b"r"), lambda: (by_ref(b"x"), b"r?"),
    lambda: (by_ref([1.0]), b"rt\4"), lambda: (by_ref(b"x"), b"rr"),
])
def test_nonsense(message):
    q = tmesh.Queue()
    with tmesh.Channel.open(q._token, "send", writable=True) as out:
        out.send(message() if callable(message) else message)
        assert_refused(q.get, tmesh.ProtocolError, "that a queue sends|version of tmesh")
    q.put("still good")
    assert q.get() == "still good"


def test_nothing_stays():
    def once():
        q = tmesh.Queue()
        other = pickle.loads(pickle.dumps(q))
        unused = pickle.loads(pickle.dumps(other))
        unused.close()
        for item in (1, bytes(100), tmesh.put(b"x", seal=False), [tmesh.put(b"x", seal=False)]):
            other.put(item)
            q.get()
        other.put(bytes(100))

    once()
    before = len(os.listdir("/proc/self/fd")), len(multiprocessing.util._finalizer_registry)
    for _ in range(20):
        once()
    # A connection ends a moment after its last handle.
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        gc.collect()
        tmesh.queue._look_after_ends()
        now = len(os.listdir("/proc/self/fd")), len(multiprocessing.util._finalizer_registry)
        if now[0] <= before[0] and now[1] <= before[1]:
            break
        time.sleep(0.05)
    assert now[0] <= before[0] and now[1] <= before[1]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def use(queue, how, pipe):
    if "get" in how:
        assert queue.get() is not None
    if "put" in how:
        queue.put(1)
    pipe.send(descriptors())
    assert pipe.recv()


def count_descriptors(first, queue, how, pipe):
    use(first, how, pipe)  # a process's first contact with another one
    use(queue, how, pipe)


@ANY_BACKEND
@pytest.mark.parametrize("producers", [1, 31, 63])
def test_descriptors_are_as_the_documentation_says(producers):
    def put_and_get(queue):
        queue.put(tmesh.zeros(4, "f4"))
        assert queue.get().numpy()[3] == 0

    first = tmesh.Queue(producers=producers)
    put_and_get(first)  # memory that a context needs
    before = descriptors()
    q = tmesh.Queue(producers=producers)
    assert descriptors() - before <= 5
    put_and_get(q)
    # Ends that wait let go of received memory.
    q._out.settle()
    assert_refused(lambda: q.get(timeout=0.01), queue.Empty)
    eventually(lambda: descriptors() - before <= 7)
    context = multiprocessing.get_context("fork")
    for how, most in ("get", 3), ("put", 4), ("put and get", 7):
        pipe, end = context.Pipe()
        process = context.Process(target=count_descriptors, args=(first, q, how, end), daemon=True)
        process.start()
        counts = []
        for which in first, q:
            if "get" in how:
                which.put(1)
            before = descriptors()
            counts.append(pipe.recv())
            if how != "put":  # a connection that is being answered is closed in a moment
                eventually(lambda before=before: descriptors() - before <= 2)
            pipe.send(True)
        process.join()
        assert counts[1] - counts[0] <= most, how
        while not q.empty():
            q.get()


@ANY_BACKEND
def test_a_hundred_queues():
    tmesh.Queue()
    before = descriptors()
    queues = [tmesh.Queue() for _ in range(100)]
    for n, q in enumerate(queues):
        q.put(n)
    assert [q.get() for q in queues] == list(range(100))
    assert descriptors() - before <= 100 * 8
