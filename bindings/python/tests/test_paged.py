# SPDX-License-Identifier: MIT
"""Several sequences in one run, their keys and values in pages by block tables, on the engine "ggml"."""

import ctypes
import importlib.util
import mmap

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.graphs  # noqa: E402
from conftest import assert_refused  # noqa: E402
from test_graphs import GROUPS, HEAD, LAYERS, VOCABULARY, Reference, as_gguf, llama, opened, random, run, softmax  # noqa: E402, F401

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("libggml"),
                                reason="ggml cannot be had: the package libggml-python is not installed")

PLACES, TOKENS = 12, 4  # pages, tokens of one


def attended(q, k, v, position):
    """Compute the attention by NumPy, for one sequence and its blocks."""
    out = []
    for query, last in zip(q, position):
        keys, values = (array.reshape(-1, *array.shape[2:])[:last + 1].astype("float32").repeat(q.shape[1] // array.shape[2], 1)
                        for array in (k, v))
        out.append(numpy.einsum("hj,jhd->hd", softmax(numpy.einsum("hd,jhd->hj", query, keys) * q.shape[2] ** -.5), values))
    return numpy.array(out)


@pytest.mark.parametrize("cache", ["float32", "float16"])
@pytest.mark.parametrize("queries", [1, 3])
def test_attention(opened, cache, queries):
    """Compare with NumPy: three sequences of different lengths. Blocks are in any order, and shared. There are tables
    of keys and of values. Pages that no table names have NaN."""
    k, v = (random(PLACES, TOKENS, 2, 8, dtype=cache, seed=seed) for seed in (1, 2))
    tables = numpy.array([[7, 2, 9], [7, 4, 0], [11, 0, 0]], "int32")
    vtables = numpy.array([[1, 2, 3], [1, 5, 0], [6, 0, 0]], "int32")
    for array, used in ((k, {7, 2, 9, 4, 11}), (v, {1, 2, 3, 5, 6})):
        for page in set(range(PLACES)) - used:
            array[page] = numpy.nan
    q = random(3 * queries, 4, 8)
    lengths = numpy.array([12, 6, queries], "int32")
    position = numpy.concatenate([numpy.arange(n - queries, n) for n in lengths]).astype("int32")
    graph = opened(f"q = input : float32[{3 * queries},4,8]\nk = input : {cache}[12,4,2,8]\nv = input : {cache}[12,4,2,8]\n"
                   f"p = input : int32[{3 * queries}]\nt = input : int32[3,3]\nu = input : int32[3,3]\n"
                   "y = attention(q, k, v, p, t, u)\noutput y = y\n")
    got = run(graph, {"q": q, "k": k, "v": v, "p": position, "t": tables, "u": vtables})["y"]
    for s in range(3):
        part = slice(s * queries, (s + 1) * queries)
        expected = attended(q[part], k[tables[s]], v[vtables[s]], position[part])
        numpy.testing.assert_allclose(got[part], expected, atol=2e-3)


def test_not_touched(opened):
    """Blocks that a sequence does not have are not read, whatever is in its table: their memory may not be mapped."""
    memory = mmap.mmap(-1, 4 * 4096)
    k = numpy.frombuffer(memory, "float32").reshape(4, 16, 2, 32)
    k[1] = random(16, 2, 32)
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(k.ctypes.data), 4096, 0) == 0
    graph = opened("q = input : float32[1,2,32]\nk = input : float32[4,16,2,32]\np = input : int32[1]\nt = input : int32[1,3]\n"
                   "y = attention(q, k, k, p, t)\noutput y = y\n")
    q, given = random(1, 2, 32), {"p": numpy.array([15], "int32"), "t": numpy.array([[1, 0, 0]], "int32")}
    got = graph.dispatch({"q": tmesh.put(q), "k": k, **{name: tmesh.put(array) for name, array in given.items()}})["y"]
    expected = numpy.einsum("hj,jhd->hd", softmax(numpy.einsum("hd,jhd->hj", q[0], k[1]) * 32 ** -.5), k[1])
    numpy.testing.assert_allclose(got[0], expected, atol=2e-3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cache", ["float32", "float16"])
def test_behind(opened, cache, threads):
    """Rows after a sequence's last one are never read, neither in its last block nor as remains of a longer one. With
    64 queries and more ggml multiplies them too."""
    k, v = (random(16, 16, 2, 32, dtype=cache, seed=seed) for seed in (1, 2))
    opened.context = tmesh.engine.Context("ggml", threads=threads)
    q, tables = random(2 * 64, 2, 32), numpy.arange(16, dtype="int32").reshape(2, 8)
    graph = opened(f"q = input : float32[128,2,32]\nk = input : {cache}[16,16,2,32]\nv = input : {cache}[16,16,2,32]\n"
                   "p = input : int32[128]\nt = input : int32[2,8]\ny = attention(q, k, v, p, t)\noutput y = y\n")
    now = {"k": tmesh.put(k, seal=False), "v": tmesh.put(v, seal=False), "p": tmesh.zeros((128,), "int32")}
    step = graph.bind({"q": tmesh.put(q), "t": tmesh.put(tables), **now}, {"y": (y := tmesh.zeros((128, 2, 32), "float32"))})
    for lengths in ((128, 128), (70, 128), (128, 67)):
        position = numpy.concatenate([numpy.arange(n - 64, n) for n in lengths]).astype("int32")
        now["p"].numpy()[:] = position
        for name, array in (("k", k), ("v", v)):
            there = now[name].numpy()
            there[:] = array
            for table, length in zip(tables, lengths):
                for block, row in (divmod(at, 16) for at in range(length, 128)):
                    there[table[block], row] = numpy.nan
        step.dispatch()
        for s in range(2):
            part = slice(64 * s, 64 * s + 64)
            expected = attended(q[part], k[tables[s]], v[tables[s]], position[part])
            numpy.testing.assert_allclose(y.numpy()[part], expected, atol=4e-3)
        # Remains of the longer ones after the next one's rows.
        for name in ("k", "v"):
            now[name].numpy()[:] = numpy.nan
        now["p"].numpy()[:] = numpy.tile(numpy.arange(64, 128), 2)
        step.dispatch()


def test_order(opened):
    """An attention whose values depend on another one's result: each reads the rows of its own tables."""
    k, values = random(4, 4, 1, 32, seed=1), random(16, 32, seed=2)
    graph = opened("q = input : float32[1,1,32]\nk = input : float32[4,4,1,32]\nv = input : float32[16,32]\nr = input : int64[1]\n"
                   "p = input : int32[1]\nt = input : int32[1,2]\nu = input : int32[1,2]\n"
                   "a = attention(q, k, k, p, t)\nx = reshape(a) : float32[1,32]\nw = set_rows(v, x, r)\n"
                   "b = reshape(w) : float32[4,4,1,32]\ny = attention(q, k, b, p, u)\noutput y = y\noutput w = w\n")
    q, past = random(1, 1, 32), tmesh.put(values, seal=False)
    given = {"r": numpy.array([9]), "p": numpy.array([7], "int32"), "t": numpy.array([[0, 1]], "int32"),
             "u": numpy.array([[2, 3]], "int32")}
    got = graph.dispatch({"q": tmesh.put(q), "k": tmesh.put(k), "v": past, **{name: tmesh.put(array) for name, array in given.items()}},
                         {"y": "host", "w": past}, in_place={"w": "v"})["y"]
    values[9] = attended(q, k[:2], k[:2], [7])[0, 0]
    numpy.testing.assert_allclose(got, attended(q, k[2:], values.reshape(4, 4, 1, 32)[2:], [7]), atol=1e-4)


@pytest.mark.parametrize("other", [(3, 4, 8), (2, 8, 8), (2, 4, 16)])
def test_shapes(opened, other):
    """A graph has two attentions, one with more blocks, more rows in a block or more elements in a row."""
    lines, given, expected = "", {}, {}
    for n, (blocks, rows, head) in enumerate([(2, 4, 8), other]):
        q, k, v = random(1, 2, head), random(6, rows, 1, head, seed=n + 1), random(6, rows, 1, head, seed=n + 3)
        table, position = numpy.array([[5, 1, 3][:blocks]], "int32"), numpy.array([blocks * rows - 1], "int32")
        lines += (f"q{n} = input : float32[1,2,{head}]\nk{n} = input : float32[6,{rows},1,{head}]\n"
                  f"v{n} = input : float32[6,{rows},1,{head}]\np{n} = input : int32[1]\nt{n} = input : int32[1,{blocks}]\n"
                  f"y{n} = attention(q{n}, k{n}, v{n}, p{n}, t{n})\noutput y{n} = y{n}\n")
        given |= {f"q{n}": q, f"k{n}": k, f"v{n}": v, f"p{n}": position, f"t{n}": table}
        expected[f"y{n}"] = attended(q, k[table[0]], v[table[0]], position)
    got = run(opened(lines), given)
    for name, wanted in expected.items():
        numpy.testing.assert_allclose(got[name], wanted, atol=2e-3)


@pytest.mark.parametrize("wrong, words", [({"t": [[12, 0], [0, 0]]}, '"t" has 12'), ({"t": [[-1, 0], [0, 0]]}, '"t" has -1'),
                                          ({"p": [8, 0]}, '"p" has 8'), ({"p": [-1, 0]}, '"p" has -1')])
def test_tables_refused(opened, wrong, words):
    """Tables are checked in each run, since another process may write them."""
    graph = opened("q = input : float32[2,4,8]\nk = input : float32[12,4,2,8]\np = input : int32[2]\nt = input : int32[2,2]\n"
                   "y = attention(q, k, k, p, t)\noutput y = y\n")
    given = {"q": random(2, 4, 8), "k": random(12, 4, 2, 8), "p": [7, 0], "t": [[11, 3], [0, 0]]} | wrong
    given = {name: numpy.asarray(value, "int32") if isinstance(value, list) else value for name, value in given.items()}
    assert_refused(lambda: run(graph, given), tmesh.InvalidError, words)


@pytest.mark.parametrize("lines, words", [
    ("a = set_rows(past, x, r)\nb = set_rows(a, x, r)\nc = silu(a)\noutput b = b\noutput c = c\n", 'node "c" reads "a"'),
    ("a = set_rows(past, x, r)\nb = set_rows(a, x, r)\nc = reshape(a) : float32[32]\noutput b = b\noutput c = c\n", 'output "c"'),
    ("a = set_rows(past, x, r)\nb = set_rows(a, x, r)\noutput a = a\noutput b = b\n", 'output "a" is "a"'),
    ("a = set_rows(past, x, r)\nb = set_rows(a, x, r)\nc = set_rows(a, x, r)\noutput b = b\noutput c = c\n", "replaces"),
])
def test_pasts_refused(opened, lines, words):
    with pytest.raises(tmesh.UnsupportedError, match=words):
        opened("past = input : float32[4,8]\nx = input : float32[1,8]\nr = input : int64[1]\n" + lines)


def test_pasts(opened):
    """Several nodes replace rows of one past. A reader between two of them reads before the next one writes."""
    graph = opened("past = input : float32[4,8]\nx = input : float32[1,8]\nr = input : int64[1]\ns = input : int64[1]\n"
                   "a = set_rows(past, x, r)\nv = reshape(a) : float32[4,8]\nw = matmul(x, v)\nu = matmul(w, t)\n"
                   "t = weight : float32[8,4]\nb = set_rows(a, u, s)\noutput b = b\noutput w = w\n", {"t": random(8, 4)})
    past, x = random(4, 8, seed=3), random(1, 8)
    shared = tmesh.put(past, seal=False)
    got = graph.dispatch({"past": shared, "x": tmesh.put(x), "r": tmesh.put(numpy.array([1])), "s": tmesh.put(numpy.array([1]))},
                         {"b": shared, "w": "host"}, in_place={"b": "past"})["w"]
    past[1] = x[0]
    numpy.testing.assert_allclose(got, x @ past.T, atol=1e-4)
    past[1] = got[0] @ random(8, 4).T
    numpy.testing.assert_allclose(shared.numpy(), past, atol=1e-4)
    with pytest.raises(tmesh.InvalidError, match="has to be an output that is bound"):
        graph.dispatch({"past": shared, "x": tmesh.put(x), "r": tmesh.put(numpy.array([1])), "s": tmesh.put(numpy.array([1]))}, ["w"])


class Model:
    """A graph for a number of sequences over a pool's pages, bound once."""

    def __init__(self, folder, model, handle, sequences, tokens=1, blocks=8):
        self.shape = p = tmesh.graphs.Pages(handle.info(), sequences, blocks)
        self.handle, self.tokens = handle, tokens
        g = tmesh.graphs.of_pages(model, p, tokens=tokens, cache="float32")
        g.save(folder / f"{sequences}.{tokens}.graph")
        graph = tmesh.engine.Context("ggml").graph(folder / f"{sequences}.{tokens}.graph",
                                                   weights={name: model[name] for name in g.weights})
        many = sequences * tokens
        self.now = {name: tmesh.zeros((many,), "int32") for name in ("token", "position")}
        self.rows = tmesh.zeros((2 * p.layers, -(-many // 2) * 2), "int64")
        self.tables = tmesh.zeros((2 * p.layers, -(-sequences * blocks // 4) * 4), "int32")
        self.logits = tmesh.zeros((many, VOCABULARY), "float32")
        rows = p.max_pages * p.parts * p.page_tokens
        memory = (ctypes.c_float * (rows * GROUPS * HEAD)).from_address(handle.base())
        pages = numpy.frombuffer(memory, "float32").reshape(rows, GROUPS * HEAD)
        inputs = {**self.now, "pages": pages,
                  **{name: self.rows[i, :many] for i, name in enumerate(p.names("row"))},
                  **{name: self.tables[i, :sequences * blocks].reshape(sequences, blocks) for i, name in enumerate(p.names("table"))}}
        self.step = graph.bind(inputs, {"logits": self.logits, "pages": pages}, in_place=g.in_place)

    def run(self, sequences, tokens):
        """Append each sequence's tokens, and return the logits."""
        slots, places = [], []
        for sequence, some in zip(sequences, tokens):
            first = sequence.tokens
            sequence.append(len(some))
            slots.extend(sequence.slot_mapping(first, len(some)))
            places.extend(range(first, first + len(some)))
        many = len(slots)
        self.now["token"].numpy()[:] = numpy.concatenate(tokens)
        self.now["position"].numpy()[:] = places
        self.rows.numpy()[:, :many] = self.shape.rows(slots)
        tables, _ = self.handle.tables(sequences, self.shape.blocks)
        self.tables.numpy()[:, :tables.size] = self.shape.tables(tables).reshape(2 * self.shape.layers, -1)
        self.step.dispatch()
        return self.logits.numpy().copy()


def test_sequences(tmp_path):
    """Three sequences in one run, two of them forks of one prompt whose pages they share. 12 steps equal those of each
    sequence alone, and NumPy's."""
    _, weights = llama("float32", "float32")
    as_gguf(tmp_path / "model.gguf", "qwen2", weights)
    model = tmesh.load_model(tmp_path / "model.gguf", alone=True)
    least = tmesh.graphs.Pages.least(LAYERS, GROUPS * HEAD, 4, 4)
    with tmesh.PagePool(page_bytes=least, page_tokens=4, slab_pages=64, max_pages=64) as pool:
        handle = tmesh.Pages.open(pool.tenant())
        one = handle.sequence()
        one.append(1)  # the slab is mapped from now on
        one.truncate(0)
        prompt, alone, three = Model(tmp_path, model, handle, 1, 9), Model(tmp_path, model, handle, 1), Model(tmp_path, model, handle, 3)
        text = numpy.arange(9) * 31 % VOCABULARY
        reference = [Reference(weights) for _ in range(3)]
        got = prompt.run([one], [text])
        for i, token in enumerate(text):
            wanted = [r.step(int(token), i) for r in reference[:2]][0]
            numpy.testing.assert_allclose(got[i], wanted, atol=1e-3)
        held = handle.info()["held"]
        two, other = one.fork(), handle.sequence()
        apart = [one.fork(), one.fork(), handle.sequence()]
        assert handle.info()["held"] == held == 3
        for step in range(12):
            tokens = [[step * 7 % VOCABULARY], [step * 11 % VOCABULARY], [step * 13 % VOCABULARY]]
            got = three.run([one, two, other], tokens)
            for i, sequence in enumerate(apart):
                numpy.testing.assert_allclose(got[i], alone.run([sequence], tokens[i:i + 1])[0], atol=1e-4)
                position = step + (9 if i < 2 else 0)
                numpy.testing.assert_allclose(got[i], reference[i].step(tokens[i][0], position), atol=1e-3)
        assert (one.block_table()[:2] == two.block_table()[:2]).all() and one.block_table()[2] != two.block_table()[2]
        prompt = alone = three = None
        handle.close()
    model.release()


@pytest.mark.parametrize("layers, groups, head", [(30, 3, 64), (32, 5, 64), (32, 32, 128), (48, 8, 128), (36, 8, 128), (28, 2, 128)],
                         ids=["SmolLM2-135M", "SmolLM2-360M", "Llama-2-7B", "Qwen2.5-14B", "Qwen3-8B", "Qwen2.5-1.5B"])
def test_pages_of_models(layers, groups, head):
    """Pools for ordinary models: their keys and values are no power of two, or larger than 2 MiB."""
    size = tmesh.graphs.Pages.least(layers, groups * head, 2, 16)
    used = 2 * layers * groups * head * 2 * 16
    assert used <= size < used + 32768 and size % mmap.PAGESIZE == 0
    with tmesh.PagePool(page_bytes=size, page_tokens=16, slab_pages=2, max_pages=2) as pool:
        handle = tmesh.Pages.open(pool.tenant())
        shape = tmesh.graphs.Pages(handle.info(), 1, 2)
        shape.fit(layers, groups * head, 2)
        assert shape.parts * 16 * groups * head * 2 == size
        sequence = handle.sequence()
        sequence.append(17)
        sequence.page(1, writable=True)[-1] = 7
        assert handle.slab().view("uint8").numpy()[int(sequence.block_table()[1]) * size + size - 1] == 7
        sequence.release()
        handle.close()


def test_pages_refused(tmp_path):
    _, weights = llama("float32", "float32")
    as_gguf(tmp_path / "model.gguf", "qwen2", weights)
    info = {"page_bytes": 4096, "page_tokens": 16, "max_pages": 8}
    with tmesh.load_model(tmp_path / "model.gguf", alone=True) as model:
        with pytest.raises(tmesh.InvalidError, match="6 parts of 4096 bytes"):
            tmesh.graphs.of_pages(model, tmesh.graphs.Pages(info, 1, 1), cache="float32")
        for bad in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
            with pytest.raises(tmesh.InvalidError, match="at least 1"):
                tmesh.graphs.of_pages(model, tmesh.graphs.Pages(info, *bad[:2]), tokens=bad[2])
