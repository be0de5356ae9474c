# SPDX-License-Identifier: MIT
"""tmesh.sglang against SGLang's own base class and factory of backends, without an engine: make vllm-check."""

import importlib.util
import os
import types

import pytest

import tmesh
from conftest import any_backend, assert_refused

any_backend()
if not importlib.util.find_spec("sglang"):
    pytest.skip("SGLang is not installed: make vllm-check", allow_module_level=True)
torch = pytest.importorskip("torch")

from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")


POOL = {"dtype": torch.bfloat16, "layout": "layer_first", "page_size": 64, "start_layer": 0, "end_layer": 2}


@pytest.fixture
def backend(tmp_path):
    made = []
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")

    def make(extra=None, pool=(), **changed):
        config = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
                  "enable_storage_metrics": False, "is_page_first_layout": False, "model_name": "model", **changed}
        made.append(StorageBackendFactory.create_backend("dynamic", HiCacheStorageConfig(**config, extra_config={
            "backend_name": "tmesh", "module_path": "tmesh.sglang", "class_name": "Storage", "key_file": str(tmp_path / "key"), "model": str(tmp_path / "model"),
            **(extra or {})}), None))
        if pool is not None:
            made[-1].register_mem_pool_host(types.SimpleNamespace(**{**POOL, **dict(pool)}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def pages(*numbers):
    return [torch.full((256,), float(number), dtype=torch.bfloat16) for number in numbers]


def test_pages_of_another_process_and_rank(backend):
    first, second = backend(), backend()
    keys = [f"{number:064x}" for number in range(5)]
    assert first.batch_set(keys[:3], pages(0, 1, 2)) and first.set(keys[3], *pages(3))
    assert second.batch_exists(keys) == 4 and second.exists(keys[2]) and not second.exists(keys[4])
    got = second.batch_get(keys, [torch.zeros(256, dtype=torch.bfloat16) for _ in keys])
    assert [None if page is None else page[0].item() for page in got] == [0, 1, 2, 3, None] and second.get(keys[4], pages(9)[0]) is None
    for other in (backend(tp_rank=1, tp_size=2), backend(model_name="another"), backend({"salt": 1}), backend(is_page_first_layout=True),
                  backend(tp_lcm_size=4), backend(should_split_heads=True), *(backend(pool={key: value}) for key, value in (
                      ("dtype", torch.float16), ("layout", "page_first"), ("page_size", 32), ("start_layer", 1), ("end_layer", 3),
                      ("device_pool", types.SimpleNamespace(dtype=torch.float8_e5m2))))):
        assert other.batch_exists(keys) == 0
    # Ranks of a model with MLA share pages.
    assert backend(is_mla_model=True).set(keys[0], *pages(7)) and backend(is_mla_model=True, tp_rank=1, tp_size=2).exists(keys[0])
    # A page of another length is not read.
    assert second.get(keys[0], torch.zeros(255, dtype=torch.bfloat16)) is None


def test_files_count_and_not_the_name(backend, tmp_path):
    """Other contents of a file are another model, also if its size and time of change are as before."""
    assert backend(model_name="served").set("a", *pages(1)) and backend(model_name="served").exists("a")
    weights = tmp_path / "model" / "weights"
    before = weights.stat()
    weights.write_text("2")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not backend(model_name="served").exists("a")


def test_nothing_is_shared_before_the_form_of_a_page_is_known(backend):
    one = backend(pool=None)
    assert one.set("a", *pages(1)) is False and not tmesh.kept()
    assert backend().set("a", *pages(1))
    assert one.batch_exists(["a"]) == 0 and one.batch_get(["a"], pages(0)) == [None]


def test_a_cleared_backend_finds_no_older_page(backend):
    """Other engines keep theirs. Ranks with the same pages stop, so that none of them has pages of other weights."""
    one, other = backend(), backend()
    assert one.set("a", *pages(1))
    one.clear()
    assert not one.exists("a") and other.exists("a")
    assert one.set("a", *pages(2)) and one.get("a", *pages(0))[0] == 2 and other.get("a", *pages(0))[0] == 1
    ranks = [backend(is_mla_model=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    assert ranks[0].set("a", *pages(3)) and ranks[1].exists("a")
    for rank in ranks:
        rank.clear()
        assert not rank.exists("a") and rank.set("b", *pages(4)) is False


class HostPool:
    """A host pool of SGLang: pages of numbers, which a page's first index finds."""

    def __init__(self, count, page_size=2, **form):
        self.page_size, self.values = page_size, torch.zeros(count * page_size, 8)
        self.layout = "layer_first"
        vars(self).update(form)

    def get_dummy_flat_data_page(self):
        return torch.zeros(self.page_size * 8)

    def get_data_page(self, index, flat=True):
        return self.values[index:index + self.page_size].flatten()

    def set_from_flat_data_page(self, index, page):
        self.values[index:index + self.page_size] = page.view(self.page_size, 8)

    def transfer(self, name, keys, pages, policy=PoolHitPolicy.ALL_PAGES):
        indices = torch.cat([torch.arange(page * self.page_size, (page + 1) * self.page_size) for page in pages]) if pages else None
        return PoolTransfer(name=name, keys=keys, host_indices=indices, hit_policy=policy)


def side_pools(one, **form):
    """Register a KV pool and one of Mamba states with an engine's storage."""
    pools = {PoolName.KV: HostPool(6), PoolName.MAMBA: HostPool(6, 1, conv_dtype=torch.float32, **form)}
    one.register_mem_pool_host(pools[PoolName.KV])
    for name, pool in pools.items():
        one.register_mem_host_pool_v2(pool, name)
        pool.values += torch.arange(len(pool.values))[:, None] + 1
    return pools


def test_side_pools_as_sglangs_own_storage_has_them(backend, tmp_path):
    """The same calls have the same results, and the same pages, as with the storage of files."""
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, False, "model")
    keys = [f"{number:064x}" for number in range(6)]
    results = []
    for storage in backend(pool=None), HiCacheFile(config, str(tmp_path / "files")):
        pools = side_pools(storage)
        kv, mamba = pools.values()
        heard = [storage.batch_set_v2([kv.transfer(PoolName.KV, keys[:5], range(5)), mamba.transfer(PoolName.MAMBA, [keys[1], keys[2], keys[4]], [1, 2, 4])]),
                 storage.batch_set_v2([kv.transfer(PoolName.KV, keys[:2], [0])])]
        for policy in PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES:
            for window in ([], keys[:2]):
                heard.append(storage.batch_exists_v2(keys, [mamba.transfer(PoolName.MAMBA, window, [], policy)]))
        heard.append(storage.batch_exists_v2(keys[5:], [mamba.transfer(PoolName.MAMBA, keys[:1], [])]))
        for pool in pools.values():
            pool.values.zero_()
        heard.append(storage.batch_get_v2([kv.transfer(PoolName.KV, keys, range(6)), mamba.transfer(PoolName.MAMBA, keys[4:], [0, 5])]))
        results.append((heard, [pool.values.tolist() for pool in pools.values()]))
    assert results[0] == results[1]
    assert results[0][0][4].restorable_prefix_pages == [2, 3, 5] and results[0][1][0][8] == [9] * 8


def test_side_pools_of_other_forms_and_ranks(backend):
    one = backend(pool=None)
    mamba = side_pools(one)[PoolName.MAMBA]
    assert one.batch_set_v2([mamba.transfer(PoolName.MAMBA, ["a"], [3])]) == {PoolName.MAMBA: [True]}
    for there, other, form in ((True, {}, {}), (False, {}, {"temporal_dtype": torch.float16}), (False, {"tp_rank": 1, "tp_size": 2}, {})):
        second = backend(pool=None, **other)
        mine = side_pools(second, **form)[PoolName.MAMBA]
        assert second.batch_get_v2([mine.transfer(PoolName.MAMBA, ["a"], [0])]) == {PoolName.MAMBA: [there]}
        assert mine.values[0][0] == (4 if there else 1)
    # Ranks of a model with MLA have the same pages, and states of their own.
    ranks = [backend(pool=None, is_mla_model=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    pools = [side_pools(rank) for rank in ranks]
    transfers = [[mine[name].transfer(name, ["b"], [0]) for name in mine] for mine in pools]
    assert ranks[0].batch_set_v2(transfers[0]) == {PoolName.KV: [True], PoolName.MAMBA: [True]}
    assert ranks[1].batch_get_v2(transfers[1]) == {PoolName.KV: [True], PoolName.MAMBA: [False]}
    # A pool that was not registered.
    assert one.batch_get_v2([mamba.transfer(PoolName.SWA, ["a"], [0])]) == {PoolName.SWA: [False]}


def test_pages_in_place(backend):
    """interface_v1: SGLang names pages by their indices. They are those of the other calls."""
    one = backend({"interface_v1": 1}, pool=None)
    pool = HostPool(4)
    assert one.batch_set_v1(["a"], torch.arange(2)) == [False]
    one.register_mem_pool_host(pool)
    pool.values += torch.arange(8)[:, None]
    assert one.batch_set_v1(["a", "b"], torch.tensor([4, 5, 0, 1])) == [True, True]
    assert one.batch_get_v1(["a", "b", "c"], torch.arange(2, 8)) == [True, True, False]
    assert pool.values[:, 0].tolist() == [0, 1, 4, 5, 0, 1, 6, 7] and one.batch_exists(["a", "b", "c"]) == 2


@pytest.mark.parametrize("extra, words", [({"key_file": ""}, "key_file is missing"), ({"max_bytes": -1}, "max_bytes is -1"), ({"model": ""}, "model is ''"), ({"model": "org/model"}, "model is 'org/model'")])
def test_bad_configuration(backend, extra, words):
    assert_refused(lambda: backend(extra), tmesh.InvalidError, words)


def test_a_full_pool(backend):
    """A page that is not stored is reported as such."""
    one = backend({"max_bytes": 4096})
    assert one.batch_set(["a"], pages(1)) is False and not one.exists("a")


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a small model from a real file by SGLang's own choice of a loader. SGLang's models themselves want an engine's context."""
    from safetensors.torch import save_file
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader as theirs
    from tmesh import sglang_loader

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(64, 64), requires_grad=False)
            self.register_buffer("table", torch.arange(4.0), persistent=False)

        def load_weights(self, weights):
            for name, tensor in weights:
                getattr(self, name).data.copy_(tensor)

    save_file({"weight": torch.arange(4096.0).view(64, 64).to(torch.bfloat16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(theirs, "_initialize_model", lambda *_: Net())
    monkeypatch.setattr(theirs, "_get_quantization_config", lambda *_: None)
    monkeypatch.setattr(theirs, "get_server_args", lambda: None)
    monkeypatch.setattr(theirs, "get_model", lambda: type("Settings", (), {"__getattr__": lambda self, name: None})())
    parallel = types.SimpleNamespace(**dict.fromkeys(sglang_loader._PARALLEL, 1))
    monkeypatch.setattr(sglang_loader._context, "get_parallel", lambda: parallel)
    monkeypatch.setattr(sglang_loader._context, "get_exec", lambda: types.SimpleNamespace(moe=types.SimpleNamespace(moe_a2a_backend="none")))

    def load(extra=None, device="cpu", kind=sglang_loader.Loader, **changed):
        config = {"model_path": str(tmp_path), "revision": None, "dtype": torch.bfloat16, "quantization": None,
                  "hf_config": types.SimpleNamespace(to_dict=dict), **changed}
        loader = theirs.get_model_loader(LoadConfig(load_format=kind, model_loader_extra_config=extra or {}))
        model = loader.load_model(model_config=types.SimpleNamespace(**config), device_config=types.SimpleNamespace(device=device))
        return model, getattr(loader, "report", None)

    load.parallel, load.folder = parallel, tmp_path
    return load


def test_a_loader_of_kept_weights(load):
    """Models are equal to those of SGLang's own loader, and a second one has the first one's memory."""
    own, _ = load(kind="auto")
    first, made = load()
    second, report = load()
    assert made["made"] and made["reason"] == "" and not report["made"] and report["meta"] and report["artifact"] == made["artifact"]
    assert report["shared_bytes"] == 64 * 64 * 2 + 4 * 2
    for model in first, second:
        assert torch.equal(model.weight, own.weight) and torch.equal(model.table, own.table) and not model.training
    second.weight[0, 0] = 7
    assert first.weight[0, 0] == 0


def test_weights_of_other_configurations(load):
    names = {load()[1]["artifact"], load(dtype=torch.float32)[1]["artifact"], load(quantization="fp8")[1]["artifact"]}
    for name in vars(load.parallel):
        setattr(load.parallel, name, 2)
        names.add(load()[1]["artifact"])
    os.utime(load.folder / "model.safetensors", ns=(0, 0))
    names.add(load()[1]["artifact"])
    assert len(names) == 4 + len(vars(load.parallel)) and None not in names
    assert load({"keep": False}, dtype=torch.float16)[1]["reason"] == "the configuration says that nothing is to be kept"
    with pytest.raises(tmesh.UnsupportedError, match="has run on CPUs only, and this engine computes on cuda"):
        load(device="cuda")
    assert_refused(lambda: load({"timeout": -1}), tmesh.InvalidError, "timeout is -1")
