# SPDX-License-Identifier: MIT
"""The load format of tmesh.vllm as on a GPU, with vLLM's package and no engine: make vllm-check. Memory of the host stands in for a GPU's."""

import copy
import importlib.util
import threading
import types

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually
from tmesh import artifacts

any_backend()
if not importlib.util.find_spec("vllm"):
    pytest.skip("vLLM is not installed: make vllm-check", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("nothing_kept")


class Memory:
    """Memory of the host in place of tmesh.vllm.gpu.Memory."""

    def __init__(self, device):
        pass

    def identity(self):
        return "no GPU"

    def has(self, tensor):
        return True

    def make(self, nbytes):
        import torch

        raw = torch.empty(nbytes, dtype=torch.uint8)
        return raw, raw

    def keep(self, memory, name):
        tmesh.keep(memory.numpy(), name, replace=True)

    def open(self, name):
        import torch

        return torch.from_dlpack(tmesh.open_kept(name).dlpack(allow_readonly=True))


class Hashed(types.SimpleNamespace):
    def compute_hash(self):
        return repr(self)


def configuration(**changed):
    """Return what the loader reads of vLLM's configuration. Names with "_" in place of "." are parts' attributes: parallel__enable_eplb."""
    made = types.SimpleNamespace(
        model_config=types.SimpleNamespace(model="model", enable_sleep_mode=False, enable_cumem_allocator=False, is_moe=False, use_mla=False),
        parallel_config=types.SimpleNamespace(
            enable_eplb=False, all2all_backend="allgather", eplb_config=types.SimpleNamespace(num_redundant_experts=0),
            prefill_context_parallel_size=1, decode_context_parallel_size=1, dcp_q_replicate=None),
        cache_config=types.SimpleNamespace(cache_dtype="auto", kv_cache_dtype_skip_layers=[]),
        kernel_config=Hashed(moe_backend="auto", linear_backend="auto"), attention_config=Hashed(backend=None),
        load_config=load_config(), device_config=types.SimpleNamespace(device="cuda"), weight_transfer_config=None, speculative_config=None,
        compilation_config=types.SimpleNamespace(static_forward_context={}, static_all_moe_layers=[]))
    for name, value in changed.items():
        part, _, attribute = name.partition("__")
        if attribute:
            setattr(getattr(made, f"{part}_config"), attribute, value)
        else:
            setattr(made, name, value)
    return made


def load_config(**extra):
    return types.SimpleNamespace(load_format="tmesh", model_loader_extra_config=extra, device=None)


@pytest.fixture
def loader(monkeypatch):
    """Return a function that makes a loader of an engine on a GPU, whose files and ranks are always the same."""
    from tmesh.vllm import gpu
    from tmesh.vllm import loader as module

    monkeypatch.setattr(gpu, "Memory", Memory)
    monkeypatch.setattr(module._default.DefaultModelLoader, "__init__", lambda self, config: setattr(self, "load_config", config))
    monkeypatch.setattr(module._default.DefaultModelLoader, "load_model", lambda self, *_: "loaded as auto")
    monkeypatch.setattr(module.Loader, "_fingerprint", lambda self, config, model, prefix: {"model": model.model, "prefix": prefix})
    for name in "get_dcp_group", "get_pcp_group":
        monkeypatch.setattr(module._distributed, name, lambda: types.SimpleNamespace(rank_in_group=0))
    return lambda **extra: module.Loader(load_config(**extra))


def kept(loader, config, nbytes=100, model=None, prefix=""):
    """Keep an artifact as an engine of this configuration does. Return its size and its name."""
    import torch

    artifact = artifacts.keep(loader._fingerprint_on(Memory(None), config, model or config.model_config, prefix),
                              {"p:w": torch.ones(nbytes, dtype=torch.uint8)}, gpu=Memory(None))
    return artifact.gpu_bytes, artifact.name


def test_the_memory_of_one_gpu(monkeypatch):
    """Its name is that of PyTorch's device, and memory that is kept on another one is not used."""
    import torch

    from tmesh.vllm import gpu

    asked, released = [], []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: asked.append(index) or types.SimpleNamespace(uuid="a-b-c"))
    memory = gpu.Memory(torch.device("cuda:3"))
    assert memory.identity() == "a-b-c" and asked == [3]
    monkeypatch.setattr(gpu.cuda, "open_kept", lambda name, device: types.SimpleNamespace(device="cuda:1", release=lambda: released.append(name)))
    assert_refused(lambda: memory.open("g.x"), tmesh.ProtocolError, "its GPU memory, g.x, is on cuda:1, and this engine computes on cuda:3")
    assert released == ["g.x"]


