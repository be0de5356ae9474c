# SPDX-License-Identifier: MIT
"""A thousand repetitions of an act leave no memory, descriptors or references behind."""

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
import tmesh.in_transit
from tmesh import _tmesh
import test_exchange
from conftest import EMULATED, pytorch

TIMES = 50 if EMULATED else 200
# These acts look at every process of the machine each time.
LOOKS = {"regions"}
ALONE = "TMESH_TEST_ALONE" in os.environ
# Python's cache of types' attributes keeps up to 4,096 names of look-ups. A call that uses a C string makes a new name
# each time. So the cache grew by one and a half entries a call for hundreds of calls.
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
    tmesh.in_transit.here = _tmesh.InTransit()


def reduce(t):
    """It is held until it is opened."""
    function, args = t.__reduce__()
    function(*args)
    tmesh.flush()


class NoBuffer(np.ndarray):
    """An array without a buffer, like JAX's bfloat16 arrays; datetimes have none either."""

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
    "store": lambda t: (pickle.loads(pickle.dumps(t)), pickle.loads(pickle.dumps(tmesh.bundle({"t": t}, seal=False)))),
    "refused": lambda t: refuse(tmesh.UnsupportedError, t.view("uint8").view("int4").numpy),
    "read-only": lambda t: refuse(tmesh.AccessError, tmesh.open(t.ref()).dlpack),
}


def blocks_in_use():
    """Count blocks without garbage, without tensors that were sent and opened, and without Python's own caches."""
    gc.collect()
    tmesh.in_transit.here.under_way()
    forget_names()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("act", ACTS)
def test_act(act, request):
    """A leak grows in every round; other packages' caches do not. Threads of other tests may grow in every round too.
    Then repeat the act in a process of its own."""
    t = tmesh.put(T, seal=False)
    growth = []
    times = max(12, TIMES // 8) if act in LOOKS else TIMES
    leak = times * 3 // 4
    # Fill caches by a first call, which would hide a leak in few calls.
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
