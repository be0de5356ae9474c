#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The measurements that need an NVIDIA GPU: rows of a table, each with its bound and whether it was met. If there is a
peer, it is measured beside in the same run. steps.py runs them. On the stand-in they only show that they run: the
numbers are of a machine without a GPU, and say so.

usage: bench.py --one PART     that one, in this process; status 77: it says why it was skipped"""

import contextlib
import ctypes
import json
import os
import statistics
import sys
import time
import traceback
from multiprocessing.reduction import ForkingPickler

import gpu

# The measuring processes import it; the starting process needs no context.
tmesh = None
SKIPPED = 77
SIZES = (4096, 1 << 20, 64 << 20)
TIMES = 200
KEPT = 30  # repetitions when a call takes memory
label = ""


def row(name, value, unit, bound=None, good=None, note=""):
    verdict = "" if good is None else f"bound {bound}: {'met' if good else 'NOT MET'}"
    print(f"| {label}{name:56} | {value:>10.4g} {unit:5} | {verdict:26} | {note} |", flush=True)


def microseconds(function, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        function()
        times.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(times)


def in_turn(functions, rounds):
    """Return medians, in us, of functions that are called one after the other, so that a drift affects all."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, all_ in zip(functions, times):
            start = time.perf_counter_ns()
            function()
            all_.append((time.perf_counter_ns() - start) / 1000)
    return [statistics.median(all_) for all_ in times]


def shared_by_c(array):
    """Return us of the library's function, without the dict that Python makes of its text, and the ref."""
    start = time.perf_counter_ns()
    text = array._memory.share(0)
    took = (time.perf_counter_ns() - start) / 1000
    return took, json.loads(text)


def hand_over(driver):
    """Each half is timed by the process that does it: the pipe between them is not measured."""
    again = {}
    for size in SIZES:
        with gpu.Peer() as peer:
            array = tmesh.cuda.empty(size, "uint8")
            peer.ask(tmesh.cuda.share(array), read=False)
            whole, opened = [], []
            for _ in range(TIMES):
                start = time.perf_counter_ns()
                ref = tmesh.cuda.share(array)
                shared = (time.perf_counter_ns() - start) / 1000
                opened.append(peer.ask(ref, read=False, keep=False)["ns"] / 1000)
                whole.append(shared + opened[-1])
            again[size] = statistics.median(whole)
            row(f"share and open what is shared already, {size} bytes", again[size], "us", "20 us", again[size] < 20,
                f"of it opening {statistics.median(opened):.3g}")
            by_c = []
            for _ in range(TIMES):
                shared, ref = shared_by_c(array)
                by_c.append(shared + peer.say(by_c=ref)["ns"] / 1000)
            value = statistics.median(by_c)
            row(f"the same by the C functions, {size} bytes", value, "us", "20 us", value < 20)
            fresh = []
            for _ in range(KEPT):
                new = tmesh.cuda.empty(size, "uint8", alone=True)
                start = time.perf_counter_ns()
                ref = tmesh.cuda.share(new)
                shared = (time.perf_counter_ns() - start) / 1000
                fresh.append(shared + peer.ask(ref, read=False, keep=False)["ns"] / 1000)
                new.release()
            value = statistics.median(fresh)
            row(f"share and open a new allocation, {size} bytes", value, "us", "300 us", value < 300)
            array.release()
    row("the largest of them beside the smallest", again[SIZES[-1]] / again[SIZES[0]], "times")


def hand_over_by_torch(driver):
    """torch.multiprocessing's CUDA IPC: each message is pickled anew, for it counts its readers so."""
    torch = gpu.Torch().torch
    import torch.multiprocessing  # what pickles its tensors

    def send(tensor, peer):
        start = time.perf_counter_ns()
        message = bytes(ForkingPickler.dumps(tensor)).hex()
        took = time.perf_counter_ns() - start
        return (took + peer.say(pickled=message)["ns"]) / 1000

    for size in SIZES:
        with gpu.Peer() as peer:
            peer.say(warm="torch")
            tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
            first = send(tensor, peer)
            again = statistics.median(send(tensor, peer) for _ in range(TIMES))
            row(f"torch.multiprocessing, again, {size} bytes", again, "us", note=f"the first {first:.4g}")
            del tensor
            fresh = []
            for _ in range(KEPT):
                torch.cuda.ipc_collect()
                torch.cuda.empty_cache()
                tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
                torch.cuda.synchronize()
                fresh.append(send(tensor, peer))
                del tensor
            row(f"torch.multiprocessing, new allocation, {size} bytes", statistics.median(fresh), "us")


