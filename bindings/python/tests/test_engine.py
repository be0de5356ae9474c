# SPDX-License-Identifier: MIT
"""tmesh.engine with the real ONNX Runtime, on the models of tests/engine/models.py."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tmesh
import tmesh.engine
from conftest import assert_refused, eventually

MODELS = Path(os.environ.get("TMESH_ENGINE_MODELS", "/nonexistent"))
try:
    import onnxruntime
except ImportError:
    onnxruntime = None
pytestmark = pytest.mark.skipif(onnxruntime is None or not MODELS.is_dir(),
                                reason="only with the packages onnxruntime and onnx (python-engine-check)")

D, C, STEPS = 64, 128, 100
PAIRS = {"x": "next_x", "pos": "next_pos", "past_k": "present_k", "past_v": "present_v"}


@pytest.fixture
def context():
    return tmesh.engine.Context()


def plain(name):
    """Run ONNX Runtime alone, with the engine's session options."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(MODELS / name, options, providers=["CPUExecutionProvider"])


def rows(count, value=0.0):
    return np.full((count, 4), value, np.float32)


def test_context(context):
    assert context.backend == "onnx"
    assert context.version == onnxruntime.__version__
    assert "onnx" in repr(context)
    assert_refused(lambda: tmesh.engine.Context(device="cuda"), tmesh.UnsupportedError, "CUDA execution provider")
    assert_refused(lambda: tmesh.engine.Context(device="tpu"), tmesh.InvalidError, "tpu")
    assert_refused(lambda: tmesh.engine.Context("nobody"), tmesh.UnsupportedError, "tmesh-engine-nobody.so")
    assert_refused(lambda: tmesh.engine.Context(library="/nowhere.so"), tmesh.UnsupportedError, "/nowhere.so")


def test_operands(context):
    graph = context.graph(MODELS / "dynamic.onnx")
    assert list(graph.inputs) == ["a", "b"] and list(graph.outputs) == ["sum", "less"]
    assert graph.inputs["a"] == tmesh.engine.Operand("a", "float32", ("rows", 4))
    assert repr(graph) == "<tmesh.engine.Graph of a, b to sum, less>"


def test_arrays(context):
    """Arrays in and out give the same as ONNX Runtime alone."""
    x = np.random.default_rng(1).standard_normal((1, D)).astype(np.float32)
    ours = context.graph(MODELS / "whole.onnx").dispatch({"x": x})
    theirs = plain("whole.onnx").run(None, {"x": x})[0]
    assert list(ours) == ["y"] and ours["y"].dtype == np.float32
    assert np.array_equal(ours["y"], theirs)


def test_mixture(context):
    """Mix a Tensor and an array as inputs, and a Tensor, an array, the host and the engine as outputs."""
    graph = context.graph(MODELS / "dynamic.onnx")
    a, b = tmesh.put(rows(3, 5)), rows(3, 2)
    total, less = tmesh.zeros((3, 4), "float32"), rows(3)
    copies = tmesh.stats()["bytes_copied"]
    results = graph.dispatch({"a": a, "b": b}, {"sum": total, "less": less})
    assert results["sum"] is total and results["less"] is less
    assert tmesh.stats()["bytes_copied"] == copies and context.stats()["reads"] == 0
    assert (total.numpy() == 7).all() and (less == 3).all()
    results = graph.dispatch({"a": a, "b": b}, {"sum": "engine", "less": "host"})
    assert (results["less"] == 3).all()
    of_engine = results["sum"]
    assert of_engine.of_engine and of_engine.shape == (3, 4) and of_engine.device == "cpu"
    assert of_engine.backend == graph._context.backend == "onnx"
    assert (of_engine.read() == 7).all()
    # An output that the engine allocated can be another dispatch's input.
    assert (graph.dispatch({"a": of_engine, "b": b}, ["sum"])["sum"] == 9).all()
    assert_refused(of_engine.export, tmesh.AccessError, "in no region")


