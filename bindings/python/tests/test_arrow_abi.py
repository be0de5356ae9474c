# SPDX-License-Identifier: MIT
"""A tensor's Arrow capsules, used as a consumer in C may use them."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int64, c_void_p

import tmesh
from conftest import assert_refused


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


Schema._fields_ = [("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p),
                   ("flags", c_int64), ("n_children", c_int64),
                   ("children", POINTER(POINTER(Schema))), ("dictionary", c_void_p),
                   ("release", CFUNCTYPE(None, POINTER(Schema))), ("private", c_void_p)]
Array._fields_ = [("length", c_int64), ("null_count", c_int64), ("offset", c_int64),
                  ("n_buffers", c_int64), ("n_children", c_int64), ("buffers", POINTER(c_void_p)),
                  ("children", POINTER(POINTER(Array))), ("dictionary", c_void_p),
                  ("release", CFUNCTYPE(None, POINTER(Array))), ("private", c_void_p)]


def capsules(tensor):
    """Return both capsules and their structures."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    schema, array = both = tensor.__arrow_c_array__()
    return (both, Schema.from_address(pointer(schema, b"arrow_schema")),
            Array.from_address(pointer(array, b"arrow_array")))


def moved(child):
    """Move the child elsewhere. The new owner releases it."""
    there = type(child).from_buffer_copy(child)
    child.release = type(child.release)()
    return there


def test_only_reads():
    t = tmesh.put(b"123456")
    both, *_ = capsules(t)
    t.seal()
    del both


def test_lists_that_are_too_long():
    for ask in (tmesh.empty((0, 1 << 31), "int8").__arrow_c_array__,
                tmesh.empty((0, 1 << 31), "int8").__arrow_c_schema__):
        assert_refused(ask, tmesh.UnsupportedError, "2147483647")


def test_releasing_all():
    t = tmesh.put(b"123456").reshape(1, 2, 3)
    both, schema, array = capsules(t)
    assert (schema.format, schema.children[0][0].format) == (b"+w:2", b"+w:3")
    assert_refused(t.release, tmesh.BusyError)
    schema.release(schema)
    array.release(array)
    assert not schema.release and not array.release
    t.release()
    del both


def test_a_moved_child_outlives_its_parent():
    t = tmesh.put(b"123456").reshape(1, 2, 3)
    both, schema, array = capsules(t)
    inner_schema, inner_array = moved(schema.children[0][0]), moved(array.children[0][0])
    schema.release(schema)
    array.release(array)
    assert_refused(t.release, tmesh.BusyError)
    numbers_schema, numbers = inner_schema.children[0][0], inner_array.children[0][0]
    assert inner_schema.format == b"+w:3" and numbers_schema.format == b"C"
    assert inner_array.length == 2 and numbers.length == 6
    assert ctypes.string_at(numbers.buffers[1], 6) == b"123456"
    inner_schema.release(inner_schema)
    inner_array.release(inner_array)
    t.release()
    del both
