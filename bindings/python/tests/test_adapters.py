# SPDX-License-Identifier: MIT
"""LoRA nodes of graphs on the engine "ggml", and adapters that a slot swaps."""

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.adapters  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.graphs  # noqa: E402
from conftest import assert_refused, serve  # noqa: E402
from test_graphs import GROUPS, HEAD, LAYERS, VOCABULARY, Reference, as_gguf, gguf, llama, opened, random, run  # noqa: E402, F401

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("libggml"),
                                reason="ggml cannot be had: the package libggml-python is not installed")


def sealed(weights):
    return {name: tmesh.put(array, seal=True) for name, array in weights.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_operator(opened, dtype, scale):
    """Compare with NumPy, also for x with more dimensions and for matrices that are weights."""
    x, w, a, b = random(2, 3, 8), random(6, 8), random(4, 8, dtype=dtype), random(6, 4, dtype=dtype)
    graph = opened(f"x = input : float32[2,3,8]\nw = weight : float32[6,8]\na = weight : {dtype}[4,8]\nb = weight : {dtype}[6,4]\n"
                   "s = input : float32[1]\nt = silu(s)\noutput t = t\n"
                   f"y = lora(x, w, a, b{', s' if scale else ''})\noutput y = y\n", {"w": w, "a": a, "b": b})
    got = run(graph, {"x": x, "s": numpy.array([scale or 0], "float32")}, ["y"])["y"]
    change = x @ a.T.astype("float32") @ b.T.astype("float32")
    numpy.testing.assert_allclose(got, x @ w.T + (scale or 1) * change, atol=2e-2)


@pytest.mark.parametrize("node", ["lora(x, w, a, a)", "lora(x, w, b, b)", "lora(x, w, a)", "lora(s, w, a, b)", "lora(x, w, a, b, a)"])
def test_operator_refused(opened, node):
    with pytest.raises(tmesh.ProtocolError, match='node "y"'):
        opened("x = input : float32[3,8]\nw = input : float32[6,8]\na = input : float32[4,8]\nb = input : float32[6,4]\n"
               f"s = input : float32[2]\ny = {node}\noutput y = y\n")


def adapted(weights, adapter):
    """Return the weights that the base would have with the adapter merged. Names are those of test_graphs.llama()."""
    short = {"attn_q": "q", "ffn_down": "down"}
    out = dict(weights)
    for name, (a, b, scale) in adapter.items():
        _, layer, part = name.split(".")
        out[f"{layer}.{short[part]}"] = weights[f"{layer}.{short[part]}"] + scale * (b.astype("float32") @ a.astype("float32"))
    return out


def test_of_model(tmp_path):
    """Run a model's graph with several adapters: two of full rank, one of a lower rank in float16, one from a GGUF
    file, and none. Each time the logits equal NumPy's with the adapter in the weights, in one session, with one
    binding."""
    _, weights = llama("float32", "float32")
    as_gguf(tmp_path / "model.gguf", "qwen2", weights)
    model = tmesh.load_model(tmp_path / "model.gguf", alone=True)
    g = tmesh.graphs.of_model(model, rows=16, cache="float32", lora={"attn_q": 4, "ffn_down": 2})
    assert len(g.lora) == 2 * LAYERS and g.lora["blk.0.attn_q"] == (128, 4, 128)
    g.save(tmp_path / "step.graph")
    context = tmesh.engine.Context("ggml")
    graph = context.graph(tmp_path / "step.graph", weights={name: model[name] for name in g.weights})
    slot = tmesh.Slot()
    adapter = tmesh.adapters.Adapter(g, slot.token)
    past = {f"past_{kind}.{layer}": tmesh.zeros((16, GROUPS * HEAD), "float32") for layer in range(LAYERS) for kind in "kv"}
    now = {name: tmesh.put(numpy.array([value], dtype)) for name, value, dtype in
           (("token", 7, "int32"), ("position", 0, "int32"), ("row", 0, "int64"))}
    logits = tmesh.zeros((1, VOCABULARY), "float32")
    step = graph.bind({**now, **past, **adapter.inputs()},
                      {"logits": logits, **{name.replace("past", "present"): tensor for name, tensor in past.items()}},
                      in_place=g.in_place)

    def pair(layer, part, rank, seed, dtype="float32"):
        out, _, width = g.lora[f"blk.{layer}.{part}"]
        return (random(rank, width, seed=seed, dtype=dtype) / 10, random(out, rank, seed=seed, dtype=dtype), 0.5)

    one = {name: pair(*name.split(".")[1:], rank, 3) for name, (_, rank, _) in g.lora.items()}
    two = {"blk.1.attn_q": pair(1, "attn_q", 3, 4, "float16"), "blk.2.ffn_down": pair(2, "ffn_down", 1, 5)}
    write_adapter(tmp_path / "lora.gguf", one, 3.0)
    file = tmesh.load_model(tmp_path / "lora.gguf", alone=True)
    of_file = {name: (a, b, 3.0 / a.shape[0]) for name, (a, b, _) in one.items()}
    for what, expected in ((None, {}), (one, one), (two, two), (None, {}), (file, of_file)):
        if what is not None or adapter.generation:
            generation = tmesh.adapters.publish(slot, what, g)
            assert adapter.apply(step) == generation == adapter.apply(step)
        step.dispatch()
        wanted = Reference(adapted(weights, expected)).step(7, 0)
        numpy.testing.assert_allclose(logits.numpy()[0], wanted, atol=1e-2 if expected is two else 2e-3)
    stats = context.stats()
    assert (stats["sessions_opened"], stats["bindings"]) == (1, 1)
    file.release()
    model.release()


def write_adapter(path, pairs, alpha):
    gguf(path, None, {f"{name}.weight.lora_{side}": array for name, (a, b, _) in pairs.items() for side, array in (("a", a), ("b", b))},
         **{"general.architecture": "qwen2", "adapter.type": "lora", "adapter.lora.alpha": alpha})


NODES, WIDTH, RANK = 3, 8, 2


def small(path):
    """Three lora nodes on one x, whose weights are zeros: y is [NODES, WIDTH]."""
    g = tmesh.graphs.Graph("small")
    x, w = g.input("x", "float32", (1, WIDTH)), g.weight("w", "float32", (WIDTH, WIDTH))
    g.output("y", g.add("concat", *(g.adapted(x, w, (WIDTH, WIDTH), f"n.{i}", RANK) for i in range(NODES)), axis=0))
    g.save(path)
    return g


def pairs(number):
    """Return an adapter that makes each element of y the number."""
    a, b = numpy.zeros((RANK, WIDTH), "float32"), numpy.zeros((WIDTH, RANK), "float32")
    a[0, 0], b[:, 0] = 1, number
    return {f"n.{i}": (a, b) for i in range(NODES)}


PUBLISHER = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
import test_adapters as t, tmesh
slot, g = tmesh.Slot(), t.small(pathlib.Path(sys.argv[2]))
print(slot.token, flush=True)
sys.stdin.readline()
for number in range(1, 1001):
    assert tmesh.adapters.publish(slot, t.pairs(number), g) == number
    if number == 500:
        sys.stdin.readline()
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("served", [False, True])
def test_swapped_by_another_process(tmp_path, served):
    """Publish 1000 generations. Each answer is of exactly one, the one that apply() returned, and none goes back."""
    g = small(tmp_path / "g")
    other = subprocess.Popen([sys.executable, "-c", PUBLISHER, os.path.dirname(__file__), str(tmp_path / "other")],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = serve("ggml", models=tmp_path) if served else None
    try:
        context = server.connect() if served else tmesh.engine.Context("ggml")
        graph = context.graph(tmp_path / "g", weights=sealed({"w": numpy.zeros((WIDTH, WIDTH), "float32")}))
        adapter = tmesh.adapters.Adapter(g, other.stdout.readline().strip())
        x, y = tmesh.put(numpy.ones((1, WIDTH), "float32")), tmesh.zeros((NODES, WIDTH), "float32")
        step = graph.bind({"x": x, **adapter.inputs()}, {"y": y})
        assert adapter.generation == 0
        other.stdin.write("go\n")
        other.stdin.flush()
        seen = [0]
        while seen[-1] < 1000:
            generation = adapter.apply(step)
            step.dispatch()
            assert (y.numpy() == generation).all(), (generation, y.numpy())
            assert generation >= seen[-1]
            if generation == 500 and seen[-1] < 500:
                # Even on a slow machine this generation was seen.
                other.stdin.write("go on\n")
                other.stdin.flush()
            seen.append(generation)
        assert len(set(seen)) > 2
        assert context.stats()["sessions_opened"] == 1 and context.stats()["bindings"] == 1
        if served:
            # The engine's next process gets the rebound inputs.
            os.kill(context.pid, signal.SIGKILL)
            y.numpy()[:] = 0
            try:
                step.dispatch()
            except tmesh.GoneError:
                step.dispatch()
            assert (y.numpy() == 1000).all()
    finally:
        other.stdin.close()
        other.wait()
        step = graph = context = None
        if server:
            server.close()


def test_refused(tmp_path):
    """Refuse adapters that do not fit, at the first party that notices it. The bound one stays."""
    g = small(tmp_path / "g")
    slot = tmesh.Slot()
    good = pairs(5)["n.0"]
    for bad, words in (({"m": good}, "no lora node of it; it has n.0"),
                       ({"n.0": (good[0][:, :4], good[1])}, r"A\[2, 4\].*the graph takes A\[R, 8\], B\[8, R\]"),
                       ({"n.0": (good[0][:1], good[1])}, "the graph takes"),
                       ({"n.0": (numpy.zeros((3, 8), "float32"), numpy.zeros((8, 3), "float32"))}, "rank 3.*built for 2"),
                       ({"n.0": (good[0].astype("float64"), good[1])}, "float32 or float16"),
                       ({"n.0": (*good, float("nan"))}, "no number")):
        assert_refused(lambda: tmesh.adapters.publish(slot, bad, g), tmesh.InvalidError, words)
    assert slot.generation == 0
    context = tmesh.engine.Context("ggml")
    graph = context.graph(tmp_path / "g", weights=sealed({"w": numpy.zeros((WIDTH, WIDTH), "float32")}))
    adapter = tmesh.adapters.Adapter(g, slot.token)
    tmesh.adapters.publish(slot, pairs(5), g)
    y = tmesh.zeros((NODES, WIDTH), "float32")
    step = graph.bind({"x": tmesh.put(numpy.ones((1, WIDTH), "float32")), **adapter.inputs()}, {"y": y})
    wider = tmesh.graphs.Graph("wider")
    wider.lora["n.0"] = WIDTH, 4, WIDTH
    tmesh.adapters.publish(slot, {"n.0": (numpy.zeros((4, 8), "float32"), numpy.zeros((8, 4), "float32"))}, wider)
    assert_refused(lambda: adapter.apply(step), tmesh.InvalidError, "rank 4")
    slot.publish({"a": numpy.zeros(2)})
    assert_refused(lambda: adapter.apply(step), tmesh.ProtocolError, "no adapter")
    step.dispatch()
    assert (y.numpy() == 5).all() and adapter.generation == 1
    tmesh.adapters.publish(slot, {"n.1": (numpy.zeros((0, 8), "float32"), numpy.zeros((8, 0), "float32")), "n.2": good}, g)
    adapter.apply(step)
    step.dispatch()
    assert (y.numpy()[:2] == 0).all() and (y.numpy()[2] == 5).all()
    with pytest.raises(tmesh.InvalidError, match="no lora nodes"):
        tmesh.adapters.Adapter(tmesh.graphs.Graph("none"), slot.token)
    step = None
    context = graph = None


def test_rebind(opened):
    """Replace inputs, also of rows. An input that a node has a view of is refused, and nothing has changed then."""
    graph = opened("x = input : float32[2,8]\nz = input : float32[2,8]\nr = input : int32[2]\nv = reshape(z) : float32[16]\n"
                   "y = get_rows(x, r)\ns = add(y, z)\noutput y = s\noutput v = v\n")
    one, two, zero = random(2, 8), random(2, 8, seed=1), tmesh.zeros((2, 8), "float32")
    y, v = tmesh.zeros((2, 8), "float32"), tmesh.zeros((16,), "float32")
    step = graph.bind({"x": tmesh.put(one), "z": zero, "r": tmesh.put(numpy.array([0, 1], "int32"))}, {"y": y, "v": v})

    def now(expected):
        step.dispatch()
        numpy.testing.assert_array_equal(y.numpy(), expected)

    now(one)
    step.rebind({"x": tmesh.put(two)})
    now(two)
    step.rebind({"x": tmesh.put(one), "r": tmesh.put(numpy.array([1, 1], "int32"))})
    now(one[[1, 1]])
    step.rebind({})
    for inputs, error, words in (
            ({"x": tmesh.put(two), "z": zero}, tmesh.UnsupportedError, 'node "v", a reshape, has a view'),
            ({"x": tmesh.put(two), "w": zero}, tmesh.NotFoundError, 'no input "w"'),
            ({"x": tmesh.zeros((2, 4), "float32")}, tmesh.InvalidError, "shape"),
            ({"x": tmesh.zeros((2, 8), "float16")}, tmesh.InvalidError, "float16 was given"),
            ({"x": y}, tmesh.InvalidError, "overlaps")):
        assert_refused(lambda: step.rebind(inputs), error, words)
        now(one[[1, 1]])
    # Integers are checked in the new memory.
    step.rebind({"r": tmesh.put(numpy.array([2, 0], "int32"))})
    assert_refused(step.dispatch, tmesh.InvalidError, '"r" has 2')
    step = graph = None
