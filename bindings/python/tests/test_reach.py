# SPDX-License-Identifier: MIT
"""Taking back, leases, fences, gather views, dma-bufs, hand-over by a socket: on either backend, and
what the one without the module says of those that need it."""

import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import tmesh

MODULE = tmesh.backend() == "kernel"
PAGE = mmap.PAGESIZE
module_alone = pytest.mark.skipif(not MODULE, reason="on memfd nothing can be taken back or told: see "
                                  "test_what_needs_the_module")


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.mark.skipif(MODULE, reason="the module has it")
@pytest.mark.parametrize("use", [
    lambda t: t.revoke(), lambda t: t.reclaim(), lambda t: t.reclaim(timeout=0.01), lambda t: t.signal(1),
    lambda t: t.wait(1), lambda t: t.wait(1, timeout=0), lambda t: tmesh.gather([t]),
    lambda t: tmesh.from_dmabuf(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)),
    lambda t: t.lease(pidfd=os.pidfd_open(os.getpid())),
])
def test_what_needs_the_module(use):
    t = tmesh.zeros(PAGE, "uint8")
    with pytest.raises(tmesh.UnsupportedError) as refused:
        use(t)
    assert "module" in str(refused.value) or "memfd" in str(refused.value)
    t[0] = 1
    assert t.lease_state == "none" and tmesh.open(t)[0].item() == 1


@module_alone
def test_revoke():
    t = tmesh.zeros(4, "uint8")
    t[0] = 7
    reader = tmesh.open(t)
    array = reader.numpy()
    with pytest.raises(tmesh.AccessError):
        reader.revoke()
    assert array[0] == 7
    t.revoke()
    assert array.tolist() == [0, 0, 0, 0]
    assert reader.lease_state == "revoked"
    for use in (lambda: tmesh.open(t), lambda: t.seal(), reader.touch):
        with pytest.raises(tmesh.StaleError):
            use()
    assert [region["revoked"] for region in tmesh.regions() if region["id"] == t.id] == [True]


@module_alone
def test_reclaim():
    t = tmesh.zeros(PAGE, "uint8")
    t.reclaim()
    t.reclaim(timeout=0)
    other = tmesh.zeros(PAGE, "uint8")
    exported = other.export_dmabuf()
    try:
        other.reclaim(timeout=0.01)
    except tmesh.PeerTimeoutError as error:
        assert set(error.report) == {"pinned_bytes", "exports", "attachments"}
    os.close(exported)
    with pytest.raises(tmesh.InvalidError):
        t.reclaim(timeout=-1)
    with pytest.raises(TypeError):
        t.reclaim(timeout="x")


def lapse(t):
    while t.lease_state == "live":
        pass


def test_lease():
    t = tmesh.zeros(4, "uint8")
    t.touch()
    leased = tmesh.open(t)
    assert leased.lease_state == "none"
    leased.lease(3600)
    assert leased.lease_state == leased[1:].lease_state == "live"
    leased.touch()
    assert leased.tolist() == [0] * 4
    with pytest.raises(tmesh.BusyError):
        leased.lease(1)
    short = tmesh.open(t)
    short.lease(0.01)
    lapse(short)
    assert short.lease_state == "lapsed"
    for use in (short.touch, short.tolist, lambda: tmesh.open(short)):
        with pytest.raises((tmesh.StaleError, tmesh.AccessError)):
            use()
    with pytest.raises(tmesh.StaleError):
        short.touch()
    assert t.lease_state == "none" and t.tolist() == [0] * 4


@module_alone
def test_lease_takes_the_memory_away():
    t = tmesh.zeros(4, "uint8")
    t[0] = 7
    short = tmesh.open(t)
    short.lease(0.01, taken="zeros")
    array = short.numpy()
    lapse(short)
    while array[0]:
        pass
    assert t[0].item() == 7


@module_alone
def test_lease_can_end_the_process(python):
    done = subprocess.run([sys.executable, "-c", """
import tmesh
t = tmesh.zeros(4, "uint8")
t[0] = 7
short = tmesh.open(t)
short.lease(0.01, taken="sigbus")
array = short.numpy()
while array[0]:
    pass
print("still here")
"""], capture_output=True)
    assert done.returncode == -signal.SIGBUS


@module_alone
def test_lease_of_a_process():
    with subprocess.Popen(["sleep", "1000"]) as process:
        t = tmesh.zeros(4, "uint8")
        bound = tmesh.open(t)
        pidfd = os.pidfd_open(process.pid)
        bound.lease(pidfd=pidfd)
        os.close(pidfd)
        assert bound.lease_state == "live"
        process.kill()
    lapse(bound)
    assert bound.lease_state == "lapsed"


