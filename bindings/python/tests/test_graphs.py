# SPDX-License-Identifier: MIT
"""Graphs on the engine "ggml", beside NumPy."""

import ctypes
import importlib.util
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.graphs  # noqa: E402
from conftest import assert_refused, cancelled_while_it_runs, serve  # noqa: E402

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("libggml"),
                                reason="ggml cannot be had: the package libggml-python is not installed")

VOCABULARY, WIDTH, HEADS, GROUPS, HIDDEN, LAYERS, ROOM = 256, 128, 4, 2, 352, 3, 128
HEAD = WIDTH // HEADS
EPS = 1e-5


class Opener:
    """Makes graphs of texts, in a context that is closed before leaks are checked."""

    def __init__(self, folder):
        self.context = tmesh.engine.Context("ggml")
        self.path = folder / "graph"

    def __call__(self, text, weights=None, **options):
        self.path.write_text("graph test\n" + text)
        sealed = {name: tmesh.put(array, seal=True) if isinstance(array, numpy.ndarray) else array
                  for name, array in (weights or {}).items()}
        return self.context.graph(self.path, weights=sealed, **options)


@pytest.fixture
def opened(tmp_path):
    opener = Opener(tmp_path)
    yield opener
    opener.context = None


def run(graph, inputs, outputs=None):
    """Run a graph with each input in a region: NumPy's own memory may have a smaller alignment than ggml requires."""
    return graph.dispatch({name: tmesh.put(array) for name, array in inputs.items()}, outputs)


def random(*shape, dtype="float32", seed=0):
    return numpy.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


# A llama of random weights, one token at a time.

def llama(dtype, cache):
    """Return its text and its weights."""
    weights = {"token_embd": random(VOCABULARY, WIDTH, dtype=dtype), "output_norm": numpy.ones(WIDTH, "float32"),
               "output": (random(VOCABULARY, WIDTH, seed=1) * WIDTH ** -.5).astype(dtype)}
    text = ["token = input : int32[1]", "position = input : int32[1]", "row = input : int64[1]",
            "x0 = get_rows(token_embd, token)"]
    for layer in range(LAYERS):
        b = f"{layer}."
        for name, *shape in (("q", WIDTH, WIDTH), ("k", GROUPS * HEAD, WIDTH), ("v", GROUPS * HEAD, WIDTH),
                             ("o", WIDTH, WIDTH), ("gate", HIDDEN, WIDTH), ("up", HIDDEN, WIDTH), ("down", WIDTH, HIDDEN)):
            weights[b + name] = (random(*shape, seed=len(weights)) * 2 * shape[1] ** -.5).astype(dtype)
        weights |= {b + name: 1 + random(WIDTH, seed=len(weights)) / 10 for name in ("norm", "ffn_norm")}
        text += [
            *(f"{b}past_{kind} = input cache=reuse : {cache}[{ROOM},{GROUPS * HEAD}]" for kind in "kv"),
            f"{b}h = rms_norm(x{layer}, {b}norm) eps={EPS}",
            f"{b}hq = matmul({b}h, {b}q)", f"{b}hk = matmul({b}h, {b}k)", f"{b}hv = matmul({b}h, {b}v)",
            f"{b}rq = reshape({b}hq) : float32[1,{HEADS},{HEAD}]", f"{b}tq = rope({b}rq, position) halves=true",
            f"{b}rk = reshape({b}hk) : float32[1,{GROUPS},{HEAD}]", f"{b}tk = rope({b}rk, position) halves=true",
            f"{b}nk = reshape({b}tk) : float32[1,{GROUPS * HEAD}]",
            f"{b}present_k = set_rows({b}past_k, {b}nk, row)", f"{b}present_v = set_rows({b}past_v, {b}hv, row)",
            *(f"{b}a{kind} = reshape({b}present_{kind}) : {cache}[{ROOM},{GROUPS},{HEAD}]" for kind in "kv"),
            f"{b}a = attention({b}tq, {b}ak, {b}av, position)", f"{b}ra = reshape({b}a) : float32[1,{WIDTH}]",
            f"{b}ao = matmul({b}ra, {b}o)", f"{b}x = add(x{layer}, {b}ao)",
            f"{b}f = rms_norm({b}x, {b}ffn_norm) eps={EPS}",
            f"{b}fg = matmul({b}f, {b}gate)", f"{b}fs = silu({b}fg)", f"{b}fu = matmul({b}f, {b}up)",
            f"{b}fm = mul({b}fs, {b}fu)", f"{b}fd = matmul({b}fm, {b}down)", f"x{layer + 1} = add({b}x, {b}fd)",
            *(f"output {b}present_{kind} = {b}present_{kind}" for kind in "kv")]
    text += [f"n = rms_norm(x{LAYERS}, output_norm) eps={EPS}", "logits = matmul(n, output)", "output logits = logits"]
    text += [f"{name} = weight : {array.dtype}{list(array.shape)}".replace(", ", ",") for name, array in weights.items()]
    return "\n".join(text) + "\n", weights


