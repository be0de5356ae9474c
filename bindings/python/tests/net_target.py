# SPDX-License-Identifier: MIT
"""The process whose memory is read and written in test_net.py: net_target.py ENGINE NAME FD. It does what is asked of
it by the socket FD."""

from multiprocessing.connection import Connection
import sys

import numpy as np

import tmesh


def mover(engine, name):
    """tmesh's module for an engine, and what registers memory with it."""
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


def main():
    engine, name, descriptor = sys.argv[1:]
    _, register = mover(engine, name)
    asked = Connection(int(descriptor))
    sealed = tmesh.put(np.arange(1 << 16, dtype="uint32"))
    rows = tmesh.zeros((8, 1024), "float32")
    before = tmesh.stats()["bytes_copied"]
    with register(sealed) as reading, register(rows, writable=True) as writing:
        while True:
            try:
                what = asked.recv()
            except EOFError:
                return
            asked.send({
                "sealed": reading.offer,
                "rows": writing.offer,
                "close": reading.close,
                "dropped": lambda: register(tmesh.put(np.arange(1 << 16, dtype="uint32"))).offer(),
                "values": lambda: (sealed.numpy().tolist() == list(range(1 << 16)), rows.numpy()[:, 0].tolist()),
                "copied": lambda: tmesh.stats()["bytes_copied"] - before,
            }[what]())


if __name__ == "__main__":
    main()
