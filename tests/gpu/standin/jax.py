# SPDX-License-Identifier: MIT
"""A stand-in for JAX, to test the tests in tests/gpu, on the stand-in for the driver. It shows nothing
about JAX."""

import ctypes
import sys
import types

import numpy as _numpy
import standin_array

__version__ = "stand-in"


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))


class Array:
    """An array whose DLPack capsule is the one that tmesh made of its memory."""

    def __init__(self, owner, pointer, shape, dtype):
        self.owner, self.values = owner, standin_array.at(pointer, shape, dtype)
        self.face = {"shape": shape, "typestr": self.values.dtype.str, "data": (pointer, True), "version": 3,
                     "strides": None, "stream": 2}

    @property
    def __cuda_array_interface__(self):
        return self.face

    def block_until_ready(self):
        return self

    def sum(self):
        return self.values.sum()


class Bfloat16(Array):
    @property
    def __cuda_array_interface__(self):
        raise AttributeError("no bfloat16 in there")

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None):
        shape = self.values.shape
        face = DLTensor(data=self.face["data"][0], device_type=2, ndim=1, code=4, bits=16, lanes=1)
        self.kept = face, (ctypes.c_int64 * 1)(*shape)
        face.shape = self.kept[1]
        return _capsule(ctypes.addressof(face), b"dltensor", None)


def devices(kind):
    return ["stand-in"]


def _new(kind, values, dtype):
    memory = standin_array.Memory(values.nbytes)
    array = kind(memory, memory.pointer, values.shape, dtype)
    array.values[...] = values
    return array


def _ones(count, dtype):
    return _new(Bfloat16, _numpy.full(count, 0x3f80, "uint16"), "uint16")


def _from_dlpack(array):
    array.__dlpack__(stream=1)
    return Array(array, array.pointer, array.shape, array.dtype)


numpy = types.SimpleNamespace(
    arange=lambda count, dtype: _new(Array, _numpy.arange(count, dtype=dtype), dtype), ones=_ones, bfloat16="bfloat16")
dlpack = sys.modules["jax.dlpack"] = types.ModuleType("jax.dlpack")
dlpack.from_dlpack = _from_dlpack
