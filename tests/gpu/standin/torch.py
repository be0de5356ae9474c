# SPDX-License-Identifier: MIT
"""A stand-in for PyTorch, to test the tests in tests/gpu: as much of its interface as they use, on
the stand-in for the driver. It shows nothing about PyTorch."""

import contextlib
import ctypes
import sys
import types

import numpy
import standin_array

__version__ = "stand-in"


class dtype:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"torch.{self.name}"


int32, uint8, float32 = dtype("int32"), dtype("uint8"), dtype("float32")
pool = None  # whose memory new tensors lie in


class Tensor:
    is_cuda = True

    def __init__(self, owner, pointer, shape, kind):
        self.owner, self.pointer, self.shape, self.dtype, self.device = owner, pointer, shape, kind, "cuda:0"
        self.values = standin_array.at(pointer, shape, kind.name)
        self.grad = None

    def is_conj(self):
        return False

    def is_neg(self):
        return False

    def data_ptr(self):
        return self.pointer

    def stride(self):
        return tuple(step // self.values.itemsize for step in self.values.strides)

    def fill_(self, value):
        self.values[...] = value
        return self

    def sum(self):
        return numpy.asarray(self.values.sum())

    def cpu(self):
        return self

    def numpy(self):
        return self.values

    def square(self):
        return self

    def mean(self):
        return self

    def backward(self):
        for parameter in self.made_of:
            parameter.grad = 1

    @property
    def data(self):
        return self

    def __reduce__(self):
        return rebuild, (self.shape,)


def rebuild(shape):
    return empty(*shape, dtype=uint8)


def empty(*shape, dtype=float32, device="cuda"):
    size = int(numpy.prod(shape)) * numpy.dtype(dtype.name).itemsize
    memory = pool.memory(size) if pool else standin_array.Memory(size)
    return Tensor(memory, memory.pointer, tuple(shape), dtype)


def full(shape, value, dtype=float32, device="cuda"):
    return empty(*shape, dtype=dtype).fill_(value)


def zeros(*shape, dtype=float32, device="cuda"):
    return full(shape, 0, dtype)


def randn(*shape, device="cuda"):
    return full(shape, 0.5)


def arange(count, dtype=int32, device="cuda"):
    return empty(count, dtype=dtype).fill_(numpy.arange(count))


def from_dlpack(array):
    array.__dlpack__(stream=1, max_version=(1, 0))
    return Tensor(array, array.pointer, array.shape, dtype(array.dtype))


class Pool:
    def __init__(self, plugin):
        self.plugin = plugin

    def memory(self, size):
        return standin_array.Memory(size, self.plugin.malloc, self.plugin.free)


class Plugin:
    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        self._malloc, self._free = getattr(library, malloc), getattr(library, free)
        self._malloc.restype = ctypes.c_void_p
        self._size = {}

    def allocator(self):
        return self

    def malloc(self, size):
        pointer = self._malloc(ctypes.c_ssize_t(size), 0, None)
        self._size[pointer] = size
        return pointer

    def free(self, pointer):
        self._free(ctypes.c_void_p(pointer), ctypes.c_ssize_t(self._size.pop(pointer)), 0, None)


@contextlib.contextmanager
def use_mem_pool(one):
    global pool
    pool = one
    yield
    pool = None


class Linear:
    def __init__(self, rows, columns, device="cuda"):
        self.weight = full((rows, columns), 1)

    def parameters(self):
        return [self.weight]

    def __call__(self, data):
        data.made_of = self.parameters()
        return data


class SGD:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        for parameter in self.parameters:
            parameter.values -= self.lr * parameter.grad


cuda = types.SimpleNamespace(
    is_available=lambda: True, synchronize=lambda: None, empty_cache=lambda: None,
    MemPool=Pool, use_mem_pool=use_mem_pool,
    memory=types.SimpleNamespace(CUDAPluggableAllocator=Plugin), current_device=lambda: 0,
    current_stream=lambda device=None: types.SimpleNamespace(cuda_stream=0),
    ipc_collect=lambda: None)
_C = types.SimpleNamespace(_cuda_cudaCachingAllocator_raw_alloc=lambda size, stream: standin_array.malloc(size),
                           _cuda_cudaCachingAllocator_raw_delete=standin_array.free)
nn = types.SimpleNamespace(Linear=Linear)
optim = types.SimpleNamespace(SGD=SGD)
multiprocessing = sys.modules["torch.multiprocessing"] = types.ModuleType("torch.multiprocessing")
