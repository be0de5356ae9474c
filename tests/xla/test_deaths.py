# SPDX-License-Identifier: MIT
"""Processes that end at a bad moment, at either end of a channel, and Ctrl-C."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed, and cannot be had from the package index")

import jax.numpy as jnp
import tmesh
import tmesh.xla as xla

# JAX 0.7 raises a ValueError with the same text where it waits for an array.
FAILURE = (jax.errors.JaxRuntimeError, ValueError) if jax.__version_info__ < (0, 8) else jax.errors.JaxRuntimeError
LONG = os.environ.get("TMESH_TEST_LENGTH") == "full"
ROUNDS = 300 if LONG else 30
PEER = os.environ["TMESH_TEST_PEER"]
SMALL, LARGE = 16, 100_000


def peer(role, count):
    process = subprocess.Popen([PEER, role, str(count)], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def held():
    """Regions of both libraries in this process, and descriptors of memory. A context also remembers its last 32
    peers, which takes three descriptors for each."""
    gc.collect()
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass  # of the listing itself
    assert len(names) < 300
    return (tmesh.stats()["regions_live"], xla.stats()["regions_live"], sum("memfd:tmesh:" in name for name in names))


def settle(before):
    """A thread of the library notices a death, and then releases the memory."""
    end = time.monotonic() + 600
    while held() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert held() == before


def pushes(count):
    return jax.jit(lambda s: xla.scan(lambda s, c, _: (xla.push(s, c, channel="k", timeout=600), c, None), s,
                                      jnp.zeros(count), length=100)[0])


def pops(count):
    like = jax.ShapeDtypeStruct((count,), "float32")
    return jax.jit(lambda s: xla.scan(lambda s, c, _: (*xla.pop(s, like, channel="k", timeout=600), None), s,
                                      jnp.zeros(count), length=100)[0])


def test_the_other_end_is_killed():
    programs = {(role, count): make(count) for role, make in (("recv", pushes), ("send", pops))
                for count in (SMALL, LARGE)}
    numbers = random.Random(1)
    before = held()
    codes = set()
    for turn in range(ROUNDS):
        (role, count), program = list(programs.items())[turn % len(programs)]
        process, token = peer(role, count)
        xla.bind("k", token, "recv" if role == "send" else "send")
        killer = threading.Timer(numbers.uniform(0, 0.05), process.kill)
        killer.start()
        with pytest.raises(FAILURE) as caught:
            while True:
                jax.block_until_ready(program(xla.sequence()))
        codes.add(str(caught.value).partition(":")[0])
        killer.join()
        process.wait()
        process.stdout.close()
        xla.unbind("k", timeout=0)
        settle(before)
    # A message whose memory went with its owner, or a channel without a peer.
    assert codes <= {"UNAVAILABLE", "DATA_LOSS"} and "UNAVAILABLE" in codes


JAX_SIDE = """
import sys
import jax, jax.numpy as jnp
import tmesh.xla as xla

xla.bind("out", sys.argv[1], "send")
program = jax.jit(lambda s: xla.push(s, jnp.zeros(100_000), channel="out", timeout=600))
while True:
    program(xla.sequence()).block_until_ready()
"""


def test_jax_is_killed():
    before = held()
    for turn in range(10 if LONG else 2):
        inbox = tmesh.Channel("recv")
        process = subprocess.Popen([sys.executable, "-P", "-c", JAX_SIDE, inbox.token])
        inbox.recv(timeout=600).release()
        killer = threading.Timer(random.Random(turn).uniform(0, 0.05), process.kill)
        killer.start()
        with pytest.raises(tmesh.GoneError):
            while True:
                try:
                    inbox.recv(timeout=600).release()
                except tmesh.NotFoundError:
                    pass  # its memory went with it
        killer.join()
        process.wait()
        inbox.close()
        settle(before)


WAITING = """
import os, random, signal, sys, threading, time
import jax, tmesh
import tmesh.xla as xla

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
box = tmesh.Channel("send")
xla.bind("in", box, "recv")
like = jax.ShapeDtypeStruct((), "float32")
program = jax.jit(lambda s: xla.pop(s, like, channel="in", timeout=600))
send = lambda value: box.send(tmesh.put(jax.numpy.float32(value).__array__()))
send(1)
jax.block_until_ready(program(xla.sequence()))
"""

STORM = WAITING + """
# At any moment, before the call sleeps above all. Each is heard, once.
numbers = random.Random(int(sys.argv[1]))
pause = time.sleep

def act(after):
    pause(after)
    os.kill(os.getpid(), signal.SIGINT)

for turn in range(int(sys.argv[2])):
    thread = threading.Thread(target=act, args=(numbers.uniform(0, 0.003),))
    try:
        thread.start()
        jax.block_until_ready(program(xla.sequence()))
    except KeyboardInterrupt:
        thread.join()
    else:
        sys.exit("the wait ended without a word")
send(2)
print(float(program(xla.sequence())[1]))
"""

ELSEWHERE = WAITING + """
# Its handler runs in another thread, so that nothing wakes the one that waits.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

def act():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)

thread = threading.Thread(target=act)
try:
    thread.start()
    jax.block_until_ready(program(xla.sequence()))
except KeyboardInterrupt:
    thread.join()
send(2)
print(float(program(xla.sequence())[1]))
"""


@pytest.mark.parametrize("source", [STORM, ELSEWHERE], ids=["storm", "elsewhere"])
def test_interrupt_ends_a_wait(source):
    """A signal during a wait of the thread that JAX calls from, at any moment; the next call works."""
    done = subprocess.run([sys.executable, "-P", "-c", source, "1", "1000" if LONG else "40"], stdout=subprocess.PIPE,
                          text=True, timeout=1200)
    assert done.returncode == 0
    assert done.stdout == "2.0\n"
