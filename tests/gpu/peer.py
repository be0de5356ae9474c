# SPDX-License-Identifier: MIT
"""The other process of check.py and bench.py: a line of JSON on stdin is an order, a line on stdout its answer."""

import hashlib
import json
import os
import pickle
import sys
import time
import traceback

import gpu
import tmesh
import tmesh.cuda

driver = gpu.Driver()
frameworks = {}
held = []


def framework(name):
    if name not in frameworks:
        frameworks[name] = gpu.FRAMEWORKS[name]()
    return frameworks[name]


def make(order):
    """A producer: memory of its own, filled with a byte, that it keeps."""
    array = tmesh.cuda.empty(order["make"], "uint8", alone=order.get("alone", False))
    driver.write(array.pointer, bytes([order["fill"]]) * order["make"])
    driver.synchronize()
    held.append(array)
    return {"ref": tmesh.cuda.share(array)}


def digest(array):
    return {"digest": hashlib.sha256(driver.read(array.pointer, array.nbytes)).hexdigest()}


def keep(order):
    """Keep memory of random bytes under a name."""
    array = tmesh.cuda.empty(order["keep"], "uint8", alone=True)
    driver.write(array.pointer, os.urandom(order["keep"]))
    held.append(tmesh.cuda.keep(array, order["name"]))
    return digest(array)


def open_kept(order):
    held.append(tmesh.cuda.open_kept(order["kept"]))
    return digest(held[-1])


def unpickle(order):
    """What torch.multiprocessing sends."""
    import torch.multiprocessing  # registers what unpickles

    start = time.perf_counter_ns()
    tensor = pickle.loads(bytes.fromhex(order["pickled"]))
    took = time.perf_counter_ns() - start
    del tensor
    return {"ns": took}


def bandwidth(array, rounds):
    """us of a copy of all of it, by kernel and by driver, beside copies of memory of this process's own."""
    size = array.nbytes
    target, source = (tmesh.cuda.empty(size, "uint8", alone=True) for _ in range(2))
    times = {}
    for _ in range(rounds):
        for how, copy in (("kernel", driver.copy_by_kernel), ("driver", driver.copy)):
            for what, to, by in (("local", target, source), ("read", target, array), ("write", array, source)):
                start = time.perf_counter_ns()
                copy(to.pointer, by.pointer, size)
                times.setdefault(f"{how}_{what}", []).append(time.perf_counter_ns() - start)
    target.release()
    source.release()
    return {name: sorted(all_)[len(all_) // 2] / 1000 for name, all_ in times.items()}


def look(array, order):
    """By a framework."""
    by = framework(order["by"])
    view = by.view(array)
    answer = {"total": by.total(view)}
    if "value" in order:
        answer["written"] = by.fill(view, order["value"])
    driver.synchronize()
    return answer


def try_write(array, data):
    """Return the driver's error for a write to a mapping for reading. This process is of no use after it."""
    try:
        driver.write(array.pointer, data)
        driver.synchronize()
    except RuntimeError as error:
        return {"refused": str(error)}
    return {"refused": None}


def opened_by_c(order):
    """By the library's function, without the text that Python makes of a dict."""
    text = json.dumps(order["by_c"])
    start = time.perf_counter_ns()
    handle = tmesh._tmesh.cuda_open(text, True, -1, 0, 0)
    took = time.perf_counter_ns() - start
    handle.release()
    return {"ns": took}


def opened(order):
    start = time.perf_counter_ns()
    array = tmesh.cuda.open(order["ref"], writable=order.get("writable", True), lease=order.get("lease"))
    answer = {"ns": time.perf_counter_ns() - start, "kind": array.kind}
    if order.get("read", True):
        answer["bytes"] = driver.read(array.pointer, min(array.nbytes, 64)).hex()
    if "by" in order:
        answer.update(look(array, order))
    if "rounds" in order:
        answer.update(bandwidth(array, order["rounds"]))
    if order.get("share"):
        answer["ref"] = tmesh.cuda.share(array)
    if "write" in order:
        driver.write(array.pointer, bytes.fromhex(order["write"]))
        driver.synchronize()
    if "try_write" in order:
        answer.update(try_write(array, bytes.fromhex(order["try_write"])))
    if order.get("keep", True):
        held.append(array)
    else:
        array.release()
    return answer


def obey(order):
    if "ref" in order:
        return opened(order)
    if "by_c" in order:
        return opened_by_c(order)
    if "make" in order:
        return make(order)
    if "keep" in order and "name" in order:
        return keep(order)
    if "kept" in order:
        return open_kept(order)
    if "pickled" in order:
        return unpickle(order)
    if "taken" in order:
        return {"taken": held[-1].taken}
    if "warm" in order:
        by = framework(order["warm"])
        with tmesh.cuda.empty(1000, "int32") as array:
            driver.write(array.pointer, bytes(4000))
            return {"total": by.total(by.view(array))}
    raise ValueError(f"no such order: {order}")


def main():
    # Frameworks may print; answers go where they do not.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = obey(json.loads(line))
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    for array in held:
        array.release()


if __name__ == "__main__":
    main()
