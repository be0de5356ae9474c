# SPDX-License-Identifier: MIT
"""Functions on GPU memory that the tests let workers run, with the kernels of the stand-in."""

import ctypes
import os

import tmesh.cuda

driver = ctypes.CDLL("libcuda.so.1")
driver.standin_access.restype = ctypes.c_bool
kept = []


def kernel(device, pointer, value=None):
    """Read the byte at `pointer`, or write `value`."""
    byte = ctypes.c_ubyte(value or 0)
    if not driver.standin_access(device, ctypes.c_uint64(pointer), ctypes.byref(byte), 1, value is not None):
        raise PermissionError("a kernel may not do that")
    return byte.value


def device(array):
    return int(array.device.partition(":")[2])


def fill(array, value):
    kernel(device(array), array.pointer, value)


def describe(array):
    return [type(array).__name__, array.device, array.dtype, list(array.shape), array.writable, array.kind,
            kernel(device(array), array.pointer)]


def make(shape, dtype, number, value):
    array = tmesh.cuda.empty(shape, dtype, number)
    fill(array, value)
    return {"a": [array], "pid": os.getpid()}


def snakepit(number):
    """Snakepit's own description of an array that nothing here keeps."""
    return {"__snakepit_zero_copy__": True, "kind": "dlpack", "device": f"cuda:{number}",
            "ref": tmesh.cuda.empty((2, 3), "int16", number)}


class Foreign:
    """An array like those of CuPy."""

    def __init__(self, pointer):
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (pointer, False), "version": 3}

    def __dlpack_device__(self):
        return (2, 0)


def foreign(value):
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
    kernel(0, pointer.value, value)
    return Foreign(pointer.value)


def keep():
    kept.append(tmesh.cuda.empty(4, "uint8"))
    return kept[0]


def hold(array):
    kept.append(array)


def held_ref():
    """As plain values, that others may write anew."""
    return [tmesh.cuda.share(kept[-1])]


def reclaim():
    kept[0].reclaim()


def pid():
    return os.getpid()
