# SPDX-License-Identifier: MIT
"""A storage backend of SGLang's HiCache on the pool of tmesh.kv_pool.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "tmesh",
        "module_path": "tmesh.sglang", "class_name": "Storage", "key_file": "/var/lib/llm/tenant.key", "model": "/var/lib/llm/model"}'

It has never run in an engine, for want of a GPU. It was tested against SGLang's own base class and factory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from typing import Any

from .errors import InvalidError
from .interop import lacks, load, warn_of_another
from .kv_pool import Pool, identity_of
from .tenant import read_key

__all__ = ["Storage"]

VERSION = "0.5.23"

_log = logging.getLogger("tmesh.sglang")

_base: Any
try:
    _base, = load("sglang", VERSION, {"sglang.srt.mem_cache.hicache_storage": "HiCacheStorage PoolHitPolicy PoolName PoolTransferResult"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.sglang needs SGLang ({problem}): pip install sglang=={VERSION}", name=problem.name) from None
warn_of_another("sglang", VERSION)

_OWN = {"key_file", "max_bytes", "model"}
# SGLang's own keys, in the same configuration.
_THEIRS = {"backend_name", "module_path", "class_name", "interface_v1"}


def _form(pool: Any) -> str:
    """Return everything that a page's bytes depend on, of what a host pool knows of itself."""
    # A pool's own type is that of its bytes; a device's pool has the type of the numbers.
    form = [str(getattr(pool, name, None)) for name in ("dtype", "conv_dtype", "temporal_dtype", "indexer_dtype", "layout", "page_size", "start_layer",
                                                        "end_layer", "size_per_token")]
    return json.dumps([*form, str(getattr(getattr(pool, "device_pool", None), "dtype", None))])


