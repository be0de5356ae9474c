# SPDX-License-Identifier: MIT
"""A secondary tier of vLLM's tiered offloading, on the pool of tmesh.kv_pool.

    {"type": "Tier", "module_path": "tmesh.vllm.tier", "key_file": "/var/lib/llm/tenant.key", "model": "/var/lib/llm/model"}

The tier has never run in an engine: vLLM refuses its offloading worker on CPUs, and no GPU was there. It was tested below the real
TieringOffloadingManager."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import os
import threading
import time
from typing import Any

from ..errors import InvalidError
from ..interop import load
from ..kv_pool import Found, Pool
from ..tenant import read_key
from . import _PACKAGE, VERSION
from .connector import space_of

__all__ = ["Tier"]

_base: Any
_offload: Any
_base, _offload = load(_PACKAGE, VERSION, {
    "vllm.v1.kv_offload.tiering.base": "SecondaryTierManager JobResult",
    "vllm.v1.kv_offload.base": "LookupResult Medium RequestOffloadingContext"})


@dataclasses.dataclass
class _Search:
    found: Found
    until: float
    requests: set[str]


class Tier(_base.SecondaryTierManager):  # type: ignore[misc]
    """The tier. vLLM calls it in the scheduler's process; threads do the work.

    The arguments are keys of the tier's configuration. key_file: the tenant's key. It is made if there is no such file.

    model: the folder of the model's files, which may be left away if the engine was started with it.

    max_bytes: the limit of the tenant's blocks. patience: seconds that a request waits for a search."""

    medium = _offload.Medium.CPU

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, key_file: str = "", max_bytes: int | None = None,
                 patience: float = .2, model: str = "", locality: Any = None, backpressure_detector: Any = None) -> None:
        super().__init__(offloading_spec=offloading_spec, primary_kv_view=primary_kv_view, tier_type=tier_type,
                         backpressure_detector=backpressure_detector)
        if not isinstance(key_file, str) or not key_file:
            raise InvalidError(22, "tmesh.vllm.tier: key_file is missing: where the tenant's key is, or is to be made")
        if type(patience) not in (int, float) or not 0 <= patience < 1e9:
            raise InvalidError(22, f"tmesh.vllm.tier: patience is {patience!r}: a number of seconds")
        # The tier's configuration has no revision, so a name of the hub does not identify the files.
        folder = model or offloading_spec.config.model.name
        if not isinstance(folder, str) or not os.path.isdir(folder):
            raise InvalidError(22, f"tmesh.vllm.tier: model is {folder!r}: the path of the folder with the model's files")
        import numpy
        import torch

        self._rows: Any = torch.from_numpy(numpy.asarray(primary_kv_view).view("uint8"))
        # All that a chunk's bytes depend on; the rest differs from engine to engine.
        config = dataclasses.asdict(offloading_spec.config)
        for mine in ("engine_id", "extra_config", "enable_kv_cache_events"):
            config.pop(mine)
        for mine in ("rank", "data_parallel_index", "data_parallel_size", "data_parallel_rank_local"):
            config["parallel"].pop(mine)
        space = space_of(folder, "tier", config, self._block_size_bytes)
        self._pool = Pool(read_key(key_file), space, max_bytes=max_bytes)
        self._patience = patience
        self._searches: dict[bytes, _Search] = {}
        self._lock = threading.Lock()
        self._results: list[Any] = []
        self._open = 0

    def lookup(self, key: bytes, req_context: Any) -> Any:
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = _Search(self._pool.find([self._pool.name(key)]), time.monotonic() + self._patience, set())
        search.requests.add(req_context.req_id)
        if not search.found.done() and time.monotonic() < search.until:
            return _offload.LookupResult.RETRY
        if search.found.done() and search.found.tensors:
            return _offload.LookupResult.HIT
        self._end(key)
        return _offload.LookupResult.MISS

    def _end(self, key: bytes) -> None:
        search = self._searches.pop(key, None)
        if search:
            search.found.release()

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(self._pool.store, job_metadata)

    def submit_load(self, job_metadata: Any) -> None:
        # The blocks are held until they are copied, so that they stay.
        self._submit(self._pool.read, job_metadata)

    def _submit(self, work: Any, job: Any) -> None:
        keys = [*job.keys]
        size = self._block_size_bytes
        began = time.monotonic()
        held = [block for key in keys if key in self._searches for block in self._searches[key].found.tensors]

        def done(count: int) -> None:
            result = _base.JobResult(job_id=job.job_id, success=count == len(keys), successful_keys=keys[:count] if job.is_promotion else None,
                                     transfer_time=time.monotonic() - began, transfer_bytes=count * size)
            held.clear()
            with self._lock:
                self._results.append(result)

        with self._lock:
            self._open += 1
        work([(self._pool.name(key), [self._rows[int(number)]]) for key, number in zip(keys, job.chunk_ids, strict=True)], done)

    def get_finished_jobs(self) -> Iterable[Any]:
        with self._lock:
            results, self._results = self._results, []
            self._open -= len(results)
        return results

    def has_pending_work(self) -> bool:
        with self._lock:
            return self._open > 0

    def on_new_request(self, req_context: Any) -> Any:
        return _offload.RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        for key, search in [*self._searches.items()]:
            search.requests.discard(req_context.req_id)
            if not search.requests:
                self._end(key)

    def drain_jobs(self) -> None:
        self._pool.flush()

    def shutdown(self) -> None:
        self._pool.close()
        self._rows = None  # the memory's owner wants it back