@pytest.mark.parametrize("arguments, error", [
    ({"seconds": 0}, tmesh.InvalidError), ({"seconds": 0.001}, tmesh.InvalidError),
    ({"seconds": 4000}, tmesh.InvalidError), ({"seconds": -1}, tmesh.InvalidError),
    ({"seconds": float("nan")}, tmesh.InvalidError), ({"seconds": float("inf")}, tmesh.InvalidError),
    ({"seconds": "x"}, TypeError), ({"taken": "now"}, tmesh.InvalidError), ({"taken": 1}, tmesh.InvalidError),
    ({"pidfd": "x"}, TypeError), ({"pidfd": -1}, ValueError), ({"pidfd": 10**6}, tmesh.Error),
])
def test_leases_that_are_none(arguments, error):
    t = tmesh.zeros(4, "uint8")
    with pytest.raises(error):
        t.lease(**arguments)
    assert t.lease_state == "none"


@module_alone
def test_fence():
    t = tmesh.zeros(4, "uint8")
    reader = tmesh.open(t)
    assert reader.wait(0) == 0
    with pytest.raises(tmesh.PeerTimeoutError):
        reader.wait(1, timeout=0.01)
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(reader.wait(5)))
    waiter.start()
    t.signal(2)
    assert reader.wait(2) == 2
    t.signal(7)
    waiter.join()
    assert waited == [7]
    with pytest.raises(tmesh.InvalidError):
        t.signal(7)
    with pytest.raises(tmesh.AccessError):
        reader.signal(9)
    region, = [region for region in tmesh.regions() if region["id"] == t.id]
    assert (region["fence"], region["fence_value"]) == ("producer", 7)
    assert [holder["producer"] for holder in tmesh.holders(t)].count(True) == 1
    t.release()
    with pytest.raises(tmesh.GoneError):
        reader.wait(8)
    assert reader.wait(7) == 7


@module_alone
def test_waiting_can_be_interrupted(python):
    assert python("""
import signal, tmesh
def ring(*args):
    raise KeyError("alarm")
signal.signal(signal.SIGALRM, ring)
t = tmesh.zeros(1, "uint8")
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    t.wait(1)
except KeyError:
    print("interrupted")
""") == "interrupted\n"


@pytest.mark.parametrize("use, error", [
    (lambda t: t.signal(-1), OverflowError), (lambda t: t.signal(2**64), OverflowError),
    (lambda t: t.signal("x"), TypeError), (lambda t: t.wait(-1), OverflowError),
    (lambda t: t.wait(1, timeout=-1), tmesh.InvalidError), (lambda t: t.wait(), TypeError),
    (lambda t: tmesh.gather(t), TypeError), (lambda t: tmesh.gather([5]), TypeError),
    (lambda t: tmesh.gather([(t, 0)]), TypeError), (lambda t: tmesh.gather([(t, -1, 5)]), OverflowError),
    (lambda t: tmesh.gather([(5, 0, 5)]), TypeError), (lambda t: tmesh.gather([t], 5), TypeError),
    (lambda t: tmesh.gather([t], None, "uint8"), TypeError), (lambda t: tmesh.gather([t[::2]]), tmesh.InvalidError),
    (lambda t: tmesh.from_dmabuf("x"), TypeError), (lambda t: tmesh.from_dmabuf(-1), ValueError),
    (lambda t: t.export_dmabuf(offset=1), tmesh.Error), (lambda t: t.export_dmabuf(offset=-1), OverflowError),
    (lambda t: t.export_dmabuf(bytes=2**63), tmesh.Error),
    (lambda t: t.send(None), TypeError), (lambda t: tmesh.recv(None), TypeError),
    (lambda t: tmesh.recv(-1), ValueError), (lambda t: tmesh.recv(10**6), tmesh.ReleasedError),
])
def test_bad_input(use, error):
    t = tmesh.zeros(PAGE, "uint8")
    with pytest.raises(error):
        use(t)
    assert t.numpy()[0] == 0
    t.release()
    with pytest.raises((tmesh.ReleasedError, error)):
        use(t)


