# SPDX-License-Identifier: MIT
"""Forked children, threads, and the end of an interpreter."""

from multiprocessing.reduction import ForkingPickler
import os
import signal
import sys
import threading

import numpy as np
import pytest

import tmesh
from conftest import pytorch


def in_fork(check):
    """Run @check in a forked child. Return its exception, by name, or "fine"."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(600)  # a child that waits for ever is ended
        try:
            check()
            word = "fine"
        except BaseException as error:
            word = f"{type(error).__name__}: {error}"
        os.write(writer, word.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        word = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return word


def test_fork_child_reads_and_writes_what_it_inherited():
    t = tmesh.put(np.arange(4), seal=False)
    array = t.numpy()

    def check():
        assert array.tolist() == [0, 1, 2, 3]
        assert t.numpy().tolist() == [0, 1, 2, 3]
        t.numpy()[0] = 5
        assert array.tolist() == t.tolist() == [5, 1, 2, 3]

    assert in_fork(check) == "fine"
    assert t.tolist() == [5, 1, 2, 3]


@pytest.mark.parametrize("use", [
    lambda t: t.seal(), lambda t: t.ref(), lambda t: t.token,
])
def test_fork_child_may_do_nothing_else(use):
    t = tmesh.put(np.arange(4), seal=False)
    assert in_fork(lambda: use(t)).startswith("AccessError")
    assert t.numpy().flags.writeable


@pytest.mark.parametrize("use", [
    lambda t: t.ref(), lambda t: t.token, ForkingPickler.dumps, lambda t: t.lease(60),
])
def test_fork_child_is_told_what_to_do_before(use):
    """The reason is the fork, also for sealed memory."""
    t = tmesh.put(np.arange(4))
    word = in_fork(lambda: use(t))
    assert word.startswith("AccessError") and "by a ref or token that was taken before the fork" in word
    assert in_fork(lambda: t.numpy(writable=True)).startswith("SealedError")


def test_fork_child_has_a_life_of_its_own():
    t = tmesh.put(np.arange(4))
    ref = t.ref()

    def check():
        assert tmesh.open(ref).numpy().tolist() == [0, 1, 2, 3]
        own = tmesh.put(b"child")
        assert bytes(tmesh.open(own.ref())) == b"child"
        own.release()
        t.release()

    assert in_fork(check) == "fine"
    assert tmesh.open(ref).numpy().tolist() == [0, 1, 2, 3]


def test_threads():
    """Many threads put, open, inspect, pickle and release at once."""
    failures = []

    def work(number):
        try:
            for i in range(50):
                t = tmesh.put(np.full(1000, number * 1000 + i), seal=False)
                o = tmesh.open(t.ref())
                assert (o.numpy() == number * 1000 + i).all()
                o[5:].numpy()
                if i % 2:
                    t.seal()
                o.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_on_one_tensor():
    t = tmesh.put(np.arange(1000))
    failures = []

    def work():
        try:
            for _ in range(300):
                assert t.numpy()[999] == 999
                assert t[10:20].numpy()[0] == 10
                assert t.ref()["id"] == t.id
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("more", ["", "import torch; keep.append(torch.from_dlpack(keep[0]))"])
def test_interpreter_exit(python, more):
    """The interpreter ends without an error, whatever objects exist."""
    if more:
        pytorch()
    assert python(f"""
import numpy, tmesh
keep = [tmesh.put(numpy.arange(4), seal=False)]
keep += [keep[0].numpy(), memoryview(keep[0]), keep[0].__dlpack__(), tmesh.open(keep[0].ref())]
{more}
import builtins
builtins.keep = keep
print("end")
""") == "end\n"


def test_no_thread_of_ours_outlives_a_daemon(python):
    assert python("""
import threading, time, tmesh
def work():
    while True:
        t = tmesh.put(b"x" * 100000)
        tmesh.open(t.ref())
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("end")
""") == "end\n"


@pytest.mark.skipif(sys.version_info < (3, 13), reason="_interpreters came with Python 3.13")
def test_subinterpreter(python):
    """An interpreter with a GIL of its own is refused."""
    assert "ImportError" in python("""
import _interpreters
interpreter = _interpreters.create("isolated")
print(_interpreters.exec(interpreter, "import tmesh"))
""")


STAND_IN = """#!/bin/sh
for name; do :; done
echo "ready $name"
cat > /dev/null
"""

SERVED = """
import os, signal, sys, threading, tmesh.engine
server = tmesh.engine.serve("ggml")
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
closing = threading.Thread(target=server.close)
closing.start()
closing.join(300)
print("closed" if not closing.is_alive() else "waits for the child")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
closing.join()
"""


def test_a_served_engine_does_not_wait_for_a_forked_child(python, tmp_path):
    """The server ends with its input, of which a forked child has no copy."""
    program = tmp_path / "engine"
    program.write_text(STAND_IN)
    program.chmod(0o700)
    assert python(SERVED, env={**os.environ, "TMESH_ENGINE_PROGRAM": str(program)}) == "closed\n"


ACCEPTING = """
import os, resource, socket, sys, threading, time, types, tmesh.batching
generator = types.SimpleNamespace(busy=False, stuck=False)
server = tmesh.batching.Server(generator, sys.argv[1])
accept, calls = server._accept, []
server._accept = lambda: calls.append(None) or accept()
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
running = threading.Thread(target=server.run)
running.start()
while not calls:
    time.sleep(.01)
time.sleep(1)
tried = len(calls)
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
while not server._peers:
    time.sleep(.01)
server.stop()
running.join()
print("fine" if tried < 100 else tried)
"""


def test_a_generators_server_without_descriptors(python, tmp_path):
    """It waits for a free one, and does not try again at once."""
    assert python(ACCEPTING, str(tmp_path / "socket")) == "fine\n"
