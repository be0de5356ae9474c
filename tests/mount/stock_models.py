# SPDX-License-Identifier: MIT
"""Make a model of random weights for a stock engine: stock_models.py KIND FOLDER [EXAMPLE.gguf].

onnx: m.onnx and m.data, its external data. openvino: m.xml and m.bin, of the same model.

gguf: m.gguf, a llama with the vocabulary of EXAMPLE.gguf. lora: the same, and adapter.gguf. genai: a decoder in model.onnx, with
genai_config.json. ctranslate2: model.bin, a decoder as GPT-2 is one.

transformers: a llama in several safetensors files, with config.json."""
import json
import os
import sys

import numpy as np


def make_onnx(folder, width=1024, layers=4):
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    random = np.random.default_rng(1)
    weights = [numpy_helper.from_array(((random.random((width, width)) - .5) / width ** .5).astype(np.float32), f"w{i}")
               for i in range(layers)]
    nodes = [helper.make_node("MatMul", ["x" if i == 0 else f"h{i - 1}", f"w{i}"], [f"h{i}"]) for i in range(layers)]
    shape = [1, width]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info(f"h{layers - 1}", TensorProto.FLOAT, shape)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save_model(model, os.path.join(folder, "m.onnx"), save_as_external_data=True, all_tensors_to_one_file=True,
                    location="m.data", size_threshold=0)


