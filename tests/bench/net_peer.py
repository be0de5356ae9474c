# SPDX-License-Identifier: MIT
"""The other movers of net_fetch.py, as they are without tmesh: net_peer.py nixl|mooncake home|reader ADDRESS BYTES.

A home prints a line with the place of its bytes, and ends with its input. A reader gets that as its first line. For
each further line it reads all bytes into fresh memory, as a fetched region is, and prints the nanoseconds that this
took."""

import base64
import ctypes
import json
import mmap
import os
import sys
import time


def say(line):
    print(f"> {line}", flush=True)


def memory(size):
    room = mmap.mmap(-1, size)
    return room, ctypes.addressof(ctypes.c_char.from_buffer(room))


def nixl(role, address, size):
    os.environ.setdefault("UCX_TLS", "tcp")
    from nixl_cu12._api import nixl_agent, nixl_agent_config
    agent = nixl_agent(f"{role}{os.getpid()}", nixl_agent_config(backends=["UCX"]))
    if role == "home":
        room, place = memory(size)
        room.write(os.urandom(1 << 20) * (size >> 20))
        agent.register_memory([(place, size, 0, "")], "DRAM")
        say(json.dumps([base64.b64encode(agent.get_agent_metadata()).decode(), place]))
        sys.stdin.read()
        os._exit(0)
    metadata, there = json.loads(sys.stdin.readline())
    peer = agent.add_remote_agent(base64.b64decode(metadata))
    say("ready")
    for _line in sys.stdin:
        started = time.perf_counter_ns()
        _room, place = memory(size)
        registered = agent.register_memory([(place, size, 0, "")], "DRAM")
        handle = agent.initialize_xfer("READ", agent.get_xfer_descs([(place, size, 0)], "DRAM"),
                                       agent.get_xfer_descs([(there, size, 0)], "DRAM"), peer)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state
        spent = time.perf_counter_ns() - started
        agent.release_xfer_handle(handle)
        agent.deregister_memory(registered)
        say(spent)
    os._exit(0)


def mooncake(role, address, size):
    from mooncake.engine import TransferEngine
    engine = TransferEngine()
    assert engine.initialize(address, "P2PHANDSHAKE", "tcp", "") == 0
    if role == "home":
        room, place = memory(size)
        room.write(os.urandom(1 << 20) * (size >> 20))
        assert engine.register_memory(place, size) == 0
        say(json.dumps([f"{address}:{engine.get_rpc_port()}", place]))
        sys.stdin.read()
        os._exit(0)
    peer, there = json.loads(sys.stdin.readline())
    say("ready")
    for _line in sys.stdin:
        started = time.perf_counter_ns()
        _room, place = memory(size)
        assert engine.register_memory(place, size) == 0
        assert engine.transfer_sync_read(peer, place, there, size) == 0
        spent = time.perf_counter_ns() - started
        engine.unregister_memory(place)
        say(spent)
    os._exit(0)


{"nixl": nixl, "mooncake": mooncake}[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
