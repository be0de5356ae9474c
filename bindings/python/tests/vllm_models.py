# SPDX-License-Identifier: MIT
"""Make tiny models of random weights for test_vllm.py: vllm_models.py FOLDER KIND...

Weights are large, so that tokens differ from prompt to prompt. The kind "lora" has the folder "adapter", in PEFT's format."""

import json
import os
import sys

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
import torch
import transformers

VOCABULARY = 512
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
          "intermediate_size": 704, "initializer_range": 0.3, "max_position_embeddings": 1024}


def configuration(kind):
    if kind in ("llama", "other", "int8", "lora"):
        return transformers.LlamaConfig(**COMMON, tie_word_embeddings=False)
    if kind == "qwen":
        return transformers.Qwen2Config(**COMMON, tie_word_embeddings=True)
    if kind == "mixtral":
        return transformers.MixtralConfig(**COMMON, tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2)
    if kind == "gemma":
        return transformers.Gemma2Config(**COMMON, head_dim=32, query_pre_attn_scalar=32, sliding_window=256)
    raise ValueError(kind)


def quantise(folder):
    """Make the linear layers' weights int8 with a scale for each row, in the format of compressed-tensors."""
    path = os.path.join(folder, "model.safetensors")
    made = {}
    for name, weight in load_file(path).items():
        if not name.endswith("proj.weight"):
            made[name] = weight
            continue
        scale = (weight.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
        made[name] = (weight.float() / scale).round().clamp(-128, 127).to(torch.int8)
        made[name + "_scale"] = scale.to(torch.bfloat16)
    save_file(made, path, {"format": "pt"})
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**numbers, "strategy": "channel", "dynamic": False},
                                      "input_activations": {**numbers, "strategy": "token", "dynamic": True}}}}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)


def make_adapter(folder, rank=8):
    os.mkdir(folder)
    weights = {}
    for layer in range(COMMON["num_hidden_layers"]):
        for name, width in ("q_proj", COMMON["hidden_size"]), ("v_proj", COMMON["hidden_size"] // 2):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_"
            weights[place + "A.weight"] = torch.randn(rank, COMMON["hidden_size"], dtype=torch.bfloat16)
            weights[place + "B.weight"] = torch.randn(width, rank, dtype=torch.bfloat16)
    save_file(weights, os.path.join(folder, "adapter_model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj", "v_proj"], "bias": "none"}, file)


def make(folder, kind):
    torch.manual_seed(kind == "other")
    net = transformers.AutoModelForCausalLM.from_config(configuration(kind)).to(torch.bfloat16)
    if kind == "gemma":
        # Tied weights this large would repeat the last token.
        net.get_input_embeddings().weight.data.mul_(.05)
    net.save_pretrained(folder)
    words = {chr(number) if 32 <= number < 127 else f"<{number}>": number for number in range(VOCABULARY - 2)}
    tokenizer = Tokenizer(models.WordLevel({**words, "<s>": VOCABULARY - 2, "</s>": VOCABULARY - 1}, unk_token="<0>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    if kind == "int8":
        quantise(folder)
    if kind == "lora":
        make_adapter(os.path.join(folder, "adapter"))


if __name__ == "__main__":
    for one in sys.argv[2:]:
        make(os.path.join(sys.argv[1], one), one)
