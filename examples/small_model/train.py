#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Train the small language model of this repository on its own documents, and an adapter of it on its Elixir sources.

    python examples/small_model/train.py FOLDER [--steps 1000]

writes FOLDER/small.gguf (weights and tokenizer; float16) and FOLDER/elixir.gguf (the adapter). It needs PyTorch and the
packages tokenizers and gguf, and takes about ten minutes on one core. The same sources, seed, versions and number of
threads give the same file.
"""

import argparse
import json
import math
import time
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
NAME = "small.gguf"
VOCABULARY, WIDTH, HEADS, GROUPS, HIDDEN, LAYERS, CONTEXT = 512, 128, 4, 2, 224, 3, 256
HEAD, EPS, BASE = WIDTH // HEADS, 1e-5, 10000.0
RANK, ALPHA = 8, 16
CHANGED = "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"  # by the adapter
END = "<|end|>"


def documents(patterns):
    return [path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def corpus():
    """Return the texts that the model is trained on."""
    return documents(["README.md", "CONTRIBUTING.md", "NEWS.md", "docs/**/*.md", "docs/man/*.scd", "bindings/*/README.md"])


def elixir():
    """Return the texts that the adapter is trained on."""
    return documents(["bindings/beam/lib/**/*.ex"])


def tokenizer_of(texts):
    """Train a byte-pair tokenizer, as GPT-2 has."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return made


def numbers(tokenizer, texts):
    end = tokenizer.token_to_id(END)
    return torch.tensor([number for one in tokenizer.encode_batch(texts) for number in [end, *one.ids]])


class Linear(nn.Linear):
    """A layer without a bias, and with an adapter after adapt()."""

    def __init__(self, width, out):
        super().__init__(width, out, bias=False)
        self.a = self.b = None

    def adapt(self):
        self.a = nn.Parameter(torch.randn(RANK, self.in_features) / math.sqrt(self.in_features))
        self.b = nn.Parameter(torch.zeros(self.out_features, RANK))

    def forward(self, x):
        y = super().forward(x)
        return y if self.a is None else y + ALPHA / RANK * (x @ self.a.T @ self.b.T)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


class Layer(nn.Module):
    """A layer of a llama. Its parameters have GGUF's names."""

    def __init__(self):
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(), Norm()
        self.attn_q, self.attn_output = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)
        self.attn_k, self.attn_v = Linear(WIDTH, GROUPS * HEAD), Linear(WIDTH, GROUPS * HEAD)
        self.ffn_gate, self.ffn_up, self.ffn_down = Linear(WIDTH, HIDDEN), Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH)

    def forward(self, x, turn, mask):
        rows, length, _ = x.shape
        h = self.attn_norm(x)
        q = turn(self.attn_q(h).view(rows, length, HEADS, HEAD)).transpose(1, 2)
        k = turn(self.attn_k(h).view(rows, length, GROUPS, HEAD)).transpose(1, 2).repeat_interleave(HEADS // GROUPS, 1)
        v = self.attn_v(h).view(rows, length, GROUPS, HEAD).transpose(1, 2).repeat_interleave(HEADS // GROUPS, 1)
        seen = (q @ k.transpose(-1, -2) / math.sqrt(HEAD) + mask).softmax(-1) @ v
        x = x + self.attn_output(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embd, self.output_norm = nn.Embedding(VOCABULARY, WIDTH), Norm()
        self.blk = nn.ModuleList(Layer() for _ in range(LAYERS))
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=.02 / (math.sqrt(2 * LAYERS) if "output" in name or "down" in name else 1))
        angle = torch.arange(CONTEXT)[:, None] * BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.cos, self.sin = angle.cos()[:, None], angle.sin()[:, None]
        self.mask = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)

    def forward(self, tokens):
        length = tokens.shape[1]

        def turn(x):
            one, two = x[..., 0::2], x[..., 1::2]
            cos, sin = self.cos[:length], self.sin[:length]
            return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)

        x = self.token_embd(tokens)
        for layer in self.blk:
            x = layer(x, turn, self.mask[:length, :length])
        return self.output_norm(x) @ self.token_embd.weight.T


