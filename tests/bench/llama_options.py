#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The cost of llama.cpp's option that keeps a file's layout: the processor time of a prompt's token and of a generated token.
Weights are used as they are mapped, beside weights that each process packs anew. A llama of random weights, one thread.

usage: tests/bench/llama_options.py FOLDER PACKAGES EXAMPLE.gguf

PACKAGES has cyllama, EXAMPLE.gguf a vocabulary.
"""
import json
import os
import sys
from time import process_time_ns

FOLDER, PACKAGES, EXAMPLE = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [PACKAGES, os.path.join(HERE, "../mount")]
try:
    import cyllama.llama.llama_cpp as llama
    import gguf
    import numpy as np
    from stock_models import make_gguf
except ImportError as error:
    print(f"llama_options: not measured: {error}", file=sys.stderr)
    sys.exit(0)

ROUNDS, PROMPT, TOKENS = 7, 64, 16


def opened(path, packs):
    parameters = llama.LlamaModelParams()
    parameters.n_gpu_layers = 0
    parameters.use_extra_bufts = packs
    model = llama.LlamaModel(path, parameters)
    options = llama.LlamaContextParams()
    options.n_ctx, options.n_threads, options.n_threads_batch = PROMPT + TOKENS, 1, 1
    return model, options


def once(model, options):
    """Return the time of a prompt's token and of a token that is generated."""
    context = llama.LlamaContext(model, options)
    start = process_time_ns()
    context.decode(llama.llama_batch_get_one(list(range(1, PROMPT + 1)), 0))
    middle = process_time_ns()
    for i in range(TOKENS):
        context.decode(llama.llama_batch_get_one([i + 1], PROMPT + i))
    return (middle - start) / PROMPT, (process_time_ns() - middle) / TOKENS


def main():
    for kind in "Q4_0", "Q4_1", "F16":
        path = os.path.join(FOLDER, f"llama-{kind}.gguf")
        make_gguf(FOLDER, EXAMPLE, width=1024, inner=3072, layers=6, heads=16, kind=kind, name=os.path.basename(path))
        models = {"packed": opened(path, True), "mapped": opened(path, False)}
        samples = {}
        for turn in range(ROUNDS + 1):
            for way, model in models.items():
                for what, ns in zip(("prompt", "token"), once(*model)):
                    if turn:
                        samples.setdefault(f"{kind}-{what}-{way}", []).append(int(ns))
        for name, ns in samples.items():
            print(json.dumps({"topic": "llama", "name": name, "ns": ns}), flush=True)
        del models
        os.unlink(path)


main()
