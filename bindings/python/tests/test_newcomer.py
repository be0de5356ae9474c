# SPDX-License-Identifier: MIT
"""Programs that were written for NumPy's arrays and multiprocessing."""

import hashlib
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tmesh
import tmesh.in_transit
from tmesh import _tmesh
from conftest import ANY_BACKEND, assert_refused, pytorch

pytestmark = ANY_BACKEND
PATIENCE = 600


def test_a_fingerprint_repeats():
    """Caches of data sets find entries by fingerprints."""
    first, second = tmesh.put(np.arange(6.0)), tmesh.put(np.arange(6.0))
    for digest in (lambda t: hashlib.sha256(pickle.dumps(t)).digest(), lambda t: hashlib.sha256(t).digest()):
        assert digest(first) == digest(second) == digest(tmesh.open(first.ref())) != digest(tmesh.put(np.ones(6)))


def test_default_collate():
    torch = pytorch()
    import tmesh.torch
    from torch.utils.data import DataLoader, default_collate
    data = [{"x": tmesh.put(np.full(3, number, "float32"), seal=number % 2 == 0), "ok": tmesh.put(np.array([number == 1])), "y": number}
            for number in range(4)]
    batch = default_collate(data)
    assert batch["x"].shape == (4, 3) and batch["x"][2].tolist() == [2, 2, 2]
    assert batch["ok"].dtype == torch.bool and batch["ok"][:, 0].tolist() == [False, True, False, False]
    batch["x"][0] = 9
    assert data[0]["x"].tolist() == [0, 0, 0]
    for workers in 0, 1:
        loaded = [*DataLoader(data, batch_size=2, num_workers=workers)]
        assert loaded[1]["x"].tolist() == [[2, 2, 2], [3, 3, 3]]


def write(tensor, sealed, nested):
    assert tensor.writable and not sealed.writable and nested["part"].writable
    tensor[0] = 5
    nested["part"][0] = 6


def test_a_spawned_process_writes_to_its_argument():
    tensor, sealed = tmesh.put(np.zeros(4), seal=False), tmesh.put(np.zeros(4))
    process = multiprocessing.get_context("spawn").Process(target=write, args=(tensor, sealed, {"part": tensor[2:]}))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0 and tensor.tolist() == [5, 0, 6, 0]
    tmesh.flush(PATIENCE)
    tmesh.in_transit.here = _tmesh.InTransit()


def write_everywhere(tensor, sealed, parts, answers, end):
    assert tensor.numpy().flags.writeable and not sealed.numpy().flags.writeable
    tensor.numpy()[0] = 5
    tensor[1] = 6
    memoryview(parts["rows"])[0] = 7
    answers.put(tensor.ref(writable=True))
    end.get()


def test_a_forked_process_writes_to_its_argument():
    context = multiprocessing.get_context("fork")
    tensor, sealed, answers, end = tmesh.put(np.zeros(4), seal=False), tmesh.put(np.zeros(4)), tmesh.Queue(), tmesh.Queue()
    process = context.Process(target=write_everywhere, args=(tensor, sealed, {"rows": tensor[2:]}, answers, end))
    process.start()
    theirs = tmesh.open(answers.get(), writable=True)
    assert tensor.tolist() == [5, 6, 7, 0]
    theirs[3] = 9
    assert tensor.tolist() == [5, 6, 7, 9]
    end.put(None)
    process.join(PATIENCE)
    assert process.exitcode == 0
    # The child's handles are gone with it.
    del theirs
    assert tensor.seal().sealed


def test_pytorch_copies_what_is_sealed():
    torch = pytorch()
    sealed = tmesh.put(np.arange(4.0))
    copy = torch.tensor(sealed.numpy())
    copy[0] = 9
    assert copy.tolist() == [9, 1, 2, 3] and sealed.tolist() == [0, 1, 2, 3]
    assert_refused(lambda: torch.tensor(sealed), (TypeError, tmesh.AccessError), r"torch\.tensor\(t\.numpy\(\)\)")
    assert_refused(lambda: torch.from_dlpack(sealed), tmesh.AccessError, r"torch\.tensor\(t\.numpy\(\)\)")


def test_threads_have_names(python):
    python("""
import os, time, tmesh
queue, held = tmesh.Queue(), tmesh.put(b"x").ref(hold=60)
end = time.monotonic() + 600  # a thread that has just begun has its parent's name
while True:
    names = [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")]
    if sorted(name for name in names if "tmesh" in name) == ["tmesh-hold", "tmesh-server", "tmesh-watch"] and len(names) == 4:
        os._exit(0)
    assert time.monotonic() < end, names
""")