def make_gguf(folder, example, width=512, inner=1536, layers=4, heads=8, kind="F16", name="m.gguf"):
    import gguf
    stored = gguf.GGMLQuantizationType[kind]
    reader = gguf.GGUFReader(example)
    tokens = reader.fields["tokenizer.ggml.tokens"]
    words = [bytes(tokens.parts[i]) for i in tokens.data]
    random = np.random.default_rng(2)
    writer = gguf.GGUFWriter(os.path.join(folder, name), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_rope_dimension_count(width // heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    if merges := reader.fields.get("tokenizer.ggml.merges"):
        writer.add_token_merges([bytes(merges.parts[i]).decode() for i in merges.data])
    if types := reader.fields.get("tokenizer.ggml.token_type"):
        writer.add_token_types([int(types.parts[i][0]) for i in types.data])

    def add(name, *shape):
        data = (random.standard_normal(shape) * .02).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(data, stored), raw_dtype=stored)

    add("token_embd.weight", len(words), width)
    add("output.weight", len(words), width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(layers):
        for norm in "attn_norm", "ffn_norm":
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(width, np.float32))
        for part in "attn_q", "attn_k", "attn_v", "attn_output":
            add(f"blk.{i}.{part}.weight", width, width)
        add(f"blk.{i}.ffn_gate.weight", inner, width)
        add(f"blk.{i}.ffn_up.weight", inner, width)
        add(f"blk.{i}.ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_lora(folder, example, width=512, layers=4, rank=16):
    import gguf
    make_gguf(folder, example, width, layers=layers)
    random = np.random.default_rng(6)
    writer = gguf.GGUFWriter(os.path.join(folder, "adapter.gguf"), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", rank)
    for i in range(layers):
        for part in "attn_q", "attn_v":
            writer.add_tensor(f"blk.{i}.{part}.weight.lora_a", random.standard_normal((rank, width)).astype(np.float32))
            writer.add_tensor(f"blk.{i}.{part}.weight.lora_b", random.standard_normal((width, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_ctranslate2(folder, width=512, vocabulary=2000, layers=4, heads=8):
    from ctranslate2.specs import TransformerDecoderModelSpec
    from ctranslate2.specs.common_spec import Activation
    random = np.random.default_rng(5)
    model = TransformerDecoderModelSpec.from_config(layers, heads, activation=Activation.GELUTanh)

    def values(*shape):
        return random.standard_normal(shape).astype(np.float32)

    def linear(place, rows, columns):
        place.weight, place.bias = values(rows, columns) * np.float32(.05), np.zeros(rows, np.float32)

    def norm(place):
        place.gamma, place.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    decoder = model.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight, decoder.position_encodings.encodings = values(vocabulary, width), values(64, width)
    linear(decoder.projection, vocabulary, width)
    norm(decoder.layer_norm)
    for layer in decoder.layer:
        norm(layer.self_attention.layer_norm)
        linear(layer.self_attention.linear[0], 3 * width, width)
        linear(layer.self_attention.linear[1], width, width)
        norm(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, 4 * width, width)
        linear(layer.ffn.linear_1, width, 4 * width)
    model.config.unk_token, model.config.bos_token, model.config.eos_token = "0", "1", "2"
    model.register_vocabulary([str(number) for number in range(vocabulary)])
    model.validate()
    model.optimize(quantization="float32")
    model.save(folder)


def make_openvino(folder):
    import openvino
    make_onnx(folder)
    openvino.save_model(openvino.Core().read_model(os.path.join(folder, "m.onnx")), os.path.join(folder, "m.xml"), compress_to_fp16=False)
    for name in "m.onnx", "m.data":
        os.unlink(os.path.join(folder, name))


def make_genai(folder, width=512, vocabulary=4000, layers=2, heads=8):
    """A decoder that has keys and values of earlier tokens. The mean of all values stands for attention."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    random, head = np.random.default_rng(3), width // heads
    weights, nodes = [], []

    def weight(name, *shape):
        weights.append(numpy_helper.from_array(((random.random(shape) - .5) / width ** .5).astype(np.float32), name))
        return name

    def value(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, ["batch", *shape])

    def node(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))

    for name, shape in ("split", [0, 0, heads, head]), ("join", [0, 0, width]):
        weights.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    inputs = [value("input_ids", TensorProto.INT64, "sequence"), value("attention_mask", TensorProto.INT64, "total")]
    outputs = [value("logits", TensorProto.FLOAT, "sequence", vocabulary)]
    node("Gather", [weight("embedding", vocabulary, width), "input_ids"], "hidden0")
    for i in range(layers):
        for part in "key", "value":
            node("MatMul", [f"hidden{i}", weight(f"{part}.weight{i}", width, width)], f"{part}.flat{i}")
            node("Reshape", [f"{part}.flat{i}", "split"], f"{part}.split{i}")
            node("Transpose", [f"{part}.split{i}"], f"{part}.heads{i}", perm=[0, 2, 1, 3])
            node("Concat", [f"past.{i}.{part}", f"{part}.heads{i}"], f"present.{i}.{part}", axis=2)
            inputs.append(value(f"past.{i}.{part}", TensorProto.FLOAT, heads, "past", head))
            outputs.append(value(f"present.{i}.{part}", TensorProto.FLOAT, heads, "total", head))
        node("ReduceMean", [f"present.{i}.value"], f"mean{i}", axes=[2], keepdims=1)
        node("Transpose", [f"mean{i}"], f"mean.tokens{i}", perm=[0, 2, 1, 3])
        node("Reshape", [f"mean.tokens{i}", "join"], f"mean.flat{i}")
        node("Add", [f"hidden{i}", f"mean.flat{i}"], f"hidden{i + 1}")
    node("MatMul", [f"hidden{layers}", weight("head", width, vocabulary)], "logits")
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, weights), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save_model(model, os.path.join(folder, "model.onnx"), save_as_external_data=True, all_tensors_to_one_file=True,
                    location="model.onnx.data", size_threshold=1024)
    decoder = {
        "session_options": {"intra_op_num_threads": 1, "graph_optimization_level": "ORT_DISABLE_ALL", "provider_options": []},
        "filename": "model.onnx", "head_size": head, "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads,
        "num_hidden_layers": layers,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past.%d.key",
                   "past_value_names": "past.%d.value"},
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}}
    config = {"model": {"type": "llama", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "context_length": 64,
                        "vocab_size": vocabulary, "decoder": decoder},
              "search": {"max_length": 16, "do_sample": False, "num_beams": 1, "past_present_share_buffer": False}}
    with open(os.path.join(folder, "genai_config.json"), "w", encoding="ascii") as file:
        json.dump(config, file)


def make_transformers(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(4)
    config = LlamaConfig(vocab_size=2000, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=8, max_position_embeddings=64)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="8MB")


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    globals()[f"make_{sys.argv[1]}"](*sys.argv[2:])