class Storage(_base.HiCacheStorage):  # type: ignore[misc]
    """The backend. SGLang calls it from threads of its own, which wait for the answers.

    Keys of the extra configuration: key_file, the tenant's key, which is made if there is no such file; max_bytes, the limit of
    the tenant's pages. The key model is the folder of the model's files."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        path = extra.get("key_file")
        if not isinstance(path, str) or not path:
            raise InvalidError(22, "tmesh.sglang: key_file is missing: where the tenant's key is, or is to be made")
        model = extra.get("model")
        if not isinstance(model, str) or not os.path.isdir(model):
            # SGLang's own name of the model is one that an operator chooses.
            raise InvalidError(22, f"tmesh.sglang: model is {model!r}: the path of the folder with the model's files")
        # Ranks of a model with MLA have the same pages.
        rank = [] if storage_config.is_mla_model else [storage_config.tp_rank, storage_config.tp_size]
        others = {key: value for key, value in extra.items() if key not in _OWN | _THEIRS}
        space = json.dumps(["sglang", VERSION, storage_config.model_name, identity_of(model), rank, storage_config.pp_rank, storage_config.pp_size,
                            storage_config.attn_cp_rank, storage_config.attn_cp_size, storage_config.dcp_rank, storage_config.dcp_size,
                            storage_config.is_mla_model, storage_config.is_page_first_layout, storage_config.should_split_heads,
                            storage_config.tp_lcm_size, others], sort_keys=True, default=str)
        self._space = hashlib.sha256(space.encode()).digest()
        # Each rank has its own state of this pool, also if all ranks have the same KV pages.
        self._rank = f"{storage_config.tp_rank} {storage_config.tp_size}"
        self._side_forms: dict[str, str] = {}
        self._pool = Pool(read_key(path), self._space, max_bytes=extra.get("max_bytes"))
        # Ranks with the same pages must have the same space, so none of them can have a space of its own.
        self._shares = storage_config.is_mla_model and storage_config.tp_size > 1
        # Whether pages can be found and stored: the form of a page is known, and pages of other weights have other names.
        self._ready = False

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Note the form of a page. No page is found or stored before."""
        super().register_mem_pool_host(mem_pool_host)
        self._change(_form(mem_pool_host).encode())
        self._ready = True

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: str) -> None:
        """Note the form of a side pool's pages, such as a Mamba state."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != _base.PoolName.KV:
            rank = self._rank if host_pool_name == _base.PoolName.MAMBA else ""
            self._side_forms[host_pool_name] = f"{_form(host_pool)} {rank} {host_pool_name}"

    def _change(self, addition: bytes) -> None:
        self._space = hashlib.sha256(self._space + addition).digest()
        self._pool.change_space(self._space)

    def clear(self) -> None:
        """Find no older page any more: SGLang calls this when weights have changed. Other engines keep their pages. Ranks that
        have the same pages share no more pages until a restart."""
        if self._shares:
            self._ready = False
            _log.warning("clearing pages of a model whose ranks have the same pages: this engine finds and stores no page until it is restarted")
        else:
            self._change(os.urandom(16))

    def _name(self, key: str, side: str | None = None) -> str:
        """Return the name of a page, or of a side pool's page beside it."""
        addition = "" if side is None or side == _base.PoolName.KV else f" {self._side_forms.get(side)}"
        return self._pool.name((key + addition).encode("utf-8", "surrogatepass"))

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fill the given tensors, and return them up to the first page that is gone, then None."""
        jobs = [(self._name(key), [page]) for key, page in zip(keys, target_locations, strict=True)]
        count = self._wait(lambda done: self._pool.read(jobs, done)) if self._ready else 0
        return [*target_locations[:count], *[None] * (len(keys) - count)]

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        jobs = [(self._name(key), [page]) for key, page in zip(keys, values, strict=True)]
        return self._ready and self._wait(lambda done: self._pool.store(jobs, done)) == len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        if not self._ready:
            return 0
        found = self._pool.find([self._name(key) for key in keys])
        found.wait()
        count = len(found.tensors)
        found.release()
        return count

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fill the host pool's pages. The list says for each whether it was filled."""
        return self._fill(_base.PoolName.KV, getattr(self, "mem_pool_host", None), keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._keep(_base.PoolName.KV, getattr(self, "mem_pool_host", None), keys, host_indices)

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Find the prefixes of the keys that the KV pool and all side pools can restore."""
        count = self.batch_exists(keys)
        hits = {_base.PoolName.KV: count} if count else {}
        restorable = [*range(1, count + 1)]
        for transfer in pool_transfers or ():
            # Groups of blocks are another form of the pages and never shorten a hit.
            if not restorable or transfer.hit_policy == _base.PoolHitPolicy.BLOCK_GROUPS:
                continue
            searches = [self._pool.find([self._name(key, transfer.name)]) for key in keys[:count]]
            there = []
            for search in searches:
                search.wait()
                there.append(bool(search.tensors))
                search.release()
            window = count if transfer.hit_policy == _base.PoolHitPolicy.ALL_PAGES else max(1, len(transfer.keys or ()))
            mine = {length for length in range(1, count + 1) if all(there[max(0, length - window):length])}
            if mine:
                hits[transfer.name] = max(mine)
            restorable = [length for length in restorable if length in mine]
        return _base.PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {one.name: self._fill(one.name, self._side_pool(one.name), one.keys or [], one.host_indices) for one in transfers}

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {one.name: self._keep(one.name, self._side_pool(one.name), one.keys or [], one.host_indices) for one in transfers}

    def _side_pool(self, name: str) -> Any:
        return getattr(self, "registered_pools", {}).get(name)

    def _starts(self, pool: Any, keys: list[str], indices: Any) -> list[int] | None:
        """Return the index of each page's first token. None: there is no such pool yet, or the indices are not those of whole pages."""
        if not self._ready or pool is None or indices is None or indices.numel() != len(keys) * pool.page_size:
            return None
        return [int(one) for one in indices[::pool.page_size]]

    def _fill(self, side: str, pool: Any, keys: list[str], indices: Any) -> list[bool]:
        starts = self._starts(pool, keys, indices)
        if starts is None:
            return [False] * len(keys)
        pages = [pool.get_dummy_flat_data_page() for _ in keys]
        jobs = [(self._name(key, side), [page]) for key, page in zip(keys, pages, strict=True)]
        count = self._wait(lambda done: self._pool.read(jobs, done))
        for start, page in zip(starts[:count], pages):
            pool.set_from_flat_data_page(start, page)
        return [True] * count + [False] * (len(keys) - count)

    def _keep(self, side: str, pool: Any, keys: list[str], indices: Any) -> list[bool]:
        starts = self._starts(pool, keys, indices)
        if starts is None:
            return [False] * len(keys)
        stored = []
        for key, start in zip(keys, starts, strict=True):
            job = self._name(key, side), [pool.get_data_page(start, flat=True)]
            stored.append(self._wait(lambda done, job=job: self._pool.store([job], done)) == 1)
        return stored

    def get_stats(self) -> None:
        """Return nothing: the pool's counts are not SGLang's metrics."""

    def close(self) -> None:
        """Close. Stored pages stay, for other processes and the next start."""
        self._pool.close()

    @staticmethod
    def _wait(work: Any) -> int:
        counts: list[int] = []
        ready = threading.Event()

        def done(count: int) -> None:
            counts.append(count)
            ready.set()

        work(done)
        ready.wait()
        return counts[0]


_wanted = ", ".join(sorted(getattr(Storage, "__abstractmethods__", ())))
if _wanted:
    raise ImportError(lacks("sglang", VERSION, f"wants of a backend what tmesh.sglang has not: {_wanted}"))
