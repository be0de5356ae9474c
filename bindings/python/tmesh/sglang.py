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
    _base, = load("sglang", VERSION, {"sglang.srt.mem_cache.hicache_storage": "HiCacheStorage"})
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(f"tmesh.sglang needs SGLang ({problem}): pip install sglang=={VERSION}", name=problem.name) from None
warn_of_another("sglang", VERSION)

_OWN = {"key_file", "max_bytes", "model"}
# SGLang's own keys, in the same configuration.
_THEIRS = {"backend_name", "module_path", "class_name", "interface_v1"}


class Storage(_base.HiCacheStorage):  # type: ignore[misc]
    """The backend. SGLang calls it from threads of its own, which wait for the answers.

    Keys of the extra configuration: key_file, the tenant's key, which is made if there is no such file; max_bytes, the limit of
    the tenant's pages. The key model is the folder of the model's files."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        if extra.get("interface_v1"):
            raise InvalidError(22, "tmesh.sglang: interface_v1 is set, which this backend does not have: leave it away")
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
        self._pool = Pool(read_key(path), self._space, max_bytes=extra.get("max_bytes"))
        # Ranks with the same pages must have the same space, so none of them can have a space of its own.
        self._shares = storage_config.is_mla_model and storage_config.tp_size > 1
        # Whether pages can be found and stored: the form of a page is known, and pages of other weights have other names.
        self._ready = False

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Note the form of a page. No page is found or stored before."""
        super().register_mem_pool_host(mem_pool_host)
        pool = mem_pool_host
        # A pool's own type is that of its bytes; a device's pool has the type of the numbers.
        form = [str(getattr(getattr(pool, "device_pool", None), "dtype", None)), str(pool.dtype), pool.layout, pool.page_size, pool.start_layer,
                pool.end_layer]
        self._change(json.dumps(form).encode())
        self._ready = True

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

    def _name(self, key: str) -> str:
        return self._pool.name(key.encode("utf-8", "surrogatepass"))

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
