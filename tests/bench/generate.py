#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time per token of a llama of random weights on the engine "ggml", in one process, a step of each in turn, in an order drawn anew:

    ggml        the library's own calls, a step of one sequence with a cache of ROWS rows, no tmesh
    dispatch    the same step as a graph of tmesh.graphs.of_model(), bound once
    one-stream  tmesh.batching with one lane, one request
    ggml-eight  the library's own calls, a step of eight sequences, each with a cache of its own
    one-by-one  eight requests on one lane
    eight       eight requests on eight lanes

usage: generate.py TESTS     the folder of the Python tests, whose writer of GGUF it uses
"""

import ctypes
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy
import tmesh
import tmesh.engine
import tmesh.batching
import tmesh.graphs

from harness import Series

sys.path.insert(0, sys.argv[1])
from test_graphs import gguf  # noqa: E402

WIDTH, HEADS, GROUPS, HIDDEN, LAYERS, VOCABULARY, ROWS = 512, 8, 4, 1408, 8, 4096, 128
HEAD, EPS, STEPS, ROUNDS, LANES = WIDTH // HEADS, 1e-5, 64, 5, 8


def weights():
    rng = numpy.random.default_rng(1)
    out = {"token_embd": rng.standard_normal((VOCABULARY, WIDTH)), "output": rng.standard_normal((VOCABULARY, WIDTH)) * WIDTH ** -.5}
    for layer in range(LAYERS):
        for name, *shape in (("attn_q", WIDTH, WIDTH), ("attn_k", GROUPS * HEAD, WIDTH), ("attn_v", GROUPS * HEAD, WIDTH),
                             ("attn_output", WIDTH, WIDTH), ("ffn_gate", HIDDEN, WIDTH), ("ffn_up", HIDDEN, WIDTH),
                             ("ffn_down", WIDTH, HIDDEN)):
            out[f"blk.{layer}.{name}"] = rng.standard_normal(shape) * shape[1] ** -.5
    made = {f"{name}.weight": array.astype("float16") for name, array in out.items()}
    norms = ["output_norm", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm"))]
    return made | {f"{name}.weight": numpy.ones(WIDTH, "float32") for name in norms}


class Direct:
    """The step by ggml's own calls, on the same weights in the same memory."""

    def __init__(self, model, lanes=1):
        import libggml

        folder = Path(libggml.__file__).parent / "lib64"
        base, cpu = (ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in ("libggml-base.so.0", "libggml-cpu.so.0"))
        pointer, f, i, i64, size = ctypes.c_void_p, ctypes.c_float, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t

        def call(library, name, result, *types):
            function = getattr(library, f"ggml_{name}")
            function.restype, function.argtypes = result, types
            return function

        def op(name, *types):
            function = call(base, name, pointer, pointer, *types)
            return lambda *values: function(self.context, *values)

        class Params(ctypes.Structure):
            _fields_ = [("size", size), ("buffer", pointer), ("no_alloc", ctypes.c_bool)]

        self.backend = call(cpu, "backend_cpu_init", pointer)()
        call(cpu, "backend_cpu_set_n_threads", None, pointer, i)(self.backend, 1)
        self.context = call(base, "init", pointer, Params)(Params(1 << 22, None, True))
        memory = call(base, "backend_cpu_buffer_from_ptr", pointer, pointer, size)(4096, 2 ** 63 - 1 - 4096)
        place = call(base, "backend_tensor_alloc", i, pointer, pointer, pointer)
        new = op("new_tensor_4d", i, i64, i64, i64, i64)
        kinds = {"float32": 0, "float16": 1, "int32": 26, "int64": 27}
        self.kept = []

        def tensor(array):
            self.kept.append(array)
            made = new(kinds[str(array.dtype)], *(list(array.shape[::-1]) + [1] * 4)[:4])
            assert place(memory, made, array.ctypes.data) == 0
            return made

        two, one = (pointer, pointer), (pointer,)
        mul_mat, add, mul, get_rows, silu = (op(name, *types) for name, types in (
            ("mul_mat", two), ("add", two), ("mul", two), ("get_rows", two), ("silu", one)))
        norm, set_rows = op("rms_norm", pointer, f), op("set_rows", pointer, pointer, pointer)
        reshape = op("reshape_4d", pointer, i64, i64, i64, i64)
        permute = op("permute", pointer, i, i, i, i)
        rope = op("rope_ext", pointer, pointer, pointer, i, i, i, f, f, f, f, f, f)
        flash = op("flash_attn_ext", pointer, pointer, pointer, pointer, f, f, f)
        precise = call(base, "flash_attn_ext_set_prec", None, pointer, i)

        def zeros(*shape, dtype):
            return tmesh.zeros(shape, dtype).numpy()

        w = {name: tensor(value.numpy()) for name, value in model.items()}
        self.token, self.position, self.row = zeros(lanes, dtype="int32"), zeros(lanes, dtype="int32"), zeros(lanes, dtype="int64")
        self.first = numpy.arange(lanes) * ROWS
        self.mask, self.logits = zeros(lanes, 1, 64, ROWS, dtype="float16"), zeros(lanes, VOCABULARY, dtype="float32")
        token, position, row, mask = map(tensor, (self.token, self.position, self.row, self.mask))
        x = get_rows(w["token_embd.weight"], token)
        for layer in range(LAYERS):
            b = f"blk.{layer}."
            h = mul(norm(x, EPS), w[b + "attn_norm.weight"])
            q, k, v = (mul_mat(w[f"{b}attn_{kind}.weight"], h) for kind in "qkv")
            q, k = (rope(reshape(value, HEAD, heads, lanes, 1), position, None, HEAD, 2, 0, 10000, 1, 0, 1, 32, 1)
                    for value, heads in ((q, HEADS), (k, GROUPS)))
            parts = [permute(reshape(q, HEAD, HEADS, 1, lanes), 0, 2, 1, 3)]
            for value in (reshape(k, GROUPS * HEAD, lanes, 1, 1), v):
                past = tensor(zeros(lanes * ROWS, GROUPS * HEAD, dtype="float16"))
                parts.append(permute(reshape(set_rows(past, value, row), HEAD, GROUPS, ROWS, lanes), 0, 2, 1, 3))
            a = flash(*parts, mask, HEAD ** -.5, 0, 0)
            precise(a, 10)
            x = add(x, mul_mat(w[b + "attn_output.weight"], reshape(a, WIDTH, lanes, 1, 1)))
            h = mul(norm(x, EPS), w[b + "ffn_norm.weight"])
            gate = mul(silu(mul_mat(w[b + "ffn_gate.weight"], h)), mul_mat(w[b + "ffn_up.weight"], h))
            x = add(x, mul_mat(w[b + "ffn_down.weight"], gate))
        x = mul_mat(w["output.weight"], mul(norm(x, EPS), w["output_norm.weight"]))
        assert place(memory, x, self.logits.ctypes.data) == 0
        self.graph = op("new_graph")()
        call(base, "build_forward_expand", None, pointer, pointer)(self.graph, x)
        kind = call(base, "backend_get_default_buffer_type", pointer, pointer)(self.backend)
        self.allocator = call(base, "gallocr_new", pointer, pointer)(kind)
        assert call(base, "gallocr_alloc_graph", ctypes.c_bool, pointer, pointer)(self.allocator, self.graph)
        self.compute = call(base, "backend_graph_compute", i, pointer, pointer)

    def steps(self, tokens, position):
        self.token[:], self.position[:], self.row[:] = tokens, position, self.first + position
        self.mask[:, 0, 0, :position + 1], self.mask[:, 0, 0, position + 1:] = 0, -numpy.inf
        assert self.compute(self.backend, self.graph) == 0
        return self.logits.argmax(1).tolist()

    def step(self, token, position):
        return self.steps([token], position)[0]


