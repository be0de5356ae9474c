# SPDX-License-Identifier: MIT
"""Cancelled dispatches, with the real ONNX Runtime, in this process and in one of its own."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import tmesh
import tmesh.engine
from conftest import assert_refused, cancelled_while_it_runs, eventually, serve

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
    """Each test makes its own: pytest would keep it longer than leaks are checked."""
    return tmesh.engine.Context if request.param == "here" else request.getfixturevalue("server").connect


def long(context):
    return context.graph(MODELS / "long.onnx")


def count(graph, trips, **options):
    return graph.dispatch({"trips": np.array([trips]), "x": X}, ["y"], **options)["y"]


def test_runs(connect):
    """ONNX Runtime ends the run, its process stays, and the graph can run again."""
    context = connect()
    graph, pid = long(context), context.pid
    assert (count(graph, 3) == 3).all()
    for delay in (0, 0.05, 0.3):
        stop = tmesh.engine.Cancellable()
        assert not stop.cancelled()
        timer = threading.Timer(delay, stop.cancel)
        timer.start()
        assert_refused(lambda: count(graph, FOREVER, cancellable=stop), tmesh.CancelledError)
        timer.join()
        assert stop.cancelled()
        assert_refused(lambda: count(graph, 1, cancellable=stop), tmesh.CancelledError, "before it ran")
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
    """One client's call is cancelled while another's runs, and the other way round."""
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
    """A handler that raises ends the call, as for Ctrl-C; one that does not raise has no effect."""
    context = server.connect()
    graph, seen = long(context), []

    def handler(number, frame):
        seen.append(number)
        if len(seen) == 2:
            raise Stop

    # A signal in another thread, or just before the call waits, does not end the wait; the next one does.
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
    assert_refused(lambda: count(long(connect()), 1, cancellable="stop"), TypeError)
    assert_refused(lambda: tmesh.engine.Cancellable(1), TypeError)


# Ctrl-C by a thread, again and again: a signal that comes just before a call waits ends no wait, and the next one does. The
# first that raises is the last: another one would be raised outside of the call.
PRESSES = """
import signal
import threading

over = threading.Event()


def pressed(*_):
    if not over.is_set():
        over.set()
        raise KeyboardInterrupt


def press():
    while not over.wait(0.2):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


signal.signal(signal.SIGINT, pressed)
"""

# Press Ctrl-C in a main thread that waits in one call after the other, while another thread's dispatch uses the engine.
WAITS = PRESSES + """
import os
import socket
import sys
import numpy as np
import tmesh
import tmesh.engine

server = tmesh.engine.serve(models=sys.argv[1], limit=600, patience=600)
context = server.connect()
graph = context.graph(sys.argv[1] + "/long.onnx")
x, y, trips = tmesh.zeros((2, 4), "float32"), tmesh.zeros((2, 4), "float32"), tmesh.put(np.array([1 << 40]))
bound = graph.bind({"trips": trips, "x": x}, {"y": y})
stop, inside = tmesh.engine.Cancellable(), threading.Event()


def run():
    try:
        inside.set()
        graph.dispatch({"trips": trips, "x": x}, {"y": y}, cancellable=stop)
    except tmesh.CancelledError:
        pass


def interrupted(name, call):
    over.clear()
    sender = threading.Thread(target=press)
    try:
        sender.start()
        # The dispatch may not have the engine yet.
        while True:
            call()
    except KeyboardInterrupt:
        print(name, end=" ", flush=True)
    sender.join()


# This socket accepts connections and says nothing.
silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
silent.bind(os.path.join(os.environ["TMESH_RUNTIME_DIR"], "engine-silent"))
silent.listen(8)
interrupted("connect", lambda: tmesh.engine.connect("silent"))
runner = threading.Thread(target=run)
runner.start()
inside.wait()
interrupted("graph", lambda: context.graph(sys.argv[1] + "/whole.onnx"))
interrupted("bind", lambda: graph.bind({"trips": trips, "x": x}, {"y": y}))
interrupted("rebind", lambda: bound.rebind({"x": tmesh.zeros((2, 4), "float32")}))
stop.cancel()
runner.join()
few = tmesh.put(np.array([3]))
graph.bind({"trips": few, "x": x}, {"y": y}).dispatch()
print(y.numpy()[0, 0])
server.close()
"""


def alone(tmp_path):
    return {**os.environ, "TMESH_RUNTIME_DIR": str(tmp_path), "TMESH_REGION_POOL": "0"}


def test_interrupts_in_other_calls(python, tmp_path):
    assert python(WAITS, str(MODELS), env=alone(tmp_path), timeout=600) == "connect graph bind rebind 3.0\n"


def test_interrupt_beside_a_binding_that_is_let_go(python, tmp_path):
    """A thread that drops the last reference must not wait with the interpreter's lock, which the signal's handler
    needs."""
    assert python(PRESSES + """
import sys
import numpy as np
import tmesh
import tmesh.engine

server = tmesh.engine.serve(models=sys.argv[1], limit=600, patience=600)
context = server.connect()
graph = context.graph(sys.argv[1] + "/long.onnx")
x, y, few = tmesh.zeros((2, 4), "float32"), tmesh.zeros((2, 4), "float32"), tmesh.put(np.array([3]))
held = [graph.bind({"trips": few, "x": x}, {"y": y}) for _ in range(10)] + [context.graph(sys.argv[1] + "/whole.onnx")]
cleared = []


def send():
    over.wait(0.5)
    held.clear()
    cleared.append(True)
    press()


sender = threading.Thread(target=send)
try:
    sender.start()
    graph.dispatch({"trips": np.array([1 << 40]), "x": x}, {"y": y})
except KeyboardInterrupt:
    print("interrupted", cleared)
sender.join()
graph.bind({"trips": few, "x": x}, {"y": y}).dispatch()
print(y.numpy()[0, 0])
server.close()
""", str(MODELS), env=alone(tmp_path), timeout=600) == "interrupted [True]\n3.0\n"


def test_binding_that_its_own_buffer_has(connect):
    """A cycle through an object that exports a buffer is collected."""
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    step = long(connect())
    x = np.zeros((2, 4), np.float32).view(Array)
    x.binding = step.bind({"trips": np.array([2]), "x": x}, {"y": np.zeros((2, 4), np.float32)})
    x.binding.dispatch()
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_server_that_is_let_go_while_its_process_stands_still():
    """Dropping it does not wait for its end; close() does."""
    server = serve(models=MODELS)
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        del server
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