def allocator(driver):
    """The functions that PyTorch calls, as ctypes calls them, beside PyTorch's own as Python calls them."""
    size, rounds = 1 << 20, 2000
    plugin = ctypes.CDLL("libtmesh-cuda-torch.so")
    plugin.tmesh_torch_malloc.restype = ctypes.c_void_p
    length = ctypes.c_ssize_t(size)

    def ours():
        pointer = ctypes.c_void_p(plugin.tmesh_torch_malloc(length, 0, None))
        plugin.tmesh_torch_free(pointer, length, 0, None)

    getpid = ctypes.CDLL(None).getpid

    def nothing():
        ctypes.c_void_p(getpid(length, 0, None))
        getpid(None, length, 0, None)

    with keeping(plugin, length):
        mine, empty = in_turn([ours, nothing], rounds)
        row("allocate and free 1 MiB", mine, "us", note=f"of it calls by ctypes {empty:.3g}")
        torch = gpu.Torch().torch
        torch.zeros(1, device="cuda")
        # Below torch.cuda.caching_allocator_alloc(), of which most is Python.
        malloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
        free = torch._C._cuda_cudaCachingAllocator_raw_delete
        mine, theirs, empty = in_turn([ours, lambda: free(malloc(size, 0)), nothing], rounds)
        ratio = (mine - empty) / theirs
        row("the same by PyTorch's caching allocator", theirs, "us")
        row("ours, less calls by ctypes, beside it", ratio, "times", "1.5", ratio <= 1.5,
            f"ours {mine:.3g}, calls {empty:.3g}")


@contextlib.contextmanager
def keeping(plugin, length):
    """A block is already there, as in a program that allocates all the time."""
    pointer = ctypes.c_void_p(plugin.tmesh_torch_malloc(length, 0, None))
    yield
    plugin.tmesh_torch_free(pointer, length, 0, None)


def bandwidth(driver):
    """In the process that has imported it, by turns with that process's own memory."""
    size = 1 << 30 if not label else 1 << 20
    with gpu.Peer() as peer, tmesh.cuda.empty(size, "uint8", alone=True) as array:
        driver.write(array.pointer, bytes(size))
        took = peer.ask(tmesh.cuda.share(array), read=False, rounds=50)
    for how in ("kernel", "driver"):
        local = took[f"{how}_local"]
        row(f"copy by {how}, local to local", 2 * size / local / 1e3, "GB/s")
        for what, name in (("read", "imported to local"), ("write", "local to imported")):
            ratio = local / took[f"{how}_{what}"]
            row(f"copy by {how}, {name}", 2 * size / took[f"{how}_{what}"] / 1e3, "GB/s", "0.98", ratio >= 0.98,
                f"{ratio:.4f} of local")


def host_copies(driver):
    """A registered region's copy to the device, beside memory of cudaMallocHost()."""
    size = 64 << 20 if not label else 1 << 20
    tensor = tmesh.empty((size,), "uint8")
    tensor.numpy()[:] = 1
    pinned = ctypes.c_void_p()
    driver.call("cuMemAllocHost_v2", ctypes.byref(pinned), ctypes.c_size_t(size))
    ctypes.memset(pinned, 1, size)
    with tmesh.cuda.empty(size, "uint8", alone=True) as target, \
            tmesh.cuda.open(tensor.ref(writable=True), writable=True) as array:
        def copy(source):
            # One address for both, as the driver knows it: where it is registered.
            driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(target.pointer), source, ctypes.c_size_t(size))
            driver.synchronize()

        ours, theirs = in_turn([lambda: copy(ctypes.c_void_p(array.pointer)), lambda: copy(pinned)], 50)
    driver.call("cuMemFreeHost", pinned)
    row("cudaMallocHost memory to device", size / theirs / 1e3, "GB/s")
    row("registered region to device", size / ours / 1e3, "GB/s", "0.95", theirs / ours >= 0.95,
        f"{theirs / ours:.4f} of that")


# Each with its limit, in seconds.
PARTS = {"hand_over": (hand_over, 60), "hand_over_by_torch": (hand_over_by_torch, 120), "allocator": (allocator, 90),
         "bandwidth": (bandwidth, 60), "host_copies": (host_copies, 50)}
HEAD = ("Measured on WHERE:", "", "| what | value | bound | note |", "| --- | --- | --- | --- |")


def one(name):
    global label, tmesh
    import tmesh
    import tmesh.cuda

    try:
        driver = gpu.Driver()
        label = "stand-in, not about a GPU: " if driver.is_standin() else ""
        PARTS[name][0](driver)
    except gpu.Skip as reason:
        print(f"SKIP {reason}", flush=True)
        return SKIPPED
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(one(sys.argv[2]))