def test_a_gpu_without_a_name(loader, monkeypatch):
    """An error of vLLM's or PyTorch's is a reason to load as auto."""
    monkeypatch.setattr(Memory, "identity", lambda self: [][0])
    config = configuration()
    one = loader()
    assert one.get_external_weight_memory(config) == 0
    assert one.load_model(config, config.model_config) == "loaded as auto"
    assert one.report["reason"] == "the fingerprint cannot be had: IndexError: list index out of range"


READ_ONLY = {
    "parallel__enable_eplb": (True, "EPLB writes to the experts' weights"),
    "weight_transfer_config": (types.SimpleNamespace(backend="ipc"), "the weight transfer 'ipc' writes to the weights"),
    "model__enable_sleep_mode": (True, "sleep mode and the cumem allocator do not free weights"),
    "model__enable_cumem_allocator": (True, "sleep mode and the cumem allocator do not free weights"),
}


@pytest.mark.parametrize("what", READ_ONLY)
def test_engines_that_write_to_their_weights(what, loader):
    """They load as auto, and nothing is kept. In the mode "copy" they have weights of their own."""
    value, words = READ_ONLY[what]
    config = configuration(**{what: value})
    one = loader()
    kept(one, config)
    assert one.get_external_weight_memory(config) == 0
    assert one.load_model(config, config.model_config) == "loaded as auto"
    assert one.report["reason"].startswith(words) and "use the mode \"copy\"" in one.report["reason"] and one.report["artifact"] is None
    with pytest.raises(tmesh.UnsupportedError, match="nothing can be shared: .*use the mode"):
        loader(fallback=False).load_model(config, config.model_config)
    assert loader(mode="copy")._refusal(config) == ""
    assert one._refusal(configuration(weight_transfer_config=types.SimpleNamespace(backend="tmesh"))) == ""


@pytest.mark.parametrize("what", ["is_moe", "use_mla"])
@pytest.mark.parametrize("mode", ["view", "copy"])
def test_models_whose_load_does_more(what, mode, loader):
    """Mixtures of experts and MLA load as auto, although their weights are kept."""
    config = configuration(**{f"model__{what}": True})
    one = loader(mode=mode)
    kept(one, config)
    assert one.get_external_weight_memory(config) == 0
    assert one.load_model(config, config.model_config) == "loaded as auto"
    assert "while it is loaded" in one.report["reason"] and one.report["artifact"] is None


@pytest.mark.parametrize("holder", ["router", "attention"])
def test_a_model_that_stays_without_memory(holder, loader, monkeypatch):
    """An object that is no module refers to a parameter which vLLM replaces: the model loads as auto, and says where."""
    import torch

    from tmesh.vllm import gpu

    class Holder:
        __module__ = "vllm.router"

    net = torch.nn.Linear(2, 2, bias=False)
    net.empty = torch.empty(0, device="meta")
    builder = types.SimpleNamespace(_build_model=lambda *_: net)
    monkeypatch.setattr(gpu, "_builder", lambda _: builder)
    monkeypatch.setattr(gpu, "_state", lambda *_: None)
    assert gpu.build(None, None, None, "", None, False) is net
    setattr(net, holder, Holder())
    getattr(net, holder).bias = torch.empty(2, device="meta")
    config = configuration()
    one = loader()
    kept(one, config)
    assert one.load_model(config, config.model_config) == "loaded as auto"
    assert one.report["reason"] == f"model.{holder}.bias would have no memory"


