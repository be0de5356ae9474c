# SPDX-License-Identifier: MIT
"""Random use of the extension: indices, pickles, buffers, and objects that are let go inside a call, by the collector or by
an argument's own code. Each part runs in an interpreter of its own, which has to reach its end.

TMESH_FUZZ_SEED=N repeats one history. At full length each run has another one."""

import os
import random

import pytest

from conftest import EMULATED

FULL = os.environ.get("TMESH_TEST_LENGTH") == "full"
COUNT = 1_000 if EMULATED else 200_000 if FULL else 4_000

PRELUDE = """
import faulthandler, gc, itertools, pickle, random, sys
from multiprocessing.reduction import ForkingPickler
import numpy as np
import tmesh
from tmesh import in_transit

faulthandler.enable()
seed, count = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
TYPES = "uint8", "int16", "int32", "int64", "float32", "float64", "bool", "complex64"
# Errors that wrong use may raise; a RuntimeError is NumPy's, of types that it does not take. All others end the program.
EXPECTED = tmesh.Error, BufferError, IndexError, OverflowError, RuntimeError, TypeError, ValueError


def shape(most=8):
    return tuple(rng.choice((0, 1, 1, 2, 2, 3, 5)) for _ in range(rng.randrange(most + 1)))


def filled(shape):
    array = np.arange(int(np.prod(shape)), dtype="float64").reshape(shape) % 100
    return array.astype(rng.choice(TYPES))


def tensor(most=8):
    array = filled(shape(most))
    return tmesh.put(array, seal=rng.random() < .5), array


def same(tensor, array):
    assert tensor.dtype == str(array.dtype) and tensor.shape == array.shape, (tensor, array.shape)
    assert np.array_equal(tensor.numpy(), array), (tensor, array)


def refused(call, *args):
    try:
        call(*args)
    except EXPECTED:
        pass


class Ends:
    \"\"\"An argument whose conversion lets go of what it is given to.\"\"\"

    def __init__(self, end):
        self.end = end

    def value(self):
        self.end()
        gc.collect(0)
        return rng.choice((0, 1, 2))

    __index__ = __int__ = value

    def __float__(self):
        return self.value() / 1000

    def __bool__(self):
        return bool(self.value())

    def __len__(self):
        return self.value()
"""

INDICES = """
def number():
    return rng.choice((rng.randrange(-6, 6), rng.randrange(-6, 6), rng.randrange(-6, 6), 2**31, -2**63, 2**63, 2**70))


def item():
    kind = rng.randrange(14)
    if kind < 5:
        return number()
    if kind < 9:
        return slice(*(rng.choice((None, number())) for _ in range(3)))
    return (None, ..., np.int64(rng.randrange(-3, 3)), rng.choice((1.5, "a", b"x", [0], True, np.array(1), {})), slice("a", None))[kind - 9]


for _ in range(count):
    t, array = tensor()
    for _ in range(8):
        key = [item() for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 7, 8, 9, 40)))]
        if rng.random() < .2:
            at = rng.randrange(len(key) + 1)
            key[at:at] = [None] * rng.choice((1, 2, 5, 7, 9, 40, 130))
        key = tuple(key)
        key = key[0] if len(key) == 1 and rng.random() < .7 else key
        try:
            part = t[key]
        except EXPECTED:
            continue
        same(part, array[key])
        if rng.random() < .3:
            t, array = part, np.asarray(array[key])
    ends = Ends(t.release)
    refused(lambda: t[rng.choice((ends, (ends, 0), slice(ends, None), (slice(None, ends), ends), (None, ends)))])
    refused(lambda: tmesh.zeros(4)[ends])
"""