@module_alone
def test_gather():
    count = PAGE // 4
    parts = [tmesh.put(np.arange(i, i + count, dtype="float32")) for i in range(3)]
    view = tmesh.gather(parts, (3, count), "float32", label="all")
    assert view[:, 0].tolist() == [0, 1, 2] and not view.writable
    assert (view.label, len(tmesh.gather([(parts[0], 0, PAGE), parts[1]]))) == ("all", 2 * PAGE)
    assert {holder["kind"] for holder in tmesh.holders(parts[0])} >= {"view"}
    with pytest.raises(tmesh.AccessError):
        tmesh.gather(parts, writable=True)
    with pytest.raises(tmesh.InvalidError):
        tmesh.gather([])
    with pytest.raises(tmesh.Error):
        tmesh.gather([tmesh.put(b"not a page")])
    with pytest.raises(tmesh.Error):
        tmesh.gather(parts, (4, count), "float32")
    parts.clear()
    assert view[2, 5].item() == 7


def test_dmabuf():
    t = tmesh.zeros(2 * PAGE, "uint8")
    if not MODULE:
        with pytest.raises(tmesh.UnsupportedError):
            t.export_dmabuf()
        with pytest.raises(tmesh.UnsupportedError):
            tmesh.put(bytes(PAGE)).export_dmabuf(writable=True)
        return
    exported = t.export_dmabuf(offset=PAGE, bytes=PAGE)
    with mmap.mmap(exported, PAGE, prot=mmap.PROT_READ) as memory:
        t[PAGE] = 9
        assert memory[0] == 9
    with pytest.raises(tmesh.Error, match="token"):
        tmesh.from_dmabuf(exported)
    assert tmesh.holders(t)[-1]["kind"] in ("export", "handle")
    os.close(exported)


def test_send_and_recv(pair):
    left, right = pair
    t = tmesh.put(np.arange(6, dtype="int16").reshape(2, 3), label="handed over")
    t.send(left)
    here = tmesh.recv(right)
    assert (here.dtype, here.shape, here.label, here.id) == ("int16", (2, 3), "handed over", t.id)
    assert here.tolist() == t.tolist() and not here.writable
    t.send(left.fileno())
    flat = tmesh.recv(right.fileno(), 4, "uint8", offset=2, timeout=10)
    assert flat.tolist() == [1, 0, 2, 0]
    t.release()
    assert here[1, 2].item() == 5 and tmesh.open(here).shape == (2, 3)
    writable = tmesh.zeros(3, "uint8")
    writable.send(left, writable=True)
    there = tmesh.recv(right)
    there[1] = 5
    assert writable.tolist() == [0, 5, 0]


def test_send_holds_the_memory(pair):
    """The producer may return and drop its tensor: what is in the socket is held."""
    left, right = pair
    tmesh.put(b"nobody else has it").send(left)
    gc.collect()
    assert bytes(tmesh.recv(right)) == b"nobody else has it"


def test_what_send_does_not_say_is_refused(pair):
    left, _ = pair
    t = tmesh.put(np.arange(6).reshape(2, 3))
    for view in (t[1:], t.T if hasattr(t, "T") else t[:, ::-1], t.reshape(6), t.view("uint64"), t[None]):
        with pytest.raises(tmesh.InvalidError, match="the whole, or the ref"):
            view.send(left)
    arena = tmesh.Arena()
    with pytest.raises(tmesh.InvalidError):
        tmesh.put(b"x", arena=arena).send(left)
    t.reshape(6).reshape(2, 3).send(left)
    reader = tmesh.open(t)
    with pytest.raises(tmesh.AccessError):
        reader.send(left, writable=True)


def test_recv_waits_and_is_told(pair):
    left, right = pair
    with pytest.raises(tmesh.PeerTimeoutError):
        tmesh.recv(right, timeout=0.01)
    got = []
    waiter = threading.Thread(target=lambda: got.append(bytes(tmesh.recv(right))))
    waiter.start()
    tmesh.put(b"late").send(left)
    waiter.join()
    assert got == [b"late"]
    left.sendall(b"this is no region " * 20)
    with pytest.raises(tmesh.ProtocolError):
        tmesh.recv(right)
    left.close()
    with pytest.raises(tmesh.Error):
        while True:
            tmesh.recv(right)


def test_gone(pair):
    left, right = pair
    right.close()
    with pytest.raises(tmesh.GoneError):
        tmesh.put(b"x").send(left)
    with pytest.raises(tmesh.GoneError):
        tmesh.recv(left)


def test_layouts_of_recv_that_do_not_fit(pair):
    left, right = pair
    t = tmesh.put(bytes(100))
    for shape, dtype, offset in ((10**6, "uint8", 0), (1, "float64", 2**63), (3, "int4", 0), (-1, "uint8", 0)):
        t.send(left)
        with pytest.raises(tmesh.Error):
            tmesh.recv(right, shape, dtype, offset=offset, timeout=60)
        if shape == -1:  # refused before anything was received
            tmesh.recv(right)
