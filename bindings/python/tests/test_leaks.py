# SPDX-License-Identifier: MIT
"""What is done a thousand times leaves nothing behind: memory, descriptors, references."""

import copy
import gc
from multiprocessing.reduction import ForkingPickler
import pickle
import os
import subprocess
import sys

import numpy as np
import pytest

import tmesh
import tmesh.sent
from tmesh import _tmesh
import test_exchange
from conftest import EMULATED, pytorch

TIMES = 50 if EMULATED else 200
# These look at every process of the machine each time.
LOOKS = {"regions"}
ALONE = "TMESH_TEST_ALONE" in os.environ
# Python's cache of types' attributes keeps each name by which something was looked up, up to 4,096 of them, and what
# calls by a C string makes a new one each time: that grew by one and a half a call for hundreds of calls.
forget_names = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
T = np.arange(100, dtype="float32")


def refuse(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError("not refused")


def dlpack(t):
    torch = pytorch()
    torch.from_dlpack(t)


def channel(message):
    with tmesh.Channel("send") as out, tmesh.Channel.open(out.token, "recv") as into:
        out.send(message)
        out.send_batch([(message, b"x"), b"y"])
        return into.recv(), into.recv_batch(), into.try_recv()


def queue(*items):
    q = tmesh.Queue()
    for item in items:
        q.put(item)
        q.get()


def send(t):
    pickle.loads(ForkingPickler.dumps(t))
    tmesh.sent.here = _tmesh.Sent()


def reduce(t):
    """Held until it is opened."""
    function, args = t.__reduce__()
    function(*args)
    tmesh.flush()


class NoBuffer(np.ndarray):
    """As JAX's bfloat16 arrays are: of datetimes there is none."""

    def __dlpack__(self, **kwargs):
        return self.view("int64").view(np.ndarray).__dlpack__()


ACTS = {
    "put": lambda t: (tmesh.put(T), tmesh.put(T, seal=False)),
    "put strided": lambda t: tmesh.put(T[::2]),
    "put list": lambda t: tmesh.put([1.0, 2.0]),
    "put tensor": lambda t: tmesh.put(t),
    "zeros": lambda t: tmesh.zeros((2, 3), "float32"),
    "empty": lambda t: tmesh.empty((2, 3), "float32", label="x"),
    "open": lambda t: tmesh.open(t.ref()).numpy(),
    "open token": lambda t: tmesh.open(t.token),
    "numpy": lambda t: t.numpy(),
    "numpy strided": lambda t: t[::-1].numpy(),
    "buffer": lambda t: memoryview(t),
    "capsule": lambda t: (t.__dlpack__(), t.__dlpack__(max_version=(1, 0))),
    "capsule copy": lambda t: t.__dlpack__(copy=True),
    "torch": dlpack,
    "from_dlpack": lambda t: (tmesh.from_dlpack(t), tmesh.from_dlpack(T)),
    "numbers": lambda t: (t.tolist(), t[1].item(), int(t[1]), bool(t[1]), t.view("uint4").tolist()),
    "copies": lambda t: (copy.copy(t), copy.deepcopy(t), tmesh.open(t)),
    "assign": lambda t: t.__setitem__(slice(3), 5),
    "with": lambda t: tmesh.open(t).__enter__().__exit__(None, None, None),
    "send": send,
    "truth": lambda t: refuse(tmesh.InvalidError, t.__bool__),
    "views": lambda t: (t[None], t[1:], t.view("uint8"), t.reshape(10, 10)),
    "properties": lambda t: [getattr(t.seal(), name) for name in dir(t) if not name.startswith("__")],
    "reduce": reduce,
    "new properties": lambda t: [getattr(tmesh.put(T, label="new"), name)
                                 for name in ("id", "label", "token")],
    "iterate": lambda t: next(reversed(t.view("uint8"))),
    "put without a buffer": lambda t: tmesh.put(NoBuffer(3, "datetime64[s]")),
    "allocate": lambda t: test_exchange.refused(),
    "dtype": lambda t: tmesh.empty(1, np.dtype("float32")),
    "see": lambda t: (tmesh.stats(), tmesh.caps(), repr(t.seal())),
    "regions": lambda t: (tmesh.regions(), tmesh.holders(t)),
    "channel": channel,
    "queue": lambda t: queue(t, 1, b"x", bytes(100), list(range(100))),
    "bad message": lambda t: refuse(TypeError, lambda: channel("text")),
    "bad ref": lambda t: refuse(tmesh.ProtocolError, lambda: tmesh.open({**t.ref(), "offset": 4})),
    "bad member": lambda t: refuse(tmesh.ProtocolError, lambda: tmesh.open({**t.ref(), "shape": ["x"]})),
    "bad token": lambda t: refuse(tmesh.ProtocolError, lambda: tmesh.open("x")),
    "bad shape": lambda t: refuse(tmesh.InvalidError, lambda: tmesh.empty(-1, "uint8")),
    "bad shapes": lambda t: refuse(TypeError, lambda: tmesh.empty([1, "x"], "uint8")),
    "bad put": lambda t: refuse(tmesh.UnsupportedError, lambda: tmesh.put("x")),
    "bad key": lambda t: refuse(IndexError, lambda: t[1000]),
    "busy": lambda t: (t.numpy(), refuse(tmesh.BusyError, lambda a=t.numpy(): t.seal())),
    "refused": lambda t: refuse(tmesh.UnsupportedError, t.view("uint8").view("float8_e5m2").numpy),
    "read-only": lambda t: refuse(tmesh.AccessError, tmesh.open(t.ref()).dlpack),
}


def blocks_in_use():
    """Without what is garbage, what was sent and opened, and what Python keeps until it has better use for the room."""
    gc.collect()
    tmesh.sent.here.under_way()
    forget_names()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("act", ACTS)
def test_act(act, request):
    """A leak grows in every round; caches of others do not. What other tests left running in this process
    may grow in every round, too: then the act is judged in a process of its own."""
    t = tmesh.put(T, seal=False)
    growth = []
    times = max(12, TIMES // 8) if act in LOOKS else TIMES
    leak = times * 3 // 4
    # What the first call fills would hide a leak in few calls.
    ACTS[act](t)
    for _ in range(4):
        references, blocks = sys.getrefcount(t), blocks_in_use()
        for _ in range(times):
            ACTS[act](t)
        growth.append(blocks_in_use() - blocks)
    assert sys.getrefcount(t) == references
    if min(growth) >= leak and not ALONE:
        alone = subprocess.run([sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                                f"{request.path}::{request.node.name}"], env={**os.environ, "TMESH_TEST_ALONE": "1"},
                               capture_output=True, text=True)
        assert alone.returncode == 0, f"{growth}\n{alone.stdout}"
    else:
        assert min(growth) < leak, growth