PICKLES = """
def value(depth=0):
    kind = rng.randrange(6)
    if kind == 0 and depth < 3:
        return [value(depth + 1) for _ in range(rng.randrange(4))]
    if kind == 1 and depth < 3:
        return {str(n): value(depth + 1) for n in range(rng.randrange(4))}
    if kind == 2:
        return rng.choice((None, "text", b"bytes", 1.5))
    if kind == 3:
        return tmesh.bundle({"a": filled(shape(3)), "b": filled(shape(3))})
    return tensor(4)[0] if kind == 4 or not known else rng.choice(known)


def alike(one, other):
    if isinstance(one, tmesh.Tensor):
        same(other, one.numpy())
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            alike(*pair)
    elif isinstance(one, (dict, tmesh.Bundle)):
        assert list(one) == list(other)
        for name in one:
            alike(one[name], other[name])
    else:
        assert one == other


class Fails:
    def __reduce__(self):
        raise ValueError("this one fails")


def fails(what):
    try:
        ForkingPickler.dumps(what)
    except ValueError:
        return
    raise AssertionError("it did not fail")


def changed(parcel):
    data = bytearray(parcel)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        data[at] = rng.choice((0, 1, 0x7f, 0x80, 0xff, data[at] ^ 1 << rng.randrange(8)))
    return bytes(data[:rng.choice((len(data), len(data), len(data), rng.randrange(len(data))))])


known = []
for _ in range(count // 4):
    known = [tensor(4)[0] for _ in range(3)]
    what = value()
    alike(what, pickle.loads(pickle.dumps(what, rng.randrange(2, pickle.HIGHEST_PROTOCOL + 1))))
    alike(what, ForkingPickler.loads(ForkingPickler.dumps(what)))
    fails([what, known, Fails(), value()])
    assert in_transit.under_way() == 0
    # A stranger's parcel may say that any of its sender's tensors was opened, so the sender is a separate one.
    sender, reader = tmesh._tmesh.InTransit(entries=8), tmesh._tmesh.InTransit()
    parcels = [sender.send(t, t.writable) for t in known]
    for _ in range(8):
        way = rng.choice((reader.open, reader.open_held, reader.unpickle, reader.give_up))
        try:
            got = way(changed(rng.choice(parcels)))
        except EXPECTED:
            continue
        if got is not None:
            refused(lambda: memoryview(got).tobytes())
"""

BUFFERS = """
def write(view):
    view[rng.randrange(-3, 3)] = rng.choice((0, 1, 255, b"x", 1.5))


def cast(view):
    return view.cast(rng.choice("BbhiqfdQ?c"), *rng.choice(((), ([view.nbytes],), ([1, view.nbytes],), ([2, -1],))))


def part(view):
    return view[slice(*(rng.choice((None, rng.randrange(-4, 4))) for _ in range(3)))]


for _ in range(count // 2):
    t, array = tensor(3)
    views, kept, sealed = [], [t], t.numpy().tobytes() if t.sealed else None
    makers = (
        lambda: memoryview(t), lambda: memoryview(t).cast("B"), lambda: t.numpy(), lambda: np.asarray(t), lambda: np.from_dlpack(t),
        lambda: np.frombuffer(t, rng.choice(TYPES)), lambda: memoryview(t.numpy()), lambda: memoryview(tmesh.from_dlpack(np.from_dlpack(t))),
        lambda: memoryview(t.private()), lambda: memoryview(t.view(rng.choice(TYPES))), lambda: memoryview(t.reshape(-1)[1:]),
    )
    for _ in range(16):
        kind = rng.randrange(8)
        try:
            if kind < 3 or not views:
                views.append(rng.choice(makers)())
            elif kind == 3:
                views.append(rng.choice((cast, part, memoryview.toreadonly))(memoryview(rng.choice(views))))
            elif kind == 4:
                write(rng.choice(views))
            elif kind == 5:
                kept.append(tmesh.put(rng.choice(views)))
            elif kind == 6:
                view = views.pop(rng.randrange(len(views)))
                view.release() if isinstance(view, memoryview) else None
            else:
                rng.choice((t.release, t.seal, lambda: memoryview(t).tobytes(), lambda: hash(t), lambda: t.tolist(), lambda: t.__array_interface__,
                            lambda: t.__arrow_c_array__(), lambda: repr(t)))()
        except EXPECTED:
            continue
    # Sealed memory is as it was, and what was made of it is there after its release.
    if sealed is not None:
        for view in views:
            if isinstance(view, np.ndarray) and view.nbytes == len(sealed) and view.flags.c_contiguous and not view.flags.writeable:
                assert view.tobytes() == sealed
    for one in kept[1:] + views:
        refused(lambda: memoryview(one).tobytes())
"""