def test_a_load_into_mapped_weights(loader, monkeypatch):
    """All ways that vLLM loads a model again are refused, before anything is read."""
    from tmesh.vllm import gpu

    config = configuration()
    one = loader()
    _, name = kept(one, config)
    monkeypatch.setattr(gpu, "build", lambda *_: types.SimpleNamespace(load_weights=lambda weights: pytest.fail("it writes")))
    model = one.load_model(config, config.model_config)
    assert one.report["artifact"] == name and one.report["shared_bytes"] > 0
    for way in (lambda: model.load_weights(iter(())), lambda: loader().get_all_weights(None, model), lambda: loader().load_weights(model, None)):
        assert_refused(way, tmesh.UnsupportedError, "start the engine with the mode \"copy\"")


OTHERS = {
    "kernel__moe_backend": "flashinfer_trtllm", "kernel__linear_backend": "marlin", "attention__backend": "FLASHINFER", "cache__cache_dtype": "fp8",
    "cache__kv_cache_dtype_skip_layers": ["0"], "parallel__all2all_backend": "deepep_low_latency",
    "parallel__eplb_config": types.SimpleNamespace(num_redundant_experts=2), "parallel__prefill_context_parallel_size": 2,
    "parallel__decode_context_parallel_size": 2, "parallel__dcp_q_replicate": True,
}


@pytest.mark.parametrize("what", [*OTHERS, "rank", "version"])
def test_finished_weights_of_another_form(what, loader, monkeypatch):
    """The artifact of an engine whose kernels have another form is another one."""
    from tmesh.vllm import loader as module

    def name(**changed):
        config = configuration(**changed)
        return artifacts.name_of(loader()._fingerprint_on(Memory(None), config, config.model_config, ""))

    before = name()
    if what == "rank":
        monkeypatch.setattr(module._distributed, "get_pcp_group", lambda: types.SimpleNamespace(rank_in_group=1))
    if what == "version":
        monkeypatch.setattr(module.metadata, "version", lambda package: "1.0 of " + package)
    assert name() == before if what in OTHERS else name() != before
    assert what not in OTHERS or name(**{what: OTHERS[what]}) != before


class Draft(types.SimpleNamespace):
    draft_load_config = None

    def apply_draft_overrides(self, config):
        return config


def test_the_memory_that_vllm_is_told_of(loader):
    """It is what a load would map: of the model and of its draft, if the GPU's memory is there."""
    config = configuration()
    one = loader()
    assert one.get_external_weight_memory(config) == 0
    size, name = kept(one, config)
    assert one.get_external_weight_memory(config) == size > 0 and loader(mode="copy").get_external_weight_memory(config) == 0
    draft = types.SimpleNamespace(model="draft", is_moe=False, use_mla=False)
    eagle = Draft(method="eagle", draft_model_config=draft, attention_backend=None)
    with_draft = configuration(speculative_config=eagle)
    assert one.get_external_weight_memory(with_draft) == size
    more, _ = kept(one, with_draft, 3000, draft)
    assert one.get_external_weight_memory(with_draft) == size + more > 3000
    # A draft that is a model of its own has ranks of its own.
    alone = configuration(speculative_config=Draft(method="draft_model", draft_model_config=draft, attention_backend=None,
                                                   draft_parallel_config=copy.copy(config.parallel_config)))
    more, _ = kept(one, alone, 5000, draft, "draft_model")
    assert one.get_external_weight_memory(alone) == size + more > 5000
    # Some methods name the model itself as its draft.
    assert one.get_external_weight_memory(configuration(speculative_config=Draft(method="ngram", draft_model_config=config.model_config),
                                                        model_config=config.model_config)) == size
    eagle.draft_load_config = types.SimpleNamespace(load_format="auto")
    assert one.get_external_weight_memory(with_draft) == size
    tmesh.drop("g." + name[2:])
    assert one.get_external_weight_memory(config) == 0


def test_the_memory_of_an_engine_that_still_loads(loader):
    """It is waited for: it would count as this engine's own later."""
    config = configuration()
    one = loader()
    turn = artifacts._Turn(artifacts.name_of(one._fingerprint_on(Memory(None), config, config.model_config, "")))
    assert turn.take()
    heard = []
    asking = threading.Thread(target=lambda: heard.append(loader(timeout=600).get_external_weight_memory(config)))
    asking.start()
    assert loader(timeout=.1).get_external_weight_memory(config) == 0
    assert not heard
    size, _ = kept(one, config)
    turn.end()
    eventually(lambda: heard == [size])
    asking.join()
