# SPDX-License-Identifier: MIT
"""The engines of test_vllm.py: vllm_engine.py SOCKET imports vLLM once, and is forked for each engine.

An order on the socket, which is a descriptor, has an engine's "arguments" and "environment" as JSON, and its stdin, stdout and log. The
answer is the engine's process. Commands are lines of JSON on an engine's stdin. Each gets an answer on its stdout.

The arguments are the keywords of vllm.LLM, and five more. "lmcache" is where LMCache is installed. "stop_after" is a number of weights after which the load waits for a line.
"version" is another version of vLLM. With "in_place" vLLM's own loader packs no weights.
With "gpu_stand_in" the load format tmesh does as on a GPU, with memory of the host in place of a GPU's.

The command "busy" starts a load: requests are in flight from then on, also while later commands wait. An update of weights is finished
when the requests that have begun have their answers. "answers" returns them, each with the number of updates that were finished before it."""

import json
import os
import re
import select
import signal
import socket
import sys

import torch
import vllm
import vllm.lora.request
import vllm.v1.worker.cpu_worker  # noqa: F401 - what an engine imports when it starts

import tmesh

DEFAULTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def answer(value):
    print(json.dumps(value), file=main.answers, flush=True)


def mapped(name):
    """Return kB of this process's mappings whose name has that word, by kind."""
    found = {}
    inside = False
    with open("/proc/self/smaps") as file:
        for line in file:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                inside = name in line
            elif inside and (match := re.match(r"(Rss|Pss|Anonymous|Shared_Clean|Shared_Dirty|Private_Dirty):\s+(\d+)", line)):
                found[match[1]] = found.get(match[1], 0) + int(match[2])
    return found


def stop_after(count):
    from tmesh.vllm.loader import Loader

    get_all_weights = Loader.get_all_weights

    def slow(self, *args):
        for number, pair in enumerate(get_all_weights(self, *args)):
            yield pair
            if number == count:
                answer("filling")
                sys.stdin.readline()

    Loader.get_all_weights = slow


def in_place():
    """Let vLLM's own loader leave weights as the mode "view" does. Packed ones are computed with other roundings on some processors."""
    from tmesh.vllm.loader import _in_place
    from vllm.model_executor.model_loader import base_loader

    process = base_loader.process_weights_after_loading

    def plain(*args):
        with _in_place():
            process(*args)

    base_loader.process_weights_after_loading = plain


class Memory:
    """Memory of the host in place of tmesh.vllm.gpu.Memory."""

    def __init__(self, device):
        pass

    def identity(self):
        return "no GPU"

    def has(self, tensor):
        return tensor.dtype != torch.int64  # some tensors of a model on a GPU are the host's

    def make(self, nbytes):
        raw = torch.empty(nbytes, dtype=torch.uint8)
        return raw, raw

    def keep(self, memory, name):
        tmesh.keep(memory.numpy(), name, replace=True)

    def open(self, name):
        return torch.from_dlpack(tmesh.open_kept(name).dlpack(allow_readonly=True))


def gpu_stand_in():
    """Let the load format do as on a GPU. On a CPU finished layers have packed weights, so layers are made to compute on plain ones."""
    from tmesh.vllm import gpu, loader
    from vllm.model_executor.model_loader.weight_cache import ipc_loader

    in_place()
    gpu.Memory = Memory
    loader.Loader._on_gpu = staticmethod(lambda device: True)
    torch.accelerator.current_device_index = lambda: 0
    ipc_loader.weights_already_processed = loader._in_place


def use_lmcache(packages):
    """Let this process import LMCache."""
    sys.path.append(packages)
    import llvmlite.binding.ffi

    # vLLM 0.32.0 looks for kernels in each object of each module when it starts. These objects, which LMCache brings, have no dict as __dict__.
    llvmlite.binding.ffi._lib_fn_wrapper.get = lambda self, name: None


def reports():
    """Keep the loaders' reports. They are in this process if the engine is."""
    from tmesh.vllm.loader import Loader

    kept = []
    load_model = Loader.load_model

    def noted(self, *args, **more):
        model = load_model(self, *args, **more)
        kept.append(self.report)
        return model

    Loader.load_model = noted
    return kept


