# SPDX-License-Identifier: MIT
"""tmesh.sglang against SGLang's own base class and factory of backends, without an engine: make vllm-check."""

import importlib.util
import os
import types

import pytest

import tmesh
from conftest import any_backend

any_backend()
if not importlib.util.find_spec("sglang"):
    pytest.skip("SGLang is not installed: make vllm-check", allow_module_level=True)
torch = pytest.importorskip("torch")

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
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


@pytest.mark.parametrize("extra, words", [({"key_file": ""}, "key_file is missing"), ({"interface_v1": 1}, "interface_v1 is set"),
                                          ({"max_bytes": -1}, "max_bytes is -1"), ({"model": ""}, "model is ''"), ({"model": "org/model"}, "model is 'org/model'")])
def test_bad_configuration(backend, extra, words):
    with pytest.raises(tmesh.InvalidError, match=words):
        backend(extra)


def test_a_full_pool(backend):
    """A page that is not stored is reported as such."""
    one = backend({"max_bytes": 4096})
    assert one.batch_set(["a"], pages(1)) is False and not one.exists("a")
