# SPDX-License-Identifier: MIT
"""Dispatches that are called off, with the real ONNX Runtime, here and in a process of its own."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import tmesh
import tmesh.engine
from conftest import cancelled_while_it_runs, serve

MODELS = Path(os.environ.get("TMESH_ENGINE_MODELS", "/nonexistent"))
try:
    import onnxruntime
except ImportError:
    onnxruntime = None
pytestmark = pytest.mark.skipif(onnxruntime is None or not MODELS.is_dir(),
                                reason="only with the packages onnxruntime and onnx (python-engine-check)")
FOREVER = 1 << 40  # rounds of a loop
X = np.zeros((2, 4), np.float32)


@pytest.fixture(scope="module")
def server():
    with serve(models=MODELS) as server:
        yield server


@pytest.fixture(params=["here", "served"])
def connect(request):
    """Each test makes its own: pytest would keep one longer than leaks are looked for."""
    return tmesh.engine.Context if request.param == "here" else request.getfixturevalue("server").connect


def long(context):
    return context.graph(MODELS / "long.onnx")


def count(graph, trips, **options):
    return graph.dispatch({"trips": np.array([trips]), "x": X}, ["y"], **options)["y"]


def test_runs(connect):
    """ONNX Runtime ends the run, its process stays, and the graph is good for the next."""
    context = connect()
    graph, pid = long(context), context.pid
    assert (count(graph, 3) == 3).all()
    for delay in (0, 0.05, 0.3):
        stop = tmesh.engine.Cancellable()
        assert not stop.cancelled()
        timer = threading.Timer(delay, stop.cancel)
        timer.start()
        with pytest.raises(tmesh.CancelledError):
            count(graph, FOREVER, cancellable=stop)
        timer.join()
        assert stop.cancelled()
        with pytest.raises(tmesh.CancelledError, match="before it ran"):
            count(graph, 1, cancellable=stop)
        assert (count(graph, 3) == 3).all()
    assert context.pid == pid


def test_bound(connect):
    trips, x, y = tmesh.put(np.array([FOREVER]), seal=False), tmesh.put(X), tmesh.zeros((2, 4), "float32")
    step = long(connect()).bind({"trips": trips, "x": x}, {"y": y})
    cancelled_while_it_runs(step)
    trips.numpy()[0] = 5
    step.dispatch()
    assert (y.numpy() == 5).all()


def test_others_wait_for_nothing(server):
    """One client's call is called off while another's runs, and the other way round."""
    first, second = server.connect(), server.connect()
    graphs, stops, ended = [long(first), long(second)], [tmesh.engine.Cancellable() for _ in range(2)], []

    def work(side):
        try:
            count(graphs[side], FOREVER, cancellable=stops[side])
        except tmesh.CancelledError:
            ended.append(side)

    threads = [threading.Thread(target=work, args=(side,)) for side in range(2)]
    for thread in threads:
        thread.start()
    for side in (1, 0):
        stops[side].cancel()
        threads[side].join(600)
        assert not threads[side].is_alive()
    assert ended == [1, 0]
    assert (count(graphs[0], 2) == 2).all()


class Stop(Exception):
    pass


def test_signal(server):
    """A handler that raises ends the call, as Ctrl-C does; one that does not raise changes nothing."""
    context = server.connect()
    graph, seen = long(context), []

    def handler(number, frame):
        seen.append(number)
        if len(seen) == 2:
            raise Stop

    # One that comes to another thread, or just before the call waits, ends no wait: the next one does.
    def send():
        while not done.wait(0.1):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    done = threading.Event()
    thread = threading.Thread(target=send)
    try:
        with pytest.raises(Stop):
            thread.start()
            count(graph, FOREVER)
            pytest.fail("it ended")
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) >= 2
    assert (count(graph, 3) == 3).all()


def test_wrong(connect):
    with pytest.raises(TypeError):
        count(long(connect()), 1, cancellable="stop")
    with pytest.raises(TypeError):
        tmesh.engine.Cancellable(1)
