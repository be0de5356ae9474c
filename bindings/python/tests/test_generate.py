# SPDX-License-Identifier: MIT
"""tmesh.tokens and tmesh.generate, with the model that this repository trains, in each of its forms."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import tmesh  # noqa: E402
import tmesh.adapters  # noqa: E402
import tmesh.engine  # noqa: E402
import tmesh.generate  # noqa: E402
import tmesh.graphs  # noqa: E402
import tmesh.tokens  # noqa: E402
from conftest import assert_refused, serve  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SMALL = ROOT / "examples/small_model"
MODEL = SMALL / "small.gguf"


def needs(*packages):
    missing = [name for name in packages if not importlib.util.find_spec(name)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (python-graph-check has them)")


@pytest.fixture
def model():
    with tmesh.load_model(MODEL) as loaded:
        yield loaded


def text():
    return (ROOT / "docs/reference/slots.md").read_text()


@needs("tokenizers")
def test_bytes_in_pairs(model):
    """Tokenize a whole document, and letters that the model has never seen."""
    tokenizer = tmesh.tokens.of_model(model)
    for some in text(), "naïve 猫 \N{GRINNING FACE}\t  \n\n", "":
        ids = tokenizer.encode(some).ids
        assert ids[0] == model.metadata["tokenizer.ggml.bos_token_id"] and max(ids) < 512
        assert tokenizer.decode(ids) == some
    assert len(tokenizer.encode(text()).ids) < len(text()) / 1.5
    assert tokenizer.encode("<|end|>").ids == [0, 0]


@needs("tokenizers", "sentencepiece", "gguf")
def test_sentencepiece(tmp_path):
    """The numbers equal SentencePiece's for the lines of a document."""
    import gguf
    import sentencepiece

    (tmp_path / "text").write_text(text())
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=600, model_type="bpe", byte_fallback=True,
        character_coverage=.99, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    other = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    every = range(other.get_piece_size())
    out = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    out.add_tokenizer_model("llama")
    out.add_token_list([other.id_to_piece(i) for i in every])
    out.add_token_scores([other.get_score(i) for i in every])
    out.add_token_types([6 if other.is_byte(i) else 2 if other.is_unknown(i) else 3 if other.is_control(i) else 1
                         for i in every])
    out.add_unk_token_id(other.unk_id())
    out.add_bos_token_id(other.bos_id())
    out.add_tensor("output_norm.weight", numpy.ones(8, "float32"))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    with tmesh.load_model(tmp_path / "m.gguf", alone=True) as model:
        tokenizer = tmesh.tokens.of_model(model)
    for line in [*text().splitlines(), "猫 two  spaces"]:
        if line:
            ids = tokenizer.encode(line).ids
            assert ids == [other.bos_id(), *other.encode(line)], line
            assert tokenizer.decode(ids) == line


@needs("tokenizers")
@pytest.mark.parametrize("change, words", [
    ({"tokenizer.ggml.model": "t5"}, "'t5'"), ({"tokenizer.ggml.pre": "other"}, "'other'"),
    ({"tokenizer.ggml.tokens": []}, "none"), ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
    ({"tokenizer.ggml.model": "llama"}, "0 scores")])
def test_tokenizer_refused(model, change, words):
    class Other:
        path = model.path
        metadata = model.metadata | change

    assert_refused(lambda: tmesh.tokens.of_model(Other()), tmesh.Error, words)


def test_choose():
    logits, random = numpy.array([1., 3., 2., -5.], "float32"), numpy.random.default_rng(1)
    assert tmesh.generate.choose(logits) == 1
    seen = [{tmesh.generate.choose(logits, temperature=1, random=random, **options) for _ in range(400)}
            for options in ({}, {"top_k": 2}, {"top_k": 1}, {"top_p": .9}, {"top_p": .5})]
    assert {0, 1, 2} <= seen[0] and seen[1:] == [{1, 2}, {1}, {1, 2}, {1}]
    for wrong in {"temperature": -1}, {"temperature": float("nan")}, {"top_k": -2}, {"top_p": 0}, {"top_p": 7}:
        with pytest.raises(tmesh.InvalidError, match="temperature and top_k are"):
            tmesh.generate.choose(logits, **{"temperature": 1, **wrong})
    for none in logits[:0], logits * numpy.nan:
        assert_refused(lambda: tmesh.generate.choose(none), tmesh.InvalidError, "no logits")