class Load:
    """Requests that are always in flight."""

    AT_ONCE = 4

    def __init__(self, engine, prompts, parameters):
        self._engine, self._prompts, self._parameters = engine.llm_engine, prompts, parameters
        self._running = {}
        self._count = self._generation = 0
        self._answers = []

    def _step(self):
        for one in self._engine.step():
            if one.finished:
                self._answers.append((self._generation, self._running.pop(one.request_id), [*one.outputs[0].token_ids]))

    def run(self, enough):
        """Add requests and compute until enough() is true."""
        while not enough():
            while len(self._running) < self.AT_ONCE:
                name, which = f"load-{self._count}", self._count % len(self._prompts)
                self._engine.add_request(name, self._prompts[which], self._parameters)
                self._running[name] = which
                self._count += 1
            self._step()

    def finish(self, update):
        """Answer the requests that have begun, and then finish an update of weights."""
        while self._running:
            self._step()
        update()
        self._generation += 1

    def answers(self):
        """Return the answers since the last call. At least one has the newest weights."""
        self.run(lambda: self._answers and self._answers[-1][0] == self._generation)
        found, self._answers = self._answers, []
        return found


def main(arguments):
    vllm.__version__ = arguments.pop("version", vllm.__version__)
    noted = reports()
    if arguments.pop("in_place", False):
        in_place()
    if arguments.pop("gpu_stand_in", False):
        gpu_stand_in()
    if (packages := arguments.pop("lmcache", None)) is not None:
        use_lmcache(packages)
    if (count := arguments.pop("stop_after", None)) is not None:
        stop_after(count)
    engine = vllm.LLM(**{"enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8, "dtype": "bfloat16", **arguments})
    answer({"report": noted[0] if noted else None})
    load = None
    while True:
        if load:
            load.run(lambda: select.select([sys.stdin], [], [], 0)[0])
        line = sys.stdin.readline()
        if not line:
            break
        command = json.loads(line)
        parameters = vllm.SamplingParams(max_tokens=command.get("tokens", 16), temperature=0, ignore_eos=True)
        if "prompts" in command:
            adapter = vllm.lora.request.LoRARequest("adapter", 1, command["adapter"]) if "adapter" in command else None
            done = engine.generate(command["prompts"], parameters, use_tqdm=False, lora_request=adapter)
            cached = [one.num_cached_tokens for one in done]
            answer([[*one.outputs[0].token_ids] for one in done])
        elif "cached" in command:
            answer(cached)
        elif "busy" in command:
            load = Load(engine, command["busy"], parameters)
            answer("busy")
        elif "answers" in command:
            answer(load.answers())
        elif "rpc" in command:
            def call():
                engine.collective_rpc(command["rpc"], args=tuple(command["args"]))

            def renewed():
                call()
                engine.reset_prefix_cache(reset_connector=True)

            try:
                if load and command["rpc"] == "finish_weight_update":
                    load.finish(renewed)
                else:
                    call()
                answer("done")
            except Exception as problem:
                answer(f"{type(problem).__name__}: {problem}")
        elif "reset" in command:
            answer(engine.reset_prefix_cache(reset_connector=True))
        elif "counts" in command:
            from tmesh.vllm import connector
            answer(connector.counts)
        elif "mapped" in command:
            answer(mapped(command["mapped"]))


def serve(control):
    """Fork for each order until the other end is closed. The fork that is to be an engine returns its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        text, files, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not text:
            return None
        order = json.loads(text)
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.environ.clear()
            os.environ.update({**DEFAULTS, **order["environment"]})
            # vLLM and libraries write to stdout, which would be among the answers.
            commands, answers, log = files
            os.dup2(commands, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            main.answers = os.fdopen(answers, "w")
            for file in commands, log, control.detach():
                os.close(file)
            return order["arguments"]
        for file in files:
            os.close(file)
        control.send(str(process).encode())


if __name__ == "__main__":
    assert vllm.LLM  # imported when it is first used
    if (found := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        main(found)
