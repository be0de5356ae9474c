# SPDX-License-Identifier: MIT
"""Mutated GGUF models, all the way: a client loads one, builds its graph, and an engine "ggml" in a process of its own
opens and runs it. Each is refused with an error of tmesh's, or runs on the file's own memory.

TMESH_MUTANT=N repeats only the Nth; it prints the change of the file."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.graphs  # noqa: E402

COUNT = 100
PARTS = 40 if os.environ.get("TMESH_TEST_LENGTH") == "full" else 3
pytestmark = pytest.mark.skipif(not importlib.util.find_spec("libggml"),
                                reason="ggml cannot be had: the package libggml-python is not installed")
ROWS, MOST = 16, 1 << 24
NUMBERS = (0, 1, 2, 3, 5, 7, 31, 32, 33, 64, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 33, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
KEY = re.compile(rb"qwen2\.[a-z._]+")


def mutate(data, head, number):
    """Return the mutated bytes, and a description of the change. Only the header is changed, except when the end is cut
    off."""
    rng, data, done = random.Random(number), bytearray(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if head < 200:
            break
        at, kind = rng.randrange(head), rng.randrange(10)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind in (2, 3):
            width = 4 * (kind - 1)
            data[at:at + width] = (rng.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
        elif kind == 4:
            other = rng.randrange(head)
            size = rng.choice((1, 4, 8, 12, 24))
            data[at:at + size] = data[other:other + size]
        elif kind == 5:
            # A number in the file, at any place: a width of the model, a length of a name.
            old = rng.choice((2, 4, 8, 16, 32, 64, 24, 48)).to_bytes(4, "little")
            at = data.find(old, at, head)
            data[at:at + 4] = rng.choice(NUMBERS[:14]).to_bytes(4, "little") if at >= 0 else data[at:at + 4]
        elif kind >= 7:
            # A value of the model's metadata: another number, or the same bytes as a number of another type.
            at = rng.choice([found.end() for found in KEY.finditer(data, 0, head)])
            if kind == 7:
                data[at] = rng.choice((4, 5, 6))
            else:
                data[at + 4:at + 8] = rng.choice(NUMBERS[:14]).to_bytes(4, "little")
        elif rng.randrange(4) == 0:
            at = rng.randrange(len(data))
            del data[at:]
            head = min(head, at)
        done.append((kind, at))
    return bytes(data), done


def inside(model, data):
    """Check that each tensor's elements are in the file, by reading all of them."""
    for name, tensor in model.items():
        assert bytes(memoryview(tensor).cast("B")) in data, name


def inputs_of(graph, g):
    """Return a token, its position and empty caches. None: they need more memory than this test allows."""
    given, size = {}, {"int32": 4, "int64": 8, "float32": 4, "float16": 2}
    for name, operand in (*graph.inputs.items(), *graph.outputs.items()):
        if numpy.prod([float(n) for n in operand.shape]) * size[operand.dtype] > MOST:
            return None
    for name, operand in graph.inputs.items():
        given[name] = tmesh.zeros(operand.shape, operand.dtype)
    return given


def run(context, folder, path, data):
    """Run a model, and return how far it came."""
    with tmesh.load_model(path, alone=True) as model:
        inside(model, data)
        try:
            g = tmesh.graphs.of_model(model, rows=ROWS, cache="float32")
            g.save(folder / "mutant.graph")
        except tmesh.Error:
            return "loaded"
        try:
            graph = context.graph(folder / "mutant.graph", weights={name: model[name] for name in g.weights})
        except tmesh.GoneError:
            return "died"
        except tmesh.Error:
            return "built"
        given = inputs_of(graph, g)
        if given is None:
            return "opened"
        outputs = {name: given[g.in_place[name]] if name in g.in_place else "host" for name in graph.outputs}
        try:
            graph.dispatch(given, outputs, in_place=g.in_place)
        except tmesh.GoneError:
            return "died"
        except tmesh.Error:
            return "opened"
        return "ran"


def client(folder, name, part):
    """Run models in a process of its own, which prints the number and the result of each."""
    from pathlib import Path

    folder = Path(folder)
    context = tmesh.engine.connect(name)
    data = (folder / "model.gguf").read_bytes()
    head = int((folder / "head").read_text())
    only = os.environ.get("TMESH_MUTANT")
    for number in [int(only)] if only else [-1, *range(int(part) * COUNT, (int(part) + 1) * COUNT)]:
        mutant, done = mutate(data, head, number) if number >= 0 else (data, [])
        print(json.dumps({"number": number, "done": done}), flush=True)
        (folder / "mutant.gguf").write_bytes(mutant)
        try:
            became = run(context, folder, folder / "mutant.gguf", mutant)
        except tmesh.Error:
            became = "refused"
        print(json.dumps({"number": number, "became": became}), flush=True)


@pytest.mark.parametrize("part", range(PARTS))
def test_models(tmp_path, part):
    from test_graphs import as_gguf, llama

    _, weights = llama("float32", "float32")
    as_gguf(tmp_path / "model.gguf", "qwen2", weights)
    data = (tmp_path / "model.gguf").read_bytes()
    first = next(iter(weights.values())).tobytes()
    (tmp_path / "head").write_text(str(data.index(first)))
    with tmesh.engine.serve("ggml", models=tmp_path, limit=600, patience=600) as server:
        child = subprocess.run([sys.executable, "-P", __file__, str(tmp_path), server.name, str(part)],
                               capture_output=True, text=True)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, f"the client ended with {child.returncode} at {lines[-1:]}: {child.stderr[-2000:]}"
    became = {line["number"]: line["became"] for line in lines if "became" in line}
    counts = {what: list(became.values()).count(what) for what in ("refused", "loaded", "built", "opened", "ran", "died")}
    print(f"of {len(became)} models: {counts}")
    if not os.environ.get("TMESH_MUTANT"):
        assert became[-1] == "ran" and sum(counts.values()) == COUNT + 1
        assert counts["refused"] > COUNT // 10 and counts["ran"] > 1 and counts["loaded"] > 1
    assert not counts["died"], [number for number, what in became.items() if what == "died"]


if __name__ == "__main__":
    client(*sys.argv[1:])
