#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The small model as safetensors and as ONNX, made from its GGUF file.

    python examples/small_model/forms.py FOLDER [small.gguf]

This writes FOLDER/small.safetensors and FOLDER/config.json, with the names and the row order of transformers. It also writes
FOLDER/small.onnx: tokens int64[n] in, logits float32[n, 512] out. Its weights have the safetensors file's names. The same
file gives the same bytes. It needs the packages gguf, safetensors and onnx.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class File:
    """The hyperparameters and tensors of the GGUF file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}

        def value(name):
            return reader.get_field(f"llama.{name}").contents()

        self.layers, self.width, self.hidden = (value(name) for name in ("block_count", "embedding_length",
                                                                         "feed_forward_length"))
        self.heads, self.groups = value("attention.head_count"), value("attention.head_count_kv")
        self.eps, self.base, self.context = (value(name) for name in ("attention.layer_norm_rms_epsilon", "rope.freq_base",
                                                                      "context_length"))
        self.head = self.width // self.heads


def halves(array, heads):
    """Reorder a head's rows: in GGUF the rotation pairs neighbouring rows, in transformers the two halves."""
    rows, width = array.shape
    return np.ascontiguousarray(array.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width))


def of_transformers(file):
    """Return the tensors by transformers' names."""
    made = {theirs: file.tensors[ours] for ours, theirs in TOP.items()}
    for layer in range(file.layers):
        for ours, theirs in NAMES.items():
            array = file.tensors[f"blk.{layer}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                array = halves(array, file.heads if ours == "attn_q" else file.groups)
            made[f"model.layers.{layer}.{theirs}.weight"] = array
    return made


def config(file, vocabulary):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
            "hidden_size": file.width, "intermediate_size": file.hidden, "num_hidden_layers": file.layers,
            "num_attention_heads": file.heads, "num_key_value_heads": file.groups, "head_dim": file.head,
            "rms_norm_eps": file.eps, "rope_theta": file.base, "max_position_embeddings": file.context,
            "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float16", "bos_token_id": 0, "eos_token_id": 0}


class Graph:
    """An ONNX graph, while it is built: a call makes a node and returns its value's name."""

    def __init__(self, tensors):
        self.nodes, self.constants = [], []
        self.weights = [numpy_helper.from_array(array, name) for name, array in sorted(tensors.items())]

    def __call__(self, op, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        given = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        self.nodes.append(helper.make_node(op, given, [name], **attributes))
        return name

    def constant(self, value):
        array = np.array(value, "float32" if isinstance(value, float) or
                         isinstance(value, np.ndarray) and value.dtype.kind == "f" else "int64")
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name):
        return self("Cast", f"{name}.weight", to=TensorProto.FLOAT)

    def linear(self, x, name):
        return self("MatMul", x, self("Transpose", self.weight(name), perm=[1, 0]))

    def norm(self, x, name, eps):
        mean = self("ReduceMean", self("Mul", x, x), axes=[-1], keepdims=1)
        return self("Mul", self("Div", x, self("Sqrt", self("Add", mean, float(eps)))), self.weight(name))


def as_onnx(file, tensors, vocabulary):
    g = Graph(tensors)
    count = g("Shape", "tokens")
    positions = g("Range", 0, g("Squeeze", count), 1)
    speeds = (file.base ** (-np.arange(0, file.head, 2) / file.head)).astype("float32")
    angle = g("Mul", g("Unsqueeze", g("Cast", positions, to=TensorProto.FLOAT), [1]), speeds)
    angle = g("Unsqueeze", g("Concat", angle, angle, axis=1), [1])
    cos, sin = g("Cos", angle), g("Sin", angle)
    later = g("Greater", g("Unsqueeze", positions, [0]), g("Unsqueeze", positions, [1]))
    mask = g("Where", later, float("-inf"), 0.0)

    def split(x, heads):
        return g("Reshape", x, np.array([0, heads, file.head]))

    def turn(x):
        half = file.head // 2
        one, two = g("Slice", x, [0], [half], [2]), g("Slice", x, [half], [file.head], [2])
        return g("Add", g("Mul", x, cos), g("Mul", g("Concat", g("Neg", two), one, axis=2), sin))

    def all_heads(x):
        """Each group's keys or values, for all heads that it has."""
        each = np.repeat(np.arange(file.groups), file.heads // file.groups)
        return g("Gather", x, each, axis=1)

    x = g("Gather", g.weight("model.embed_tokens"), "tokens")
    for layer in range(file.layers):
        b = f"model.layers.{layer}."
        h = g.norm(x, b + "input_layernorm", file.eps)
        q = g("Transpose", turn(split(g.linear(h, b + "self_attn.q_proj"), file.heads)), perm=[1, 0, 2])
        k = g("Transpose", all_heads(turn(split(g.linear(h, b + "self_attn.k_proj"), file.groups))), perm=[1, 2, 0])
        v = g("Transpose", all_heads(split(g.linear(h, b + "self_attn.v_proj"), file.groups)), perm=[1, 0, 2])
        score = g("Softmax", g("Add", g("Mul", g("MatMul", q, k), float(file.head ** -.5)), mask), axis=-1)
        seen = g("Reshape", g("Transpose", g("MatMul", score, v), perm=[1, 0, 2]), np.array([0, file.width]))
        x = g("Add", x, g.linear(seen, b + "self_attn.o_proj"))
        h = g.norm(x, b + "post_attention_layernorm", file.eps)
        gate = g.linear(h, b + "mlp.gate_proj")
        gate = g("Mul", gate, g("Sigmoid", gate))
        x = g("Add", x, g.linear(g("Mul", gate, g.linear(h, b + "mlp.up_proj")), b + "mlp.down_proj"))
    x = g.norm(x, "model.norm", file.eps)
    g.nodes.append(helper.make_node("MatMul", [x, g("Transpose", g.weight("model.embed_tokens"), perm=[1, 0])], ["logits"]))
    graph = helper.make_graph(
        g.nodes, "small", [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", vocabulary])], [*g.weights, *g.constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tmesh")


def main(folder, path=HERE / "small.gguf"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = File(path)
    tensors = of_transformers(file)
    vocabulary = len(tensors["model.embed_tokens.weight"])
    save_file(tensors, folder / "small.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(file, vocabulary), indent=1) + "\n")
    model = as_onnx(file, tensors, vocabulary)
    onnx.checker.check_model(model, full_check=True)
    (folder / "small.onnx").write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
