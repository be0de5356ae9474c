# SPDX-License-Identifier: MIT
"""A KV connector of vLLM: all engines of a user share what they computed of a prompt.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "Connector", "kv_connector_module_path": "tmesh.vllm.connector",
        "kv_role": "kv_both", "kv_connector_extra_config": {"key_file": "/var/lib/llm/tenant.key", "max_bytes": 8589934592}}'

A block is found by vLLM's own hash of its tokens, under the tenant's key (tmesh.kv_pool). The keys of the extra configuration:

key_file   The tenant's key of 32 bytes. It is made if there is no such file.
max_bytes  The limit of the tenant's blocks, of all engines together. By default the keeper's limit alone counts.
patience   A request waits so many seconds for a search, by default 0.2.

If blocks cannot be had, the engine computes them. It also computes all blocks of requests with LoRA: vLLM's hashes name an adapter,
and not its contents."""

from __future__ import annotations

from collections import Counter
import dataclasses
import hashlib
import importlib
import json
import os
import threading
import time
from typing import Any

from ..errors import InvalidError, UnsupportedError
from ..interop import load
from ..kv_pool import Found, Pool, identity_of
from ..tenant import read_key
from . import _PACKAGE, VERSION
from . import generation as _generation

__all__ = ["Connector"]

_base: Any
_parallel: Any
_vllm: Any
_base, _parallel, _vllm = load(_PACKAGE, VERSION, {
    "vllm.distributed.kv_transfer.kv_connector.v1.base": "KVConnectorBase_V1 KVConnectorMetadata KVConnectorRole",
    "vllm.distributed": "get_tensor_model_parallel_rank", "vllm": "__version__"})

_KEYS = {"key_file", "max_bytes", "patience"}

#: The number of events in the connectors of this process, by name.
counts: Counter[str] = Counter()


@dataclasses.dataclass
class Metadata(_base.KVConnectorMetadata):  # type: ignore[misc]
    """One step's work for the workers: blocks to load for each request, and blocks to store after the step."""

    loads: list[tuple[str, list[tuple[int, bytes]]]] = dataclasses.field(default_factory=list)
    stores: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)
    space: bytes = b""


@dataclasses.dataclass
class _Request:
    """A request in the scheduler."""

    request: Any
    blocks: list[int]
    stored: int  # its first blocks, which need not be stored


@dataclasses.dataclass
class _Search:
    start: int  # in blocks
    found: Found
    until: float


def folder_of(model: str, revision: str | None, cache: str | None) -> str:
    """Return the folder of a model's files, as vLLM's loader finds it: a path, or a snapshot in the cache of the hub. UnsupportedError: there is none."""
    if os.path.isdir(model):
        return model
    folder: str | None
    try:
        folder = importlib.import_module("huggingface_hub").snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True)
    except (ImportError, OSError, ValueError) as problem:
        # vLLM does not download all files of a snapshot, and newer versions of the hub report that.
        folder = getattr(problem, "snapshot_path", None)
    if not folder or not os.path.isdir(folder):
        raise UnsupportedError(95, f"tmesh.vllm: the files of the model {model!r} are neither a folder nor a snapshot in the hub's cache: "
                                   "start the engine with the folder's path")
    return folder


def space_of(folder: str, *parts: object) -> bytes:
    """Return bytes that differ if the same tokens give other contents of a block: by the version of vLLM, the identity of the
    model's files, and all parts."""
    return hashlib.sha256(json.dumps(["vllm", _vllm.__version__, identity_of(folder), *parts], sort_keys=True, default=str).encode()).digest()


