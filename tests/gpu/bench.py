#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measurements that need an NVIDIA GPU. Skips, loudly, where there is none. Prints a table, with a peer
measured beside in the same run where there is one. On the stand-in (TMESH_GPU_STANDIN=1) it only
shows that it runs: the numbers are of a machine without a GPU, and say so."""

import ctypes
import statistics
import sys
import time
from multiprocessing.reduction import ForkingPickler

import gpu
import tmesh
import tmesh.cuda

rows = []


def row(name, value, unit, bound=None, note=""):
    rows.append((name, f"{value:.4g} {unit}", bound or "", note))


def timed(function, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def hand_over():
    for size in (4096, 1 << 20, 64 << 20):
        peer = gpu.Peer()
        array = tmesh.cuda.empty(size, "uint8")
        ref = tmesh.cuda.share(array)
        peer.ask(ref, read=False)
        again = statistics.median(peer.ask(ref, read=False)["ns"] for _ in range(200)) / 1000
        row(f"open what is open, {size} bytes", again, "us", "20 us")
        whole = []
        for _ in range(200):
            start = time.perf_counter_ns()
            ref = tmesh.cuda.share(array)
            whole.append((time.perf_counter_ns() - start + peer.ask(ref, read=False)["ns"]) / 1000)
        row(f"share and open what is open, {size} bytes", statistics.median(whole), "us", "20 us")
        fresh = []
        for _ in range(30):
            new = tmesh.cuda.empty(size, "uint8", alone=True)
            start = time.perf_counter_ns()
            ref = tmesh.cuda.share(new)
            fresh.append((time.perf_counter_ns() - start + peer.ask(ref, read=False, keep=False)["ns"]) / 1000)
            new.release()
        row(f"share and open a new block, {size} bytes", statistics.median(fresh), "us", "300 us")
        peer.kill()
        array.release()


def hand_over_by_torch():
    """torch.multiprocessing's CUDA IPC: each message is pickled anew, for it counts its readers so."""
    try:
        import torch
        import torch.multiprocessing  # what pickles its tensors
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    for size in (4096, 1 << 20, 64 << 20):
        peer = gpu.Peer()
        tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
        times = []
        for _ in range(200):
            start = time.perf_counter_ns()
            message = bytes(ForkingPickler.dumps(tensor)).hex()
            times.append((time.perf_counter_ns() - start + peer.say(torch=message)["ns"]) / 1000)
        row(f"torch.multiprocessing, first, {size} bytes", times[0], "us")
        row(f"torch.multiprocessing, again, {size} bytes", statistics.median(times[1:]), "us")
        peer.kill()


def allocator():
    ours = timed(lambda: tmesh.cuda.empty(1 << 20, "uint8").release(), 2000)
    row("allocate and free 1 MiB (through Python)", ours, "us")
    try:
        import torch
        if torch.cuda.is_available():
            theirs = timed(lambda: torch.empty(1 << 20, dtype=torch.uint8, device="cuda"), 2000)
            row("the same by PyTorch's caching allocator", theirs, "us", note=f"ratio {ours / theirs:.2f}, bound 1.5")
    except ImportError:
        pass


def bandwidth(driver):
    size = 64 << 20
    peer = gpu.Peer()
    source = tmesh.cuda.empty(size, "uint8", alone=True)
    target = tmesh.cuda.empty(size, "uint8", alone=True)
    local = timed(lambda: driver.copy(target.pointer, source.pointer, size), 50)
    row("copy on the device, local to local", 2 * size / local / 1e3, "GB/s")
    there = peer.ask(tmesh.cuda.share(source), read=False, copies=50)["copy_us"]
    row("the same, imported to local, in the other process", 2 * size / there / 1e3, "GB/s",
        note=f"ratio {local / there:.3f}, bound 0.98")
    peer.kill()
    tensor = tmesh.empty((size,), "uint8")
    tensor.numpy()[:] = 1
    with tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        # One address for both, as the driver knows it: where it is registered.
        ours = timed(lambda: driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(target.pointer),
                                         ctypes.c_void_p(array.pointer), ctypes.c_size_t(size)), 50)
    row("registered region to device", size / ours / 1e3, "GB/s")
    pinned = ctypes.c_void_p()
    driver.call("cuMemAllocHost_v2", ctypes.byref(pinned), ctypes.c_size_t(size))
    theirs = timed(lambda: driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(target.pointer), pinned,
                                       ctypes.c_size_t(size)), 50)
    row("cuMemAllocHost memory to device", size / theirs / 1e3, "GB/s",
        note=f"ratio {theirs / ours:.3f}, bound 0.95")
    driver.call("cuMemFreeHost", pinned)


def main():
    why = gpu.missing()
    if why:
        print(f"bench-gpu: NOTHING WAS MEASURED: {why}", file=sys.stderr)
        return 0
    driver = gpu.Driver()
    print(f"# {gpu.seen_on(driver)}")
    hand_over()
    hand_over_by_torch()
    allocator()
    if driver.name().startswith("stand-in"):
        print("# stand-in: these numbers are not about a GPU")
    else:
        bandwidth(driver)
    for name, value, bound, note in rows:
        print(f"{name:48} {value:>14}  {bound:8} {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