def test_device_tensors(context):
    t = context.tensor((2, 4), "float32", readable=True, writable=True, exportable=True)
    t.write(rows(2, 3))
    assert (t.read() == 3).all() and t.nbytes == 32 and t.rights == "rw" and not t.of_engine
    assert (t.readable, t.writable, t.exportable) == (True, True, True)
    assert (t.export().numpy() == 3).all()
    hidden = context.tensor(4, float)
    for call in hidden.read, lambda: hidden.write(np.zeros(4)), hidden.export:
        assert_refused(call, tmesh.AccessError)
    assert_refused(lambda: t.write(rows(1)), tmesh.InvalidError, "16 bytes")
    t.destroy()
    t.destroy()
    for call in t.read, t.export, lambda: t.dtype, lambda: t.write(rows(2)):
        assert_refused(call, tmesh.ReleasedError)
    assert repr(t) == "<tmesh.engine.DeviceTensor, destroyed>"


def test_refusals(context):
    graph = context.graph(MODELS / "dynamic.onnx")
    a, b, out = rows(2), rows(2), rows(2)
    sealed = tmesh.put(rows(2))
    read_only = rows(2)
    read_only.flags.writeable = False
    assert_refused(lambda: graph.dispatch({"a": a, "c": b}), tmesh.NotFoundError, 'no input "c"')
    assert_refused(lambda: graph.dispatch({"a": a, "b": b}, {"c": "host"}), tmesh.NotFoundError, 'no output "c"')
    assert_refused(lambda: graph.dispatch({"a": a}), tmesh.InvalidError, '"b" is missing')
    assert_refused(lambda: graph.dispatch({"a": a.astype(float), "b": b}), tmesh.InvalidError, "float32, and float64")
    with pytest.raises(tmesh.InvalidError, match=r"\[any, 4\], and \[2, 5\]"):
        graph.dispatch({"a": np.zeros((2, 5), np.float32), "b": b})
    with pytest.raises(tmesh.InvalidError, match='"rows" is 2 in "a" and 3 in "b"'):
        graph.dispatch({"a": a, "b": rows(3)})
    assert_refused(lambda: graph.dispatch({"a": rows(4)[::2], "b": b}), tmesh.InvalidError, "contiguous")
    with pytest.raises(tmesh.InvalidError, match="multiple of 4"):
        graph.dispatch({"a": np.frombuffer(bytearray(33), np.float32, 8, 1).reshape(2, 4), "b": b})
    assert_refused(lambda: graph.dispatch({"a": a, "b": b}, {"sum": a}), tmesh.InvalidError, 'overlaps input "a"')
    with pytest.raises(tmesh.InvalidError, match='overlaps output "sum"'):
        graph.dispatch({"a": a, "b": b}, {"sum": out, "less": out})
    assert_refused(lambda: graph.dispatch({"a": a, "b": b}, {"sum": read_only}), tmesh.AccessError, "read-only")
    assert_refused(lambda: graph.dispatch({"a": a, "b": b}, {"sum": sealed}), tmesh.SealedError)
    with pytest.raises(tmesh.AccessError, match="may only read"):
        graph.dispatch({"a": a, "b": b}, {"sum": context.wrap(sealed)})
    with pytest.raises(tmesh.NotFoundError, match="no output here"):
        graph.dispatch({"a": a, "b": b}, {"sum": out}, in_place={"less": "a"})
    assert_refused(lambda: graph.dispatch({"a": [1], "b": b}), TypeError, "list")
    assert_refused(lambda: graph.dispatch({"a": a, "b": b}, {"sum": "somewhere"}), TypeError, '"host"')
    assert_refused(lambda: graph.bind({"a": a, "b": b}, {"sum": "engine"}), tmesh.InvalidError, "without memory")
    with pytest.raises(tmesh.InvalidError, match="another context"):
        graph.dispatch({"a": tmesh.engine.Context().tensor((2, 4), "float32"), "b": b})
    for name, error in {"garbage": tmesh.ProtocolError, "badtype": tmesh.UnsupportedError,
                        "missing": tmesh.NotFoundError}.items():
        assert_refused(lambda: context.graph(MODELS / f"{name}.onnx"), error)
    assert context.stats()["dispatches"] == 0


