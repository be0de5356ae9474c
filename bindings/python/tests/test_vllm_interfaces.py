# SPDX-License-Identifier: MIT
"""tmesh.vllm's connector and transfer of weights without vLLM: with stand-ins that vllm_interfaces.py makes of a record of vLLM's interfaces."""

import contextlib
import importlib
import os
from pathlib import Path
import sys
import types

import pytest

import tmesh
from conftest import any_backend, assert_refused, eventually, pytorch

any_backend()
sys.path.insert(0, str(Path(__file__).parent))
import vllm_interfaces  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")

BLOCK = 4  # tokens


@pytest.fixture
def modules():
    if "vllm" in sys.modules or importlib.util.find_spec("vllm"):
        pytest.skip("vLLM itself is installed: test_vllm.py uses it")
    remove = vllm_interfaces.install()
    yield lambda name: importlib.import_module(f"tmesh.vllm.{name}")
    remove()


class Request:
    """A request whose blocks have these letters as hashes."""

    def __init__(self, name, hashes, tokens=None, lora=None):
        self.lora_request = lora
        self.request_id, self.block_hashes = name, [one.encode() for one in hashes]
        self.num_tokens = len(hashes) * BLOCK + 1 if tokens is None else tokens


class Engine:
    """The scheduler's and the worker's connector, and a KV cache of two layers."""

    def __init__(self, modules, key_file, model, revision=None, layout="NHD", **extra):
        self.torch = pytorch()
        connector = modules("connector")
        role = connector._base.KVConnectorRole
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"key_file": str(key_file), "patience": 600, **extra},
                                                     kv_load_failure_policy="fail"),
            parallel_config=types.SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=1),
            cache_config=types.SimpleNamespace(block_size=BLOCK, cache_dtype="auto"),
            load_config=types.SimpleNamespace(download_dir=None),
            model_config=types.SimpleNamespace(model=str(model), revision=revision, dtype="bfloat16", quantization=None,
                                               hf_config=types.SimpleNamespace(to_dict=dict)))
        cache = types.SimpleNamespace(kv_cache_groups=[0], num_blocks=16, kv_cache_layout=layout)
        self.config = config
        self.scheduler, self.worker = (connector.Connector(config, one, cache) for one in (role.SCHEDULER, role.WORKER))
        self.layers = {name: self.torch.zeros(16, 2, BLOCK) for name in "ab"}
        self.worker.register_kv_caches(self.layers)

    def search(self, request, computed=0):
        """Ask until there is an answer."""
        heard = []

        def answered():
            heard[:] = self.scheduler.get_num_new_matched_tokens(request, computed)
            return heard[0] is not None

        eventually(answered)
        return tuple(heard)

    def step(self, new=(), cached=(), resumed=()):
        """Run a step. new: request, blocks, tokens done, tokens now. cached: name, new blocks, tokens done, tokens now."""
        output = types.SimpleNamespace(
            scheduled_new_reqs=[types.SimpleNamespace(req_id=one.request_id, block_ids=(blocks,), num_computed_tokens=done) for one, blocks, done, _ in new],
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[one[0] for one in cached], new_block_ids=[one[1] and (one[1],) for one in cached],
                                                        num_computed_tokens=[one[2] for one in cached], resumed_req_ids={*resumed}),
            num_scheduled_tokens={**{one[0].request_id: one[3] for one in new}, **{one[0]: one[3] for one in cached}})
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(output))
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()

    def allocated(self, request, blocks, external):
        self.scheduler.update_state_after_alloc(request, types.SimpleNamespace(get_block_ids=lambda: (blocks,)), external)

    def compute(self, blocks, hashes):
        for block, one in zip(blocks, hashes):
            for number, layer in enumerate("ab"):
                self.layers[layer][block] = ord(one) + number / 2

    def run(self, request, blocks):
        """Compute a whole prompt, of which nothing is known."""
        assert self.search(request) == (0, False)
        self.allocated(request, blocks, 0)
        self.compute(blocks, request.block_hashes and [chr(one[0]) for one in request.block_hashes])
        self.step(new=[(request, blocks, 0, request.num_tokens)])
        self.scheduler._pool.flush()
        self.worker._pool.flush()

    def loads(self, request, blocks, external, start=0):
        """Load blocks, and return those that failed."""
        self.allocated(request, blocks, external)
        self.step()
        eventually(lambda: self.worker._finished)
        assert self.worker.get_finished(set()) == (None, {request.request_id})
        failed = self.worker.get_block_ids_with_load_errors()
        self.scheduler.update_connector_output(types.SimpleNamespace(finished_recving={request.request_id}))
        return failed

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()


