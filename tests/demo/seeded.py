# SPDX-License-Identifier: MIT
"""A GGUF model of random weights, made by a seed: two layers of 64, and a token for each byte.

    seeded.py FILE ARCHITECTURE SEED
"""

import random
import struct
import sys
from pathlib import Path

WIDTH, HEADS, LAYERS, INNER = 64, 2, 2, 128
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def alphabet():
    """GPT-2's letters for the 256 bytes: visible ones are themselves, the others come behind 255."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, kind, value):
    if kind == ARRAY:
        packed = struct.pack("<IQ", STRING, len(value)) + b"".join(map(text, value))
    else:
        packed = text(value) if kind == STRING else struct.pack({UINT32: "<I", FLOAT32: "<f", BOOL: "<?"}[kind], value)
    return text(key) + struct.pack("<I", kind) + packed


def write(path, architecture, seed):
    draw, tokens = random.Random(seed), [*alphabet(), "<s>"]
    shapes = {"token_embd": (len(tokens), WIDTH), "output": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{layer}.{name}": (INNER, WIDTH) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down": (WIDTH, INNER), f"blk.{layer}.attn_norm": (WIDTH,), f"blk.{layer}.ffn_norm": (WIDTH,)}
    pairs = [pair("general.architecture", STRING, architecture), pair("tokenizer.ggml.model", STRING, "gpt2"),
             pair("tokenizer.ggml.pre", STRING, "gpt-2"), pair("tokenizer.ggml.tokens", ARRAY, tokens),
             pair("tokenizer.ggml.bos_token_id", UINT32, 256), pair("tokenizer.ggml.add_bos_token", BOOL, True)]
    for key, value in {"block_count": LAYERS, "embedding_length": WIDTH, "attention.head_count": HEADS, "context_length": 512}.items():
        pairs.append(pair(f"{architecture}.{key}", UINT32, value))
    pairs.append(pair(f"{architecture}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5))
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join(pairs), b""
    for name, shape in shapes.items():
        norm, count = len(shape) == 1, shape[0] * (shape[1] if len(shape) > 1 else 1)
        head += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], 0 if norm else 1, len(data))
        data += struct.pack(f"<{count}{'f' if norm else 'e'}", *([1.0] * count if norm else (draw.gauss(0, .2) for _ in range(count))))
        data += bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