def test_views(context):
    """A Tensor with a device tensor stays open and writable until the device tensor is destroyed."""
    t = tmesh.zeros((2, 4), "float32")
    device = context.wrap(t, "rw")
    assert_refused(t.seal, tmesh.BusyError)
    assert_refused(t.release, tmesh.BusyError)
    device.destroy()
    t.seal()
    graph = context.graph(MODELS / "dynamic.onnx")
    out = tmesh.zeros((2, 4), "float32")
    binding = graph.bind({"a": t, "b": rows(2, 1)}, {"sum": out})
    assert_refused(out.seal, tmesh.BusyError)
    binding.dispatch()
    assert (out.numpy() == 1).all()
    del binding
    gc.collect()
    out.seal()
    out.release()
    device = context.tensor((2, 4), "float32", writable=True, exportable=True)
    device.export().seal()
    assert_refused(lambda: device.write(rows(2)), tmesh.SealedError)


def test_rebind(context):
    """Replace inputs, also by other shapes if the output still fits. A refused call changes nothing."""
    graph = context.graph(MODELS / "dynamic.onnx")
    out = tmesh.zeros((2, 4), "float32")
    step = graph.bind({"a": rows(2, 1), "b": rows(2, 1)}, {"sum": out})
    step.rebind({"b": tmesh.put(rows(2, 5))})
    step.dispatch()
    assert (out.numpy() == rows(2, 1) + rows(2, 5)).all()
    for inputs, error in (({"b": rows(2, 7), "c": rows(2)}, tmesh.NotFoundError), ({"b": rows(3, 7)}, tmesh.InvalidError),
                          ({"a": rows(2, 7), "b": out}, tmesh.InvalidError)):
        assert_refused(lambda: step.rebind(inputs), error)
        step.dispatch()
        assert (out.numpy() == rows(2, 1) + rows(2, 5)).all()
    step.rebind({"a": rows(2, 2), "b": rows(2, 3)})
    gc.collect()
    step.dispatch()
    assert (out.numpy() == rows(2, 2) + rows(2, 3)).all()
    assert context.stats()["bindings"] == 1


def decode_state(context):
    def state():
        return {name: context.tensor(*spec, readable=True, writable=True)
                for name, spec in {"x": ((1, D), "float32"), "pos": ((1,), "int64"),
                                   "past_k": ((C, D), "float32"), "past_v": ((C, D), "float32")}.items()}
    even, odd = state(), state()
    even["x"].write(np.full((1, D), 0.1, np.float32))
    return even, odd


@pytest.mark.parametrize("way", ["ping-pong", "in place"])
def test_decode(context, way):
    """100 steps copy nothing but one transfer to the host, and give the same bits as ONNX Runtime's own Run."""
    graph = context.graph(MODELS / "decode.onnx")
    even, odd = decode_state(context)
    bindings = []
    for here, there in (even, odd), (odd, even):
        if way == "in place":
            here, there = ({**side, "past_k": even["past_k"], "past_v": even["past_v"]} for side in (here, there))
        same = {"present_k": "past_k", "present_v": "past_v"} if way == "in place" else None
        bindings.append(graph.bind(here, {PAIRS[name]: t for name, t in there.items()}, in_place=same))
    addresses = [t.address for t in (*even.values(), *odd.values())]
    copied, before = tmesh.stats()["bytes_copied"], context.stats()
    for step in range(STEPS):
        bindings[step % 2].dispatch()
    after = context.stats()
    assert tmesh.stats()["bytes_copied"] == copied
    assert after == {**before, "dispatches": before["dispatches"] + STEPS}
    x = even["x"].read()
    assert context.stats()["reads"] == before["reads"] + 1
    assert tmesh.stats()["bytes_copied"] == copied + x.nbytes
    assert [t.address for t in (*even.values(), *odd.values())] == addresses
    want = np.fromfile(MODELS / "decode.bin", np.float32)
    assert np.array_equal(x[0], want[:D])
    assert np.array_equal(even["past_k"].read().ravel(), want[D:D + C * D])
    assert np.array_equal(even["past_v"].read().ravel(), want[D + C * D:])


