# SPDX-License-Identifier: MIT
"""The common part of the stand-ins for frameworks: arrays in memory of the stand-in for the driver, whose addresses the
host can read and write."""

import ctypes

import numpy

runtime = ctypes.CDLL("libcudart.so.12", ctypes.RTLD_GLOBAL)
everybody = ctypes.CDLL(None)  # also what was preloaded
everybody.cudaFree.argtypes = [ctypes.c_void_p]


def malloc(size):
    pointer = ctypes.c_void_p()
    code = everybody.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    assert code == 0, f"cudaMalloc: {code}"
    return pointer.value


def free(pointer):
    everybody.cudaFree(pointer)


class Memory:
    """Memory that is released with the last array in it."""

    def __init__(self, size, malloc=malloc, free=free):
        self.size, self.free, self.pointer = size, free, malloc(size)

    def __del__(self):
        if getattr(self, "pointer", None):
            self.free(self.pointer)


def at(pointer, shape, dtype):
    """Return its bytes, as an array of NumPy's."""
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape))
    whole = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return numpy.frombuffer(whole, dtype, count).reshape(shape)