COLLECTOR = """
def fresh():
    box.clear()
    box.update(t=tmesh.zeros((3, 4, 5), "float32"), s=tmesh.put(np.arange(300)), arena=tmesh.Arena(), slot=tmesh.Slot(),
               b=tmesh.bundle({f"tensor {n}": np.arange(n + 1) for n in range(20)}), pool=tmesh.PagePool(), c=tmesh.Channel("send", capacity=4))
    box["slot"].publish({"a": np.arange(3)})
    box["rd"] = tmesh.Slot.open(box["slot"].token)
    box["pages"] = tmesh.Pages.open(box["pool"].tenant())
    box["q"] = box["pages"].sequence()
    box["q"].append(40)
    box["ci"] = tmesh.Channel.open(box["c"].token, "recv")


box = {}
ENDS = (lambda: box["t"].release(), lambda: box["s"].release(), lambda: box["b"].release(), lambda: box["rd"].close(), lambda: box["slot"].close(),
        lambda: box["q"].release(), lambda: box["pages"].close(), lambda: box["pool"].close(), lambda: box["c"].close(), lambda: box["ci"].close(),
        lambda: box["t"].seal(), lambda: box["t"].__exit__(None, None, None))
USES = (
    lambda: box["t"].numpy().sum(), lambda: tmesh.open(box["t"].ref()), lambda: tmesh.put(box["t"]), lambda: box["t"].__deepcopy__({}),
    lambda: np.from_dlpack(box["t"]), lambda: tmesh.from_dlpack(np.from_dlpack(box["t"])), lambda: box["s"].private().numpy()[:5].sum(),
    lambda: box["b"]["tensor 3"].numpy(), lambda: box["b"].ref(), lambda: list(box["b"].items()), lambda: box["b"].private(),
    lambda: box["slot"].publish(box["b"]), lambda: box["rd"].read()["a"].tolist(), lambda: box["q"].page(0, writable=end()),
    lambda: box["q"].fork().append(end()), lambda: box["q"].append(1), lambda: box["q"].block_table(), lambda: box["pages"].info(),
    lambda: box["pool"].info(), lambda: box["c"].try_send(box["t"]), lambda: box["ci"].try_recv(), lambda: box["c"].send((box["t"], b"x"), soon()),
    lambda: tmesh.put(b"x" * 1000, arena=box["arena"]), lambda: pickle.loads(pickle.dumps(box["s"])),
    lambda: in_transit.here.open(in_transit.here.send(box["t"], end())), lambda: in_transit.here.look(), lambda: box["t"].__arrow_c_array__(),
    lambda: memoryview(box["t"]).release(), lambda: repr(box["t"]), lambda: box["t"].T[end():, None].shape, lambda: box["t"].tolist(),
    lambda: box["t"].reshape(end(), -1), lambda: box["t"][end(), ..., None], lambda: box["t"].numpy(writable=end()),
    lambda: box["t"].ref(writable=end()),
    lambda: box["t"].__dlpack__(max_version=(1, end()), copy=end()), lambda: tmesh.zeros((end(), 2)), lambda: box["t"].__setitem__(end(), end()),
)


def end():
    return rng.choice((0, 1, Ends(lambda: once(rng.choice(ENDS)))))


def soon():
    return rng.choice((0, 0.001, Ends(lambda: once(rng.choice(ENDS)))))


def once(call):
    try:
        call()
    except (*EXPECTED, KeyError):
        pass


class Cycle:
    def __init__(self):
        self.me, self.end = self, rng.choice(ENDS)

    def __del__(self):
        once(self.end)


gc.freeze()
for n in range(count):
    if n % 8 == 0:
        fresh()
    gc.disable()
    cycle = Cycle()
    del cycle
    gc.enable()
    gc.set_threshold(rng.randrange(1, 30))
    once(rng.choice(USES))
    gc.disable()
"""


@pytest.mark.parametrize("part", ["INDICES", "PICKLES", "BUFFERS", "COLLECTOR"])
def test_random_use(python, part):
    seed = os.environ.get("TMESH_FUZZ_SEED") or str(random.randrange(1 << 32) if FULL else 1)
    print("TMESH_FUZZ_SEED=" + seed)
    assert python(PRELUDE + globals()[part] + "\nprint('whole')\n", seed, str(COUNT), timeout=3600) == "whole\n", f"TMESH_FUZZ_SEED={seed}"