HEAP = """
import ctypes, gc, re, sys
import onnx, onnx.helper, onnx.numpy_helper, numpy
import tmesh, tmesh.engine

COUNT, SIDE = 16, 1024

def make():
    shape = [1, SIDE]
    names = [f"w{i}" for i in range(COUNT)]
    nodes = [onnx.helper.make_node("MatMul", [f"y{i}", name], [f"y{i + 1}"]) for i, name in enumerate(names)]
    ends = [onnx.helper.make_tensor_value_info(f"y{i}", 1, shape) for i in (0, COUNT)]
    weights = [numpy.full((SIDE, SIDE), i, "float32") for i in range(COUNT)]
    model = onnx.helper.make_model(onnx.helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(*pair) for pair in zip(weights, names)]),
        opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, sys.argv[1])
    return {name: tmesh.put(weight, seal=True) for name, weight in zip(names, weights)}

def own():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

weights = make()
context = tmesh.engine.Context()
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
before = own()
graph = context.graph(sys.argv[1], weights=weights)
print(own() - before)
"""


def test_weights_of_the_file(tmp_path):
    """The file's own 64 MiB of weights do not stay in the heap when a region's weights replace them."""
    pytest.importorskip("onnx")
    done = subprocess.run([sys.executable, "-P", "-c", HEAP, tmp_path / "m.onnx"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24


PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
import tmesh, tmesh.engine

def second(models, token, reply):
    # The second half: a channel brings h, its result goes back; both lie in one region each.
    graph = tmesh.engine.Context().graph(Path(models, "layer1.onnx"))
    inbox, outbox = tmesh.Channel.open(token, "recv"), tmesh.Channel.open(reply, "send")
    y = tmesh.zeros((1, 64), "float32")
    copied = tmesh.stats()["bytes_copied"]
    for h in inbox:
        graph.dispatch({"h": h}, {"y": y})
        outbox.send(y)
    assert tmesh.stats()["bytes_copied"] == copied

def memory():
    # KiB: of regions that are mapped here, and of what is this process's own.
    sizes, name = dict.fromkeys(("Rss", "Pss", "own"), 0), ""
    for line in open("/proc/self/smaps"):
        words = line.split()
        key = words[0].rstrip(":")
        if key == words[0]:
            name = " ".join(words[5:])
        elif key in sizes and "tmesh:" in name:
            sizes[key] += int(words[1])
        elif key == "Anonymous":
            sizes["own"] += int(words[1])
    return sizes

def hold(models, ref):
    # Weights in place: the region has a part of this process's memory, and the process the rest.
    weights = tmesh.open(json.loads(ref))
    context = tmesh.engine.Context()
    x, want = (np.load(Path(models, f"weights_{name}.npy")) for name in "xy")
    context.graph(Path(models, "layer0.onnx"))
    sizes = [memory()]
    for prepack in False, True:
        graph = context.graph(Path(models, "weights.onnx"), weights={"w": weights}, prepack=prepack)
        y = graph.dispatch({"x": x})["y"]
        assert np.allclose(y, want, atol=1e-5) if prepack else np.array_equal(y, want)
        sizes.append(memory())
    print(json.dumps(sizes), flush=True)
    sys.stdin.read()

{"second": second, "hold": hold}[sys.argv[1]](*sys.argv[2:])
"""


def start(*words):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, words)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def test_pipeline(context):
    """Two processes with one layer each work on the same tensors. The bits equal those of one process over 64 steps."""
    whole, first = (context.graph(MODELS / name) for name in ("whole.onnx", "layer0.onnx"))
    outbox, inbox = tmesh.Channel("send"), tmesh.Channel("recv")
    h = tmesh.zeros((1, D), "float32")
    x = one = np.random.default_rng(3).standard_normal((1, D)).astype(np.float32)
    peer = start("second", MODELS, outbox.token, inbox.token)
    copied = tmesh.stats()["bytes_copied"]
    for _ in range(64):
        one = whole.dispatch({"x": one})["y"]
        first.dispatch({"x": x}, {"h": h})
        outbox.send(h)
        x = inbox.recv(timeout=600)
        assert np.array_equal(x.numpy(), one)
    # The copies are those of `one` to the host.
    assert tmesh.stats()["bytes_copied"] == copied
    outbox.close()
    peer.communicate()
    assert peer.returncode == 0


def test_weights_shared():
    """Two processes share the weights in place. Compare with the cost of prepacking."""
    w = tmesh.put(np.load(MODELS / "weights_w.npy"))
    kib = w.nbytes // 1024
    peers, found = [], []
    for _ in range(2):
        peers.append(start("hold", MODELS, json.dumps(w.ref())))
        found.append(json.loads(peers[-1].stdout.readline()))
    for peer in peers:
        peer.communicate()
        assert peer.returncode == 0
    for before, in_place, packed in found:
        assert in_place["Rss"] >= kib
        assert in_place["own"] - before["own"] < kib // 2
        assert packed["own"] - in_place["own"] > kib // 2
    # The second process accounts for half of them.
    assert found[1][1]["Pss"] <= 0.6 * kib


def test_weights_refused(context):
    good = np.load(MODELS / "weights_w.npy")
    path = MODELS / "weights.onnx"
    for weights, error, words in [
            ({"w": tmesh.put(good, seal=False)}, tmesh.InvalidError, "not sealed"),
            ({"v": tmesh.put(good)}, tmesh.NotFoundError, "no such initializer"),
            ({"w": tmesh.put(good[:8])}, tmesh.InvalidError, "another dtype or shape"),
            ({"w": tmesh.put(good.astype(float))}, tmesh.InvalidError, "another dtype or shape")]:
        assert_refused(lambda: context.graph(path, weights=weights), error, words)
    assert_refused(lambda: context.graph(path, weights={"w": good}), TypeError)


def test_sessions():
    context = tmesh.engine.Context(sessions=1)
    for name in "whole", "layer0", "whole":
        context.graph(MODELS / f"{name}.onnx")
    stats = context.stats()
    assert (stats["sessions"], stats["sessions_opened"], stats["sessions_evicted"]) == (1, 3, 2)
    context.graph(MODELS / "whole.onnx")
    assert context.stats()["session_hits"] == 1


def test_threads(context):
    """Several threads use one graph at once."""
    from concurrent.futures import ThreadPoolExecutor

    graph = context.graph(MODELS / "dynamic.onnx")
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda i: graph.dispatch({"a": rows(2, i), "b": rows(2, 1)}, ["sum"])["sum"], range(200)))
    assert all((total == i + 1).all() for i, total in enumerate(sums))


def test_nothing_leaks(context):
    graph = context.graph(MODELS / "dynamic.onnx")

    def once():
        out = tmesh.zeros((2, 4), "float32")
        graph.bind({"a": rows(2), "b": tmesh.put(rows(2))}, {"sum": out}).dispatch()
        graph.dispatch({"a": rows(2), "b": out}, {"sum": "engine", "less": "host"})
        assert_refused(lambda: graph.dispatch({"a": rows(2), "b": out}, {"sum": out}), tmesh.InvalidError)

    for _ in range(3):
        once()
    gc.collect()
    live, descriptors = tmesh.stats()["regions_live"], len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        once()
    # Threads of earlier tests may still have been closing some of these when it was counted.
    eventually(lambda: tmesh.stats()["regions_live"] <= live and len(os.listdir("/proc/self/fd")) <= descriptors)
