# SPDX-License-Identifier: MIT
"""A stand-in for vLLM, to test the test of it in tests/gpu. It computes nothing, and shows nothing about vLLM."""

import json
import os
import types

__version__ = "stand-in"


def SamplingParams(**settings):
    return types.SimpleNamespace(**settings)


class LLM:
    def __init__(self, model, load_format, **settings):
        with open(os.path.join(model, "config.json")) as file:
            self.vocabulary = json.load(file)["vocab_size"]
        with open(os.path.join(model, "model.safetensors"), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            assert max(one["data_offsets"][1] for one in header.values()) == len(file.read())
        if load_format == "tmesh":
            done = os.path.join(model, "done")
            print("tmesh:", {"artifact": "a.0", "made": not os.path.exists(done), "reason": ""})
            open(done, "w").close()

    def generate(self, prompts, params, use_tqdm):
        tokens = [(sum(prompts[0]["prompt_token_ids"]) * at) % self.vocabulary for at in range(params.max_tokens)]
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=tokens)])]