@needs("libggml")
def test_stranger(model):
    """An invalid list of tokens changes nothing. A Sequence stays in its process, and on its engine."""
    sequence = tmesh.generate.Sequence(model, rows=16)
    for wrong in [1.5], "abc", 3, [None]:
        assert_refused(lambda: sequence.run(wrong), TypeError, "tokens' numbers")
    assert sequence.position == 0 and sequence.run(numpy.array([1, 2])).shape == (512,)
    assert_refused(lambda: pickle.dumps(sequence), TypeError, "send its tokens")

    class Other:
        backend = "onnx"

    with pytest.raises(tmesh.InvalidError, match='engine "ggml"'):
        tmesh.generate.Sequence(model, rows=16, context=Other())


def reference(tensors, config, tokens):
    """Return the logits after each token, by NumPy, from tensors with transformers' names."""
    w = {name: tensor.numpy().astype("float32") for name, tensor in tensors.items()}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    head, count = config["head_dim"], len(tokens)
    angle = numpy.arange(count)[:, None] * config["rope_theta"] ** (-numpy.arange(0, head, 2) / head)
    cos, sin = numpy.cos(angle)[:, None], numpy.sin(angle)[:, None]
    mask = numpy.triu(numpy.full((count, count), -numpy.inf), 1)

    def norm(x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[f"{name}.weight"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T

    def turn(x):
        one, two = x[..., :head // 2], x[..., head // 2:]
        return numpy.concatenate([one * cos - two * sin, one * sin + two * cos], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        b = f"model.layers.{layer}."
        h = norm(x, b + "input_layernorm")
        q = turn(linear(h, b + "self_attn.q_proj").reshape(count, heads, head))
        k = turn(linear(h, b + "self_attn.k_proj").reshape(count, groups, head)).repeat(heads // groups, 1)
        v = linear(h, b + "self_attn.v_proj").reshape(count, groups, head).repeat(heads // groups, 1)
        score = numpy.einsum("ihd,jhd->hij", q, k) * head ** -.5 + mask
        score = numpy.exp(score - score.max(-1, keepdims=True))
        score /= score.sum(-1, keepdims=True)
        x = x + linear(numpy.einsum("hij,jhd->ihd", score, v).reshape(count, -1), b + "self_attn.o_proj")
        h = norm(x, b + "post_attention_layernorm")
        gate = linear(h, b + "mlp.gate_proj")
        x = x + linear(gate / (1 + numpy.exp(-gate)) * linear(h, b + "mlp.up_proj"), b + "mlp.down_proj")
    return norm(x, "model.norm") @ w["model.embed_tokens.weight"].T


@needs("libggml", "onnx", "onnxruntime", "gguf", "safetensors", "tokenizers")
def test_forms(model, tmp_path, record_property):
    """GGUF by ggml, safetensors by NumPy, ONNX by ONNX Runtime on the safetensors file's memory: the logits are the
    same."""
    import json

    for folder in "one", "two":
        subprocess.run([sys.executable, "-B", SMALL / "forms.py", tmp_path / folder, MODEL], check=True, timeout=600)
    for name in "small.safetensors", "small.onnx", "config.json":
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two and len(one) < 1_000_000, name

    tokens = tmesh.tokens.of_model(model).encode(text()).ids[:128]
    sequence = tmesh.generate.Sequence(model, rows=128, cache="float32")
    by_ggml = numpy.stack([sequence.run([token]).copy() for token in tokens])
    with tmesh.load_model(tmp_path / "one/small.safetensors", alone=True) as other:
        by_numpy = reference(other, json.loads((tmp_path / "one/config.json").read_text()), tokens)
        graph = tmesh.engine.Context("onnx").graph(tmp_path / "one/small.onnx", weights=dict(other))
        by_onnx = graph.dispatch({"tokens": numpy.array(tokens)})["logits"]
    for name, logits, most in ("ONNX Runtime", by_onnx, 1e-3), ("ggml", by_ggml, .1):
        worst = float(abs(logits - by_numpy).max())
        record_property(f"{name} beside NumPy, 128 tokens, largest difference of a logit", f"{worst:.6f}")
        assert worst < most
        # If two tokens are equally likely except for rounding, either may come first.
        best, found = by_numpy.max(-1), by_numpy[range(len(tokens)), logits.argmax(-1)]
        assert (best - found <= 2 * worst).all() and ((best == found).mean() == 1 or name == "ggml")
    record_property("tokens whose likeliest follower ggml and NumPy agree on",
                    f"{int((by_ggml.argmax(-1) == by_numpy.argmax(-1)).sum())} of {len(tokens)}")
    # The model has learnt: a document's next token is one of its five likeliest more often than not.
    near = (numpy.argsort(-by_numpy[:-1])[:, :5] == numpy.array(tokens)[1:, None]).any(1).mean()
    record_property("followers in a document that are among the likeliest five", f"{near:.2f}")
    assert near > .5


@needs("libggml")
def test_sequence(model):
    """A prompt in parts equals token by token. The cache may fill up, and nothing is copied."""
    tokens = [0, *range(100, 170)]
    one, two = (tmesh.generate.Sequence(model, rows=72, cache="float32") for _ in range(2))
    for token in tokens:
        logits = one.run([token])
    numpy.testing.assert_allclose(two.run(tokens), logits, atol=.02)
    assert one.position == two.position == len(tokens)
    copied = tmesh.stats()["bytes_copied"]
    one.run([5])
    assert tmesh.stats()["bytes_copied"] == copied
    assert_refused(lambda: one.run([5]), tmesh.LimitError, "73 tokens, and the cache has 72")
    assert_refused(lambda: two.run([]), tmesh.InvalidError, "at least one")


@needs("libggml")
@pytest.mark.parametrize("cache", ["float16", "float32"])
def test_pages(model, tmp_path, cache):
    """With keys and values in pages the logits equal those with own rows. Forks in other processes share the pages of
    the common beginning, copy one that is not full, and continue separately."""
    tokens = [int(token) for token in numpy.random.default_rng(5).integers(0, 512, 40)]
    ends = [7, 9, 11, 300], [8, 400, 3, 2]

    def rows(end):
        alone = tmesh.generate.Sequence(model, rows=64, cache=cache)
        return [alone.run(some).copy() for some in [tokens, *([token] for token in end)]]

    with (tmesh.generate.page_pool(model, 16, cache=cache) as pool, tmesh.Pages.open(pool.tenant()) as pages,
          serve("ggml", models=tmp_path) as one, serve("ggml", models=tmp_path) as two):
        contexts = [server.connect(timeout=600) for server in (one, two)]
        first = tmesh.generate.Sequence(model, rows=64, context=contexts[0], folder=tmp_path, cache=cache, pages=pages)
        got = [[first.run(tokens).copy()]]
        table = first.block_table
        assert len(table) == 3 and pages.info()["held"] == 3
        second = first.fork(context=contexts[1])
        assert second.block_table == table and pages.info()["held"] == 3 and second.position == 40
        got.append(got[0][:])
        for step, (a, b) in enumerate(zip(*ends)):
            got[0].append(first.run([a]).copy())
            if step == 1:
                os.kill(contexts[1].pid, 9)
            got[1].append(second.run([b]).copy())
        assert first.block_table[:2] == second.block_table[:2] == table[:2] and first.block_table[2] != second.block_table[2]
        info = pages.info()
        assert info["held"] == 4 and info["copies"] == 1 and info["bytes_copied"] == info["page_bytes"]
        for mine, end in zip(got, ends):
            for logits, expected in zip(mine, rows(end)):
                numpy.testing.assert_allclose(logits, expected, atol=2e-2 if cache == "float16" else 1e-4)
                assert logits.argmax() == expected.argmax()
        assert_refused(lambda: first.run([1] * 32), tmesh.LimitError, "64 rows")
        second.release()
        assert pages.info()["held"] == 3 and second.block_table == []
        assert_refused(lambda: second.run([1]), tmesh.LimitError, "0 rows")
        other = [first.fork(context=contexts[0]) for _ in range(9)]  # the engine keeps one lifeline for all of them
        assert all(each.block_table == first.block_table for each in other)
        del first, other
    assert_refused(lambda: tmesh.generate.Sequence(model, rows=64).fork(), tmesh.InvalidError, "give it pages")


@needs("libggml")
def test_pages_run_out(model):
    """A run without a free page is refused, and works once there is one."""
    with tmesh.generate.page_pool(model, 3) as pool, tmesh.Pages.open(pool.tenant()) as pages:
        first, second = (tmesh.generate.Sequence(model, rows=64, pages=pages) for _ in range(2))
        first.run([1] * 32)
        second.run([2] * 16)
        assert_refused(lambda: second.run([2]), tmesh.LimitError, "release sequences.* with more max_pages")
        assert second.position == 16 and pages.info()["held"] == 3
        del first
        assert second.run([2]).argmax() == tmesh.generate.Sequence(model, rows=64).run([2] * 17).argmax()
        del second
    assert_refused(lambda: tmesh.generate.page_pool(model, 0), tmesh.InvalidError, "at least one page")


@needs("libggml", "tokenizers")
def test_adapter(model):
    """An adapter's training text is likelier with it, from the first run after its publication."""
    source = (ROOT / "bindings/beam/lib/tmesh/slot.ex").read_text()
    tokens = tmesh.tokens.of_model(model).encode(source).ids[:200]
    ranks = dict.fromkeys(("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), 8)

    def loss(sequence):
        total = 0.
        for token, follower in zip(tokens, tokens[1:]):
            logits = sequence.run([token]).astype(float)
            total += numpy.log(numpy.exp(logits - logits.max()).sum()) + logits.max() - logits[follower]
        return total / len(tokens)

    with tmesh.Slot() as slot, tmesh.load_model(SMALL / "elixir.gguf") as adapter:
        plain, swapped = (tmesh.generate.Sequence(model, rows=200, lora=ranks, slot=slot.token) for _ in range(2))
        before = loss(plain)
        tmesh.adapters.publish(slot, adapter, tmesh.graphs.of_model(model, rows=1, lora=ranks))
        assert loss(swapped) < before - .2
        swapped = plain = None
    assert_refused(lambda: tmesh.generate.Sequence(model, rows=8, lora=ranks), tmesh.InvalidError, "together")


def halves(g, layer, boundary):
    """Cut a graph in two before a layer: nodes that compute a value, and nodes that read it."""
    lines = {line.split(" = ")[0]: line for line in g.text().splitlines()[1:] if not line.startswith("output ")}

    def reads(line):
        head, bracket, tail = line.split(" = ")[1].partition("(")
        return [name.strip() for name in tail.partition(")")[0].split(",")] if bracket else []

    last = [name for name in g.outputs if name == "logits" or int(name.rpartition(".")[2]) >= layer]

    def closure(wanted):
        found, left = [], list(wanted)
        while left:
            name = left.pop()
            if name not in found:
                found.append(name)
                left += reads(lines[name])
        return [name for name in lines if name in found]

    first = [name for name in g.outputs if name not in last]
    parts = closure([boundary, *(g.outputs[name] for name in first)])
    rest = [name for name in closure(g.outputs[name] for name in last) if name not in parts or reads(lines[name]) == []]
    one = "\n".join(["graph one", *(lines[name] for name in parts), f"output h = {boundary}",
                     *(f"output {name} = {g.outputs[name]}" for name in first), ""])
    two = "\n".join(["graph two", f"{boundary} = input : float32[1,128]",
                     *(lines[name] for name in rest if reads(lines[name]) or any(name in reads(lines[at]) for at in rest)),
                     *(f"output {name} = {g.outputs[name]}" for name in last), ""])
    return one, two, first, last


@needs("libggml")
def test_pipeline(model, tmp_path):
    """Two engines' processes with a part of the layers each work on the same tensors. The bits equal those of one over
    64 steps."""
    g = tmesh.graphs.of_model(model, rows=64)
    boundary = next(line.partition("rms_norm(")[2].partition(",")[0] for line in g.text().splitlines()
                    if "blk.2.attn_norm.weight" in line and "rms_norm" in line)
    one, two, first, last = halves(g, 2, boundary)
    now = {name: tmesh.zeros(1, kind) for name, kind in (("token", "int32"), ("position", "int32"), ("row", "int64"))}
    past = {name: tmesh.zeros((64, 64), "float16") for name in g.inputs if name.startswith("past_")}
    between, logits = tmesh.zeros((1, 128), "float32"), tmesh.zeros((1, 512), "float32")
    whole = tmesh.generate.Sequence(model, rows=64)
    servers = [serve("ggml", models=tmp_path) for _ in range(2)]
    try:
        steps = []
        for server, part, outputs in (servers[0], one, first), (servers[1], two, last):
            path = tmp_path / f"{len(steps)}.graph"
            path.write_text(part)
            weights = {name: model[name] for name in g.weights if f"{name} = weight" in part}
            graph = server.connect(timeout=600).graph(path, weights=weights)
            places = {**now, **past, boundary: between}
            in_place = {name: g.in_place[name] for name in outputs if name in g.in_place}
            given = {name: past[of] for name, of in in_place.items()}
            given["logits" if "logits" in outputs else "h"] = logits if "logits" in outputs else between
            steps.append(graph.bind({name: places[name] for name in graph.inputs}, given, in_place=in_place))
        copied, token = tmesh.stats()["bytes_copied"], 0
        for position in range(64):
            for name, value in (("token", token), ("position", position), ("row", position)):
                now[name].numpy()[0] = value
            for step in steps:
                step.dispatch()
            wanted = whole.run([token])
            assert (logits.numpy()[0] == wanted).all(), f"step {position}"
            token = int(wanted.argmax()) if position % 3 else position
        assert tmesh.stats()["bytes_copied"] == copied
        if tool := os.environ.get("TMESHCTL"):  # python-graph-check
            shown = json.loads(subprocess.run([tool, "top", "--json"], stdout=subprocess.PIPE, check=True, timeout=600).stdout)
            shown = {engine["name"]: engine for engine in shown["engines"]}
            shown = [shown[server.name] for server in servers]
            # The first engine reads the tokens, the second the first's output.
            assert [(engine["backend"], engine["steps"], engine["tokens"]) for engine in shown] == [("ggml", 64, 64), ("ggml", 64, 0)]
        steps = graph = None
    finally:
        for server in servers:
            server.close()


def run(*words, status=0):
    done = subprocess.run([sys.executable, "-m", "tmesh.generate", *map(str, words)], capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stderr
    return done.stdout if not status else done.stderr


@needs("libggml", "tokenizers")
def test_command(tmp_path):
    """The text is the same each time, by an engine in this process or in its own."""
    words = MODEL, "--prompt", "The module ", "--seed", 1, "--tokens", 40
    got = run(*words)
    assert got.startswith("The module ") and len(got) > 40
    assert run(*words, "--process", "--quiet") == got
    assert len(run(MODEL, "--prompt", "x", "--rows", 8, "--tokens", 40)) < 60
    adapted = run(*words, "--adapter", SMALL / "elixir.gguf")
    assert adapted.startswith("The module ") and adapted != got
    assert "no LoRA adapter" in run(MODEL, "--prompt", "x", "--adapter", MODEL, status=1)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
    assert "bad.gguf" in run(tmp_path / "bad.gguf", "--prompt", "x", status=1)
    assert "at least 1" in run(MODEL, "--prompt", "x", "--tokens", 0, status=2)
    assert "rows" in run(MODEL, "--prompt", "a text of more tokens", "--rows", 2, status=1)
    assert "usage: python -m tmesh.generate" in run("--help")
