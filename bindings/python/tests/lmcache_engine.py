# SPDX-License-Identifier: MIT
"""An engine's side of LMCache in test_lmcache.py: its StorageManager with tmesh.lmcache below, and the requests to it.

    lmcache_engine.py PARAMETERS store|fetch|die FIRST COUNT

Objects have numbers; an object's values identify it."""

import json
import os
import sys
import time

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import torch  # noqa: E402
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import (EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig,  # noqa: E402
                                           StorageManagerConfig)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig, get_l2_adapter_config_class  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402

LAYOUT = MemoryLayoutDesc([torch.Size([2, 4, 16, 64])], [torch.float16])
BYTES = 2 * 4 * 16 * 64 * 2
PATIENCE = 600


def keys(first, count, salt=""):
    return [ObjectKey(number.to_bytes(8, "big"), "model", 0, cache_salt=salt) for number in range(first, first + count)]


class Engine:
    def __init__(self, parameters):
        adapter = get_l2_adapter_config_class("plugin").from_dict({
            "type": "plugin", "module_path": "tmesh.lmcache", "class_name": "Adapter", "adapter_params": parameters})
        self.manager = StorageManager(StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(L1MemoryManagerConfig(size_in_bytes=16 << 20, use_lazy=False)),
            eviction_config=EvictionConfig("LRU"), l2_adapter_config=L2AdaptersConfig([adapter])))
        _, self.adapter = self.manager.l2_adapters()[0]
        self.asked = 0
        submit = self.adapter.submit_store_task

        def counted(keys, objects):
            task = submit(keys, objects)
            self.asked += len(keys)
            return task

        self.adapter.submit_store_task = counted

    def store(self, first, count, salt=""):
        """Store into L1. LMCache copies to L2 by itself; wait until that is done."""
        wanted, before = keys(first, count, salt), self.asked
        reserved = self.manager.reserve_write(wanted, LAYOUT)
        for number, key in enumerate(wanted, first):
            reserved[key].tensor.fill_(number + 1)
        self.manager.finish_write(wanted)
        self.until(lambda: self.asked >= before + count)
        self.adapter._worker.submit(int).result()

    def fetch(self, first, count, salt=""):
        """Load from L2 alone, and return the value of each object up to the first missing one."""
        self.manager.clear(force=True)
        wanted = keys(first, count, salt)
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(wanted, 0, LAYOUT)]))
        answer = self.until(lambda: self.manager.query_prefetch_status(handle))
        found = answer.l2_hit_cells[0].popcount()
        if not found:
            return []
        with self.manager.read_prefetched_results(wanted[:found]) as objects:
            values = [(float(one.tensor.min()), float(one.tensor.max())) for one in objects]
        assert all(low == high for low, high in values)
        return [int(low) - 1 for low, _ in values]

    def close(self):
        self.manager.close()

    @staticmethod
    def until(true):
        end = time.monotonic() + PATIENCE
        while not (answer := true()):
            assert time.monotonic() < end
            time.sleep(0.01)
        return answer


def main():
    parameters, what, first, count = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    engine = Engine(parameters)
    if what == "fetch":
        print(json.dumps(engine.fetch(first, count)), flush=True)
    else:
        engine.store(first, count)
        print(engine.adapter.report_status()["stored_object_count"], flush=True)
    if what == "die":
        time.sleep(PATIENCE)
    engine.close()


if __name__ == "__main__":
    main()
