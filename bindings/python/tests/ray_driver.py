# SPDX-License-Identifier: MIT
"""The program of test_ray_machines.py, on the first of two machines: ray_driver.py ADDRESS MOVER. It prints its
results, a line each after "> ", since Ray prints there too. It waits for a line where the test has to act."""

import os
import sys

import ray
import torch

import tmesh
import tmesh.ray

address, mover = sys.argv[1:]
tmesh.ray.register()
ray.init(address=address, log_to_driver=False, logging_level="ERROR",
         runtime_env={"worker_process_setup_hook": "tmesh.ray.register",
                      "env_vars": {"OMP_NUM_THREADS": "1", "TMESH_RAY_MOVER": mover, "UCX_TLS": "tcp", "UCX_LOG_LEVEL": "error",
                                   "NIXL_LOG_LEVEL": "FATAL"}})


def main():
    # Defined in a function, so that Ray pickles the classes themselves: its workers cannot import from this folder.
    class Source:
        @ray.method(tensor_transport="tmesh")
        def weights(self):
            return {"a": torch.arange(1 << 18, dtype=torch.int64).reshape(512, 512).t(), "b": torch.ones(3)}

        @ray.method(tensor_transport="tmesh_tensor")
        def native(self):
            return tmesh.put(torch.arange(12, dtype=torch.float32).reshape(3, 4).numpy())

        def boot(self):
            return tmesh.ray._boot()

        def pid(self):
            return os.getpid()

        def call(self, function):
            return function()

    class Sink(Source):
        def see(self, value):
            from tmesh import movers
            same = value["a"].stride() == (1, 512) and bool((value["a"].t().reshape(-1) == torch.arange(1 << 18)).all())
            return same and value["b"].tolist() == [1, 1, 1], sorted(movers._known)

        def hold(self, value):
            self.value = value

        def held(self):
            return self.see(self.value)

        def tensor(self, value):
            return value.sealed and value.numpy().tolist() == torch.arange(12.0).reshape(3, 4).tolist()

    def refused(sink, ref):
        try:
            return ray.get(sink.see.remote(ref))
        except Exception as error:
            error = getattr(error, "cause", error)
            return f"{type(error).__name__} {getattr(error, 'strerror', error)}"

    def spoil():
        from tmesh import fetcher
        read, fetcher.read = fetcher.read, lambda source: {**read(source), "key": "0123456789abcdef"}
        fetcher.spoiled = read

    def mend():
        from tmesh import fetcher
        fetcher.read = fetcher.spoiled

    def withdraw():
        from tmesh import movers
        for offer, _ in movers._known["fetcher"]._offered.values():
            offer.withdraw()

    def by_the_fetcher(source, sink):
        """Check the fetcher's errors with another object."""
        ref = source.weights.remote()
        ray.get(sink.call.remote(spoil))
        print(">", "wrong key", refused(sink, ref).split()[0], flush=True)
        ray.get(sink.call.remote(mend))
        ray.get(source.call.remote(withdraw))
        print(">", "withdrawn", refused(sink, ref).split()[0], flush=True)
        absent = ray.remote(**options)(Sink).options(resources={"first": 1}, runtime_env={"env_vars": {
            "TMESH_RAY_MOVER": mover, "TMESH_NET_LIBRARY": "/nowhere.so"}}).remote()
        print(">", "absent", refused(absent, ref), flush=True)
        ray.kill(absent)

    options = {"num_cpus": 0, "enable_tensor_transport": True}
    source = ray.remote(**options)(Source).options(resources={"second": 1}).remote()
    sink = ray.remote(**options)(Sink).options(resources={"first": 1}).remote()
    print(">", "apart", ray.get(source.boot.remote()) != ray.get(sink.boot.remote()), flush=True)
    ref = source.weights.remote()
    print(">", "torch", *ray.get(sink.see.remote(ref)), flush=True)
    print(">", "tmesh", ray.get(sink.tensor.remote(source.native.remote())), flush=True)
    if mover == "fetcher":
        by_the_fetcher(source, sink)
        ref = source.weights.remote()
    ray.get(sink.hold.remote(ref))
    late = source.weights.remote()
    ray.wait([late], fetch_local=False)
    print(">", "source", ray.get(source.pid.remote()), flush=True)
    sys.stdin.readline()
    print(">", "held", *ray.get(sink.held.remote()), flush=True)
    try:
        ray.get(sink.see.remote(late))
        print(">", "late came", flush=True)
    except Exception as error:
        print(">", "late", type(error).__name__, flush=True)


main()
sys.stdout.flush()
os._exit(0)  # NIXL's UCX sometimes aborts at exit
