# SPDX-License-Identifier: MIT
"""An array from one Ray actor to another on one machine, until the driver knows its first and last values. The
transports of tmesh, with the array in a region, stand beside Ray's object store. For PyTorch, Gloo stands beside them too, as
Ray's own transport. Ray's calls are in all.
"""

import json
import os
import shutil
import sys
import tempfile

import numpy as np

from harness import Series

try:
    import ray
    import torch
    import tmesh.ray
except ImportError as error:
    for count in "1MB", "100MB":
        for way in "numpy-tmesh", "numpy-store", "torch-tmesh", "torch-store", "torch-gloo":
            print(json.dumps({"topic": "ray", "name": f"{way}-{count}", "skip": f"{error}"}))
    sys.exit()

SIZES = {"1MB": (250_000, 200), "100MB": (25_000_000, 10)}
WARM_UP = 3


def actors(gloo):
    class Source:
        def __init__(self):
            torch.set_num_threads(1)
            self.own = {size: np.arange(count, dtype="float32") for size, (count, _) in SIZES.items()}
            self.torch = {size: torch.from_numpy(array) for size, array in self.own.items()}
            self.ours = {size: tmesh.put(array) for size, array in self.own.items()}
            self.over = {size: torch.from_dlpack(ours.dlpack(allow_readonly=True)) for size, ours in self.ours.items()}

        @ray.method(tensor_transport="tmesh_tensor")
        def numpy_tmesh(self, size):
            return self.ours[size]

        def numpy_store(self, size):
            return self.own[size]

        @ray.method(tensor_transport="tmesh")
        def torch_tmesh(self, size):
            return self.over[size]

        def torch_store(self, size):
            return self.torch[size]

        if gloo:
            @ray.method(tensor_transport="gloo")
            def torch_gloo(self, size):
                return self.torch[size]

    class Sink:
        def __init__(self):
            torch.set_num_threads(1)

        def see(self, array):
            if isinstance(array, tmesh.Tensor):
                array = array.numpy()
            return float(array[0]), float(array[-1])

    options = {"num_cpus": 0, "enable_tensor_transport": True}
    return ray.remote(**options)(Source).remote(), ray.remote(**options)(Sink).remote()


def main():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available() if hasattr(
        torch.distributed, "is_gloo_available") else torch.distributed.is_available()
    tmesh.ray.register()
    folder = tempfile.mkdtemp(prefix="tmesh-ray-", dir="/tmp")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=600 << 20, log_to_driver=False, logging_level="ERROR",
             _temp_dir=folder, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
    series = Series("ray")
    try:
        source, sink = actors(gloo)
        if gloo:
            from ray.experimental.collective import create_collective_group
            create_collective_group([source, sink], backend="torch_gloo")
        ways = ["numpy_tmesh", "numpy_store", "torch_tmesh", "torch_store", *(["torch_gloo"] if gloo else [])]
        for size, (count, rounds) in SIZES.items():
            for turn in range(-WARM_UP, rounds):
                for way in ways:
                    seen = series.time(f"{way.replace('_', '-')}-{size}",
                                       lambda: ray.get(sink.see.remote(getattr(source, way).remote(size)), timeout=60), turn >= 0)
                    assert seen == (0.0, float(np.float32(count - 1))), (way, seen)
            if not gloo:
                print(json.dumps({"topic": "ray", "name": f"torch-gloo-{size}", "skip": "this PyTorch has no Gloo"}))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    series.print()


if __name__ == "__main__":
    main()
