# SPDX-License-Identifier: MIT
"""What check.py and bench.py share: the driver by ctypes, and another process that opens refs."""

import ctypes
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))

PEER = """
import json, pickle, sys, time
sys.path.insert(0, sys.argv[1])
import gpu
import tmesh.cuda
driver = gpu.Driver()
held = []
for line in sys.stdin:
    order = json.loads(line)
    if "torch" in order:
        start = time.perf_counter_ns()
        tensor = pickle.loads(bytes.fromhex(order["torch"]))
        print(json.dumps({"ns": time.perf_counter_ns() - start}), flush=True)
        del tensor
        continue
    start = time.perf_counter_ns()
    array = tmesh.cuda.open(order["ref"], writable=True)
    took = time.perf_counter_ns() - start
    answer = {"ns": took, "kind": array.kind}
    if order.get("read", True):
        answer["bytes"] = driver.read(array.pointer, min(array.nbytes, 64)).hex()
    if "copies" in order:
        target = tmesh.cuda.empty(array.nbytes, "uint8", alone=True)
        times = []
        for _ in range(order["copies"]):
            begin = time.perf_counter_ns()
            driver.copy(target.pointer, array.pointer, array.nbytes)
            times.append(time.perf_counter_ns() - begin)
        answer["copy_us"] = sorted(times)[len(times) // 2] / 1000
        target.release()
    if order.get("share"):
        answer["ref"] = tmesh.cuda.share(array)
    if "write" in order:
        driver.write(array.pointer, bytes.fromhex(order["write"]))
    if order.get("keep", True):
        held.append(array)
    else:
        array.release()
    print(json.dumps(answer), flush=True)
"""


class Driver:
    """The few calls of the driver that tests make themselves, in device 0's primary context."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def name(self):
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, 0)
        return text.value.decode()

    def version(self):
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return number.value

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def read(self, pointer, count):
        data = ctypes.create_string_buffer(count)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(count))
        return data.raw

    def write(self, pointer, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def copy(self, to, source, count):
        self.call("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(count))
        self.call("cuCtxSynchronize")


class Peer:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-P", "-c", PEER, HERE], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, ref, **order):
        return self.say(ref=ref, **order)

    def say(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the other process is gone")
        return json.loads(answer)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def missing():
    """Why there is nothing to do here, or None."""
    try:
        driver = Driver()
    except OSError as error:
        return f"there is no CUDA driver: {error}"
    except RuntimeError as error:
        return f"there is no usable GPU: {error}"
    if driver.name().startswith("stand-in") and not os.environ.get("TMESH_GPU_STANDIN"):
        return "the driver is a stand-in, which shows nothing about a GPU"
    return None


def seen_on(driver):
    version = driver.version()
    return f"{driver.name()}, driver API {version // 1000}.{version % 1000 // 10}, {time.strftime('%Y-%m-%d')}"