@pytest.fixture
def engine(modules, tmp_path):
    made = []
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")

    def make(**extra):
        made.append(Engine(modules, **{"key_file": tmp_path / "key", "model": tmp_path / "model", **extra}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_second_engine_loads_what_the_first_has_computed(engine):
    first = engine()
    assert first.config.kv_transfer_config.kv_load_failure_policy == "recompute"
    first.run(Request("r", "xyz"), [3, 5, 7])
    assert len(tmesh.kept()) == 3
    second = engine()
    request = Request("s", "xyzw")
    # One block is in the engine's own cache.
    assert second.search(request, BLOCK) == (2 * BLOCK, True)
    assert second.loads(request, [1, 2, 4, 6], 2 * BLOCK) == set()
    assert [second.layers["b"][number][0, 0].item() for number in (1, 2, 4, 6)] == [0, ord("y") + .5, ord("z") + .5, 0]
    # The last token is computed in any case, and a hit that ends within a block is none.
    assert second.search(Request("t", "xyz", 3 * BLOCK)) == (2 * BLOCK, True) and second.search(Request("u", "xyz"), 2) == (0, False)
    for other in Request("v", "xyz"), Request("w", "axyz"):
        assert engine(key_file=str(first.config.kv_transfer_config.kv_connector_extra_config["key_file"]) + "2").search(other) == (0, False)


def test_a_step_copies_all_blocks_of_a_layer_together(engine, monkeypatch):
    """On a GPU, whose layers are not contiguous: the number of copies does not grow with that of blocks."""
    from tmesh import kv_pool

    torch = pytorch()
    copies = []

    class Layer(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function in (torch.Tensor.copy_, torch.Tensor.index_select):
                copies.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    monkeypatch.setattr(kv_pool, "_on_host", lambda tensor: False, raising=False)
    monkeypatch.setattr(torch, "cpu", types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(
        synchronize=lambda: None, record_event=lambda: None, wait_event=lambda event: None)), raising=False)
    one = engine()
    one.layers = {name: torch.zeros(16, 3, 2, BLOCK).transpose(1, 2).as_subclass(Layer) for name in "ab"}
    one.worker.register_kv_caches(one.layers)
    one.run(Request("r", "abcdefgh"), [3, 5, 7, 9, 2, 4, 6, 8])
    assert len(copies) <= 2 * 2 and len(tmesh.kept()) == 8
    monkeypatch.undo()
    second = engine()
    second.layers = {name: torch.zeros(16, 2, 3, BLOCK) for name in "ab"}
    second.worker.register_kv_caches(second.layers)
    request = Request("s", "abcdefgh")
    assert second.search(request) == (8 * BLOCK, True) and second.loads(request, [*range(8)], 8 * BLOCK) == set()
    for name in "ab":
        assert torch.equal(second.layers[name][:8], one.layers[name][[3, 5, 7, 9, 2, 4, 6, 8]].as_subclass(torch.Tensor))


def test_blocks_are_stored_when_their_tokens_are_accepted(engine):
    """A prompt in pieces, tokens that come one by one, a draft that is not accepted, and a request that was preempted."""
    one = engine()
    request = Request("r", "xy", 2 * BLOCK)
    one.search(request)
    one.allocated(request, [1, 2], 0)
    one.compute([1, 2, 9], "xyz")
    names = lambda: len([one for one in tmesh.kept()])  # noqa: E731

    def stored():
        one.worker._pool.flush()
        return names()

    one.step(new=[(request, [1, 2], 0, BLOCK + 1)])
    assert stored() == 1
    one.step(cached=[("r", None, BLOCK + 1, BLOCK - 1)])
    assert stored() == 2
    one.step(cached=[("r", [9], 2 * BLOCK, BLOCK)])  # a draft fills the block, and its tokens have no hash
    assert stored() == 2
    request.block_hashes.append(b"z")
    one.step(cached=[("r", None, 3 * BLOCK, 1)])
    assert stored() == 3
    one.compute([4, 5, 6, 8], "xyzw")
    request.block_hashes.append(b"w")
    one.step(cached=[("r", [4, 5, 6, 8], 0, 4 * BLOCK)], resumed=["r"])
    assert stored() == 4
    assert one.scheduler.request_finished(request, []) == (False, None) and not one.scheduler._requests
    other = engine()
    assert other.search(Request("s", "xyzw")) == (4 * BLOCK, True)


def test_a_failed_load_is_computed_and_not_tried_for_ever(engine):
    first, second = engine(), engine()
    first.run(Request("r", "xyz"), [1, 2, 3])
    request = Request("s", "xyz")
    assert second.search(request) == (3 * BLOCK, True)
    for kept in tmesh.kept():
        if kept["name"] == first.worker._pool.name(b"y"):
            tmesh.drop(kept["name"])
    assert second.loads(request, [4, 5, 6], 3 * BLOCK) == {5, 6}
    # vLLM asks again for what failed.
    assert second.search(request, BLOCK) == (0, False)
    second.scheduler.request_finished(request, [])
    assert second.search(Request("s", "xyz")) == (BLOCK, True)


def test_an_update_of_weights(engine, modules):
    """No block of older weights is used: after a reset it is not found, and without one the worker does not have it."""
    one = engine()
    one.run(Request("r", "xy"), [1, 2])
    modules("generation").set(b"slot 1")
    request = Request("s", "xy")
    assert one.search(request) == (2 * BLOCK, True)
    assert one.loads(request, [3, 4], 2 * BLOCK) == {3, 4}
    assert one.scheduler.reset_cache() is True
    assert one.search(Request("t", "xy")) == (0, False)
    # Blocks of the new weights are not stored: another worker's may be a mixture of generations.
    one.run(Request("u", "xyz"), [5, 6, 7])
    assert len(tmesh.kept()) == 2 and engine().search(Request("v", "xyz")) == (2 * BLOCK, True)


def test_other_files_and_another_layout(engine, tmp_path, monkeypatch):
    """Blocks of a file with other contents are not found, also if its size and time of change are as before."""
    engine().run(Request("r", "xy"), [1, 2])
    hit = (2 * BLOCK, True)
    assert engine().search(Request("s", "xy")) == hit and engine(layout="HND").search(Request("t", "xy")) == (0, False)
    weights = tmp_path / "model" / "weights"
    before = weights.stat()
    weights.write_text("2")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert engine().search(Request("u", "xy")) == (0, False)
    # A name of the hub: its snapshot counts, also one of which vLLM has not downloaded all files.
    hub = types.ModuleType("huggingface_hub")
    asked = []

    def snapshot_download(model, **how):
        asked.append((model, how))
        if how["revision"] == "none":
            raise FileNotFoundError("no snapshot")
        if how["revision"] == "part":
            problem = FileNotFoundError("the README is missing")
            problem.snapshot_path = str(tmp_path / "model")
            raise problem
        return str(tmp_path / how["revision"])

    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "gone").symlink_to("nothing")
    engine().run(Request("v", "xy"), [1, 2])
    assert engine(model="org/model", revision="model").search(Request("w", "xy")) == hit
    assert engine(model="org/model", revision="part").search(Request("x", "xy")) == hit
    assert engine(model="org/model", revision="newer").search(Request("y", "xy")) == (0, False)
    assert asked[0] == ("org/model", {"revision": "model", "cache_dir": None, "local_files_only": True})
    with pytest.raises(tmesh.UnsupportedError, match="neither a folder nor a snapshot in the hub's cache: start the engine with the folder's path"):
        engine(model="org/model", revision="none")


def test_a_preempted_request_keeps_its_tokens(engine):
    """A block that is not stored is a later miss, so vLLM need not compute a request again to deliver it."""
    assert engine().scheduler.requires_kv_delivery is False


def test_requests_with_an_adapter_are_computed(engine):
    """An adapter's name and path do not identify its weights."""
    one = engine()
    one.run(Request("r", "xy", lora=object()), [1, 2])
    assert not tmesh.kept()
    one.run(Request("s", "xy"), [3, 4])
    assert engine().search(Request("t", "xy", lora=object())) == (0, False)


def test_a_search_that_takes_long(engine, monkeypatch):
    """The request is scheduled without it, and does not search again."""
    one = engine(patience=0)
    pool = one.scheduler._pool
    found = type(pool.find([]))
    monkeypatch.setattr(pool, "find", lambda names: found())
    request = Request("r", "xy")
    assert one.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    one.allocated(request, [1, 2], 0)
    assert not one.scheduler._searches


@pytest.mark.parametrize("extra, words", [({"key_file": ""}, "key_file is missing"), ({"keyfile": 1}, "unknown keys 'keyfile'"),
                                          ({"patience": -1}, "patience is -1"), ({"patience": "1"}, "patience is '1'"), ({"max_bytes": 0}, "max_bytes is 0")])
def test_bad_configuration(engine, extra, words):
    assert_refused(lambda: engine(**extra), tmesh.InvalidError, words)


def test_caches_that_cannot_be_shared(engine):
    one = engine()
    for wrong in {"a": one.torch.zeros(15, 2)}, {"a": [one.torch.zeros(16)]}:
        with pytest.raises(tmesh.UnsupportedError, match="the KV cache of a is no tensor with 16 blocks"):
            one.worker.register_kv_caches(wrong)


class Model:
    """A model that notes how it was loaded."""

    def __init__(self):
        self.weights, self.calls, self.fails = {}, [], 0

    def begin(self):
        self.calls.append("begin")

    def end(self):
        self.calls.append("end")

    def load_weights(self, weights):
        for name, tensor in weights:
            self.weights[name] = tensor.tolist()
            if self.fails:
                self.fails -= 1
                raise RuntimeError("out of memory")


def test_generations_of_weights(modules):
    torch = pytorch()
    weights = modules("weights")
    model = Model()
    engine = weights.Engine(None, None, None, model)
    calls = []

    class Client:
        def __getattr__(self, name):
            def call(*args):
                calls.append(name)
                if name == "init_weight_transfer_engine":
                    return engine.init_transfer_engine(engine.init_info_cls(**args[0]))
                return getattr(engine, name)(*args)
            return call

    assert_refused(lambda: engine.update_weights({"generation": 1}), tmesh.InvalidError, "no slot yet")
    source = [("a", torch.ones(2)), ("b", torch.zeros(1))]
    with pytest.raises(tmesh.InvalidError, match="source is missing"):
        weights.Trainer.trainer_init(weights.TrainerInit(), client=Client())
    init = weights.TrainerInit()
    init.is_sender = True
    trainer = weights.Trainer.trainer_init(init, client=Client(), source=source)
    trainer.send_weights()
    assert model.weights == {"a": [1, 1], "b": [0]} and model.calls == ["begin", "end"]
    assert calls == ["init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"]
    assert modules("generation").current().endswith(b" 1")
    # Nothing is loaded before the end, and another start forgets it.
    source[0] = ("a", torch.full((2,), 2.0))
    trainer.slot.publish(dict(source))
    engine.start_weight_update()
    engine.update_weights({"generation": 2})
    engine.start_weight_update()
    engine.finish_weight_update()
    assert model.weights["a"] == [1, 1]
    with pytest.raises(tmesh.StaleError, match="generation 1 was announced, and the slot has 2"):
        engine.update_weights({"generation": 1})
    # A load that fails half way: the generation before is there again.
    model.fails = 1
    with pytest.raises(RuntimeError, match="out of memory") as problem:
        trainer.send_weights()
    assert model.weights == {"a": [1, 1], "b": [0]} and "This worker has generation 1 again" in problem.value.__notes__[0]
    assert modules("generation").current().endswith(b" 1")
    trainer.send_weights()
    assert model.weights["a"] == [2, 2]
    # The trainer is gone: its weights stay.
    trainer.shutdown()
    assert_refused(lambda: engine.update_weights({"generation": 9}), tmesh.Error)
    assert_refused(lambda: engine.init_transfer_engine(weights.Init("no token")), tmesh.ProtocolError)
    engine.shutdown()
    # Other ranks of a trainer only iterate.
    init.is_sender = False
    other = weights.Trainer.trainer_init(init, client=None, source=source)
    other.send_weights()
    other.shutdown()


def test_an_update_processes_weights_as_the_load_did(modules):
    """Weights that were left as they are would not fit packed ones."""
    torch = pytorch()
    weights = modules("weights")
    model = Model()

    @contextlib.contextmanager
    def in_place():
        model.calls.append("in")
        yield
        model.calls.append("out")

    model.tmesh_processes_in = in_place
    engine = weights.Engine(None, None, None, model)
    slot = tmesh.Slot()
    slot.publish({"a": torch.ones(2)})
    engine.init_transfer_engine(weights.Init(slot.token))
    engine.update_weights({"generation": 1})
    engine.finish_weight_update()
    assert model.calls == ["in", "begin", "end", "out"] and model.weights == {"a": [1, 1]}
    engine.shutdown()
    slot.close()


def test_the_classes_have_all_that_vllm_calls(modules):
    """Each has its base's methods, with the same parameters."""
    for name, theirs in (("connector:Connector", "KVConnectorBase_V1"), ("weights:Engine", "WeightTransferEngine"), ("weights:Trainer", "TrainerWeightTransferEngine")):
        module, _, kind = name.partition(":")
        ours = getattr(modules(module), kind)
        record, = (methods for path, methods in vllm_interfaces.CLASSES.items() if path.endswith(f":{theirs}"))
        for method, names in record.items():
            mine = getattr(ours, method)
            assert not getattr(mine, "__isabstractmethod__", False), (name, method)
            if method in vars(ours) and method != "__init__":
                assert vllm_interfaces.parameters(mine) == names.removeprefix("*").strip(), (name, method)
