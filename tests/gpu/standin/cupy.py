# SPDX-License-Identifier: MIT
"""A stand-in for CuPy, to test the tests in tests/gpu, on the stand-in for the driver. It shows nothing
about CuPy."""

import types

import numpy
import standin_array

__version__ = "stand-in"


class ndarray:
    def __init__(self, owner, pointer, shape, dtype):
        self.owner, self.values = owner, standin_array.at(pointer, shape, dtype)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": self.values.dtype.str, "data": (pointer, False),
                                         "version": 3, "strides": None, "stream": 1}

    def fill(self, value):
        self.values[...] = value

    def sum(self):
        return self.values.sum()


def asarray(array):
    face = array.__cuda_array_interface__
    return ndarray(array, face["data"][0], face["shape"], face["typestr"])


def arange(count, dtype):
    memory = standin_array.Memory(count * numpy.dtype(dtype).itemsize)
    array = ndarray(memory, memory.pointer, (count,), dtype)
    array.fill(numpy.arange(count))
    return array


cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=lambda: 2))
