# SPDX-License-Identifier: MIT
"""An engine of check.py's step for vLLM: vllm_engine.py FOLDER FORMAT. It makes the model in the folder if there is none, loads it by
that load format, and prints the tokens that it generates as JSON.

The model is a tiny Llama of random weights without a tokenizer, made by NumPy alone."""

import json
import os
import sys

VOCABULARY, WIDTH, INNER, LAYERS, HEADS = 512, 256, 512, 2, 4
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH,
          "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
          "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False, "torch_dtype": "float16", "bos_token_id": 1, "eos_token_id": 2}


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            yield f"{start}self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        for name in ("gate", "up"):
            yield f"{start}mlp.{name}_proj.weight", (INNER, WIDTH)
        yield f"{start}mlp.down_proj.weight", (WIDTH, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{start}{name}.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCABULARY, WIDTH)


def make(folder):
    import numpy

    random = numpy.random.default_rng(1)
    header, data, at = {}, [], 0
    for name, shape in shapes():
        values = numpy.ones(shape, "float16") if len(shape) == 1 else (random.standard_normal(shape) * 0.2).astype("float16")
        data.append(values.tobytes())
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(data))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(CONFIG, file)


def main():
    folder, load_format = sys.argv[1:]
    # The plug-in is registered in this process alone, so the engine is in it.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    if not os.path.exists(os.path.join(folder, "config.json")):
        make(folder)
    import tmesh.vllm
    import vllm

    print("vllm", vllm.__version__)
    tmesh.vllm.register()
    engine = vllm.LLM(model=folder, load_format=load_format, skip_tokenizer_init=True, enforce_eager=True, dtype="float16",
                      max_model_len=128, max_num_seqs=2, gpu_memory_utilization=0.2)
    done = engine.generate([{"prompt_token_ids": [1, 20, 300, 4]}],
                           vllm.SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False), use_tqdm=False)
    print(json.dumps([*done[0].outputs[0].token_ids]))


if __name__ == "__main__":
    main()
