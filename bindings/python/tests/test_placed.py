# SPDX-License-Identifier: MIT
"""Graphs over several engines "ggml", compared with one."""

import importlib.util
import random
import time

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.graphs  # noqa: E402
import tmesh.placed  # noqa: E402
from conftest import assert_refused, eventually, serve  # noqa: E402

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("libggml"),
                                reason="ggml cannot be had: the package libggml-python is not installed")

WIDTH, HEADS, ROOM, LAYERS, STEPS = 64, 2, 96, 2, 64


def make():
    """Make a graph of attention over a cache in two layers, one token at a time, plus the same of a second path; return
    it with its weights."""
    g, weights, numbers = tmesh.graphs.Graph("layers"), {}, numpy.random.default_rng(7)

    def weight(name):
        weights[name] = tmesh.put((numbers.standard_normal((WIDTH, WIDTH)) / 8).astype("float32"), seal=True)
        return g.weight(name, "float32", (WIDTH, WIDTH))

    x = g.input("x", "float32", (1, WIDTH))
    position, row = g.input("position", "int32", (1,)), g.input("row", "int64", (1,))
    for layer in range(LAYERS):
        present = []
        for kind in "kv":
            past = g.input(f"{layer}.past_{kind}", "float32", (ROOM, WIDTH), cache="reuse")
            new = g.add("matmul", x, weight(f"{layer}.{kind}"))
            present.append(g.add("set_rows", past, new, row, name=f"{layer}.present_{kind}"))
            g.output(f"{layer}.{kind}", present[-1], in_place=past)
        q, k, v = (g.add("reshape", of, dtype="float32", shape=(rows, HEADS, WIDTH // HEADS)) for of, rows in
                   ((g.add("matmul", x, weight(f"{layer}.q")), 1), (present[0], ROOM), (present[1], ROOM)))
        a = g.add("reshape", g.add("attention", q, k, v, position), dtype="float32", shape=(1, WIDTH))
        side = g.add("gelu", g.add("matmul", x, weight(f"{layer}.side")))
        x = g.add("rms_norm", g.add("add", g.add("add", x, a), side), eps=1e-5)
    g.output("y", x)
    return g, weights


class Run:
    """64 steps, each of which reads the result of the one before."""

    def __init__(self, g, bind):
        self.now = {"x": tmesh.zeros((1, WIDTH), "float32"), "position": tmesh.zeros(1, "int32"),
                    "row": tmesh.zeros(1, "int64")}
        past = {name: tmesh.zeros((ROOM, WIDTH), "float32") for name in g.inputs if "past" in name}
        self.y = tmesh.zeros((1, WIDTH), "float32")
        present = {name: past[of] for name, of in g.in_place.items()}
        self.step = bind({**self.now, **past}, {"y": self.y, **present})

    def __call__(self, steps=STEPS):
        arrays, y, seen = {name: tensor.numpy() for name, tensor in self.now.items()}, self.y.numpy(), []
        arrays["x"][:] = 1
        for at in range(steps):
            arrays["position"][0] = arrays["row"][0] = at
            self.step.dispatch()
            seen.append(y.copy())
            arrays["x"][:] = y
        return numpy.stack(seen)


def alone(tmp_path):
    """Return the graph, its weights, and the result of one engine."""
    g, weights = make()
    g.save(tmp_path / "whole.graph")
    whole = tmesh.engine.Context("ggml").graph(tmp_path / "whole.graph", weights=weights)
    return g, weights, Run(g, lambda inputs, outputs: whole.bind(inputs, outputs, in_place=g.in_place))()


@pytest.mark.parametrize("seed", range(4))
def test_any_placement(tmp_path, seed):
    """Nodes at any places on three engines give the same bits, and nothing is copied."""
    g, weights, wanted = alone(tmp_path)
    contexts = {n: tmesh.engine.Context("ggml") for n in range(3)}
    draw = random.Random(seed)
    placed = tmesh.placed.Placed(g, {name: draw.randrange(3) for name in g.nodes}, contexts, weights=weights)
    assert len(placed.partitions) > 3 and {part.device for part in placed.partitions} == {0, 1, 2}
    run = Run(g, placed.bind)
    copied = tmesh.stats()["bytes_copied"]
    got = run()
    assert tmesh.stats()["bytes_copied"] == copied
    assert numpy.array_equal(got.view("uint32"), wanted.view("uint32"))
    assert all(context.stats()["bytes_written"] == 0 for context in contexts.values())


def test_two_processes(tmp_path):
    """Two engines in processes of their own with half of the graph each give the same bits."""
    g, weights, wanted = alone(tmp_path)
    with serve("ggml", models=tmp_path) as one, serve("ggml", models=tmp_path) as two:
        contexts = {"one": one.connect(), "two": two.connect()}
        half = len(g.nodes) // 2
        at = {name: "one" if n < half else "two" for n, name in enumerate(g.nodes)}
        placed = tmesh.placed.Placed(g, at, contexts, weights=weights, folder=tmp_path)
        assert [part.device for part in placed.partitions] == ["one", "two"]
        run = Run(g, placed.bind)
        copied = tmesh.stats()["bytes_copied"]
        assert numpy.array_equal(run().view("uint32"), wanted.view("uint32"))
        assert tmesh.stats()["bytes_copied"] == copied


def test_one_past(tmp_path):
    """Several nodes replace rows in one past, on one engine and on two. A view is an output, and another part reads
    it."""
    g = tmesh.graphs.Graph("pasts")
    past, x = g.input("past", "float32", (4, 8), cache="reuse"), g.input("x", "float32", (1, 8))
    rows = [g.input(f"row.{n}", "int64", (1,)) for n in range(3)]
    for row in rows:
        past = g.add("set_rows", past, x, row)
        x = g.add("silu", x)
    g.output("present", past, in_place="past")
    flat = g.add("reshape", x, dtype="float32", shape=(8,))
    g.output("flat", flat)
    g.output("y", g.add("gelu", flat))
    seen = []
    for places in ("aaaaaaa", "abababa", "aabbaab"):
        contexts = {key: tmesh.engine.Context("ggml") for key in "ab"}
        computing = [name for name in g.nodes if name != flat]
        placed = tmesh.placed.Placed(g, dict(zip(computing, places)), contexts)
        memory, out = tmesh.zeros((4, 8), "float32"), {"flat": tmesh.zeros(8, "float32"), "y": tmesh.zeros(8, "float32")}
        given = {f"row.{n}": tmesh.put(numpy.array([n])) for n in range(3)}
        step = placed.bind({"past": memory, "x": tmesh.put(numpy.linspace(-1, 1, 8, dtype="float32")[None]), **given},
                           {"present": memory, **out})
        step.dispatch()
        seen.append(numpy.concatenate([memory.numpy().ravel(), out["flat"].numpy(), out["y"].numpy()]))
    assert len(placed.partitions) > 1 and seen[0].any()
    for each in seen[1:]:
        assert numpy.array_equal(each.view("uint32"), seen[0].view("uint32"))


def test_refused(tmp_path):
    g, weights, _ = alone(tmp_path)
    contexts = {"a": tmesh.engine.Context("ggml")}
    at = dict.fromkeys(g.nodes, "a")
    with pytest.raises(tmesh.InvalidError, match="on no device that has a context: give one of a"):
        tmesh.placed.Placed(g, at | {g.nodes[0]: "b"}, contexts, weights=weights)
    assert_refused(lambda: tmesh.placed.Placed(g, at, contexts), tmesh.InvalidError, "weight '0.k' was not given")
    placed = tmesh.placed.Placed(g, at, contexts, weights=weights)
    assert len(placed.partitions) == 1 and "1 partitions" in repr(placed)
    assert_refused(lambda: placed.bind({}, {}), tmesh.InvalidError, "input 'x' was not given")
    given = {name: tmesh.zeros((ROOM, WIDTH), "float32") for name in g.inputs}
    assert_refused(lambda: placed.bind(given, {"z": given["x"]}), tmesh.NotFoundError, "no output 'z'")
    with pytest.raises(tmesh.InvalidError, match="'0.k' lies in the memory of"):
        placed.bind(given, {"0.k": tmesh.zeros((ROOM, WIDTH), "float32")})
    g.output("more", g.add("mul", "0.past_k", "0.past_k"))
    with pytest.raises(tmesh.InvalidError, match='"0.past_k", whose rows "0.present_k" replaces, is read by'):
        tmesh.placed.Placed(g, at | {g.nodes[-1]: "a"}, contexts, weights=weights)
    bad = tmesh.graphs.Graph("bad")
    bad.output("y", bad.add("silu", "nothing"))
    with pytest.raises(tmesh.InvalidError, match="reads 'nothing', which is no node"):
        tmesh.placed.Placed(bad, {bad.nodes[0]: "a"}, contexts)


def test_move(tmp_path):
    """Move to other places between steps, in the middle of a text. The bits stay the same, parts follow, and an error
    changes nothing."""
    g, weights, wanted = alone(tmp_path)
    contexts = {n: tmesh.engine.Context("ggml") for n in range(3)}
    placed = tmesh.placed.Placed(g, dict.fromkeys(g.nodes, 0), contexts, weights=weights)
    run, draw = Run(g, placed.bind), random.Random(7)
    arrays, y = {name: tensor.numpy() for name, tensor in run.now.items()}, run.y.numpy()
    arrays["x"][:] = 1
    copied = tmesh.stats()["bytes_copied"]
    for at in range(STEPS):
        if at % 8 == 5:
            where = {name: draw.randrange(3) for name in g.nodes}
            placed.move(where)
            # Views are at the places of their readers.
            assert placed.at() == {name: key for name, key in where.items() if not name.startswith("reshape")}
            assert {part.device for part in placed.partitions} == {0, 1, 2}
            with pytest.raises(tmesh.InvalidError, match="on no device that has a context: give one of 0, 1, 2"):
                placed.move(where | {g.nodes[0]: 3})
        arrays["position"][0] = arrays["row"][0] = at
        run.step.dispatch()
        assert numpy.array_equal(y.view("uint32"), wanted[at].view("uint32"))
        arrays["x"][:] = y
    assert tmesh.stats()["bytes_copied"] == copied
    stop = tmesh.engine.Cancellable()
    stop.cancel()
    assert_refused(lambda: run.step.dispatch(stop), tmesh.CancelledError)
    # Tensors of a binding cannot be sealed or released while it exists.
    assert_refused(run.y.seal, tmesh.BusyError)
    del arrays, y
    assert_refused(run.y.release, tmesh.BusyError)
    run.step = None
    run.y.release()


def summing():
    """y = x + b, where the binding may own b."""
    g = tmesh.graphs.Graph("sum")
    g.output("y", g.add("add", g.input("x", "float32", (2, 4)), g.input("b", "float32", (4,), cache="reuse"), name="sum"))
    return g


def given():
    return tmesh.put(numpy.ones((2, 4), "float32")), tmesh.zeros((2, 4), "float32")


def write(step, name, value):
    """Write into a tensor that the binding owns. Just before the write the graph may be given up, and the tensor be
    elsewhere."""
    while not (step.tensor(name).numpy() == value).all():
        step.tensor(name).numpy()[:] = value


def test_leases():
    """The library's thread gives an idle graph up. Its next run takes the places again, with its own value, and each
    copy is counted."""
    g, (x, y) = summing(), given()
    context = tmesh.engine.Context("ggml")
    places = tmesh.placed.Places({"any": context, "first": tmesh.placed.Place(context, memory=1 << 20, node=0)}, idle=0.01)
    placed = tmesh.placed.Placed(g, {"sum": "first"}, places)
    step = placed.bind({"x": x}, {"y": y})
    write(step, "b", 4)
    step.dispatch()
    assert (y.numpy() == 5).all()
    eventually(lambda: places.stats()["held"] == 0)
    assert places.stats()["given_up"] >= 1 and places.used("first") == 0
    assert placed.at() == {"sum": "first"} and [part.device for part in placed.partitions] == ["first"]
    before = places.stats()["copies"]
    assert (step.tensor("b").numpy() == 4).all() and before >= 1
    step.dispatch()
    assert (y.numpy() == 5).all()
    now = places.stats()
    assert now["reacquired"] >= 1 and now["copies"] > before
    assert now["bytes_copied"] == 16 * now["copies"]
    assert "any, first" in repr(places)


def test_moves_counted():
    """Nothing is given up, so the numbers of moves and of the room are exact."""
    g, (x, y) = summing(), given()
    context = tmesh.engine.Context("ggml")
    places = tmesh.placed.Places({"any": context, "first": tmesh.placed.Place(context, memory=100, node=0)}, idle=None)
    placed = tmesh.placed.Placed(g, {"sum": "any"}, places)
    step, copied = placed.bind({"x": x}, {"y": y}), tmesh.stats()["bytes_copied"]
    own = step.tensor("b")
    assert own.shape == (4,) and (own.numpy() == 0).all()
    own.numpy()[:] = 2
    assert places.used("any") == 48 and places.used("first") == 0
    placed.move({"sum": "first"})
    assert (places.used("any"), places.used("first"), places.sweep()) == (0, 48, 0)
    step.dispatch()
    assert (y.numpy() == 3).all() and (step.tensor("b").numpy() == 2).all()
    assert places.stats() == {"held": 1, "moves": 1, "given_up": 0, "reacquired": 0, "copies": 1, "bytes_copied": 16}
    assert tmesh.stats()["bytes_copied"] == copied + 16
    more = [placed.bind({"x": x}, {"y": y})]
    with pytest.raises(tmesh.Error, match="place 1 has 100 bytes, of which other graphs have 0: this one needs 144"):
        placed.bind({"x": x}, {"y": y})
    more.clear()
    assert places.used("first") == 48
    del step, placed
    assert places.used("first") == 0 and places.stats()["held"] == 0


def test_places_refused():
    g, context, place = summing(), tmesh.engine.Context("ggml"), tmesh.placed.Place
    for wrong in ({"a": place(context, memory=0)}, {"a": place(context, node=-1)}, {}):
        assert_refused(lambda: tmesh.placed.Places(wrong), tmesh.InvalidError)
    for idle in (0, -1, 1e11):
        with pytest.raises(tmesh.InvalidError, match="idle is None or more than 0 seconds"):
            tmesh.placed.Places({"a": context}, idle=idle)
    assert_refused(lambda: tmesh._tmesh.engine_places_create(((object(), 0, -1),), 1), TypeError)
    places = tmesh.placed.Places({"a": place(context, memory=40)})
    assert_refused(lambda: places.used("b"), tmesh.NotFoundError, "no place 'b'")
    assert_refused(lambda: tmesh.placed.Placed(g, {"sum": "b"}, places), tmesh.InvalidError, "give one of a")
    placed = tmesh.placed.Placed(g, {"sum": "a"}, places)
    x, y = given()
    assert_refused(lambda: placed.bind({"x": x}, {"y": y}), tmesh.Error, "place 0 has 40 bytes, .* needs 48")
    assert_refused(lambda: placed.bind({}, {}), tmesh.InvalidError, "input 'x' was not given")
    with pytest.raises(TypeError, match='"x" is a Tensor'):
        tmesh._tmesh.engine_placed_bind(placed._handle, (("x", 7),), ())
    places = tmesh.placed.Places({"a": context})
    step = tmesh.placed.Placed(g, {"sum": "a"}, places).bind({"x": x, "b": tmesh.zeros(4, "float32")}, {"y": y})
    assert_refused(lambda: step.tensor("b"), tmesh.NotFoundError, 'no input "b"')
    # These are handles of another kind.
    assert_refused(lambda: tmesh._tmesh.engine_places_sweep(placed._handle), ValueError)
