#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tmesh.vllm in engines of vLLM on a CPU, with 1 GB of random weights (bf16, 24 layers).

It times load_model() with kept weights beside the load format auto, and tokens with shared and with packed weights. It reports the private
memory that a load leaves in an engine, in percent of the weights. It times the first token after a prefix of 2,000 tokens that another
engine has computed. An update of all weights stands beside a reload and beside a copy.

usage: tests/bench/vllm_engines.py TESTS KEEPER

TESTS is the folder of the Python package's tests."""
import json
import os
import subprocess
import sys
import tempfile
from time import perf_counter_ns, sleep

PREFIX, TOKENS, BLOCK = 2000, 16, 32
COPY = {"mode": "copy"}
CONFIGURATION = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 5504, "initializer_range": .02, "max_position_embeddings": 4096}


def private_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def engine(arguments):
    """Run an engine. It writes the nanoseconds and the private bytes of its load. Each line of JSON on stdin is a prompt or a call of the workers, and has its nanoseconds as the answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import vllm
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from tmesh.vllm.loader import Loader

    took = []

    def timed(kind):
        load_model = kind.load_model

        def load(self, *args, **more):
            before, began = private_bytes(), perf_counter_ns()
            model = load_model(self, *args, **more)
            took.append([perf_counter_ns() - began, private_bytes() - before])
            return model

        kind.load_model = load

    timed(DefaultModelLoader)
    timed(Loader)
    llm = vllm.LLM(enforce_eager=True, max_model_len=PREFIX + 256, max_num_seqs=2, dtype="bfloat16", block_size=BLOCK, **arguments)
    print(json.dumps(took[0]), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        began = perf_counter_ns()
        if "call" in command:
            llm.collective_rpc(command["call"], args=tuple(command["args"]))
        else:
            llm.generate([{"prompt_token_ids": command["prompt"]}], vllm.SamplingParams(max_tokens=command["tokens"], temperature=0, ignore_eos=True),
                         use_tqdm=False)
        print(perf_counter_ns() - began, file=answers, flush=True)


class Engine:
    def __init__(self, model, **arguments):
        self.process = subprocess.Popen([sys.executable, "-B", __file__, "--engine", json.dumps({"model": model, **arguments})], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr if os.environ.get("V") else subprocess.DEVNULL,
                                        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"})
        self.load_ns, self.private = self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("vllm_engines: an engine ended: V=1 shows its log")
        return json.loads(line)

    def ask(self, **command):
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return self.hear()

    def token_ns(self):
        """Return the time of a generated token."""
        first, all_of_them = (min(self.ask(prompt=[7, 8, 9], tokens=tokens) for _ in range(3)) for tokens in (1, 1 + TOKENS))
        return (all_of_them - first) // TOKENS

    def end(self):
        self.process.kill()
        self.process.wait()


class Client:
    """An engine's calls for a trainer."""

    def __init__(self, one):
        self.one = one

    def __getattr__(self, name):
        return lambda *args: self.one.ask(call=name, args=args)


def say(name, *ns):
    print(json.dumps({"topic": "vllm", "name": name, "ns": ns}), flush=True)


def say_memory(name, one, model):
    share = 100 * one.private / os.path.getsize(os.path.join(model, "model.safetensors"))
    print(json.dumps({"topic": "vllm", "name": f"private memory of a load, {name}", "value": round(share, 1), "unit": "% of the weights"}), flush=True)


def main(tests, keeper):
    sys.path.append(tests)
    import torch
    from safetensors.torch import load_file
    import vllm_models

    vllm_models.COMMON.update(CONFIGURATION)
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    os.environ["TMESH_RUNTIME_DIR"] = os.path.join(folder, "runtime")
    os.mkdir(os.environ["TMESH_RUNTIME_DIR"], 0o700)
    os.environ["TMESH_KEEPER"] = os.path.abspath(keeper)
    model = os.path.join(folder, "model")
    vllm_models.make(model, "llama")
    import tmesh

    prompts = [[(17 * number + position) % 500 for position in range(PREFIX + 1)] for number in range(3)]
    connector = {"kv_transfer_config": {"kv_connector": "Connector", "kv_connector_module_path": "tmesh.vllm.connector", "kv_role": "kv_both",
                                        "kv_connector_extra_config": {"key_file": os.path.join(folder, "key"), "patience": 60}}}
    first = Engine(model, load_format="auto")
    say("token-auto", first.token_ns())
    first.end()
    filling = Engine(model, load_format="tmesh")
    say("load-filling", filling.load_ns)
    filling.end()
    for what in "computed", "shared":
        one = Engine(model, load_format="tmesh", **connector, weight_transfer_config={"backend": "tmesh"})
        one.ask(prompt=[1, 2, 3], tokens=1)
        say(f"first-{what}", *(one.ask(prompt=prompt, tokens=1) for prompt in prompts))
        if what == "computed":
            # The engine keeps blocks in threads.
            while sum(entry["name"].startswith("k.") for entry in tmesh.kept()) < len(prompts) * (PREFIX // BLOCK):
                sleep(.1)
        else:
            say("token-view", one.token_ns())
            update(one, load_file(os.path.join(model, "model.safetensors")), torch)
        one.end()
    packed = Engine(model, load_format="tmesh", model_loader_extra_config=COPY)
    say("token-copy", packed.token_ns())
    packed.end()
    load(model)
    for one in tmesh.kept():
        tmesh.drop(one["name"])


def load(model):
    """Start engines that load in three ways, in turns, and let those of vLLM's way read all files again."""
    ways = {"auto": {"load_format": "auto"}, "mapped": {"load_format": "tmesh"}, "copy": {"load_format": "tmesh", "model_loader_extra_config": COPY}}
    took, reloads = {way: [] for way in ways}, []
    for turn in range(3):
        for way, arguments in ways.items():
            one = Engine(model, **arguments)
            took[way].append(one.load_ns)
            if not turn:
                say_memory(way, one, model)
            if way == "auto":
                reloads.append(one.ask(call="reload_weights", args=[]))
            one.end()
    for way, ns in took.items():
        say(f"load-{way}", *ns)
    say("reload", *reloads)


def update(one, weights, torch):
    """Publish all weights three times, and copy them."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from tmesh.vllm import register

    register()
    from tmesh.vllm.weights import TrainerInit

    init = TrainerInit(rank=0)
    trainer = WeightTransferTrainerFactory.trainer_init(init, client=Client(one), source=[*weights.items()])
    updates, copies = [], []
    for _ in range(3):
        began = perf_counter_ns()
        trainer.send_weights()
        updates.append(perf_counter_ns() - began)
        began = perf_counter_ns()
        copy = {name: tensor.clone() for name, tensor in weights.items()}
        copies.append(perf_counter_ns() - began)
        del copy
    trainer.shutdown()
    say("update", *updates)
    say("update-memcpy", *copies)


if sys.argv[1] == "--engine":
    engine(json.loads(sys.argv[2]))
else:
    main(*sys.argv[1:])
