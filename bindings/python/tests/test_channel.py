# SPDX-License-Identifier: MIT
"""Channels: messages arrive, waits end, event loops wake, wrong use is refused."""

import asyncio
import errno
import multiprocessing
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND, EMULATED, assert_refused, eventually

# The limit of a wait for a message, for slow machines.
PATIENCE = 600


def ends(**options):
    """Both ends of a channel; the sending one made it."""
    out = tmesh.Channel("send", **options)
    return out, tmesh.Channel.open(out.token, "recv")


@pytest.fixture
def pair():
    out, into = ends()
    with out, into:
        yield out, into


def test_what_is_sent_comes_out(pair):
    out, into = pair
    t = tmesh.put(np.arange(6, dtype="int16").reshape(2, 3), seal=False)
    for message in (bytearray(b"abc"), memoryview(b"de")):
        out.send(message)
        assert into.recv() == bytes(message)
    out.send((t[1:, ::2], b"beside"))
    got, beside = into.recv()
    assert got.numpy().tolist() == [[3, 5]] and beside == b"beside"
    del got
    assert into.try_recv() is None


@pytest.mark.parametrize("send", [lambda out, t: out.send(t), lambda out, t: out.send_batch([t])],
                         ids=["send", "send_batch"])
def test_released_while_it_waits(send):
    out, into = ends(capacity=1)
    with out, into:
        out.send(b"full")
        t = tmesh.put(b"here", seal=False)
        thread = threading.Thread(target=send, args=(out, t))
        thread.start()
        with pytest.raises(tmesh.BusyError):  # once it waits
            while True:
                assert not out.try_send(b"full")
        t.release()
        others = [tmesh.put(b"else", seal=False) for _ in range(10)]
        assert into.recv() == b"full"
        assert bytes(into.recv(PATIENCE)) == b"here" and len(others) == 10
        thread.join()


def test_what_a_receiver_keeps_open():
    """A receiver does not keep more unused memory open than its limits."""
    for limit, most in (({"max_regions": 1}, 2), ({"max_bytes": 4096}, 2), ({}, 100)):
        with tmesh.Channel("send") as out, tmesh.Channel.open(out.token, "recv", **limit) as into:
            before = tmesh.stats()["regions_live"]
            for _ in range(10):
                with tmesh.put(bytes(4096), seal=False) as t:
                    out.send(t)
                    into.recv()
            # A thread gives back memory that the channel has dropped.
            eventually(lambda most=most, before=before: tmesh.stats()["regions_live"] - before <= most)


def test_full_and_empty():
    out, into = ends(capacity=2)
    with out, into:
        assert out.try_send(b"1") and out.try_send(b"2") and not out.try_send(b"3")
        assert_refused(lambda: out.flush(0.01), TimeoutError)
        assert into.recv(timeout=PATIENCE) == b"1" and into.recv(PATIENCE) == b"2" and into.try_recv() is None
        out.flush()


def test_batches():
    out, into = ends(capacity=8)
    with out, into:
        t = tmesh.put([1.0], seal=False)
        assert out.send_batch([]) == 0
        assert out.send_batch([t, b"b", (t, b"c")]) == 3
        got = into.recv_batch()
        assert got[0].numpy().tolist() == [1.0] and got[1] == b"b" and got[2][1] == b"c"
        del got
        assert out.send_batch(b"%d" % i for i in range(20)) == 8
        assert into.recv_batch() == [b"%d" % i for i in range(8)]
        assert_refused(lambda: out.send_batch([b"1", 2]), TypeError)
        assert into.try_recv() is None
        with pytest.raises(tmesh.PeerTimeoutError, match="receive timed out: no message is ready"):
            into.recv_batch(timeout=0.01)


def test_large_batches():
    out, into = ends(capacity=128)
    with out, into:
        assert out.send_batch(b"%d" % i for i in range(200)) == 64
        assert out.send_batch(b"%d" % i for i in range(64, 200)) == 64
        assert into.recv_batch() + into.recv_batch() == [b"%d" % i for i in range(128)]


