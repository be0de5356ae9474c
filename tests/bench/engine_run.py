#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ONNX Runtime on memory of regions. A decode step binds its cache once, with past and present in the same memory,
beside ONNX Runtime's own run() from and into arrays. A product of matrices by the same session has its operands in
anonymous memory, in a region and in a region of huge pages.

usage: engine_run.py MODELS    the folder that tests/engine/models.py writes
"""

import mmap
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tmesh
import tmesh.engine
from onnx import TensorProto, helper

from harness import Series

STEPS, ROUNDS, EDGE = 100, 31, 4096


def session(path):
    """Return a session with the options of the engine "onnx"."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def decode(series, models):
    path = models / "decode.onnx"
    own = session(path)
    shapes = {i.name: (i.shape, "int64" if "int64" in i.type else "float32") for i in own.get_inputs()}
    cache = {name: tmesh.zeros(*shapes[name]) for name in ("past_k", "past_v")}
    turns = [{name: tmesh.zeros(*shapes[name]) for name in ("x", "pos")} for _ in range(2)]
    graph = tmesh.engine.Context("onnx").graph(path)
    live = {"present_k": "past_k", "present_v": "past_v"}
    # The cache stays; the small tensors go from one to the other and back.
    bindings = [graph.bind(now | cache, {"next_x": then["x"], "next_pos": then["pos"], **{out: cache[past] for out, past in live.items()}},
                           in_place=live) for now, then in (turns, turns[::-1])]
    state = turns[0] | cache
    names = ["next_x", "next_pos", *live]
    start = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    start["x"] += 0.1

    def plain():
        now = start
        for _ in range(STEPS):
            now = dict(zip(("x", "pos", "past_k", "past_v"), own.run(names, now)))
        return now

    def bound():
        for step in range(STEPS):
            bindings[step % 2].dispatch()

    for round_ in range(ROUNDS + 1):
        for name, value in start.items():
            state[name].numpy(writable=True)[...] = value
        series.time("decode-bound", bound, keep=round_ > 0)
        last = series.time("decode-run", plain, keep=round_ > 0)
        for name, value in last.items():
            assert np.array_equal(state[name].numpy(), value), name


def product(series, folder):
    shape = [EDGE, EDGE]
    path = folder / "product.onnx"
    values = [helper.make_tensor_value_info(*v) for v in (("x", TensorProto.FLOAT, [1, EDGE]), ("w", TensorProto.FLOAT, shape),
                                                          ("y", TensorProto.FLOAT, [1, EDGE]))]
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", values[:2], values[2:]),
                                opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    own = session(path)
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal(shape, dtype="float32"), rng.standard_normal((1, EDGE), dtype="float32")

    def bound(make):
        io, kept = own.io_binding(), []
        for name, value in (("w", w), ("x", x)):
            kept.append(make(value))
            io.bind_input(name, "cpu", 0, np.float32, list(value.shape), kept[-1].ctypes.data)
        kept.append(make(np.zeros_like(x)))
        io.bind_output("y", "cpu", 0, np.float32, [1, EDGE], kept[-1].ctypes.data)
        return io, kept

    def region(**how):
        def make(value):
            tensor = tmesh.empty(value.shape, "float32", **how)
            tensor.numpy(writable=True)[...] = value
            return tensor.numpy()
        return make

    def anonymous(value):
        """In 4 KiB pages, as most memory is: NumPy's own large arrays ask for huge ones."""
        memory = mmap.mmap(-1, value.nbytes)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        array = np.frombuffer(memory, value.dtype).reshape(value.shape)
        array[...] = value
        return array

    ways = {"anonymous": bound(anonymous), "anonymous-huge": bound(np.copy), "region": bound(region()), "region-huge": bound(region(huge="try"))}
    order = list(ways.items())
    for round_ in range(ROUNDS + 1):
        random.shuffle(order)
        for name, (io, _) in order:
            series.time(f"product-{name}", lambda io=io: own.run_with_iobinding(io), keep=round_ > 0)
    wanted = ways["anonymous"][1][-1]
    assert all(np.array_equal(kept[-1], wanted) for _, kept in ways.values())


def main():
    series = Series("engine")
    decode(series, Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        product(series, Path(folder))
    series.print()


main()
