# SPDX-License-Identifier: MIT
"""The process whose memory test_net.py, test_movers.py and test_fetcher.py read and write: net_target.py ENGINE NAME
FD. It executes the requests from the socket FD."""

from multiprocessing import Pipe
from multiprocessing.connection import Connection
import subprocess
import sys
import types

import numpy as np

import tmesh

# A wait that is longer than this has failed.
PATIENCE = 300


class Target:
    """The test's handle on such a process."""

    count = 0

    def __init__(self, engine):
        Target.count += 1
        self.asked, theirs = Pipe()
        self.process = subprocess.Popen([sys.executable, "-P", __file__, engine, f"target {Target.count}", str(theirs.fileno())],
                                        pass_fds=[theirs.fileno()])
        theirs.close()

    def __call__(self, what):
        self.asked.send(what)
        assert self.asked.poll(PATIENCE)
        return self.asked.recv()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.asked.close()


def without_ray(patch):
    """Replace Ray, which tmesh.movers only asks for the node's address."""
    util = types.ModuleType("ray.util")
    util.get_node_ip_address = lambda: "127.0.0.1"
    patch(sys.modules, "ray.util", util)


def mover(engine, name):
    """Return tmesh's module for an engine, and a function that registers memory with it."""
    if engine == "nixl":
        import tmesh.nixl as module
        from nixl_cu12._api import nixl_agent, nixl_agent_config
        agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        return module, lambda *tensors, **more: module.register(agent, *tensors, **more)
    from mooncake.engine import TransferEngine
    import tmesh.mooncake as module
    transfer = TransferEngine()
    assert transfer.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return module, lambda *tensors, **more: module.register(transfer, *tensors, host="127.0.0.1", **more)


def serve(asked, answers):
    while True:
        try:
            what = asked.recv()
        except EOFError:
            return
        asked.send(answers[what]())


def numbers():
    return tmesh.put(np.arange(1 << 16, dtype="uint32"))


def fetcher_answers():
    from tmesh import movers
    without_ray(dict.__setitem__)
    mover = movers.Fetcher()
    offer, registration = mover.offer([numbers()])
    return {
        "sealed": lambda: offer,
        "large": lambda: mover.offer([tmesh.put(bytes(64 << 20))])[0],
        "close": lambda: mover.close(registration),
    }


def engine_answers(engine, name):
    _, register = mover(engine, name)
    sealed = numbers()
    rows = tmesh.zeros((8, 1024), "float32")
    before = tmesh.stats()["bytes_copied"]
    reading, writing = register(sealed), register(rows, writable=True)
    return {
        "sealed": reading.offer,
        "rows": writing.offer,
        "close": reading.close,
        "dropped": lambda: register(numbers()).offer(),
        "values": lambda: (sealed.numpy().tolist() == list(range(1 << 16)), rows.numpy()[:, 0].tolist()),
        "copied": lambda: tmesh.stats()["bytes_copied"] - before,
    }


def main():
    engine, name, descriptor = sys.argv[1:]
    serve(Connection(int(descriptor)), fetcher_answers() if engine == "fetcher" else engine_answers(engine, name))


if __name__ == "__main__":
    main()