BLOCK = """
import multiprocessing, os, sys

def make(queue, answers, how):
    from tmesh.shared_memory import SharedMemory
    block = SharedMemory(create=True, size=100)
    block.buf[0] = 7
    queue.put(block.name)
    block.close()
    if how == "attached":
        answers.get()

if __name__ == "__main__":
    how, method = sys.argv[1:]
    import tmesh.shared_memory
    if how != "apart":
        tmesh.shared_memory.install()
    context = multiprocessing.get_context(method)
    queue, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=make, args=(queue, answers, how))
    process.start()
    name = queue.get()
    print(name, flush=True)
    if how == "attached":
        block = tmesh.shared_memory.SharedMemory(name)
        answers.put(1)
    process.join()
    from tmesh.shared_memory import SharedMemory, _names
    if how != "attached":
        block = SharedMemory(name)
    assert block.size == 100 and block.buf[0] == 7
    again = SharedMemory(name)
    again.buf[0] = 8
    assert block.buf[0] == 8
    block.unlink()
    for gone in lambda: SharedMemory(name), again.unlink:
        try:
            gone()
            sys.exit("the name is good after unlink()")
        except FileNotFoundError:
            pass
    assert not _names._mine and not _names._before
    print("left")
"""


def run_block(tmp_path, *arguments):
    program = tmp_path / "block.py"
    program.write_text(BLOCK)
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("how, method", [("left", "fork"), ("left", "spawn"), ("left", "forkserver"), ("attached", "fork")])
def test_a_worker_leaves_its_block_to_its_parent(tmp_path, how, method):
    done = run_block(tmp_path, how, method)
    assert done.returncode == 0 and done.stdout.endswith("left\n") and not done.stderr, done.stderr


def test_a_left_block_keeps_its_name_while_others_begin(python):
    """A process that creates its first block removes names that open nothing. It leaves alone those whose blocks are under
    way, until the process that they are left to has ended."""
    python("""
import multiprocessing, os, subprocess, sys, tmesh.shared_memory
from tmesh.shared_memory import SharedMemory, _names

def make(queue):
    block = SharedMemory(create=True, size=100)
    block.buf[0] = 7
    queue.put(block.name)
    block.close()

def others():
    subprocess.run([sys.executable, "-c", "from tmesh.shared_memory import SharedMemory; SharedMemory(create=True, size=1)"], check=True)

def entries():
    folder = os.open("shm", os.O_RDONLY, dir_fd=tmesh._tmesh.runtime_dir())
    return {entry for entry in os.listdir(folder) if not entry.startswith(".inbox")}

tmesh.shared_memory.install()
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
names = []
for _ in range(2):
    process = context.Process(target=make, args=(queue,))
    process.start()
    names.append(queue.get())
    process.join()
    others()
    if len(names) == 1:
        block = SharedMemory(names[0])
        assert block.buf[0] == 7
        assert entries() == {names[0]}, entries()
        block.unlink()
assert entries() == {names[1], ".left-" + names[1]}, entries()
_names._inbox.close()
_names._inbox = None
others()
assert not entries(), entries()
""")


def test_a_workers_block_ends_with_a_word(tmp_path):
    """Its parent has not called install()."""
    done = run_block(tmp_path, "apart", "fork")
    name = done.stdout.split()[0]
    assert f"the block of shared memory that it created and that was not unlinked ({name})" in done.stderr
    assert "FileNotFoundError" in done.stderr


@pytest.mark.parametrize("how", ["buffer", "dlpack", "strided"])
def test_ctrl_c_ends_a_large_put(python, how):
    """It leaves nothing behind."""
    python("""
import signal, sys, time, numpy, tmesh

class Dlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

def made(bytes, dtype="uint8", shape=(-1,)):
    array = numpy.ones(bytes * (1 + (how == "strided")), "uint8")
    array[-bytes // 4:] = 3
    array = array.view(dtype).reshape(*shape)
    if how == "strided":
        array = array[..., ::2]
    return array, Dlpack(array) if how == "dlpack" else array

how = HOW
for dtype, shape in ("uint8", (-1,)), ("float32", (3, -1)), ("uint8", (3, 1 << 13, -1)), ("uint8", (1 << 20, 3, -1)):
    array, source = made(96 << 20, dtype, shape)
    whole = tmesh.put(source)
    assert whole.sealed and whole.nbytes == 96 << 20 and whole.shape == array.shape
    assert whole.dtype == dtype and (whole.numpy() == array).all()
    assert tmesh.put(source, seal=False).writable
del whole, source, array
turned = numpy.ones((1 << 13, 1 << 14), "uint8")
turned[:] = numpy.arange(1 << 14)
assert (tmesh.put(turned[::-1].T).numpy() == turned[::-1].T).all()
del turned
tmesh.trim()
before = tmesh.stats()
big = made(512 << 20)[1]

def stop(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, stop)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while True:
        tmesh.put(big)
except KeyboardInterrupt:
    pass
copied = tmesh.stats()["bytes_copied"] - before["bytes_copied"]
assert copied % (512 << 20) or not copied, copied
end = time.monotonic() + 600
while tmesh.stats()["regions_live"] > before["regions_live"]:
    assert time.monotonic() < end
""".replace("HOW", repr(how)))