def test_iteration(pair):
    out, into = pair
    for i in range(5):
        out.send(b"%d" % i)
    closer = threading.Timer(0.05, out.close)
    closer.start()
    assert list(into) == [b"%d" % i for i in range(5)]
    closer.join()  # its word comes before it has given everything back


def test_iteration_tells_what_went_wrong(pair):
    out, into = pair
    with tmesh.put(b"x", seal=False) as t:
        out.send(t)
    out.close()
    assert [bytes(t) for t in into] == [b"x"]  # independent of its sender's later calls


def test_async_iteration_goes_on_behind_an_error(pair, monkeypatch):
    """If one message's memory is gone, only that message raises an error."""
    out, into = pair
    given = [tmesh.NotFoundError(errno.ENOENT, "gone"), b"next", tmesh.GoneError(errno.EPIPE, "all")]

    async def recv(channel):
        one = given.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr("tmesh.channel.recv", recv)

    async def run():
        messages = aiter(into)
        with pytest.raises(tmesh.NotFoundError):
            await anext(messages)
        return [message async for message in messages]

    assert asyncio.run(run()) == [b"next"]


def test_send_async():
    """A coroutine waits for room, while others run."""
    with tmesh.Channel("send", capacity=2) as out, tmesh.Channel.open(out.token, "recv") as into:
        async def send():
            for number in range(20):
                await out.send_async(b"%d" % number)

        async def run():
            sender = asyncio.create_task(send())
            got = [await into.recv_async() for _ in range(20)]
            await sender
            return got

        assert asyncio.run(run()) == [b"%d" % number for number in range(20)]
        assert_refused(lambda: asyncio.run(out.send_async("text")), TypeError)


@pytest.mark.parametrize("how", ["before", "while it waits", "its own"])
def test_send_async_to_what_has_ended(how):
    """It raises, and a task that waits for room wakes."""
    out = tmesh.Channel("send", capacity=2)
    into = tmesh.Channel.open(out.token, "recv")

    async def run():
        if how == "while it waits":
            await out.send_async(b"1")
            await out.send_async(b"2")
            waiting = asyncio.create_task(out.send_async(b"3"))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            into.close()
            await waiting
        (into if how == "before" else out).close()
        while True:  # a thread reports the end
            await out.send_async(b"x")

    error, why = (tmesh.ReleasedError, "was closed") if how == "its own" else (tmesh.GoneError, "no receiver is left")
    assert_refused(lambda: asyncio.run(run()), error, why)
    out.close()
    into.close()


@pytest.mark.parametrize("spin", [0, 20e-6])
def test_threads(spin):
    """A waiting thread lets others run, and a handle is for one at a time."""
    out = tmesh.Channel("send", spin=spin)
    into = tmesh.Channel.open(out.token, "recv", spin=spin)
    got = []
    thread = threading.Thread(target=lambda: got.extend(into))
    thread.start()
    for i in range(1000):
        out.send(b"%d" % i)
    out.flush()
    while len(got) < 1000:
        time.sleep(0.001)
    with pytest.raises(tmesh.BusyError):
        while True:
            into.try_recv()
    assert_refused(into.close, tmesh.BusyError)
    out.close()
    thread.join()
    assert got == [b"%d" % i for i in range(1000)]
    into.close()


@pytest.mark.parametrize("receive", [lambda into: into.recv(timeout=PATIENCE), next], ids=["recv", "next"])
def test_signal(pair, receive):
    out, into = pair

    class Stop(Exception):
        pass

    def stop(*_):
        if not stopped.is_set():
            stopped.set()
            raise Stop

    def later():
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        # A signal just before the call waits does not end the wait; the next one does.
        while not stopped.wait(0.1):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)

    heard, stopped = [], threading.Event()
    old = [signal.signal(signal.SIGUSR1, lambda *_: heard.append(1)),
           signal.signal(signal.SIGUSR2, stop)]
    thread = threading.Thread(target=later)
    with pytest.raises(Stop):
        thread.start()
        receive(into)
    thread.join()
    assert heard == [1]
    signal.signal(signal.SIGUSR1, old[0])
    signal.signal(signal.SIGUSR2, old[1])
    out.send(b"still good")
    assert into.recv() == b"still good"


