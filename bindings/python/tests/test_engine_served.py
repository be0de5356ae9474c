# SPDX-License-Identifier: MIT
"""tmesh.engine in a process of its own, with the real ONNX Runtime, on the models of tests/engine/models.py."""

import contextlib
import gc
import hashlib
import importlib
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tmesh
import tmesh.engine
from conftest import assert_refused, eventually, serve

MODELS = Path(os.environ.get("TMESH_ENGINE_MODELS", "/nonexistent"))
FULL = os.environ.get("TMESH_TEST_LENGTH") == "full"
try:
    import onnxruntime
except ImportError:
    onnxruntime = None
pytestmark = pytest.mark.skipif(onnxruntime is None or not MODELS.is_dir(),
                                reason="only with the packages onnxruntime and onnx (python-engine-check)")

D, C, STEPS = 64, 128, 100
PAIRS = {"x": "next_x", "pos": "next_pos", "past_k": "present_k", "past_v": "present_v"}


@pytest.fixture(scope="module")
def server():
    with serve(models=MODELS) as server:
        yield server


def hub(folder):
    """Lay weights.onnx out like the cache of a model hub: links with the files' names to files named by their
    digests."""
    blobs, snapshot = folder / "blobs", folder / "snapshots/0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in "weights.onnx", "weights.bin":
        data = (MODELS / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    return snapshot


def test_hub(tmp_path, monkeypatch):
    """A link keeps its own name, next to which its external data is found. This also works by a relative path, and
    after a crash."""
    snapshot = hub(tmp_path / "hub")
    (tmp_path / "link").symlink_to(snapshot)
    monkeypatch.chdir(snapshot.parent)
    x, y = (np.load(MODELS / f"weights_{name}.npy") for name in "xy")
    with serve(models=tmp_path) as server:
        context = server.connect()
        for path in snapshot / "weights.onnx", "0123abc/weights.onnx", "./0123abc/../0123abc/weights.onnx", tmp_path / "link/weights.onnx":
            graph = context.graph(path)
            assert np.array_equal(graph.dispatch({"x": x})["y"], y)
        monkeypatch.chdir(snapshot)
        graph = context.graph("weights.onnx")
        os.kill(context.pid, signal.SIGKILL)
        with contextlib.suppress(tmesh.GoneError):  # the next process did not run yet
            graph.dispatch({"x": x})
        assert np.array_equal(graph.dispatch({"x": x})["y"], y)
        assert_refused(lambda: context.graph(snapshot / "none.onnx"), tmesh.NotFoundError)
        assert_refused(lambda: context.graph(tmp_path / "none/weights.onnx"), tmesh.NotFoundError)
    with serve(models=snapshot) as server:
        with pytest.raises(tmesh.AccessError, match="what the link weights.onnx leads to: .* a folder that has both the link and .*/blobs/"):
            server.connect().graph(snapshot / "weights.onnx")


def rows(count, value=0.0):
    return np.full((count, 4), value, np.float32)


def add(context, value=1.0):
    return context.graph(MODELS / "dynamic.onnx").dispatch({"a": rows(2, value), "b": rows(2, 1)}, ["sum"])["sum"]


def loop():
    shapes = {"x": ((1, D), "float32"), "pos": ((1,), "int64"), "past_k": ((C, D), "float32"), "past_v": ((C, D), "float32")}
    state = [{name: tmesh.zeros(*shape) for name, shape in shapes.items()} for _ in range(2)]
    state[0]["x"].numpy()[:] = 0.1
    return state


def plain():
    """Run ONNX Runtime alone, with the engine's session options."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(MODELS / "decode.onnx", options, providers=["CPUExecutionProvider"])
    state = {name: tensor.numpy().copy() for name, tensor in loop()[0].items()}
    for _ in range(STEPS):
        state = dict(zip(PAIRS, session.run(list(PAIRS.values()), state)))
    return state


@pytest.mark.parametrize("killed", [False, True])
def test_decode(server, killed):
    """The bits equal those of plain Run, with no byte copied, also if the engine is killed between steps."""
    context = server.connect()
    graph = context.graph(MODELS / "decode.onnx")
    state = loop()
    steps = [graph.bind(state[side], {out: state[1 - side][name] for name, out in PAIRS.items()}) for side in range(2)]
    before = tmesh.stats()["bytes_copied"]
    for step in range(STEPS):
        if killed and step % 30 == 10:
            os.kill(context.pid, signal.SIGKILL)
        steps[step % 2].dispatch()
    assert tmesh.stats()["bytes_copied"] == before
    for name, want in plain().items():
        assert (state[0][name].numpy() == want).all(), name


def test_weights_in_place(server):
    """Each of two engines' processes has the region's pages and no copy of them. So does one that starts later."""
    weight = np.load(MODELS / "weights_w.npy")
    sealed = tmesh.put(weight)
    with serve(models=MODELS) as second:
        contexts = [server.connect(), second.connect()]
        results = []
        for context in [*contexts, contexts[1]]:
            if results[1:]:
                os.kill(context.pid, signal.SIGKILL)
            graph = context.graph(MODELS / "weights.onnx", weights={"w": sealed})
            x = np.linspace(0, 1, weight.shape[0], dtype=np.float32)[None]
            results.append(graph.dispatch({next(iter(graph.inputs)): x}))
            maps = Path(f"/proc/{context.pid}/maps").read_text()
            assert any(f"{sealed.id}" in line and "r--s" in line for line in maps.splitlines()), "mapped for reading only"
            assert not any(f"{sealed.id}" in line and "w" in line.split()[1] for line in maps.splitlines())
        for result in results[1:]:
            for name, value in results[0].items():
                assert (value == result[name]).all()


def test_arrays_and_names(server):
    context = server.connect()
    graph = context.graph(MODELS / "dynamic.onnx")
    total = np.empty((3, 4), np.float32)
    out = graph.dispatch({"a": rows(3, 1), "b": rows(3, 2)}, {"sum": total, "less": "engine"})
    assert out["sum"] is total and (total == 3).all()
    assert isinstance(out["less"], tmesh.engine.DeviceTensor) and (out["less"].read() == -1).all()
    a, place = rows(3, 1), tmesh.zeros((3, 4), "float32")
    bound = graph.bind({"a": a, "b": rows(3, 2)}, {"sum": place})
    for value in (1, 5):  # each run reads the bound memory
        a[:] = value
        bound.dispatch()
        assert (place.numpy() == value + 2).all()
    assert_refused(lambda: graph.dispatch({"a": rows(3), "b": rows(3)}, ["no"]), tmesh.NotFoundError, 'no output "no"')
    assert_refused(lambda: graph.dispatch({"a": rows(3), "c": rows(3)}, ["sum"]), tmesh.NotFoundError, "no input")
    assert_refused(lambda: graph.dispatch({"a": rows(3), "b": rows(2)}, ["sum"]), tmesh.InvalidError, "rows")
    with pytest.raises(tmesh.InvalidError, match="not contiguous"):
        graph.dispatch({"a": np.zeros((4, 3), np.float32).T, "b": rows(3)}, ["sum"])


@pytest.mark.parametrize("where", ["here", "served", "on a GPU"])
def test_overlap(server, where):
    """Arrays that overlap are refused for every engine: one output's copy would overwrite the other's."""
    context = server.connect() if where == "served" else tmesh.engine.Context()
    context._apart |= where == "on a GPU"  # arrays are then passed as to a GPU; the context is the CPU's
    graph = context.graph(MODELS / "dynamic.onnx")
    a, both = rows(2, 3), np.zeros((3, 4), np.float32)
    for outputs in {"sum": both[:2], "less": both[:2]}, {"sum": both[:2], "less": both[1:]}:
        with pytest.raises(tmesh.InvalidError, match='"sum" overlaps output "less"|"less" overlaps output "sum"'):
            graph.dispatch({"a": a, "b": rows(2, 1)}, outputs)
    with pytest.raises(tmesh.InvalidError, match='"sum" overlaps input "a"'):
        graph.dispatch({"a": a, "b": rows(2, 1)}, {"sum": a})
    assert (both == 0).all() and (a == 3).all()
    if where == "on a GPU":
        with pytest.raises(tmesh.InvalidError, match="one device tensor as both"):
            graph.dispatch({"a": a, "b": rows(2, 1)}, {"sum": a}, in_place={"sum": "a"})
    else:
        assert graph.dispatch({"a": a, "b": rows(2, 1)}, {"sum": a}, in_place={"sum": "a"})["sum"] is a
        assert (a == 4).all()
    out = rows(2)
    assert graph.dispatch({"a": rows(2, 3), "b": rows(2, 1)}, {"sum": out, "less": "host"})["less"].sum() == 16
    assert (out == 4).all()


@pytest.mark.parametrize("served", [False, True])
def test_said(server, served):
    """The error for a wrong argument names it, and is the same from both."""
    context = server.connect() if served else tmesh.engine.Context()
    graph = context.graph(MODELS / "dynamic.onnx")
    inputs, out = {"a": rows(2), "b": rows(2)}, rows(2)
    for wrong, error, match in [
            ((rows(2),), TypeError, "inputs is a dict"), ((None,), TypeError, "inputs is a dict"),
            (({1: out},), TypeError, "1 is none"), ((inputs, {1: out}), TypeError, "1 is none"),
            (({},), tmesh.InvalidError, '"a" is missing'), (({"b": out},), tmesh.InvalidError, '"a" is missing'),
            (({"z": out, "b": out},), tmesh.NotFoundError, 'no input "z"'),
            (({"a": np.float32(1), "b": out},), tmesh.InvalidError, r"\[any, 4\], and \[\] was")]:
        assert_refused(lambda: graph.dispatch(*wrong), error, match)
    assert_refused(lambda: graph.dispatch(inputs, {"sum": out}, in_place=["sum"]), TypeError, "in_place is a dict")
    with pytest.raises(tmesh.NotFoundError, match="'z', which is no input"):
        graph.dispatch(inputs, ["sum"], in_place={"sum": "z"})
    assert_refused(lambda: graph.dispatch(inputs, ["sum"], in_place={"sum": "a"}), tmesh.InvalidError, "not 'host'")
    with pytest.raises(TypeError, match="weight 'w' is a sealed Tensor, not ndarray"):
        context.graph(MODELS / "weights.onnx", weights={"w": out})
    assert_refused(lambda: context.graph(MODELS / "weights.onnx", weights=[out]), TypeError, "weights is a dict")
    # ml_dtypes, which onnx installs, gives NumPy an int4 with another layout in memory.
    with contextlib.suppress(ImportError):
        importlib.import_module("ml_dtypes")
    assert_refused(lambda: context.tensor(4, "int4", readable=True).read(), tmesh.UnsupportedError, "int4")
    binding = graph.bind(inputs, {"sum": tmesh.zeros((2, 4), "float32")})
    assert_refused(lambda: binding.rebind([out]), TypeError, "inputs is a dict")
    for value in graph, binding, context.tensor(4, "float32"):
        assert_refused(lambda: pickle.dumps(value), TypeError, f"{type(value).__name__} belongs to its process: send")


def made():
    return serve(models=MODELS).connect()


def test_stranger(server):
    """Return a context from a function, print it, pickle it, and use it after the with."""
    context = server.connect()
    own = made()  # the Context keeps its server
    gc.collect()
    assert (add(own) == 2).all()
    pid = own.pid
    assert f"process {pid}" in repr(own) and "onnx" in repr(own)
    del own
    gc.collect()
    eventually(lambda: not Path(f"/proc/{pid}").exists())

    assert (add(pickle.loads(pickle.dumps(context))) == 2).all()
    assert_refused(lambda: pickle.dumps(tmesh.engine.Context()), TypeError, "connect\\(\\)")
    assert_refused(lambda: pickle.dumps(server), TypeError, "send its name")
    assert_refused(lambda: pickle.dumps(context.graph(MODELS / "dynamic.onnx")), TypeError)

    with serve(models=MODELS) as short:
        left = short.connect()
        assert (add(left) == 2).all()
        assert repr(short) == f"<tmesh.engine.Server {short.name!r}, process {short.pid}>"
    assert "ended" in repr(short)
    assert_refused(lambda: add(left), tmesh.GoneError, "any more")
    assert_refused(short.connect, tmesh.NotFoundError, "no engine is served")
    short.close()


def test_fork(server):
    """A child has connections of its own, and does not end its parent's server."""
    context = server.connect()
    graph = context.graph(MODELS / "dynamic.onnx")
    child = os.fork()
    if not child:
        status = 1
        try:
            assert_refused(lambda: graph.dispatch({"a": rows(2), "b": rows(2)}, ["sum"]), tmesh.Error, "before fork")
            status = 0 if (add(tmesh.engine.connect(server.name)) == 2).all() else 2
            server.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (add(context) == 2).all()


def test_another_process(server):
    code = f"""
import numpy as np, tmesh.engine
context = tmesh.engine.connect({server.name!r}, timeout=600)
a = np.ones((2, 4), np.float32)
assert (context.graph({str(MODELS / 'dynamic.onnx')!r}).dispatch(dict(a=a, b=a), ["sum"])["sum"] == 2).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize("program", ["/nowhere/tmesh-engine", "/etc/passwd"])
def test_no_program(program, monkeypatch):
    monkeypatch.setenv("TMESH_ENGINE_PROGRAM", program)
    assert_refused(tmesh.engine.serve, tmesh.UnsupportedError, f"{program} cannot be started.* TMESH_ENGINE_PROGRAM")


def test_refused(server):
    assert_refused(lambda: tmesh.engine.connect("absent"), tmesh.NotFoundError, "no engine is served as \"absent\"")
    assert_refused(lambda: tmesh.engine.connect(server.name, timeout=0), tmesh.InvalidError, "more than 0")
    assert_refused(lambda: tmesh.engine.serve(name=server.name), tmesh.UnsupportedError, "served as .* already")
    assert_refused(lambda: tmesh.engine.serve(library="/nowhere.so"), tmesh.UnsupportedError, "/nowhere.so")
    for wrong in ({"threads": 0}, {"patience": 0}):
        assert_refused(lambda: tmesh.engine.serve(**wrong), tmesh.InvalidError)
    # Raising the soft limit of descriptors to the hard one adds none here, so no client gets a region.
    code = ("import resource, numpy, tmesh.engine\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
            f"server = tmesh.engine.serve(models={str(MODELS)!r}, limit=600, patience=600)\n"
            f"graph = server.connect().graph({str(MODELS / 'dynamic.onnx')!r})\n"
            "rows = numpy.zeros((2, 4), numpy.float32)\n"
            "try:\n    graph.dispatch({'a': rows, 'b': rows})\nexcept tmesh.LimitError as error:\n    print(error)")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=600)
    assert "ulimit -n" in done.stdout, done.stderr
    with tmesh.engine.serve(clients=1, models=[MODELS], limit=670, patience=602.5) as small:
        given = Path(f"/proc/{small.pid}/cmdline").read_bytes().split(b"\0")
        assert b"--limit=670" in given and b"--patience=602.5" in given
        first = small.connect()
        assert_refused(small.connect, tmesh.BusyError, "1 clients")
        assert (add(first) == 2).all()


def test_nothing_else_is_read(server, tmp_path):
    """Refuse a model of this user outside the engine's folders."""
    context = server.connect()
    other = tmp_path / "dynamic.onnx"
    other.write_bytes((MODELS / "dynamic.onnx").read_bytes())
    status = Path(f"/proc/{context.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    with pytest.raises(tmesh.AccessError, match="--models") as refused:
        context.graph(other)
    assert str(other) in str(refused.value)
    with serve(models=MODELS, confined=False) as free:
        free.connect().graph(other)
    assert (add(context) == 2).all()


@pytest.mark.skipif("TMESHCTL" not in os.environ, reason="TMESHCTL does not say where tmeshctl is: make python-engine-check does")
def test_top(server):
    """tmeshctl top shows the real engine, also a stopped one, with the members of tests/vocabulary.md."""
    def shown(of):
        done = subprocess.run([os.environ["TMESHCTL"], "top", "--json"], stdout=subprocess.PIPE, check=True, timeout=600)
        return next(engine for engine in json.loads(done.stdout)["engines"] if engine["name"] == of.name)

    with serve(models=MODELS) as own:
        context = own.connect()
        for _ in range(3):
            add(context)
        engine = shown(own)
        assert (engine["backend"], engine["version"], engine["pid"]) == (context.backend, context.version, context.pid)
        assert (engine["state"], engine["steps"], engine["tokens"], engine["restarts"]) == ("idle", 3, 0, 0)
        page = (Path(__file__).parents[3] / "tests/vocabulary.md").read_text()
        page = page.split("<!-- engine members -->")[1].split("<!-- /engine members -->")[0]
        cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")][2:]
        assert set(re.findall("`([^`]+)`", " ".join(cells))) == set(engine)
        os.kill(context.pid, signal.SIGSTOP)
        eventually(lambda: shown(own)["state"] == "hung")
        os.kill(context.pid, signal.SIGKILL)
        add(context)
        # A new process may answer before its parent has noted its number.
        eventually(lambda: shown(own)["state"] != "starting")
        engine = shown(own)
        assert (engine["state"], engine["steps"], engine["restarts"], engine["pid"]) == ("idle", 4, 1, context.pid)


def test_ggml(tmp_path):
    """The engine "ggml" gives the same in a process of its own as in this one, also after a kill."""
    pytest.importorskip("libggml", reason="ggml cannot be had: the package libggml-python is not installed")
    path = tmp_path / "graph"
    path.write_text("graph test\nx = input : float32[2,32]\nw = weight : float32[8,32]\ny = matmul(x, w)\n"
                    "z = silu(y)\noutput z = z\n")
    numbers = np.random.default_rng(18)
    w = tmesh.put(numbers.standard_normal((8, 32)).astype("float32"))
    x = tmesh.put(numbers.standard_normal((2, 32)).astype("float32"))
    with serve("ggml", models=tmp_path) as server:
        results = []
        for context in tmesh.engine.Context("ggml"), server.connect():
            out = tmesh.zeros((2, 8), "float32")
            step = context.graph(path, weights={"w": w}).bind({"x": x}, {"z": out})
            step.dispatch()
            results.append(out.numpy().copy())
        assert results[0].any() and (results[0] == results[1]).all()
        os.kill(context.pid, signal.SIGKILL)
        out.numpy()[:] = 0
        step.dispatch()
        assert (out.numpy() == results[0]).all()


def test_storm():
    """Kill at random moments while four threads work. Each call is right or raises GoneError, and all memory is given
    back."""
    rng = random.Random(18)
    rounds = 300 if FULL else 30
    with serve(models=MODELS) as server:
        contexts = [server.connect() for _ in range(4)]
        stop, wrong, done = threading.Event(), [], [0] * 4

        def work(number):
            context = contexts[number]
            a, b, out = tmesh.put(rows(2, number)), tmesh.put(rows(2, 1)), tmesh.zeros((2, 4), "float32")
            step = None
            while not stop.is_set():
                out.numpy()[:] = -1
                try:
                    # A kill may end these calls too.
                    step = step or context.graph(MODELS / "dynamic.onnx").bind({"a": a, "b": b}, {"sum": out})
                    step.dispatch()
                except tmesh.GoneError:
                    continue
                except Exception as error:
                    wrong.append(error)
                    return
                done[number] += 1
                if not (out.numpy() == number + 1).all():
                    wrong.append(out.numpy().copy())
                    return

        # Count the descriptors of idle engines before and after. Those of the engines' processes are counted in the
        # newest.
        for context in contexts:
            add(context)
        gc.collect()
        live, descriptors = tmesh.stats()["regions_live"], len(os.listdir("/proc/self/fd"))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        killed = 0
        while killed < rounds and not wrong:
            time.sleep(rng.random() * 0.02)
            try:
                os.kill(contexts[rng.randrange(4)].pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass  # no call has reached the new process yet
        # A loaded machine may have killed each process before it had done anything.
        eventually(lambda: wrong or all(done))
        stop.set()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        assert not wrong, wrong[0]
        assert all(done)
        del threads, work
        for context in contexts:
            assert (add(context) == 2).all()
        eventually(lambda: tmesh.stats()["regions_live"] <= live)
        # The library remembers the last 32 processes that it asked for memory, with two descriptors each.
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 64)
