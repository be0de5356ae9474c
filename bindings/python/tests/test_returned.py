# SPDX-License-Identifier: MIT
"""New tensors that workers return, by each kind of result. Each worker ends as soon as it may."""

import concurrent.futures
import gc
import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tmesh
import tmesh.in_transit
from tmesh import _tmesh
from conftest import EMULATED, assert_refused, pytorch

PATIENCE = 600

pytestmark = pytest.mark.skipif(EMULATED, reason="fresh interpreters take minutes in an emulated machine")


@pytest.fixture(autouse=True)
def begin_anew():
    """Close the senders' entries that this process has open."""
    yield
    gc.collect()
    tmesh.in_transit.here = _tmesh.InTransit()


def make(number):
    return tmesh.put(np.full(1000, number))


def make_and_put(queue, number):
    queue.put(make(number))


def put_and_die(queue):
    """End once the queue's thread has sent it."""
    make_and_put(queue, 1)
    queue.close()
    queue.join_thread()
    os._exit(1)


def total(tensor):
    return int(tensor.numpy().sum())


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def processes(request):
    return multiprocessing.get_context(request.param)


def test_pool(processes):
    with processes.Pool(2, maxtasksperchild=1) as pool:
        assert [total(t) for t in pool.map(make, range(3), chunksize=1)] == [0, 1000, 2000]


def test_executor(processes):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=processes) as pool:
        futures = [pool.submit(make, number) for number in range(3)]
    # Its workers have ended.
    assert [total(future.result()) for future in futures] == [0, 1000, 2000]


def test_queue_of_a_process_that_ends_at_once(processes):
    queue = processes.Queue()
    worker = processes.Process(target=make_and_put, args=(queue, 3))
    worker.start()
    while not queue._reader.poll(1):
        assert worker.is_alive()
    worker.join(0.3)  # it would have ended by now
    assert total(queue.get(timeout=PATIENCE)) == 3000
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def test_what_is_lost_is_an_error_at_use(processes):
    if tmesh.backend() == "kernel":
        pytest.skip("sealed memory of the module may outlive its maker")
    queue = processes.Queue()
    worker = processes.Process(target=put_and_die, args=(queue,))
    worker.start()
    worker.join(PATIENCE)
    lost = queue.get(timeout=PATIENCE)
    assert isinstance(lost, tmesh.Tensor) and lost.lost
    assert_refused(lambda: total(lost), tmesh.NotFoundError, r"call get\(\) before join\(\)")


class Rows:
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return make(number)


def as_one(rows):
    return tmesh.put(np.stack([row.numpy() for row in rows]))


def test_data_loader(processes):
    pytorch()
    from torch.utils import data
    loader = data.DataLoader(Rows(), batch_size=None, num_workers=1, multiprocessing_context=processes)
    assert [total(t) for t in loader] == [0, 1000, 2000, 3000]
    loader = data.DataLoader(Rows(), batch_size=2, collate_fn=as_one, num_workers=1, multiprocessing_context=processes)
    assert [total(t) for t in [*loader]] == [1000, 5000]


def test_workers_that_have_ended_keep_nothing_open(python):
    """After twelve epochs, each with workers of its own, as many descriptors are open as after the first, without any
    further call."""
    pytorch()
    assert python("""
import gc, os, time
import numpy as np
import torch.utils.data
import tmesh

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return tmesh.put(np.full(1000, number))

def epoch():
    loader = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    sums = []
    for row in loader:
        sums.append(int(row.numpy().sum()))
        del row  # nothing is let go of after the workers' end
    return sums

def opened():
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass
    return names

assert epoch() == [1000 * number for number in range(8)]
gc.collect()
end = time.monotonic() + 600
while any("pidfd" in name for name in opened()) and time.monotonic() < end:
    time.sleep(0.01)
first = len(opened())
assert not any("pidfd" in name for name in opened()), opened()
for _ in range(11):
    epoch()
gc.collect()
end = time.monotonic() + 600
while len(opened()) > first and time.monotonic() < end:
    time.sleep(0.01)
assert len(opened()) <= first, opened()
print("good")
""") == "good\n"


def test_loky(python):
    if not importlib.util.find_spec("loky"):
        pytest.skip("loky is not installed")
    assert python("""
import loky
import numpy as np
import tmesh

def make(number):
    return tmesh.put(np.full(1000, number))

pool = loky.ProcessPoolExecutor(1, timeout=1)
futures = [pool.submit(make, number) for number in range(3)]
pool.shutdown()
print([int(future.result().numpy().sum()) for future in futures])
""") == "[0, 1000, 2000]\n"


def test_torch_tensor_that_is_lost():
    torch = pytorch()
    import tmesh.torch
    lost = tmesh.torch._lost()
    for again in (lost, pickle.loads(pickle.dumps(lost))):
        assert isinstance(again, torch.Tensor) and "lost" in repr(again)
        for use in (lambda: again.shape, lambda: again + 1, again.numpy, lambda: torch.sum(again)):
            assert_refused(use, tmesh.NotFoundError, r"call get\(\) before join\(\)")


@pytest.mark.skipif(os.environ.get("TMESH_BACKEND") == "kernel", reason="sealed memory of the module survives its maker")
def test_what_is_lost_at_the_end_is_said():
    """It is reported on stderr, after the time of TMESH_EXIT_WAIT."""
    done = subprocess.run([sys.executable, "-c", """
import multiprocessing, os
import tmesh, tmesh.in_transit
def work(queue):
    queue.put(tmesh.put([1, 2]))
processes = multiprocessing.get_context("fork")
queue = processes.Queue()
worker = processes.Process(target=work, args=(queue,))
worker.start()
worker.join()
"""], env={**os.environ, "TMESH_EXIT_WAIT": "0.1"}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and "1 of the tensors that it sent were not opened" in done.stderr and "0.1 s" in done.stderr
    assert "tmesh.keep()" in done.stderr
