# SPDX-License-Identifier: MIT
"""The models of the tests, made here, and what ONNX Runtime's own plain Run makes of them.

    models.py FOLDER

    decode.onnx    a step of attention over a past of C places: the present is a scatter into the past
    layer0.onnx, layer1.onnx, whole.onnx    two layers, and both as one
    weights.onnx   its weight lies in a file of its own, weights.bin
    dynamic.onnx   a number of rows that is a name
    badtype.onnx   an input of strings
    long.onnx      runs as long as its input says: y = x + trips
    *.bin          expected results
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

D, C, STEPS = 64, 128, 100
WEIGHT = 1024  # rows and columns: 4 MiB
rng = np.random.default_rng(7)


def save(path, nodes, inputs, outputs, constants=(), **options):
    graph = h.make_graph(nodes, path.stem, [h.make_tensor_value_info(*i) for i in inputs],
                         [h.make_tensor_value_info(*o) for o in outputs],
                         [nh.from_array(array, name) for name, array in constants])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path, **options)


def session(path):
    """As the engine opens its own: one thread, weights where they lie."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def decode(folder):
    """All that changes from step to step is in the graph, so that a loop needs nothing of the host."""
    constants = [("W" + name, (rng.standard_normal((D, D)) * 0.1).astype(np.float32)) for name in "qkvo"]
    constants += [("scale", np.float32(1 / np.sqrt(D))), ("tenth", np.float32(0.1)), ("one", np.array([1], np.int64)),
                  ("places", np.arange(C, dtype=np.int64)[None]), ("row", np.array([1, D], np.int64)),
                  ("seen", np.zeros((1, 1), np.float32)), ("unseen", np.full((1, 1), -1e9, np.float32))]
    n = h.make_node
    nodes = [n("MatMul", ["x", "W" + name], [name]) for name in "qkv"]
    nodes += [n("Expand", ["pos", "row"], ["index"]),
              n("ScatterElements", ["past_k", "index", "k"], ["present_k"], axis=0),
              n("ScatterElements", ["past_v", "index", "v"], ["present_v"], axis=0),
              n("LessOrEqual", ["places", "pos"], ["known"]), n("Where", ["known", "seen", "unseen"], ["mask"]),
              n("Transpose", ["present_k"], ["kt"], perm=[1, 0]), n("MatMul", ["q", "kt"], ["s0"]),
              n("Mul", ["s0", "scale"], ["s1"]), n("Add", ["s1", "mask"], ["s2"]), n("Softmax", ["s2"], ["p"], axis=-1),
              n("MatMul", ["p", "present_v"], ["c"]), n("MatMul", ["c", "Wo"], ["o"]), n("Add", ["o", "x"], ["y"]),
              n("Mul", ["y", "y"], ["y2"]), n("ReduceMean", ["y2"], ["mean"], axes=[1]), n("Sqrt", ["mean"], ["norm"]),
              n("Div", ["y", "norm"], ["unit"]), n("Mul", ["unit", "tenth"], ["next_x"]),
              n("Add", ["pos", "one"], ["next_pos"])]
    cache = [C, D]
    save(folder / "decode.onnx", nodes,
         [("x", T.FLOAT, [1, D]), ("pos", T.INT64, [1]), ("past_k", T.FLOAT, cache), ("past_v", T.FLOAT, cache)],
         [("next_x", T.FLOAT, [1, D]), ("next_pos", T.INT64, [1]), ("present_k", T.FLOAT, cache),
          ("present_v", T.FLOAT, cache)], constants)
    run = session(folder / "decode.onnx")
    x, pos = np.full((1, D), 0.1, np.float32), np.zeros(1, np.int64)
    k, v = np.zeros((2, C, D), np.float32)
    for _ in range(STEPS):
        x, pos, k, v = run.run(None, {"x": x, "pos": pos, "past_k": k, "past_v": v})
    assert pos[0] == STEPS
    (folder / "decode.bin").write_bytes(x.tobytes() + k.tobytes() + v.tobytes())


def layers(folder):
    w = [(f"w{i}", (rng.standard_normal((D, D)) * 0.3).astype(np.float32)) for i in range(2)]

    def nodes(i, before, after):
        return [h.make_node("MatMul", [before, f"w{i}"], [f"m{i}"]), h.make_node("Tanh", [f"m{i}"], [after])]

    row = [1, D]
    save(folder / "layer0.onnx", nodes(0, "x", "h"), [("x", T.FLOAT, row)], [("h", T.FLOAT, row)], w[:1])
    save(folder / "layer1.onnx", nodes(1, "h", "y"), [("h", T.FLOAT, row)], [("y", T.FLOAT, row)], w[1:])
    save(folder / "whole.onnx", nodes(0, "x", "h") + nodes(1, "h", "y"), [("x", T.FLOAT, row)], [("y", T.FLOAT, row)], w)


def weights(folder):
    w = (rng.standard_normal((WEIGHT, WEIGHT)) * 0.03).astype(np.float32)
    shape = [1, WEIGHT]
    save(folder / "weights.onnx", [h.make_node("MatMul", ["x", "w"], ["y"])], [("x", T.FLOAT, shape)],
         [("y", T.FLOAT, shape)], [("w", w)], save_as_external_data=True, location="weights.bin")
    x = rng.standard_normal((1, WEIGHT)).astype(np.float32)
    y = session(folder / "weights.onnx").run(None, {"x": x})[0]
    for name, array in {"w": w, "x": x, "y": y}.items():
        np.save(folder / f"weights_{name}.npy", array)


def small(folder):
    rows = ["rows", 4]
    save(folder / "dynamic.onnx", [h.make_node("Add", ["a", "b"], ["sum"]), h.make_node("Sub", ["a", "b"], ["less"])],
         [("a", T.FLOAT, rows), ("b", T.FLOAT, rows)], [("sum", T.FLOAT, rows), ("less", T.FLOAT, rows)])
    save(folder / "badtype.onnx", [h.make_node("Identity", ["text"], ["same"])], [("text", T.STRING, [1])],
         [("same", T.STRING, [1])])
    (folder / "garbage.onnx").write_bytes(rng.bytes(4096))


def long(folder):
    n, inputs = h.make_node, [("trips", T.INT64, [1]), ("x", T.FLOAT, [2, 4])]
    body = h.make_graph([n("Identity", ["on"], ["go"]), n("Add", ["v", "one"], ["w"])], "body",
                        [h.make_tensor_value_info(*i) for i in (("i", T.INT64, []), ("on", T.BOOL, []), ("v", T.FLOAT, [2, 4]))],
                        [h.make_tensor_value_info(*o) for o in (("go", T.BOOL, []), ("w", T.FLOAT, [2, 4]))])
    save(folder / "long.onnx", [n("Loop", ["trips", "", "x"], ["y"], body=body)], inputs, [("y", T.FLOAT, [2, 4])],
         [("one", np.ones((2, 4), np.float32))])


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for make in decode, layers, weights, small, long:
        make(folder)
    print(f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}")


if __name__ == "__main__":
    main()