@pytest.mark.parametrize("every, takes", [(0.05, 0), (0, 0.4)], ids=["many", "long"])
def test_signals_do_not_make_a_timeout_longer(pair, every, takes):
    """Neither many signals nor a handler that is still busy at the end of the time make it longer."""
    out, into = pair
    heard = []

    def handle(*_):
        heard.append(1)
        if len(heard) == 40:
            out.send(b"too late")
        time.sleep(takes)

    late = threading.Timer(120, out.send, [b"too late"])
    late.start()
    old = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, every)
    try:
        assert_refused(lambda: into.recv(timeout=0.3), tmesh.PeerTimeoutError)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        late.cancel()
        late.join()
    assert heard


def test_select(pair):
    out, into = pair
    poller = select.poll()
    poller.register(into, select.POLLIN)
    assert into.try_recv() is None
    assert poller.poll(0) == []
    out.send(b"x")
    assert poller.poll(PATIENCE * 1000)
    assert into.try_recv() == b"x"
    assert into.try_recv() is None
    assert poller.poll(0) == []


def test_asyncio(pair):
    out, into = pair

    async def main():
        got = []

        async def receive():
            async for message in into:
                got.append(message)

        task = asyncio.create_task(receive())
        for i in range(100):
            out.send(b"%d" % i)
            if i % 10 == 0:
                await asyncio.sleep(0.001)
        while len(got) < 100:  # then the task waits for another one
            await asyncio.sleep(0.001)
        for other in into.recv_async(), into.recv_async():
            with pytest.raises(tmesh.BusyError):
                await other
        assert_refused(into.close, tmesh.BusyError, "task waits")
        out.close()
        await asyncio.wait_for(task, PATIENCE)
        return got

    assert asyncio.run(main()) == [b"%d" % i for i in range(100)]


def test_asyncio_cancelled(pair):
    out, into = pair

    async def main():
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(into.recv_async(), 0.01)
        asyncio.get_running_loop().call_later(0.01, out.send, b"x")
        return await asyncio.wait_for(into.recv_async(), PATIENCE)

    assert asyncio.run(main()) == b"x"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork(pair, python):
    out, into = pair
    python("""
import os, sys, tmesh
tmesh.configure(timeout=600)
out = tmesh.Channel("send")
into = tmesh.Channel.open(out.token, "recv")
pid = os.fork()
if pid == 0:
    for call in (lambda: out.send(b"x"), into.try_recv, into.fileno):
        try:
            call()
        except tmesh.AccessError:
            continue
        os._exit(1)
    with tmesh.Channel.open(out.token, "recv") as own:
        os._exit(0 if own.recv(600) == b"for the child" else 2)
out.send(b"for the child")
assert os.waitpid(pid, 0)[1] == 0
out.send(b"after")
assert into.recv(600) == b"after"
""")


kept = []


def send_and_end(pipe, closes):
    out = tmesh.Channel("send")
    for n in range(10):
        out.send(tmesh.put([n]))
    pipe.send(out.token)
    if closes:
        out.close()
    else:
        kept.append(out)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.skipif("TMESH_EXIT_WAIT" not in os.environ, reason="nothing asks for the wait")
@pytest.mark.parametrize("method", ["fork"] if EMULATED else ["fork", "spawn", "forkserver"])
def test_a_process_that_ends_at_once_loses_nothing(method, closes):
    """For a process of multiprocessing, which ends by os._exit(). tests/conformance covers other processes."""
    processes = multiprocessing.get_context(method)
    here, there = processes.Pipe()
    process = processes.Process(target=send_and_end, args=(there, closes))
    process.start()
    token = here.recv()
    process.join(0.5)  # it would have ended by now
    with tmesh.Channel.open(token, "recv") as into:
        assert [int(into.recv(PATIENCE)[0]) for _ in range(10)] == list(range(10))
    process.join(PATIENCE)
    assert process.exitcode == 0