class Connector(_base.KVConnectorBase_V1):  # type: ignore[misc]
    """The connector; vLLM makes one in the scheduler and one in each worker."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        unknown = set(extra) - _KEYS
        if unknown:
            raise InvalidError(22, f"tmesh.vllm.connector: unknown keys {', '.join(sorted(map(repr, unknown)))}; known are {', '.join(sorted(_KEYS))}")
        path, patience = extra.get("key_file"), extra.get("patience", .2)
        if not isinstance(path, str) or not path:
            raise InvalidError(22, "tmesh.vllm.connector: key_file is missing: where the tenant's key is, or is to be made")
        if type(patience) not in (int, float) or not 0 <= patience < 1e9:
            raise InvalidError(22, f"tmesh.vllm.connector: patience is {patience!r}: a number of seconds")
        groups = len(kv_cache_config.kv_cache_groups)
        if groups != 1:
            raise UnsupportedError(95, f"tmesh.vllm.connector: the model has {groups} groups of KV caches: use --disable-hybrid-kv-cache-manager")
        if vllm_config.parallel_config.pipeline_parallel_size != 1:
            raise UnsupportedError(95, "tmesh.vllm.connector: it has never run with pipeline parallelism: use one stage")
        self._block_size = vllm_config.cache_config.block_size
        self._patience = patience
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
        folder = folder_of(model.model, model.revision, vllm_config.load_config.download_dir)
        self._space = space_of(folder, model.hf_config.to_dict(), str(model.dtype), model.quantization, str(cache.cache_dtype), cache.block_size,
                               kv_cache_config.kv_cache_layout, parallel.tensor_parallel_size)
        self._pool = Pool(read_key(path), self._space, max_bytes=extra.get("max_bytes"))
        self._scheduling = role == _base.KVConnectorRole.SCHEDULER
        # A block may be gone when a worker reads it. Such a request is computed, and does not fail.
        if self._scheduling:
            self._kv_transfer_config.kv_load_failure_policy = "recompute"
        self._requests: dict[str, _Request] = {}
        self._searches: dict[str, _Search] = {}
        self._held: dict[str, Found] = {}
        self._loads: list[tuple[str, list[tuple[int, bytes]]]] = []
        # Requests that have loaded blocks. They do not search again: the load may have failed, and would fail for ever.
        self._done: set[str] = set()
        # Of a worker.
        self._layers: list[Any] = []
        self._rank = 0
        # The space of a worker whose weights were updated: no other worker has the same blocks.
        self._own = os.urandom(32)
        self._lock = threading.Lock()
        self._finished: set[str] = set()
        self._failed: set[int] = set()

    # The scheduler's side.

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a block that is not stored is a later miss. With True vLLM would drop the last tokens of a request that it preempts."""
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.lora_request:
            return 0, False
        start = num_computed_tokens // self._block_size
        # The last token is computed in any case.
        hashes = request.block_hashes[start:(request.num_tokens - 1) // self._block_size]
        search = self._searches.get(request.request_id)
        if search and search.start != start:
            self._end_search(request.request_id)
            search = None
        if not hashes or num_computed_tokens % self._block_size or request.request_id in self._done:
            return 0, False
        if not search:
            counts["searches"] += 1
            names = [[self._pool.name(one, rank) for rank in range(self._ranks)] for one in hashes]
            search = _Search(start, self._pool.find(names), time.monotonic() + self._patience)
            self._searches[request.request_id] = search
        if not search.found.done():
            if time.monotonic() < search.until:
                return None, False
            counts["impatient"] += 1
            self._end_search(request.request_id)
            # Do not search again for this request: it is scheduled now.
            search = self._searches[request.request_id] = _Search(start, Found(), 0.0)
        blocks = len(search.found.tensors) // self._ranks
        return blocks * self._block_size, blocks > 0

    def _end_search(self, request_id: str) -> None:
        search = self._searches.pop(request_id, None)
        if search:
            search.found.release()

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if request.lora_request:
            return
        name = request.request_id
        search = self._searches.pop(name, None)
        ids = blocks.get_block_ids()[0]
        if search and num_external_tokens:
            count = num_external_tokens // self._block_size
            first = search.start
            self._loads.append((name, list(zip(ids[first:first + count], request.block_hashes[first:first + count], strict=True))))
            # The blocks stay while they are held.
            self._held[name] = search.found
            self._done.add(name)
            counts["loaded_tokens"] += num_external_tokens
        elif search:
            search.found.release()
        if name not in self._requests:
            self._requests[name] = _Request(request, [*ids], 0)
        one = self._requests[name]
        one.blocks = [*ids]
        if search and num_external_tokens:
            one.stored = max(one.stored, search.start + num_external_tokens // self._block_size)

    def build_connector_meta(self, scheduler_output: Any) -> Metadata:
        meta = Metadata(loads=self._loads, space=self._space)
        self._loads = []
        cached = scheduler_output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._requests:
                self._requests[new.req_id].blocks = [*new.block_ids[0]]
        for name, ids, done in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            computed[name] = done
            if name in self._requests and ids is not None:
                one = self._requests[name]
                one.blocks = [*ids[0]] if name in cached.resumed_req_ids else [*one.blocks, *ids[0]]
        for name, before in computed.items():
            mine = self._requests.get(name)
            if not mine:
                continue
            self._held.pop(name, None)
            end = (before + scheduler_output.num_scheduled_tokens.get(name, 0)) // self._block_size
            # Only tokens that are accepted have a hash.
            end = min(end, len(mine.request.block_hashes), len(mine.blocks))
            meta.stores += zip(mine.blocks[mine.stored:end], mine.request.block_hashes[mine.stored:end])
            mine.stored = max(mine.stored, end)
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        for name in connector_output.finished_recving or ():
            self._held.pop(name, None)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._end_search(request.request_id)
        self._requests.pop(request.request_id, None)
        self._done.discard(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Find no older block any more: vLLM calls this when weights have changed. Other engines do not know the new
        weights, so this one's blocks are its own from now on."""
        self._space = hashlib.sha256(self._space + os.urandom(16)).digest()
        self._pool.change_space(self._space)
        for name in [*self._searches]:
            self._end_search(name)
        for one in self._requests.values():
            one.stored = 1 << 60  # its blocks are of older weights, in part
        return True

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._rank = _parallel.get_tensor_model_parallel_rank()
        blocks = self._kv_cache_config.num_blocks
        layers: dict[int, Any] = {}
        for name, layer in sorted(kv_caches.items()):
            if not hasattr(layer, "data_ptr") or layer.shape[0] != blocks:
                raise UnsupportedError(95, f"tmesh.vllm.connector: the KV cache of {name} is no tensor with {blocks} blocks; run this model without it")
            layers.setdefault(layer.data_ptr(), layer)
        self._layers = [*layers.values()]

    def _use(self, space: bytes) -> None:
        """Use the scheduler's space. After an update of weights a worker uses its own: blocks that the scheduler has found are then
        not there, and are computed."""
        if _generation.current():
            space = self._own
        if space != self._space:
            self._space = space
            self._pool.change_space(space)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        self._use(meta.space)
        for request_id, blocks in meta.loads:
            jobs = [(self._pool.name(block_hash, self._rank), [layer[number] for layer in self._layers]) for number, block_hash in blocks]

            def done(count: int, request_id: str = request_id, blocks: list[tuple[int, bytes]] = blocks) -> None:
                with self._lock:
                    self._finished.add(request_id)
                    self._failed.update(number for number, _ in blocks[count:])
                counts["loaded_blocks"] += count
                counts["failed_blocks"] += len(blocks) - count

            self._pool.read(jobs, done)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return at once: a request is scheduled when all of its blocks are loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: wait_for_save() copies all layers of a block together."""

    def wait_for_save(self) -> None:
        meta = self._get_connector_metadata()
        if _generation.current():
            return  # no scheduler would find them
        self._use(meta.space)
        counts["stored_blocks"] += self._pool.put_rows([(self._pool.name(one, self._rank), number) for number, one in meta.stores], self._layers)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        with self._lock:
            finished, self._finished = self._finished, set()
        return None, finished or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        with self._lock:
            failed, self._failed = self._failed, set()
        return failed

    def shutdown(self) -> None:
        """Wait until the blocks that were copied are kept, and hold no more."""
        self._pool.close()
        for name in [*self._searches]:
            self._end_search(name)
        for found in self._held.values():
            found.release()
        self._held.clear()
