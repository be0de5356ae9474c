# SPDX-License-Identifier: MIT
"""Taking back, leases, fences, gather views, dma-bufs, hand-over by a socket, on either backend. Without the module,
calls that need it raise an error with the reason."""

import ctypes
import errno
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
from conftest import assert_refused

MODULE = tmesh.backend() == "kernel"
PAGE = mmap.PAGESIZE
module_alone = pytest.mark.skipif(not MODULE, reason="on memfd nothing can be taken back or told")


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@module_alone
def test_what_is_taken_back_reads_as_zeros():
    t = tmesh.put(b"\7", seal=False)
    reader = tmesh.open(t)
    array = reader.numpy()
    t.revoke()
    assert array.tolist() == [0] and reader.lease_state == "revoked"


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
    assert_refused(lambda: t.reclaim(timeout=-1), tmesh.InvalidError)
    assert_refused(lambda: t.reclaim(timeout="x"), TypeError)


class Interrupted(Exception):
    pass


@module_alone
def test_reclaim_is_interrupted():
    """An exception of a signal's handler ends a wait without limit, and another wait may follow."""
    def interrupt(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Interrupted

    t = tmesh.zeros(PAGE, "uint8")
    array, (take, give) = t.numpy(), os.pipe()
    # As long as the pipe has the page, the memory is in use.
    vector = (ctypes.c_size_t * 2)(array.ctypes.data, PAGE)
    assert ctypes.CDLL(None).vmsplice(give, vector, 1, 0) == PAGE
    before = signal.signal(signal.SIGALRM, interrupt)
    with pytest.raises(Interrupted):
        # Again, with the first signal before the wait begins.
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        t.reclaim()
    signal.signal(signal.SIGALRM, before)
    assert os.read(take, PAGE) == bytes(PAGE)
    t.reclaim()
    os.close(take)
    os.close(give)


def lapse(t):
    while t.lease_state == "live":
        pass


def test_lease():
    t = tmesh.zeros(4, "uint8")
    short = tmesh.open(t)
    assert short.lease_state == "none"
    short.lease(0.01)
    assert short[1:].lease_state in ("live", "lapsed")
    lapse(short)
    assert short.lease_state == "lapsed"
    assert_refused(lambda: tmesh.open(short), (tmesh.StaleError, tmesh.AccessError))
    assert t.lease_state == "none"


@module_alone
def test_lease_takes_the_memory_away():
    t = tmesh.zeros(4, "uint8")
    t[0] = 7
    short = tmesh.open(t)
    array = short.numpy()  # the lease may have lapsed when the next call returns
    short.lease(0.01, taken="zeros")
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
array = short.numpy()  # it may be too late for that when the next call returns
short.lease(0.01, taken="sigbus")
while array[0]:
    pass
print("still here")
"""], capture_output=True)
    assert done.returncode == -signal.SIGBUS


@pytest.mark.parametrize("arguments, error", [
    ({"seconds": 0}, tmesh.InvalidError), ({"seconds": 0.001}, tmesh.InvalidError),
    ({"seconds": 4000}, tmesh.InvalidError), ({"seconds": -1}, tmesh.InvalidError),
    ({"seconds": float("nan")}, tmesh.InvalidError), ({"seconds": float("inf")}, tmesh.InvalidError),
    ({"seconds": "x"}, TypeError), ({"taken": "now"}, tmesh.InvalidError), ({"taken": 1}, tmesh.InvalidError),
    ({"process": "x"}, TypeError), ({"process": -1}, tmesh.InvalidError), ({"process": 0}, tmesh.InvalidError),
    ({"process": 2**40}, tmesh.InvalidError), ({"process": 2**70}, OverflowError), ({"process": 2**22 + 1}, tmesh.NotFoundError),
    ({"process": sys.stderr}, tmesh.Error),
])
def test_leases_that_are_none(arguments, error):
    t = tmesh.zeros(4, "uint8")
    assert_refused(lambda: t.lease(**arguments), error)
    assert t.lease_state == "none"


@module_alone
def test_waiting_can_be_interrupted(python):
    assert python("""
import signal, tmesh
def ring(*args):
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyError("alarm")
signal.signal(signal.SIGALRM, ring)
t = tmesh.zeros(1, "uint8")
try:
    # Again, where the first one comes before the wait begins.
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
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
    assert_refused(lambda: use(t), error)
    assert t.numpy()[0] == 0
    t.release()
    assert_refused(lambda: use(t), (tmesh.ReleasedError, error))


@module_alone
def test_gather():
    count = PAGE // 4
    parts = [tmesh.put(np.arange(i, i + count, dtype="float32")) for i in range(3)]
    view = tmesh.gather(parts, (3, count), "float32", label="all")
    assert view[:, 0].tolist() == [0, 1, 2] and view.label == "all"
    assert len(tmesh.gather([(parts[0], 0, PAGE), parts[1]])) == 2 * PAGE
    for bad in ([], [tmesh.put(b"not a page")]):
        assert_refused(lambda: tmesh.gather(bad), tmesh.Error)
    parts.clear()
    assert view[2, 5].item() == 7


@module_alone
def test_dmabuf():
    t = tmesh.zeros(2 * PAGE, "uint8")
    exported = t.export_dmabuf(offset=PAGE, bytes=PAGE)
    with mmap.mmap(exported, PAGE, prot=mmap.PROT_READ) as memory:
        t[PAGE] = 9
        assert memory[0] == 9
    assert_refused(lambda: tmesh.from_dmabuf(exported), tmesh.Error, "token")
    assert tmesh.holders(t)[-1]["kind"] in ("export", "handle")
    os.close(exported)


def ids():
    """Return the ids of regions of process memory. Other processes may make regions of other kinds meanwhile."""
    return {region["id"] for region in tmesh.regions() if region["backing"] == "user"}


def test_own_memory_as_a_dmabuf():
    memory = mmap.mmap(-1, 2 * PAGE)
    array = np.frombuffer(memory, "uint8")
    if not MODULE:
        assert_refused(lambda: tmesh.export_memory(array), tmesh.UnsupportedError, "module")
        return
    before = ids()
    exported = tmesh.export_memory(array, writable=True)
    assert len(ids() - before) == 1
    assert "dmabuf" in os.readlink(f"/proc/self/fd/{exported}")
    assert os.lseek(exported, 0, os.SEEK_END) == 2 * PAGE
    # tests/kselftest checks drivers' reads. A process has no second mapping of it.
    with pytest.raises(OSError) as refused:
        mmap.mmap(exported, 2 * PAGE)
    assert refused.value.errno == errno.EOPNOTSUPP
    os.close(exported)
    assert ids() == before
    for part in (array[1:], array[:100]):
        assert_refused(lambda: tmesh.export_memory(part), tmesh.InvalidError, "whole pages")
    assert_refused(lambda: tmesh.export_memory(array[::2]), (ValueError, BufferError))
    assert_refused(lambda: tmesh.export_memory(bytes(PAGE), writable=True), (ValueError, BufferError))
    assert_refused(lambda: tmesh.export_memory(3), TypeError)


def test_send_and_recv(pair):
    left, right = pair
    t = tmesh.put(np.arange(6, dtype="int16").reshape(2, 3), label="handed over")
    t.send(left)
    here = tmesh.recv(right)
    assert (here.label, here.id, tmesh.open(here).shape) == ("handed over", t.id, (2, 3))
    t.send(left.fileno())
    flat = tmesh.recv(right.fileno(), 4, "uint8", offset=2, timeout=600)
    assert flat.tolist() == [1, 0, 2, 0]


def test_what_send_does_not_say_is_refused(pair):
    left, _ = pair
    t = tmesh.put(np.arange(6).reshape(2, 3))
    for view in (t[1:], t.T if hasattr(t, "T") else t[:, ::-1], t.reshape(6), t.view("uint64"), t[None]):
        assert_refused(lambda: view.send(left), tmesh.InvalidError, "the whole, or the ref")
    arena = tmesh.Arena()
    assert_refused(lambda: tmesh.put(b"x", arena=arena).send(left), tmesh.InvalidError)
    t.reshape(6).reshape(2, 3).send(left)


def test_send_to_a_full_socket_names_the_peer(pair):
    """The error of a send is not that of a receive."""
    left, right = pair
    left.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            left.send(bytes(4096))
    t = tmesh.put(b"x")
    for send in t.send, tmesh.bundle({"t": t}).send:
        assert_refused(lambda: send(left, timeout=0.01), tmesh.PeerTimeoutError, "did not receive in time")


def test_recv_waits_and_is_told(pair):
    left, right = pair
    assert_refused(lambda: tmesh.recv(right, timeout=0.01), tmesh.PeerTimeoutError, "no message came")
    got = []
    waiter = threading.Thread(target=lambda: got.append(bytes(tmesh.recv(right))))
    waiter.start()
    tmesh.put(b"late").send(left)
    waiter.join()
    assert got == [b"late"]
    left.sendall(b"this is no region " * 20)
    assert_refused(lambda: tmesh.recv(right), tmesh.ProtocolError)


def test_layouts_of_recv_that_do_not_fit(pair):
    left, right = pair
    t = tmesh.put(bytes(100))
    for shape, dtype, offset in ((10**6, "uint8", 0), (1, "float64", 2**63), (3, "int4", 0), (-1, "uint8", 0)):
        t.send(left)
        assert_refused(lambda: tmesh.recv(right, shape, dtype, offset=offset, timeout=600), tmesh.Error)
        if shape == -1:  # refused before anything was received
            tmesh.recv(right)