@ANY_BACKEND
@pytest.mark.parametrize("closes", [False, True])
def test_what_nobody_comes_for_is_said(closes):
    done = subprocess.run([sys.executable, "-P", "-c", f"""
import tmesh
out = tmesh.Channel("send")
for n in range(10):
    out.send(tmesh.put([n]))
if {closes}:
    out.close()
    while tmesh.stats()["regions_live"]:
        pass
"""], env={**os.environ, "TMESH_EXIT_WAIT": "0.01"}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert re.fullmatch(r"tmesh: process \d+.* within 0.01 s .*: 10 messages (are|may be) lost\n", done.stderr)


@pytest.mark.parametrize("call, error", [
    (lambda out, into: out.send("text"), TypeError),
    (lambda out, into: out.send((b"x", b"y")), TypeError),
    (lambda out, into: out.send(b"x", -1), tmesh.InvalidError),
    (lambda out, into: out.send(b"x", float("nan")), tmesh.InvalidError),
    (lambda out, into: out.send(b"x", "soon"), TypeError),
    (lambda out, into: out.send(), TypeError),
    (lambda out, into: out.send(b"x", 1, 2), TypeError),
    (lambda out, into: out.send(b"x", wait=1), TypeError),
    (lambda out, into: out.send(timeout=1), TypeError),
    (lambda out, into: out.send(timeout=b"x"), TypeError),
    (lambda out, into: into.recv(1, 2), TypeError),
    (lambda out, into: into.recv(1, timeout=2), TypeError),
    (lambda out, into: into.flush(), tmesh.InvalidError),
    (lambda out, into: next(out), tmesh.InvalidError),
    (lambda out, into: tmesh.Channel("both"), ValueError),
    (lambda out, into: tmesh.Channel("send", capacity=-1), OverflowError),
    (lambda out, into: tmesh.Channel("send", spin=-1), tmesh.InvalidError),
    (lambda out, into: tmesh.Channel("send", spin=2), tmesh.InvalidError),
    (lambda out, into: pickle.dumps(out), TypeError),
])
def test_refused(pair, call, error):
    assert_refused(lambda: call(*pair), error)
    pair[0].send(b"still good")
    assert pair[1].recv() == b"still good"


def test_closed():
    out, into = ends()
    token = out.token
    out.close()
    out.close()
    assert out.closed and out.token == token and out.role == "send"
    for call in (out.fileno, out.flush, out.__enter__):
        assert_refused(call, tmesh.ReleasedError)
    into.close()
    assert repr(out) == "<tmesh.Channel, sending, closed>"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ came with Python 3.12")
def test_argument_that_closes(pair):
    out, into = pair

    class Trap:
        def __buffer__(self, flags):
            out.close()
            return memoryview(b"x")

    class BytesTrap(bytes):
        __buffer__ = Trap.__buffer__

    assert_refused(lambda: out.send(Trap()), TypeError)
    out.send(b"it was not asked")
    assert_refused(lambda: out.send(BytesTrap()), tmesh.ReleasedError)


def test_argument_that_closes_by_float(pair):
    class Trap:
        def __float__(self):
            pair[0].close()
            return 1.0

    assert_refused(lambda: pair[0].send(b"x", Trap()), tmesh.ReleasedError)


def test_batch_that_closes(pair):
    out, into = pair
    assert_refused(lambda: out.send_batch(out.close() or b"x" for _ in range(2)), tmesh.ReleasedError)


def test_nothing_stays():
    def once():
        out, into = ends()
        with out, into:
            out.send(tmesh.put(b"x", seal=False))
            into.recv()
            into.fileno()

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        once()
    # A connection ends a moment after its last handle.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