def train(net, parameters, data, steps, rate, what, rows=16, length=128):
    kept = data[len(data) * 19 // 20:]  # never trained on
    data = data[:len(data) * 19 // 20]
    optimiser = torch.optim.AdamW(parameters, rate, betas=(.9, .95), weight_decay=.1)
    chance, began, mean = torch.Generator().manual_seed(18), time.monotonic(), None

    def batch(source):
        at = torch.randint(len(source) - length - 1, (rows,), generator=chance)
        taken = torch.stack([source[i:i + length + 1] for i in at.tolist()])
        return functional.cross_entropy(net(taken[:, :-1]).flatten(0, 1), taken[:, 1:].flatten())

    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 50) * (.05 + .95 * .5 * (1 + math.cos(math.pi * step / steps)))
        loss = batch(data)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        mean = loss.item() if mean is None else .95 * mean + .05 * loss.item()
        if step % 100 == 99 or step == steps - 1:
            with torch.no_grad():
                other = sum(batch(kept).item() for _ in range(4)) / 4
            print(f"{what}: step {step + 1}, loss {mean:.3f}, on text that was kept back {other:.3f}, "
                  f"{time.monotonic() - began:.0f} s", flush=True)


def as_float16(parameter):
    return np.ascontiguousarray(parameter.detach().to(torch.float16).numpy())


def write(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def save_gguf(path, net, tokenizer):
    """By the package gguf, which knows what its readers look for."""
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tmesh small")
    out.add_description("trained on tmesh's documents by examples/small_model/train.py")
    out.add_license("MIT")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_vocab_size(VOCABULARY)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(HIDDEN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(GROUPS)
    out.add_layer_norm_rms_eps(EPS)
    out.add_rope_dimension_count(HEAD)
    out.add_rope_freq_base(BASE)
    said = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(said["vocab"], key=said["vocab"].get)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.CONTROL if token == END else gguf.TokenType.NORMAL for token in tokens])
    out.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in said["merges"]])
    out.add_bos_token_id(tokenizer.token_to_id(END))
    out.add_eos_token_id(tokenizer.token_to_id(END))
    out.add_add_bos_token(True)
    for name, parameter in net.named_parameters():
        out.add_tensor(name, as_float16(parameter) if parameter.ndim == 2 else parameter.detach().numpy())
    write(out)


def save_adapter(path, net):
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tmesh small, Elixir")
    out.add_type("adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", ALPHA)
    for number, layer in enumerate(net.blk):
        for name in CHANGED:
            for side in "ab":
                out.add_tensor(f"blk.{number}.{name}.weight.lora_{side}", as_float16(getattr(getattr(layer, name), side)))
    write(out)


def main():
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("folder", type=Path)
    words.add_argument("--steps", type=int, default=1000)
    words.add_argument("--threads", type=int, default=1)
    said = words.parse_args()
    torch.manual_seed(18)
    torch.set_num_threads(said.threads)
    said.folder.mkdir(parents=True, exist_ok=True)
    texts = corpus()
    tokenizer = tokenizer_of([*texts, *elixir()])
    data, net = numbers(tokenizer, texts), Net()
    print(f"{sum(map(len, texts)):,} characters, {len(data):,} tokens; {sum(p.numel() for p in net.parameters()):,} parameters")
    train(net, list(net.parameters()), data, said.steps, 3e-3, "model")
    save_gguf(said.folder / NAME, net, tokenizer)

    # Train the adapter on the weights as the file has them, rounded to float16.
    for parameter in net.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.to(torch.float16).float()
        parameter.requires_grad_(False)
    changed = [getattr(layer, ours) for layer in net.blk for ours in CHANGED]
    for module in changed:
        module.adapt()
    train(net, [p for module in changed for p in (module.a, module.b)], numbers(tokenizer, elixir()), said.steps // 3, 3e-3,
          "adapter")
    save_adapter(said.folder / "elixir.gguf", net)


if __name__ == "__main__":
    main()
