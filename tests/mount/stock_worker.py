# SPDX-License-Identifier: MIT
"""One process with a stock engine on a model's path. It prints JSON: what it computed, what its mapping of the file shares, and
what memory of its own it took. It stays until its input ends.

    stock_worker.py onnx|prepared|llama|lora|ctranslate2|openvino|genai|transformers|safetensors PATH
"""
import hashlib
import importlib
import importlib.metadata
import json
import os
import sys


def own_kib():
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))


def mapped(folder):
    """(RSS, PSS) in KiB of this process's mappings of files in a folder."""
    rss = pss = 0
    inside = False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                inside = len(words) > 5 and words[5].startswith(folder)
            elif inside and words[0] == "Rss:":
                rss += int(words[1])
            elif inside and words[0] == "Pss:":
                pss += int(words[1])
    return rss, pss


def run_onnx(path, prepared):
    import numpy as np
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if prepared:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    result = session.run(None, {"x": np.linspace(-1, 1, 1024, dtype=np.float32).reshape(1, 1024)})[0]
    return session, result.tobytes()


def run_llama(path):
    import cyllama.llama.llama_cpp as llama
    parameters = llama.LlamaModelParams()
    parameters.n_gpu_layers = 0
    if hasattr(parameters, "use_extra_bufts"):
        parameters.use_extra_bufts = False
    model = llama.LlamaModel(path, parameters)
    options = llama.LlamaContextParams()
    options.n_ctx, options.n_threads = 64, 1
    context = llama.LlamaContext(model, options)
    sampler = llama.LlamaSampler(llama.LlamaSamplerChainParams())
    sampler.add_greedy()
    tokens = [1, 2, 3, 4, 5]
    context.decode(llama.llama_batch_get_one(tokens, 0))
    for _ in range(8):
        tokens.append(sampler.sample(context, -1))
        context.decode(llama.llama_batch_get_one(tokens[-1:], len(tokens) - 1))
    # The keys and values of all layers tell more of the weights than the tokens do.
    return (context, model), str(tokens).encode() + bytes(context.get_state_data())


def run_lora(path):
    """llama.cpp's own server, with the adapter that is beside the model, if there is one."""
    import xllamacpp
    options = xllamacpp.CommonParams()
    options.model.path = path
    options.n_ctx, options.n_parallel, options.n_gpu_layers, options.cpuparams.n_threads = 64, 1, 0, 1
    options.no_extra_bufts, options.warmup = True, False
    adapter = os.path.join(os.path.dirname(path), "adapter.gguf")
    if os.path.exists(adapter):
        options.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
    server = xllamacpp.Server(options)
    answer = server.handle_completions({"prompt": [1, 2, 3, 4, 5], "max_tokens": 8, "temperature": 0, "n_probs": 5, "ignore_eos": True})
    return server, json.dumps(answer["choices"]).encode()


def run_ctranslate2(path):
    import ctranslate2
    import numpy as np
    generator = ctranslate2.Generator(os.path.dirname(path), "cpu", inter_threads=1, intra_threads=1)
    return generator, np.array(generator.forward_batch([["3", "4", "5"]])).tobytes()


def run_openvino(path):
    import numpy as np
    import openvino
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_NUM_THREADS": 1})
    result = compiled(np.linspace(-1, 1, 1024, dtype=np.float32).reshape(1, 1024))[0]
    return compiled, result.tobytes()


def run_genai(path):
    import numpy as np
    import onnxruntime_genai as genai
    model = genai.Model(os.path.dirname(path))
    generator = genai.Generator(model, genai.GeneratorParams(model))
    generator.append_tokens(np.array([[1, 5, 7]], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return (model, generator), bytes(generator.get_sequence(0)) + np.asarray(generator.get_output("logits")).tobytes()


def run_transformers(path):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(os.path.dirname(path), low_cpu_mem_usage=True, torch_dtype=torch.float32)
    with torch.no_grad():
        result = model(torch.arange(1, 33).reshape(1, 32)).logits
    return model, result.numpy().tobytes()


def run_safetensors(path):
    from safetensors import safe_open
    with safe_open(path, framework="pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]
    return tensors, b"".join(tensor.sum().numpy().tobytes() for tensor in tensors)


# The function and the module of each kind. The module's own memory is not the model's.
KINDS = {
    "onnx": (lambda path: run_onnx(path, False), "onnxruntime"),
    "prepared": (lambda path: run_onnx(path, True), "onnxruntime"),
    "llama": (run_llama, "cyllama.llama.llama_cpp"),
    "lora": (run_lora, "xllamacpp"),
    "ctranslate2": (run_ctranslate2, "ctranslate2"),
    "openvino": (run_openvino, "openvino"),
    "genai": (run_genai, "onnxruntime_genai"),
    "transformers": (run_transformers, "transformers.models.llama.modeling_llama"),
    "safetensors": (run_safetensors, "safetensors.torch"),
}


def main(kind, path):
    run, module = KINDS[kind]
    importlib.import_module(module)
    before = own_kib()
    kept, result = run(path)
    print(json.dumps({"result": hashlib.sha256(result).hexdigest(), "own_kib": own_kib() - before,
                      "version": importlib.metadata.version(module.split(".")[0].replace("_", "-"))}), flush=True)
    sys.stdin.readline()  # all processes have it now
    rss, pss = mapped(os.path.dirname(os.path.realpath(path)))
    print(json.dumps({"rss_kib": rss, "pss_kib": pss}), flush=True)
    sys.stdin.readline()
    del kept


main(*sys.argv[1:])
