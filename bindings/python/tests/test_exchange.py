# SPDX-License-Identifier: MIT
"""DLPack's exchange for C, called as by a C library; NumPy's older protocol."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_void_p

import numpy as np
import pytest

import tmesh
from conftest import ANY_BACKEND, assert_refused

pytestmark = ANY_BACKEND


class DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    pass


Managed._fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", c_void_p),
                    ("deleter", CFUNCTYPE(None, POINTER(Managed))), ("flags", ctypes.c_uint64),
                    ("tensor", DLTensor)]

SetError = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)


class Exchange(ctypes.Structure):
    """Call it with the GIL and with exceptions, since the caller is Python."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", c_void_p),
                ("allocate", ctypes.PYFUNCTYPE(c_int, POINTER(DLTensor), POINTER(POINTER(Managed)),
                                               c_void_p, SetError)),
                ("from_object", ctypes.PYFUNCTYPE(c_int, ctypes.py_object,
                                                  POINTER(POINTER(Managed)))),
                ("to_object", ctypes.PYFUNCTYPE(c_int, POINTER(Managed),
                                                POINTER(ctypes.py_object))),
                ("peek", ctypes.PYFUNCTYPE(c_int, ctypes.py_object, POINTER(DLTensor))),
                ("current_stream", ctypes.PYFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p)))]


def exchange():
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    capsule = tmesh.Tensor.__dlpack_c_exchange_api__
    return Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))


def managed_of(t):
    out = POINTER(Managed)()
    assert exchange().from_object(t, out) == 0
    return out


def test_version():
    assert (exchange().major, exchange().minor, exchange().previous) == (1, 3, None)
    with pytest.raises(TypeError):
        tmesh.Tensor.__dlpack_c_exchange_api__ = None


def test_from_object_is_a_view():
    t = tmesh.put(np.arange(6, dtype="int32").reshape(2, 3), seal=False)
    managed = managed_of(t)
    dl = managed.contents.tensor
    assert (dl.device_type, dl.ndim, dl.code, dl.bits, dl.lanes) == (1, 2, 0, 32, 1)
    assert dl.shape[:2] == [2, 3] and dl.strides[:2] == [3, 1] and dl.byte_offset == 0
    assert dl.data == t.numpy().ctypes.data and managed.contents.flags == 0
    assert_refused(t.release, tmesh.BusyError)
    managed.contents.deleter(managed)
    t.release()


def test_read_only_is_marked():
    t = tmesh.put([1.0], seal=True)
    managed = managed_of(t)
    assert managed.contents.flags == 1
    managed.contents.deleter(managed)


def test_peek_owns_nothing():
    t = tmesh.put(np.arange(6, dtype="int16").reshape(2, 3), seal=False)[:, ::2]
    dl = DLTensor()
    assert exchange().peek(t, dl) == 0
    assert dl.shape[:2] == [2, 2] and dl.strides[:2] == [3, 2] and dl.data == t.numpy().ctypes.data
    other = managed_of(tmesh.empty((7, 8, 9), "int8"))  # takes the place of the freed one
    assert dl.shape[:2] == [2, 2] and dl.strides[:2] == [3, 2]
    other.contents.deleter(other)
    assert_refused(lambda: exchange().peek(tmesh.put([1.0], seal=True), dl), tmesh.AccessError)
    t.release()
    assert_refused(lambda: exchange().peek(t, dl), tmesh.ReleasedError)


def test_to_object():
    t = tmesh.put([1.0, 2.0], seal=False)
    out, copies = ctypes.py_object(), tmesh.stats()["copies"]
    assert exchange().to_object(managed_of(t), out) == 0
    same = out.value
    assert same.id == t.id and same.writable and tmesh.stats()["copies"] == copies
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(same))
    del out


def test_what_is_not_ours_is_refused():
    out, dl = POINTER(Managed)(), DLTensor()
    for bad in (np.ones(3), None, tmesh.Tensor):
        assert_refused(lambda: exchange().from_object(bad, out), TypeError)
        assert_refused(lambda: exchange().peek(bad, dl), TypeError)
        assert not out


def prototype(shape, code=2, bits=32, device=1):
    return DLTensor(device_type=device, ndim=len(shape), code=code, bits=bits, lanes=1,
                    shape=(c_int64 * len(shape))(*shape))


def test_allocate():
    out = POINTER(Managed)()
    quiet = SetError(lambda context, kind, message: None)
    assert exchange().allocate(prototype([4, 5]), out, None, quiet) == 0
    dl = out.contents.tensor
    assert dl.shape[:2] == [4, 5] and (dl.code, dl.bits) == (2, 32)
    ctypes.memset(dl.data, 0, 80)
    made = ctypes.py_object()
    copies = tmesh.stats()["copies"]
    assert exchange().to_object(out, made) == 0
    t = made.value
    assert (t.shape, t.dtype) == ((4, 5), "float32") and tmesh.stats()["copies"] == copies
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(t))
    del made


def refused():
    """Make an allocation that is refused, for the test of leaks."""
    quiet = SetError(lambda context, kind, message: None)
    assert exchange().allocate(prototype([-1]), POINTER(Managed)(), None, quiet) == -1


@pytest.mark.parametrize("bad", [
    prototype([-1]), prototype([2], bits=7), prototype([2], code=99), prototype([2], device=2),
    prototype([1 << 40, 1 << 40]), prototype([1] * 9)])
def test_allocate_tells_what_is_wrong(bad):
    told, out = [], POINTER(Managed)()
    tell = SetError(lambda context, kind, message: told.append((kind, message)))
    assert exchange().allocate(bad, out, None, tell) == -1
    assert not out and len(told) == 1 and told[0][0] == b"BufferError" and told[0][1]


def test_no_streams_on_the_cpu():
    stream = c_void_p(5)
    assert exchange().current_stream(1, 0, stream) == 0 and stream.value is None


class Only:
    """An object with only the older protocol."""

    def __init__(self, t):
        self.__array_interface__ = t.__array_interface__


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32",
                                   "complex128"])
def test_array_interface(dtype):
    t = tmesh.put(np.arange(24).reshape(4, 6).astype(dtype), seal=False)
    for same in (t, t[1:3], t[:, ::-2], t[::-1], t[:0], t[0, 0]):
        array = np.asarray(Only(same))
        assert array.dtype == dtype and np.array_equal(array, same.numpy())
        assert array.ctypes.data == same.numpy().ctypes.data or not array.size


def test_array_interface_is_a_view():
    t = tmesh.put([1.0, 2.0], seal=False)
    array = np.asarray(Only(t))
    assert_refused(t.release, tmesh.BusyError)
    del array
    t.seal()
    array = np.asarray(Only(t))
    assert not array.flags.writeable
    del array
    t.release()
    assert_refused(lambda: t.__array_interface__, tmesh.ReleasedError)
    assert_refused(lambda: tmesh.empty(3, "bfloat16").__array_interface__, AttributeError, "bfloat16")
