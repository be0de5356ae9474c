# SPDX-License-Identifier: MIT
"""The models of the tests, made here, and what ONNX Runtime's own plain Run makes of them.

    models.py FOLDER

    decode.onnx    a step of attention over a past of C places: the present is a scatter into the past
    layer0.onnx, layer1.onnx, whole.onnx    two layers, and both as one
    weights.onnx   its weight lies in a file of its own, weights.bin
    folded.onnx    ONNX Runtime computes with its weights before it runs; no operator reads the weight "unread"
    dynamic.onnx   a number of rows that is a name
    badtype.onnx   an input of strings
    long.onnx      runs as long as its input says: y = x + trips
    voice.onnx, marks.onnx, kinds.onnx    the operators of models of voice activity, of marks on letters, and of kinds of files
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


def folded(folder):
    """y = k * conv(x, w transposed): a constant to be folded, and a convolution that takes its factor. All weights are ones."""
    n, shape = h.make_node, [1, 2, 1, 1]
    graph = h.make_graph([n("Transpose", ["w"], ["turned"], perm=[1, 0, 2, 3]), n("Conv", ["x", "turned"], ["c"]), n("Mul", ["c", "k"], ["y"])],
                         "folded", [h.make_tensor_value_info("x", T.FLOAT, shape)], [h.make_tensor_value_info("y", T.FLOAT, shape)],
                         [nh.from_array(np.ones(dims, np.float32), name) for name, dims in
                          (("w", (2, 2, 1, 1)), ("k", (2, 1, 1)), ("unread", (2, 1, 1)))])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), folder / "folded.onnx")


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


def voice(folder):
    """A rate chooses the half of the graph; a spectrum by convolution, and an LSTM whose state goes round."""
    n, hidden = h.make_node, 8
    constants = [("before", np.array([0, 4, 0, 4], np.int64)), ("rate", np.int64(16000)), ("two", np.float32(2)),
                 ("fine", rng.standard_normal((6, 1, 8)).astype(np.float32)), ("coarse", rng.standard_normal((6, 1, 16)).astype(np.float32)),
                 ("W", rng.standard_normal((1, 4 * hidden, 6)).astype(np.float32)),
                 ("R", rng.standard_normal((1, 4 * hidden, hidden)).astype(np.float32)),
                 ("axis1", np.array([1], np.int64)), ("first", np.array([0], np.int64)), ("second", np.array([1], np.int64)),
                 ("end", np.array([2], np.int64))]

    def half(kernel, width):
        return h.make_graph([n("Conv", ["wave", kernel], ["bins_" + kernel], strides=[width // 2])], kernel, [],
                            [h.make_tensor_value_info("bins_" + kernel, T.FLOAT, None)])

    nodes = [n("Pad", ["input", "before"], ["padded"], mode="reflect"), n("Unsqueeze", ["padded", "axis1"], ["wave"]),
             n("Equal", ["sr", "rate"], ["is_fine"]),
             n("If", ["is_fine"], ["bins"], then_branch=half("fine", 8), else_branch=half("coarse", 16)),
             n("Pow", ["bins", "two"], ["power"]), n("Sqrt", ["power"], ["size"]), n("Relu", ["size"], ["kept"]),
             n("Transpose", ["kept"], ["steps"], perm=[2, 0, 1]),
             n("Slice", ["state", "first", "second", "first"], ["h0"]), n("Slice", ["state", "second", "end", "first"], ["c0"]),
             n("LSTM", ["steps", "W", "R", "", "", "h0", "c0"], ["", "h1", "c1"], hidden_size=hidden),
             n("Concat", ["h1", "c1"], ["stateN"], axis=0), n("Sigmoid", ["h1"], ["odds"]),
             n("ReduceMean", ["odds"], ["mean"], axes=[0, 2], keepdims=0), n("Unsqueeze", ["mean", "axis1"], ["output"])]
    save(folder / "voice.onnx", nodes, [("input", T.FLOAT, ["batch", "samples"]), ("state", T.FLOAT, [2, "batch", hidden]), ("sr", T.INT64, [])],
         [("output", T.FLOAT, ["batch", 1]), ("stateN", T.FLOAT, [2, "batch", hidden])], constants)


def marks(folder):
    """Letters of sentences of several lengths, by a GRU and by their best places; a class of each in one byte."""
    n, width, letters, classes = h.make_node, 8, 32, 5
    constants = [("table", rng.standard_normal((letters, width)).astype(np.float32)), ("zero", np.int64(0)), ("one", np.int64(1)),
                 ("last", np.array([1], np.int64)), ("axis1", np.array([1], np.int64)), ("three", np.array([3], np.int64)),
                 ("W", rng.standard_normal((1, 3 * width, width)).astype(np.float32)),
                 ("R", rng.standard_normal((1, 3 * width, width)).astype(np.float32)),
                 ("scale", rng.random(width).astype(np.float32)), ("bias", rng.random(width).astype(np.float32)),
                 ("mean", rng.random(width).astype(np.float32)), ("var", rng.random(width).astype(np.float32) + 1),
                 ("out", rng.standard_normal((width, classes)).astype(np.float32)), ("none", np.float32(0)), ("much", np.float32(9)),
                 ("halves", np.array([4, 4], np.int64))]
    nodes = [n("Gather", ["table", "chars"], ["x"]), n("Shape", ["chars"], ["shape"]), n("Gather", ["shape", "one"], ["length"], axis=0),
             n("Range", ["zero", "length", "one"], ["places"]), n("Unsqueeze", ["lengths", "axis1"], ["ends"]),
             n("Less", ["places", "ends"], ["inside"]), n("Cast", ["inside"], ["weight"], to=T.FLOAT),
             n("Einsum", ["x", "weight"], ["seen"], equation="bsd,bs->bsd"), n("Transpose", ["seen"], ["turned"], perm=[1, 0, 2]),
             n("GRU", ["turned", "W", "R"], ["gru", ""], hidden_size=width, linear_before_reset=1),
             n("Squeeze", ["gru", "axis1"], ["steps"]), n("Transpose", ["steps"], ["again"], perm=[1, 2, 0]),
             n("BatchNormalization", ["again", "scale", "bias", "mean", "var"], ["normal"]),
             n("Transpose", ["normal"], ["y"], perm=[0, 2, 1]), n("TopK", ["y", "three"], ["best", "where"]),
             n("Shape", ["y"], ["size"]), n("ConstantOfShape", ["size"], ["flat"]), n("ScatterElements", ["flat", "where", "best"], ["sparse"], axis=2),
             n("Split", ["sparse", "halves"], ["left", "right"], axis=2), n("Concat", ["right", "left"], ["swapped"], axis=2),
             n("MatMul", ["swapped", "out"], ["logits"]), n("Softmax", ["logits"], ["odds"]), n("ArgMax", ["odds"], ["best_class"], axis=2, keepdims=0),
             n("Where", ["inside", "best_class", "zero"], ["class"]), n("Cast", ["class"], ["predictions"], to=T.UINT8)]
    save(folder / "marks.onnx", nodes, [("chars", T.INT64, ["batch", "seq"]), ("lengths", T.INT64, ["batch"])],
         [("predictions", T.UINT8, ["batch", "seq"]), ("logits", T.FLOAT, ["batch", "seq", classes])], constants)


def kinds(folder):
    """Bytes as int32, each a vector with a one in it; the largest of a convolution, and a softmax of its parts."""
    n, values, width, classes = h.make_node, 17, 8, 6
    constants = [("each", np.arange(values, dtype=np.int32)), ("axis2", np.array([2], np.int64)), ("dense", rng.standard_normal((values, width)).astype(np.float32)),
                 ("kernel", rng.standard_normal((width, width, 3)).astype(np.float32)), ("out", rng.standard_normal((width, classes)).astype(np.float32)),
                 ("cube", np.float32(0.044715)), ("root", np.float32(0.7978846)), ("half", np.float32(0.5)), ("one", np.float32(1)), ("axis1", np.array([1], np.int64))]
    nodes = [n("Unsqueeze", ["bytes", "axis2"], ["apart"]), n("Equal", ["apart", "each"], ["is"]), n("Cast", ["is"], ["hot"], to=T.FLOAT),
             n("MatMul", ["hot", "dense"], ["x"]), n("Mul", ["x", "x"], ["x2"]), n("Mul", ["x2", "x"], ["x3"]), n("Mul", ["x3", "cube"], ["c"]),
             n("Add", ["x", "c"], ["a"]), n("Mul", ["a", "root"], ["b"]), n("Tanh", ["b"], ["t"]), n("Add", ["t", "one"], ["u"]), n("Mul", ["u", "half"], ["g"]),
             n("Mul", ["x", "g"], ["gelu"]), n("Transpose", ["gelu"], ["turned"], perm=[0, 2, 1]), n("Conv", ["turned", "kernel"], ["near"]),
             n("GlobalMaxPool", ["near"], ["most"]), n("Squeeze", ["most", "axis2"], ["features"]), n("MatMul", ["features", "out"], ["logits"]),
             n("ReduceMax", ["logits"], ["top"], axes=[1]), n("Sub", ["logits", "top"], ["less"]), n("Exp", ["less"], ["e"]),
             n("ReduceSum", ["e", "axis1"], ["sum"]), n("Div", ["e", "sum"], ["target_label"])]
    save(folder / "kinds.onnx", nodes, [("bytes", T.INT32, ["batch", 64])], [("target_label", T.FLOAT, ["batch", classes])], constants)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for make in decode, layers, weights, folded, small, long, voice, marks, kinds:
        make(folder)
    print(f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}")


if __name__ == "__main__":
    main()