class Bound:
    def __init__(self, model, folder):
        g = tmesh.graphs.of_model(model, rows=ROWS)
        g.save(folder / "step.graph")
        graph = tmesh.engine.Context("ggml").graph(folder / "step.graph", weights={name: model[name] for name in g.weights})
        now = {"token": tmesh.zeros((1,), "int32"), "position": tmesh.zeros((1,), "int32"), "row": tmesh.zeros((1,), "int64")}
        past = {name: tmesh.zeros((ROWS, GROUPS * HEAD), "float16") for name in g.in_place.values()}
        logits = tmesh.zeros((1, VOCABULARY), "float32")
        self.binding = graph.bind({**now, **past}, {"logits": logits, **{out: past[name] for out, name in g.in_place.items()}},
                                  in_place=g.in_place)
        self.now, self.logits = [now[name].numpy() for name in ("token", "position", "row")], logits.numpy()

    def step(self, token, position):
        for array, value in zip(self.now, (token, position, position)):
            array[0] = value
        self.binding.dispatch()
        return int(self.logits[0].argmax())


# Each way yields its tokens after each of STEPS parts of its work.


def alone(stepper):
    token, out = 1, []
    for position in range(STEPS):
        token = stepper.step(token, position)
        out.append(token)
        yield [out]


def together(direct, count):
    tokens, out = [1 + n for n in range(count)], [[] for _ in range(count)]
    for position in range(STEPS):
        tokens = direct.steps(tokens, position)
        for one, token in zip(out, tokens):
            one.append(token)
        yield out


def generated(generator, count, runs=1):
    requests = [generator.submit([1 + n], STEPS) for n in range(count)]
    for left in reversed(range(STEPS)):
        for _ in range(runs):
            generator.step()
        assert generator.busy == (left > 0)
        yield [request.tokens for request in requests]


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        gguf(path, "qwen2", weights(), block_count=LAYERS, embedding_length=WIDTH, **{
            "attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.layer_norm_rms_epsilon": EPS})
        model = tmesh.load_model(path, alone=True)
        one, other, many = (tmesh.batching.Generator(model, lanes=lanes, max_tokens=ROWS) for lanes in (1, 1, LANES))
        direct, bound, directs = Direct(model), Bound(model, Path(folder)), Direct(model, LANES)
        series, tokens, rng = Series("generate"), {}, random.Random(1)
        for round_ in range(ROUNDS + 1):
            ways = {"ggml": alone(direct), "dispatch": alone(bound), "one-stream": generated(one, 1),
                    "ggml-eight": together(directs, LANES), "one-by-one": generated(other, LANES, LANES), "eight": generated(many, LANES)}
            for _ in range(STEPS):
                # The steps before one change when the scheduler interrupts it, so the order is random.
                for name, way in rng.sample(list(ways.items()), len(ways)):
                    start = time.perf_counter_ns()
                    tokens[name] = next(way)
                    if round_:
                        series.add(name, (time.perf_counter_ns() - start) / len(tokens[name]))
        # Rounding differs with the number of sequences, and so does a near tie: compare only ways with the same number.
        assert tokens["ggml"] == tokens["dispatch"], "other tokens than by ggml's own calls"
        print(f"# {path.stat().st_size >> 20} MiB of float16, {LAYERS} layers of {WIDTH}, {STEPS} tokens, 1 thread; equal tokens: "
              f"eight and ggml-eight {tokens['eight'] == tokens['ggml-eight']}, eight and one-by-one {tokens['eight'] == tokens['one-by-one']}")
        series.print()


main()