def test_a_graph_that_cannot_be_saved(tmp_path, monkeypatch):
    """A generator's file is there whole or not at all."""
    def full(graph, path):
        path.write_text("graph")
        raise OSError(28, "No space left on device")

    g = tmesh.graphs.Graph("g")
    g.output("y", g.add("silu", g.input("x", "float32", (1, 4))))
    with monkeypatch.context() as patch:
        patch.setattr(tmesh.graphs.Graph, "save", full)
        assert_refused(lambda: g._save_once(tmp_path), OSError, "No space left")
    assert not os.listdir(tmp_path)
    path = g._save_once(tmp_path)
    assert path.read_text() == g.text() and g._save_once(tmp_path) == path and os.listdir(tmp_path) == [path.name]


class Reference:
    """The same model in NumPy, in float32, with the same weights."""

    def __init__(self, weights):
        self.w = {name: array.astype("float32") for name, array in weights.items()}
        self.past = [([], []) for _ in range(LAYERS)]

    def step(self, token, position):
        def norm(x, scale):
            return x / numpy.sqrt((x * x).mean() + EPS) * scale

        def turn(x):
            angle = position * 10000.0 ** (-numpy.arange(0, HEAD, 2) / HEAD)
            cos, sin = numpy.cos(angle), numpy.sin(angle)
            one, two = x[:, :HEAD // 2], x[:, HEAD // 2:]
            return numpy.concatenate([one * cos - two * sin, one * sin + two * cos], -1)

        w = self.w
        x = w["token_embd"][token]
        for layer, (keys, values) in enumerate(self.past):
            b = f"{layer}."
            h = norm(x, w[b + "norm"])
            q = turn((w[b + "q"] @ h).reshape(HEADS, HEAD))
            keys.append(turn((w[b + "k"] @ h).reshape(GROUPS, HEAD)))
            values.append((w[b + "v"] @ h).reshape(GROUPS, HEAD))
            k, v = (numpy.repeat(numpy.stack(each, 1), HEADS // GROUPS, 0) for each in (keys, values))
            score = numpy.einsum("hd,hjd->hj", q, k) * HEAD ** -.5
            score = numpy.exp(score - score.max(-1, keepdims=True))
            score /= score.sum(-1, keepdims=True)
            x = x + w[b + "o"] @ numpy.einsum("hj,hjd->hd", score, v).reshape(-1)
            f = norm(x, w[b + "ffn_norm"])
            gate = w[b + "gate"] @ f
            x = x + w[b + "down"] @ (gate / (1 + numpy.exp(-gate)) * (w[b + "up"] @ f))
        return w["output"] @ norm(x, w["output_norm"])


def test_devices():
    """devices() lists this machine's processors. ggml lists its operators, which are tried on it."""
    device = tmesh.engine.devices()[0]
    assert device.kind == "cpu" and device.id.startswith("cpu:") and device.processors > 0 and device.reason is None
    assert 0 <= device.memory_free <= device.memory and "ggml" in device.engines
    engines = {engine.name: engine for engine in tmesh.engine.engines()}
    ggml = engines["ggml"]
    assert ggml.version == tmesh.engine.Context("ggml").version and ggml.reason is None and "libggml" in ggml.library
    assert ggml.reads == "graph" and "float16" in ggml.dtypes
    assert len(ggml.operators) == 16 and set(ggml.operators["matmul"]) >= {"float32", "float16"}
    assert ggml.operators["add"] == ("float32",)
    assert device.never_seen == () and ggml.never_seen == engines["onnx"].never_seen == ("cuda",)  # until a GPU has run one


@pytest.mark.parametrize("dtype, cache, most", [("float32", "float32", 1e-3), ("float16", "float32", .1),
                                                ("float16", "float16", .2)])
def test_decode(opened, dtype, cache, most, record_property):
    """127 steps have logits near NumPy's and the same likeliest token. Nothing is copied, and everything stays in its
    bound memory."""
    text, weights = llama(dtype, cache)
    graph = opened(text, weights)
    now = {"token": tmesh.zeros(1, "int32"), "position": tmesh.zeros(1, "int32"), "row": tmesh.zeros(1, "int64")}
    past = {f"{layer}.past_{kind}": tmesh.zeros((ROOM, GROUPS * HEAD), cache) for layer in range(LAYERS) for kind in "kv"}
    logits = tmesh.zeros((1, VOCABULARY), "float32")
    present = {name.replace("past", "present"): tensor for name, tensor in past.items()}
    copied = tmesh.stats()["bytes_copied"]
    step = graph.bind({**now, **past}, {"logits": logits, **present},
                      in_place={name.replace("past", "present"): name for name in past})
    arrays = {name: tensor.numpy() for name, tensor in now.items()}
    reference, token, worst = Reference(weights), 3, 0
    for position in range(ROOM - 1):
        arrays["token"][0], arrays["position"][0], arrays["row"][0] = token, position, position
        step.dispatch()
        expected, got = reference.step(token, position), logits.numpy()[0]
        worst = max(worst, float(abs(expected - got).max()))
        best = int(expected.argmax())
        # If two tokens are equally likely except for the rounding of the weights' type, either may come first.
        assert got.argmax() == best or expected[best] - expected[got.argmax()] < 2 * worst < 2 * most
        assert dtype != "float32" or got.argmax() == best
        token = best if position % 3 else position
    record_property("127 steps, largest difference of a logit", f"{worst:.6f}")
    assert worst < most
    assert tmesh.stats()["bytes_copied"] == copied


# The same model as GGUF, and the graph that is built for it.

NAMES = {"norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
         "down": "ffn_down", "ffn_norm": "ffn_norm"}


def gguf(path, architecture, tensors, **values):
    """Write a file by ggml's docs/gguf.md: header, metadata, the tensors' descriptions, and their bytes at multiples of
    32."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    keys = {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in values.items()}}
    keys = keys if architecture else values
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        kind = {str: 8, int: 4, float: 6}[type(value)]
        head += text(key) + struct.pack("<I", kind)
        head += text(value) if kind == 8 else struct.pack("<I" if kind == 4 else "<f", value)
    data = b""
    for name, array in tensors.items():
        kind = {"float32": 0, "float16": 1, "uint8": 8}[str(array.dtype)]
        shape = [*array.shape[:-1], array.shape[-1] // 34 * 32] if kind == 8 else array.shape
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)


def as_gguf(path, architecture, weights, pack=lambda name, array: array, **values):
    tensors = {}
    for name, array in weights.items():
        layer, _, part = name.rpartition(".")
        tensors[(f"blk.{layer}.{NAMES[part]}" if layer else name) + ".weight"] = pack(name, array)
    gguf(path, architecture, tensors, block_count=LAYERS, embedding_length=WIDTH, **{
        "attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.layer_norm_rms_epsilon": EPS} | values)


def neighbours(weights):
    """Reorder q and k as in the architecture llama, which interleaves the halves of a head."""
    out = dict(weights)
    for name, array in weights.items():
        if name.endswith((".q", ".k")):
            parts = array.reshape(-1, 2, HEAD // 2, array.shape[-1])
            out[name] = numpy.ascontiguousarray(parts.swapaxes(1, 2)).reshape(array.shape)
    return out


@pytest.mark.parametrize("architecture, quantised", [("qwen2", False), ("llama", False), ("qwen2", True)])
def test_of_model(opened, tmp_path, architecture, quantised):
    """A GGUF file's graph runs a prompt of five tokens in one run and ten more one by one."""
    _, weights = llama("float32", "float32")
    expected, file = dict(weights), tmp_path / "model.gguf"

    def pack(name, array):
        if not quantised or array.ndim < 2:
            return array
        packed, expected[name] = blocks(array)
        return packed

    as_gguf(file, architecture, neighbours(weights) if architecture == "llama" else weights, pack)
    reference = Reference(expected)
    model = tmesh.load_model(file, alone=True)
    past = {f"past_{kind}.{layer}": tmesh.zeros((64, GROUPS * HEAD), "float32") for layer in range(LAYERS) for kind in "kv"}
    position = 0
    for tokens in (5, *[1] * 10):
        g = tmesh.graphs.of_model(model, rows=64, tokens=tokens, cache="float32")
        assert g.in_place == {name.replace("past", "present"): name for name in past}
        graph = opened(g.text().partition("\n")[2], {name: model[name] for name in g.weights})
        at = numpy.arange(position, position + tokens)
        given = {"token": (at * 37 % VOCABULARY).astype("int32"), "position": at.astype("int32"), "row": at.astype("int64")}
        present = {name.replace("past", "present"): tensor for name, tensor in past.items()}
        got = graph.dispatch({**{name: tmesh.put(array) for name, array in given.items()}, **past},
                             {"logits": "host", **present}, in_place=g.in_place)["logits"]
        for row, token in zip(got, given["token"]):
            wanted = reference.step(int(token), position)
            numpy.testing.assert_allclose(row, wanted, atol=.3 if quantised else 1e-3)
            position += 1
    model.release()


class Traits(ctypes.Structure):
    """The beginning of struct ggml_type_traits."""

    _fields_ = [("name", ctypes.c_char_p), ("elements", ctypes.c_int64), ("interleave", ctypes.c_int64), ("bytes", ctypes.c_size_t),
                ("quantized", ctypes.c_bool), ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


@pytest.fixture(scope="module")
def own():
    """Return ggml's own library, and its types of blocks by number, without those that gguf.h's reader refuses."""
    folder = Path(importlib.util.find_spec("libggml").origin).parent
    library = ctypes.CDLL(str(next(folder.glob("lib*/libggml-base.so*"))))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    numbers = re.findall(r"(?m)^ *GGML_TYPE_(\w+) *= (\d+),", (folder / "include/ggml.h").read_text())
    return library, {name: int(number) for name, number in numbers if name != "COUNT"}


def test_table_of_types(own, tmp_path):
    """Files and graphs have the types of the pinned ggml, with the same block sizes."""
    library, numbers = own
    for name, number in numbers.items():
        traits = library.ggml_get_type_traits(number)[0]
        text = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 2 * traits.elements, number, 0)
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text
        head += bytes(-len(head) % 32)
        (tmp_path / "t.gguf").write_bytes(head + bytes(2 * traits.bytes + -2 * traits.bytes % 32))
        entry = tmesh.describe_model(tmp_path / "t.gguf").entries["t"]
        assert (entry.type.lower(), entry.nbytes) == (name.lower(), 2 * traits.bytes)
        assert traits.name.decode().lower() == name.lower()
    blocks = {name for name, number in numbers.items() if library.ggml_get_type_traits(number)[0].quantized}
    assert {name.upper() for name in tmesh._tmesh.engine_quants()} == blocks - {"Q8_1", "Q8_K"}


@pytest.mark.parametrize("name", tmesh._tmesh.engine_quants())
def test_types(opened, own, name):
    """Each type of blocks, looked up as rows and used as a matrix, gives the same as ggml's own conversion."""
    library, numbers = own
    number, rows, width = numbers[name.upper()], 8, 512
    traits = library.ggml_get_type_traits(number)[0]
    given, plain = random(rows, width), numpy.empty((rows, width), "float32")
    # Any bytes are valid blocks. Converting floats to these types would take long. Without the highest bits their
    # scales stay below 2.
    packed = numpy.random.default_rng(number).integers(0, 64, (rows, width // traits.elements * traits.bytes), "uint8")
    if not name.startswith(("IQ1", "IQ2")):
        assert library.ggml_quantize_chunk(number, given.ctypes.data, packed.ctypes.data, 0, rows, width, None) == packed.nbytes
    traits.to_float(packed.ctypes.data, plain.ctypes.data, rows * width)
    graph = opened(f"w = weight quant={name} : float32[{rows},{width}]\nx = input : float32[3,{width}]\nt = input : int32[2]\n"
                   "y = matmul(x, w)\nr = get_rows(w, t)\noutput y = y\noutput r = r\n", {"w": packed})
    x = random(3, width, seed=1)
    got = run(graph, {"x": x, "t": numpy.array([5, 2], "int32")})
    numpy.testing.assert_allclose(got["r"], plain[[5, 2]], rtol=1e-6, atol=1e-6)
    # ggml rounds rows of x to 8 bits for the multiplication.
    assert abs(got["y"] - x @ plain.T).max() < .02 * abs(x).max() * abs(plain).max() * width ** .5


def test_check(tmp_path):
    """The header alone decides. The error names the file, the tensor and its type, and a refused model was not
    loaded."""
    _, weights = llama("float32", "float32")
    as_gguf(tmp_path / "m.gguf", "llama", weights)
    header = tmesh.describe_model(tmp_path / "m.gguf")
    assert header.path == str(tmp_path / "m.gguf") and header.format == "gguf" and header.metadata["general.architecture"] == "llama"
    assert header.nbytes == sum(array.nbytes for array in weights.values()) and len(header.entries) == len(weights)
    context = tmesh.engine.Context("ggml")
    tmesh.graphs.check(header, rows=64, context=context, folder=tmp_path)
    packed = {name: numpy.zeros((array.shape[0], array.shape[1] // 32 * 34), "uint8") if array.ndim == 2 else array
              for name, array in weights.items()}
    as_gguf(tmp_path / "q.gguf", "llama", packed)
    tmesh.graphs.check(tmesh.describe_model(tmp_path / "q.gguf"), context=context, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "q.gguf"]
    # Q8_0's number becomes Q8_K's, which has other blocks.
    header = tmesh.describe_model(tmp_path / "q.gguf")
    header.entries["blk.1.attn_k.weight"] = header.entries["blk.1.attn_k.weight"]._replace(type="Q8_K")
    with pytest.raises(tmesh.UnsupportedError, match=r"q\.gguf: the tensor 'blk.1.attn_k.weight' has the type Q8_K"):
        tmesh.graphs.check(header)
    as_gguf(tmp_path / "n.gguf", "llama", weights | {"output_norm": weights["output_norm"].astype("float16")})
    with pytest.raises(tmesh.UnsupportedError, match=r"n\.gguf: .*\"output_norm.weight\" float16\[128\]"):
        tmesh.graphs.check(tmesh.describe_model(tmp_path / "n.gguf"))


@pytest.mark.parametrize("module, words", [("tmesh.generate", ("--prompt", "x")), ("tmesh.batching", ("--socket", "/nowhere/s"))])
def test_refused_before_the_load(tmp_path, module, words):
    """A model of 8 GB, sparse except for its header: a type or an architecture that cannot run is refused at once."""
    shape, kind = (1 << 17, 16384), 15
    for architecture, why in ("gpt2", "'gpt2' is none of llama"), ("llama", "has the type Q8_K"):
        keys = {"general.architecture": architecture, "tokenizer.ggml.model": "llama"}
        values = {"block_count": 1, "embedding_length": 16384, "attention.head_count": 4}
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys) + len(values) + 4)

        def text(value):
            return struct.pack("<Q", len(value)) + value.encode()

        for key, value in keys.items():
            head += text(key) + struct.pack("<I", 8) + text(value)
        for key, value in values.items():
            head += text(f"{architecture}.{key}") + struct.pack("<II", 4, value)
        head += text(f"{architecture}.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)
        head += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("<unk>") + text("a")
        head += text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0, 0)
        head += text("tokenizer.ggml.token_type") + struct.pack("<IIQii", 9, 5, 2, 2, 1)
        head += text("token_embd.weight") + struct.pack("<IQQIQ", 2, shape[1], shape[0], kind, 0)
        head += bytes(-len(head) % 32)
        file = tmp_path / "m.gguf"
        file.write_bytes(head)
        os.truncate(file, len(head) + shape[0] * shape[1] // 256 * 292)
        ended = subprocess.run([sys.executable, "-P", "-m", module, str(file), *words], capture_output=True, text=True, timeout=600,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        assert ended.returncode == 1 and str(file) in ended.stderr and why in ended.stderr, ended.stderr


@pytest.mark.parametrize("architecture, values, words", [
    ("gpt2", {}, "'gpt2' is none of llama"),
    ("llama", {"expert_count": 8}, "experts"),
    ("llama", {"rope.scaling.type": "yarn"}, "scaled"),
    ("llama", {"attention.sliding_window": 16}, "window of 16"),
    ("llama", {"attention.value_length": 16}, "another width"),
    ("llama", {"attention.head_count": 0}, "head_count is 0"),
    ("llama", {"attention.head_count": "many"}, "head_count is 'many'"),
    ("llama", {"attention.head_count": 2.5}, "head_count is 2.5"),
    ("llama", {"attention.layer_norm_rms_epsilon": float("inf")}, "layer_norm_rms_epsilon"),
])
def test_of_model_refused(tmp_path, architecture, values, words):
    as_gguf(tmp_path / "m.gguf", architecture, {"output_norm": random(WIDTH)}, **values)
    with tmesh.load_model(tmp_path / "m.gguf", alone=True) as model:
        assert_refused(lambda: tmesh.graphs.of_model(model, rows=64), tmesh.UnsupportedError, words)


def test_build(opened):
    g = tmesh.graphs.Graph("g")
    x, w = g.input("x", "float32", (2, 8), cache="stream"), g.weight("w", "float32", (4, 8))
    y = g.add("matmul", x, w)
    g.output("y", g.add("transpose", y, axes=(1, 0), name="t"))
    assert (y, g.inputs, g.weights, g.outputs) == ("matmul.1", ["x"], ["w"], {"y": "t"})
    a, b = random(2, 8), random(4, 8)
    got = run(opened(g.text().partition("\n")[2], {"w": b}), {"x": a})["y"]
    numpy.testing.assert_allclose(got, (a @ b.T).T, atol=1e-4)
    assert_refused(lambda: g.add("reshape", x, shape=(4, 4)), tmesh.InvalidError, "together")
    assert_refused(lambda: g.add("silu", x, name="a\nb"), tmesh.InvalidError, "line ends")
    for bad in ({"rows": 0}, {"rows": 1, "tokens": 0}, {"rows": 1, "cache": "int8"}):
        assert_refused(lambda: tmesh.graphs.of_model(None, **bad), tmesh.InvalidError, "at least 1")


def blocks(array):
    """Return rows of Q8_0, and the values that they represent."""
    parts = array.reshape(*array.shape[:-1], -1, 32)
    scale = (abs(parts).max(-1, keepdims=True) / 127).astype("float16")
    whole = numpy.round(parts / scale.astype("float32")).astype("int8")
    packed = numpy.concatenate([scale.view("uint8"), whole.view("uint8")], -1)
    return packed.reshape(*array.shape[:-1], -1), (whole * scale.astype("float32")).reshape(array.shape)


def layer_norm(x, scale=1, bias=0):
    return (x - x.mean(-1, keepdims=True)) / numpy.sqrt(x.var(-1, keepdims=True) + .5) * scale + bias


def gelu(x):
    return x / 2 * (1 + numpy.tanh((2 / numpy.pi) ** .5 * (x + .044715 * x ** 3)))


def softmax(x):
    x = numpy.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def rope(x, positions, halves, factors=1):
    angle = positions[:, None, None] * 10000.0 ** (-numpy.arange(0, 8, 2) / 8) / factors
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    out = x.copy()
    one, two = (slice(0, 4), slice(4, 8)) if halves else (slice(0, 8, 2), slice(1, 8, 2))
    out[..., one] = x[..., one] * cos - x[..., two] * sin
    out[..., two] = x[..., one] * sin + x[..., two] * cos
    return out


X, S, P = random(3, 4, 8), random(8), numpy.array([5, 0, 2], "int32")
F = abs(random(4)) + 1
MORE = "x = input : float32[3,4,8]\ns = weight : float32[8]\np = input : int32[3]\nf = weight : float32[4]\n"


@pytest.mark.parametrize("node, expected", [
    ("rms_norm(x) eps=0.5", X / numpy.sqrt((X * X).mean(-1, keepdims=True) + .5)),
    ("rms_norm(x, s) eps=0.5", X / numpy.sqrt((X * X).mean(-1, keepdims=True) + .5) * S),
    ("layer_norm(x) eps=0.5", layer_norm(X)),
    ("layer_norm(x, s, s) eps=0.5", layer_norm(X, S, S)),
    ("softmax(x)", softmax(X)),
    ("softmax(x) scale=0.25", softmax(X / 4)),
    ("add(x, s)", X + S), ("mul(x, s)", X * S), ("add(x, x)", X + X),
    ("silu(x)", X / (1 + numpy.exp(-X))), ("gelu(x)", gelu(X)),
    ("rope(x, p)", rope(X, P, False)), ("rope(x, p) halves=true", rope(X, P, True)),
    ("rope(x, p, f) halves=true", rope(X, P, True, F)),
    ("reshape(x) : float32[6,16]", X.reshape(6, 16)),
    ("transpose(x) axes=1,0,2", X.transpose(1, 0, 2)), ("transpose(x) axes=2,0,1", X.transpose(2, 0, 1)),
    ("transpose(x) axes=1,2,0", X.transpose(1, 2, 0)), ("transpose(x) axes=2,1,0", X.transpose(2, 1, 0)),
    ("concat(x, x, x) axis=0", numpy.concatenate([X] * 3, 0)), ("concat(x, x) axis=1", numpy.concatenate([X] * 2, 1)),
    ("concat(x, x) axis=2", numpy.concatenate([X] * 2, 2)),
    ("matmul(x, x)", X @ X.transpose(0, 2, 1)),
])
def test_operators(opened, node, expected):
    graph = opened(f"{MORE}y = {node}\nk = silu(s)\nm = mul(x, s)\nz = silu(f)\noutput y = y\n", {"s": S, "f": F})
    got = run(graph, {"x": X, "p": P})["y"]
    assert got.shape == expected.shape
    numpy.testing.assert_allclose(got, expected, atol=2e-3)


def test_rows(opened):
    """Look up rows of each type of weights, and multiply with them."""
    table, rows = random(10, 64), numpy.array([9, 0, 3], "int32")
    packed, stands_for = blocks(table)
    for kind, array, real in (("float32", table, table), ("float16", table.astype("float16"), table.astype("float16")),
                              ("quant=Q8_0", packed, stands_for)):
        spec = f"{kind} : float32[10,64]" if "=" in kind else f": {kind}[10,64]"
        graph = opened(f"t = weight {spec}\nr = input : int32[3]\nx = input : float32[3,64]\ne = get_rows(t, r)\n"
                       "m = matmul(x, t)\noutput e = e\noutput m = m\n", {"t": array})
        x = random(3, 64, seed=5)
        got = run(graph, {"r": rows, "x": x})
        numpy.testing.assert_allclose(got["e"], real[rows].astype("float32"), atol=1e-6)
        numpy.testing.assert_allclose(got["m"], x @ real.T.astype("float32"), atol=.2 if "=" in kind else 2e-2)
    with pytest.raises(tmesh.InvalidError, match="another dtype or shape"):
        opened("t = weight quant=Q8_0 : float32[10,64]\ny = silu(t2)\nt2 = input : float32[1]\noutput y = y\n",
               {"t": packed[:9]})


def test_outputs(opened):
    """Outputs may be one value twice, a view, allocated by the engine, or only some of the graph's."""
    graph = opened("x = input : float32[2,16]\na = silu(x)\nb = reshape(a) : float32[32]\nc = add(a, a)\n"
                   "output a = a\noutput again = a\noutput b = b\noutput c = c\n")
    x = random(2, 16)
    a = x / (1 + numpy.exp(-x))
    place = tmesh.zeros((2, 16), "float32")
    got = run(graph, {"x": x}, {"a": place, "again": "host", "b": "engine", "c": "host"})
    assert got["a"] is place and got["b"].of_engine
    for value in (place.numpy(), got["again"], got["b"].read().reshape(2, 16), got["c"] / 2):
        numpy.testing.assert_allclose(value, a, atol=1e-4)
    assert list(run(graph, {"x": x}, ["c"])) == ["c"]


CACHE = ("past = input : float32[4,8]\nx = input : float32[1,8]\nrow = input : int64[1]\nnew = set_rows(past, x, row)\n"
         "output new = new\n")


def test_in_place(opened):
    graph = opened(CACHE + "y = silu(x)\noutput y = y\n")
    past, x, row = tmesh.zeros((4, 8), "float32"), tmesh.put(random(1, 8)), tmesh.zeros(1, "int64")
    given = {"past": past, "x": x, "row": row}
    with pytest.raises(tmesh.InvalidError, match="in_place"):
        graph.dispatch(given, {"new": tmesh.zeros((4, 8), "float32")})
    assert_refused(lambda: graph.dispatch(given, ["new"]), tmesh.InvalidError, "in_place")
    assert_refused(lambda: graph.dispatch(given, ["y"]), tmesh.InvalidError, "has to be an output")
    assert_refused(lambda: graph.dispatch(given, {"new": past}), tmesh.InvalidError, "overlap|lies")
    row.numpy()[0] = 2
    graph.dispatch(given, {"new": past}, in_place={"new": "past"})
    assert (past.numpy()[2] == x.numpy()[0]).all() and not past.numpy()[[0, 1, 3]].any()
    for bad in (-1, 4, 2**62):
        row.numpy()[0] = bad
        with pytest.raises(tmesh.InvalidError, match=r'"row" has .*, and node "new" takes 0 to 3'):
            graph.dispatch(given, {"new": past}, in_place={"new": "past"})
    sealed = tmesh.put(numpy.zeros((4, 8), "float32"), seal=True)
    with pytest.raises((tmesh.AccessError, tmesh.SealedError)):
        graph.dispatch({**given, "past": sealed}, {"new": sealed}, in_place={"new": "past"})


@pytest.mark.parametrize("text, error, words", [
    (CACHE + "y = silu(past)\noutput y = y\n", "UnsupportedError", 'node "y" reads "past", whose rows "new" replaces'),
    (CACHE + "two = set_rows(past, x, row)\noutput two = two\n", "UnsupportedError", "replaces"),
    ("x = input : float32[1,1,1,1,2]\ny = silu(x)\noutput y = y\n", "UnsupportedError", 'node "x".*more than 4 dimensions'),
    ("x = input : float32[2147483648]\ny = silu(x)\noutput y = y\n", "UnsupportedError", "a dimension is more than"),
    ("x = input : float32[4,8]\nw = weight : int32[2]\ny = get_rows(x, w)\noutput y = y\n", "UnsupportedError",
     'node "y".*have to be an input'),
    ("x = input : float32[4,8]\n", "ProtocolError", "no outputs"),
    ("x = input : float32[4,8]\nw = weight : float32[8]\ny = add(x, w)\noutput y = y\n", "InvalidError", "is missing"),
    ("x = input : float32[4,8]\ny = add(y, x)\noutput y = y\n", "ProtocolError", "cycle"),
])
def test_refused(opened, text, error, words):
    weights = {"w": numpy.zeros(2, "int32")} if "int32[2]" in text else {}
    assert_refused(lambda: opened(text, weights), getattr(tmesh, error), words)


def test_weights_refused(opened):
    text = "x = input : float32[4,8]\nw = weight : float32[8]\ny = add(x, w)\noutput y = y\n"
    with pytest.raises(tmesh.NotFoundError, match='"v": the graph has no weight'):
        opened(text, {"w": random(8), "v": random(8)})
    with pytest.raises(tmesh.NotFoundError, match='"x": the graph has no weight'):
        opened(text, {"w": random(8), "x": random(4, 8)})
    for array in (random(9), random(8, dtype="float16"), random(2, 4)):
        with pytest.raises(tmesh.InvalidError, match='"w": the graph\'s weight has another dtype or shape'):
            opened(text, {"w": array})
    whole = tmesh.put(random(16), seal=True)
    assert_refused(lambda: opened(text, {"w": whole[1:9]}), tmesh.InvalidError, "multiple of 32 bytes")
    assert_refused(lambda: opened(text, {"w": whole[:8]}, prepack=True), tmesh.UnsupportedError, "TMESH_ENGINE_PREPACK")


def test_gpu():
    with pytest.raises(tmesh.UnsupportedError, match="has no backend for a GPU: install one that was built with GGML_CUDA"):
        tmesh.engine.Context("ggml", device="cuda")


def test_library():
    assert_refused(lambda: tmesh.engine.Context("ggml", library="libc.so.6"), tmesh.UnsupportedError, "is not ggml")


def test_served(tmp_path):
    """The engine works in a process of its own, which also finds ggml's library by the package."""
    (tmp_path / "g").write_text("graph g\nx = input : float32[2,8]\nw = weight : float32[4,8]\ny = matmul(x, w)\noutput y = y\n")
    a, b = random(2, 8), random(4, 8)
    with serve("ggml", models=tmp_path) as server:
        context = server.connect()
        assert context.backend == "ggml" and context.version == tmesh.engine.Context("ggml").version
        got = run(context.graph(tmp_path / "g", weights={"w": tmesh.put(b, seal=True)}), {"x": a})["y"]
        numpy.testing.assert_allclose(got, a @ b.T, atol=1e-4)
        context = None


def test_cancelled(opened):
    """ggml checks for a cancel between two nodes."""
    lines = ["x = input : float32[512,1024]", "w = weight : float32[1024,1024]", "n0 = matmul(x, w)"]
    lines += [f"n{i + 1} = matmul(n{i}, w)" for i in range(400)]
    graph = opened("\n".join([*lines, "output y = n400"]), {"w": numpy.eye(1024, dtype="float32")})
    x, y = tmesh.put(random(512, 1024)), tmesh.zeros((512, 1024), "float32")
    step = graph.bind({"x": x}, {"y": y})
    cancelled_while_it_runs(step)
    small = opened("x = input : float32[4]\ny = silu(x)\noutput y = y")
    assert numpy.isfinite(run(small, {"x": random(4)})["y"]).all()
